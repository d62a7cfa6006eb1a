"""Training of decompose: TRL's SFTTrainer on prompt/completion pairs, loss on the completion."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers.trainer_utils import get_last_checkpoint
from trl import SFTConfig, SFTTrainer

from training.common import (
    ProgressLog,
    TrainConfig,
    add_lora,
    compile_decoder_layers,
    find_data,
    load_base,
    open_base,
    resolve_training_base,
    sample_limited,
)
from training.data import decompose_samples, load_teacher_turns
from training.hardware import check_lengths, is_first_process, place, processes, trainer_options
from vista_local.chat import ChatEncoder
from vista_local.prompts import Prompt


class CompletionTrainer(SFTTrainer):
    """`SFTTrainer` that multiplies the output matrix at completion positions only, on a CPU too.

    Without Triton, TRL scores every position of a batch, prompt included: with a vocabulary of
    49,152 over a model of 135 million parameters that doubles the time of a step. The loss is the same.
    """

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Mean negative log-likelihood of the completion tokens."""
        on_one_cpu = inputs["input_ids"].device.type == "cpu" and self.args.world_size == 1
        if not on_one_cpu or return_outputs:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        causal_lm = model.get_base_model()
        hidden = causal_lm.model(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], use_cache=False
        ).last_hidden_state
        targets = inputs["labels"][:, 1:]
        wanted = targets != -100
        logits = causal_lm.get_output_embeddings()(hidden[:, :-1][wanted]).float()
        total = torch.nn.functional.cross_entropy(logits, targets[wanted], reduction="sum")
        return total / (wanted.sum() if num_items_in_batch is None else num_items_in_batch)


def build_training_samples(config: TrainConfig, encoder: ChatEncoder) -> list[dict[str, Any]]:
    """The recipe's prompt/completion pairs; the same for the same seed."""
    rng = random.Random(config.seed)
    samples = []
    for name in config.train:
        turns = load_teacher_turns(find_data(config, name))
        samples.extend(
            decompose_samples(sample_limited(turns, config.limits.get(name), rng), encoder, config.chunk_tokens)
        )
    return samples


def sample_tokens(sample: dict[str, Any], encoder: ChatEncoder) -> int:
    """Tokens of a pair, end-of-turn included."""
    prompt = Prompt(sample["prompt"][0]["content"], sample["prompt"][1]["content"])
    return len(encoder.whole(prompt)) + encoder.count(sample["completion"][0]["content"]) + 2


def train(config: TrainConfig, out: Path) -> dict[str, Any]:
    """Train the decompose adapter into `out/adapter`, resuming from `out`'s last checkpoint."""
    torch.set_num_threads(config.threads)
    device, dtype = place(config)
    base = resolve_training_base(config)
    encoder, longest = open_base(base)
    samples = build_training_samples(config, encoder)
    lengths = [sample_tokens(s, encoder) for s in samples]
    check_lengths(lengths, longest)
    if encoder.thinks:  # the prompt is trained on as the encoder renders it: with thinking off
        samples = [s | {"chat_template_kwargs": {"enable_thinking": False}} for s in samples]
    model, tokenizer = load_base(base, dtype, config, device)
    peft_model = add_lora(model, config)
    if config.compile_layers and device.type == "cpu":
        compile_decoder_layers(peft_model)
    steps_an_epoch = -(-len(samples) // (config.batch_size * processes() * config.gradient_accumulation_steps))
    steps = config.max_steps if config.max_steps > 0 else round(config.epochs * steps_an_epoch)
    if is_first_process():
        print(
            f"decompose: {len(samples)} pairs, {sum(lengths)} tokens, longest {max(lengths)}, {steps} steps, "
            f"{dtype} on {device}",
            flush=True,
        )
    arguments = SFTConfig(
        output_dir=str(out),
        max_steps=steps,
        per_device_train_batch_size=config.batch_size,
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
        bf16=False,
        disable_tqdm=True,
        max_length=None,  # the default of 1024 cuts the end, that is, the claims; lengths were checked above
        completion_only_loss=True,
        packing=False,
        train_sampling_strategy="group_by_length",
        **trainer_options(config, device),
    )
    trainer = CompletionTrainer(
        model=peft_model,
        args=arguments,
        train_dataset=Dataset.from_list(samples),
        processing_class=tokenizer,
        callbacks=[ProgressLog()],
    )
    last = get_last_checkpoint(str(out)) if out.is_dir() else None
    result = trainer.train(resume_from_checkpoint=last)
    if is_first_process():
        peft_model.save_pretrained(str(out / "adapter"), save_embedding_layers=False)
    return {
        "steps": trainer.state.global_step,
        "pairs": len(samples),
        "tokens_per_epoch": sum(lengths),
        "minutes": round(result.metrics["train_runtime"] / 60, 1),
        "train_loss": round(result.metrics["train_loss"], 4),
        "dtype": str(dtype).removeprefix("torch."),
    }
