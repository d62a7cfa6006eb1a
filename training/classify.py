"""Training of verify and categorise: packed sequences, a token budget, the label words' rows only."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from training.common import (
    ProgressLog,
    TrainConfig,
    add_lora,
    compile_decoder_layers,
    find_data,
    load_base,
    load_config,
    open_base,
    resolve_training_base,
    sample_limited,
)
from training.data import ClassifySample, Diluter, classify_samples, load_teacher_turns, sample_id
from training.hardware import check_lengths, is_first_process, place, processes, trainer_options
from vista_local.chat import STAGE_LABELS, ChatEncoder
from vista_local.packing import collate


class SampleDataset(Dataset[ClassifySample]):
    """Packed turns in memory."""

    def __init__(self, samples: Sequence[ClassifySample]) -> None:
        self.samples = list(samples)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> ClassifySample:
        return self.samples[index]


class TokenBudgetSampler(Sampler[list[int]]):
    """Batches of like length whose padded size stays within a token budget.

    A sample longer than the budget is a batch of its own: nothing is dropped or cut. The order
    depends on seed and epoch alone.
    """

    def __init__(self, lengths: Sequence[int], budget: int, seed: int, pool: int = 400, multiple: int = 1) -> None:
        """`multiple` processes share the batches: the first ones come again until all have equally many."""
        self.lengths, self.budget, self.seed, self.pool, self.epoch = list(lengths), budget, seed, pool, 0
        self.multiple = multiple
        if multiple > 1:
            self.sampler = self  # where accelerate, having split the batches, looks for `set_epoch`

    def set_epoch(self, epoch: int) -> None:
        """Choose the shuffle of an epoch (called by Trainer)."""
        self.epoch = epoch

    def batches(self) -> list[list[int]]:
        """The batches of the current epoch."""
        rng = random.Random(f"{self.seed}/{self.epoch}")
        order = list(range(len(self.lengths)))
        rng.shuffle(order)
        batches: list[list[int]] = []
        for start in range(0, len(order), self.pool):
            current: list[int] = []
            for index in sorted(order[start : start + self.pool], key=lambda i: self.lengths[i]):
                if current and self.lengths[index] * (len(current) + 1) > self.budget:
                    batches.append(current)
                    current = []
                current.append(index)
            if current:
                batches.append(current)
        rng.shuffle(batches)
        # A process that runs out of batches before the others would leave them waiting for ever.
        return batches + [batches[i % len(batches)] for i in range(-len(batches) % self.multiple)]

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches())

    def __len__(self) -> int:
        return len(self.batches())


def use_label_rows(model: Any, label_ids: Sequence[int]) -> None:
    """Replace the output matrix by the rows of the label words, so that logits are [B, L, labels]."""
    rows = model.get_output_embeddings().weight.detach()[list(label_ids)].clone()
    head = nn.Linear(rows.shape[1], rows.shape[0], bias=False, dtype=rows.dtype, device=rows.device)
    head.weight = nn.Parameter(rows, requires_grad=False)
    model.config.tie_word_embeddings = False
    model.lm_head = head


class PackedCollator:
    """Packed samples to model inputs; labels are the answer of each branch, in order."""

    def __init__(self, pad_id: int, dtype: torch.dtype) -> None:
        self.pad_id, self.dtype = pad_id, dtype

    def __call__(self, samples: list[ClassifySample]) -> dict[str, torch.Tensor]:
        batch = collate([s.sequence for s in samples], self.pad_id, self.dtype)
        return {
            "input_ids": batch.input_ids,
            "position_ids": batch.position_ids,
            "attention_mask": batch.attention_mask,
            "read_rows": batch.read_rows,
            "read_columns": batch.read_columns,
            "labels": torch.tensor([answer for s in samples for answer in s.labels]),
        }


class PackedTrainer(Trainer):
    """`Trainer` over packed turns with class-weighted cross-entropy on the label words."""

    def __init__(self, *args: Any, batch_sampler: TokenBudgetSampler, class_weights: torch.Tensor, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._batch_sampler = batch_sampler
        self._class_weights = class_weights
        if self.args.gradient_accumulation_steps > 1:
            # The loss is a mean over its own batch: Trainer has to divide the sum by the number of batches.
            self.model_accepts_loss_kwargs = False

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Batches by token budget instead of by count."""
        loader: DataLoader[Any] = DataLoader(
            self.train_dataset,  # type: ignore[arg-type]
            batch_sampler=self._batch_sampler,
            collate_fn=self.data_collator,
        )
        prepared: DataLoader[Any] = self.accelerator.prepare(loader)
        return prepared

    def compute_loss(
        self, model: Any, inputs: dict[str, torch.Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Weighted mean over the claims of the batch."""
        labels, rows, columns = (inputs.pop(k) for k in ("labels", "read_rows", "read_columns"))
        outputs = model(**inputs)
        logits = outputs.logits[rows, columns].float()
        loss = nn.functional.cross_entropy(logits, labels, weight=self._class_weights.to(logits.device))
        return (loss, outputs) if return_outputs else loss


def class_weights(samples: Sequence[ClassifySample], classes: int) -> torch.Tensor:
    """Inverse square root of each class's frequency, scaled to a mean of one over the samples."""
    counts = Counter(label for s in samples for label in s.labels)
    total = sum(counts.values())
    weights = torch.tensor([1 / math.sqrt(max(counts[c], 1)) for c in range(classes)])
    mean = sum(float(weights[c]) * counts[c] for c in range(classes)) / total
    return weights / mean


def build_training_samples(config: TrainConfig, encoder: ChatEncoder) -> list[ClassifySample]:
    """The recipe's training samples, in file order; the same for the same seed."""
    rng = random.Random(config.seed)
    files = {name: load_teacher_turns(find_data(config, name)) for name in config.train}
    diluter = Diluter([t for turns in files.values() for t in turns])
    seen = {s.id for recipe in config.unseen_by for s in build_training_samples(load_config(recipe), encoder)}
    samples = []
    for name, turns in files.items():
        labels = config.only_with.get(name)
        wanted = [t for t in turns if labels is None or any(label.value in labels for _, label in t.claims)]
        unseen = [t for t in wanted if sample_id(t) not in seen]
        samples.extend(
            classify_samples(
                sample_limited(unseen, config.limits.get(name), rng),
                config.stage,
                encoder,
                rng=rng,
                diluter=diluter,
                dilute_share=config.dilute_share,
                dilute_sentences=config.dilute_sentences,
                drop_context=config.drop_context,
            )
        )
    return samples


def train(config: TrainConfig, out: Path) -> dict[str, Any]:
    """Train one classifying adapter into `out/adapter`, resuming from `out`'s last checkpoint.

    Returns:
        What the manifest records of the run: steps, tokens, minutes, final loss.
    """
    torch.set_num_threads(config.threads)
    device, dtype = place(config)
    base = resolve_training_base(config)
    encoder, longest = open_base(base)
    label_words = encoder.label_words(config.stage)
    samples = build_training_samples(config, encoder)
    lengths = [len(s.sequence) for s in samples]
    check_lengths(lengths, longest)
    model, tokenizer = load_base(base, dtype, config, device)
    use_label_rows(model, encoder.label_ids(list(label_words.values())))
    peft_model = add_lora(model, config)
    if config.compile_layers and device.type == "cpu":
        compile_decoder_layers(peft_model)
    sampler = TokenBudgetSampler(lengths, config.token_budget, config.seed, multiple=processes())
    batches_a_step = processes() * config.gradient_accumulation_steps
    planned = math.ceil(round(config.epochs * len(sampler)) / batches_a_step)
    steps = config.max_steps if config.max_steps > 0 else planned
    if is_first_process():
        print(
            f"{config.stage}: {len(samples)} turns, {sum(len(s.labels) for s in samples)} claims, "
            f"{sum(lengths)} tokens, {len(sampler)} batches an epoch, {steps} steps, {dtype} on {device}",
            flush=True,
        )
    arguments = TrainingArguments(
        output_dir=str(out),
        max_steps=steps,
        learning_rate=config.learning_rate,
        warmup_steps=max(1, round(config.warmup_ratio * steps)),
        lr_scheduler_type="linear",
        weight_decay=config.weight_decay,
        max_grad_norm=1.0,
        logging_steps=5,
        save_steps=config.save_steps,
        save_total_limit=2,
        seed=config.seed,
        report_to=[],
        remove_unused_columns=False,
        label_names=["labels"],
        bf16=False,  # the base's own dtype decides; LoRA weights stay fp32
        disable_tqdm=True,
        dataloader_num_workers=0,
        accelerator_config={"even_batches": False},
        **{"optim": "adamw_torch"} | trainer_options(config, device),
    )
    trainer = PackedTrainer(
        model=peft_model,
        args=arguments,
        train_dataset=SampleDataset(samples),
        data_collator=PackedCollator(tokenizer.pad_token_id or 0, dtype),
        batch_sampler=sampler,
        class_weights=class_weights(samples, len(STAGE_LABELS[config.stage])),
        callbacks=[ProgressLog()],
    )
    last = get_last_checkpoint(str(out)) if out.is_dir() else None
    result = trainer.train(resume_from_checkpoint=last)
    if is_first_process():
        peft_model.save_pretrained(str(out / "adapter"), save_embedding_layers=False)
    return {
        "steps": trainer.state.global_step,
        "turns": len(samples),
        "claims": sum(len(s.labels) for s in samples),
        "tokens_per_epoch": sum(lengths),
        "minutes": round(result.metrics["train_runtime"] / 60, 1),
        "train_loss": round(result.metrics["train_loss"], 4),
        "dtype": str(dtype).removeprefix("torch."),
    }
