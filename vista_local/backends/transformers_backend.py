"""The local student: one base in memory, three LoRA adapters beside each other, switched per batch.

Contract: prompts in, texts or label log-probabilities out, in the order of the requests, whatever
the batches. Batches hold at most `token_budget` padded tokens; a single request may be longer.
"""

from __future__ import annotations

import importlib.metadata
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, StoppingCriteria, StoppingCriteriaList

from vista_local.adapters import STAGES, AdapterManifest, base_sha256, read_manifest, refuse_remote_code
from vista_local.backends.base import Generation, Unanswered
from vista_local.backends.device import native_dtype, pick_device
from vista_local.backends.exact import in_fp32
from vista_local.chat import STAGE_LABELS, ChatEncoder
from vista_local.claims import repeats_earlier_line
from vista_local.errors import VistaError, first_line
from vista_local.packing import PackedSequence, collate, pack, split_branches
from vista_local.prompts import PROMPT_VERSION, Prompt, reply_of
from vista_local.stages import ClassifyRequest

#: Most rows and padded tokens that are decoded together: the KV cache of a row is 46 KB a token on the
#: default base. Not the user's token budget, so that a turn's claims don't depend on it.
GENERATE_ROWS, GENERATE_TOKENS = 32, 4096

#: How far an answer of a batch may lie from the one computed alone in fp32, in log-odds before
#: calibration. Measured on the default model: 0.00002 in fp32, 0.046 in bf16.
TIE_MARGINS = {torch.float32: 1e-3, torch.bfloat16: 0.2, torch.float16: 0.05}


class _ClaimLoopStop(StoppingCriteria):
    """Ends a row once its last line repeats an earlier one, or once its own length limit is reached."""

    def __init__(self, tokenizer: Any, prompt_length: int, limits: Sequence[int], ends: set[int]) -> None:
        self.tokenizer, self.start, self.limits, self.ends = tokenizer, prompt_length, limits, ends
        self.done = [False] * len(limits)
        self.cut: list[Literal["length", "repeat"] | None] = [None] * len(limits)
        self.length = [0] * len(limits)

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **kwargs: Any) -> torch.BoolTensor:
        generated = input_ids.shape[1] - self.start
        for row, token in enumerate(input_ids[:, -1].tolist()):
            if self.done[row]:
                continue
            self.length[row] = generated
            if token in self.ends:
                self.done[row] = True
                self.length[row] -= 1
            elif generated >= self.limits[row]:
                self.done[row], self.cut[row] = True, "length"
            elif "\n" in self.tokenizer.decode([token]):
                text = self.tokenizer.decode(input_ids[row, self.start :], skip_special_tokens=True)
                if repeats_earlier_line(text):
                    self.done[row], self.cut[row] = True, "repeat"
        return torch.tensor(self.done, dtype=torch.bool, device=input_ids.device)  # type: ignore[return-value]


@contextmanager
def _files(message: str) -> Iterator[None]:
    """Turn what is raised inside for damaged files, or files of another model, into `message` and the reason."""
    try:
        yield
    except VistaError:
        raise
    # All there is: tokenizers raises plain exceptions, configurations some of their own or of arithmetic, and what
    # names a library that isn't there, an import's.
    except Exception as error:
        raise VistaError(f"{message}: {first_line(error)}") from error


def _too_long(tokens: int, room: int) -> str:
    return f"a prompt of {tokens} tokens with its answer does not fit this base's {room}; nothing is cut"


class TransformersBackend:
    """transformers + PEFT on CPU or GPU.

    Args:
        base: folder of the base model (safetensors).
        adapters: folder with the sub-folders `decompose`, `verify` and `categorise`.
        device: torch device name; default CUDA if present, otherwise CPU.
        dtype: default bf16 where the hardware multiplies it, fp32 elsewhere.
        token_budget: most padded tokens in a batch.
        threads: CPU threads; default torch's own choice.
        stages: which adapters to load; default all three.

    Raises:
        VistaError: base or adapters are missing, damaged, or don't belong together.
    """

    def __init__(
        self,
        base: str | Path,
        adapters: str | Path,
        *,
        device: str | None = None,
        dtype: torch.dtype | None = None,
        token_budget: int = 4096,
        threads: int | None = None,
        stages: Sequence[str] = STAGES,
    ) -> None:
        if threads is not None:
            if threads < 1:
                raise VistaError(f"{threads} threads: at least 1 is needed")
            torch.set_num_threads(threads)
        self.device = pick_device(device)
        self.dtype = dtype or native_dtype(self.device)
        self.token_budget = token_budget
        self.adapters_folder = Path(adapters)
        self.manifests = {stage: read_manifest(self.adapters_folder / stage) for stage in stages}
        self.base_hash = base_sha256(base)
        refuse_remote_code(base)
        self._check_manifests(adapters)
        with _files(f"{base}: the tokenizer can't be read"):
            self.tokenizer = AutoTokenizer.from_pretrained(str(base), local_files_only=True, trust_remote_code=False)
        with _files(f"{base}: the tokenizer's chat template can't be used"):
            self.encoder = ChatEncoder(self.tokenizer)
        self._label_ids = {
            stage: self.encoder.label_ids(list(m.label_words.values()))
            for stage, m in self.manifests.items()
            if stage in STAGE_LABELS
        }
        self.model = self._load(str(base), Path(adapters))
        self.tokens_computed = dict.fromkeys(STAGES, 0)

    def _check_manifests(self, adapters: str | Path) -> None:
        for stage, manifest in self.manifests.items():
            if manifest.stage != stage:
                raise VistaError(f"{adapters}/{stage}: holds an adapter of stage {manifest.stage!r}")
            if manifest.base_sha256 != self.base_hash:
                raise VistaError(
                    f"{adapters}/{stage}: trained on a base with SHA-256 {manifest.base_sha256} "
                    f"({manifest.base_name}), but the base given has {self.base_hash}"
                )
            if manifest.prompt_version != PROMPT_VERSION:
                raise VistaError(
                    f"{adapters}/{stage}: trained with prompt version {manifest.prompt_version}; "
                    f"this version of vista-local has {PROMPT_VERSION}"
                )
            order = STAGE_LABELS.get(stage, ())
            if tuple(manifest.label_words) != order:
                raise VistaError(f"{adapters}/{stage}: label words for {list(manifest.label_words)}, not {list(order)}")

    def _load(self, base: str, adapters: Path) -> Any:
        from peft import PeftModel

        with _files(f"{base}: the base model can't be read"):
            model = AutoModelForCausalLM.from_pretrained(
                base,
                dtype=self.dtype,
                use_safetensors=True,
                attn_implementation="sdpa",
                local_files_only=True,
                trust_remote_code=False,  # unset, transformers would ask on the terminal
            )
        with _files(f"{adapters}: the adapters don't fit this base"):
            first, *others = self.manifests
            with warnings.catch_warnings():
                # peft asks transformers for a property by its old name: nothing that a user can mend.
                warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
                peft_model = PeftModel.from_pretrained(model, str(adapters / first), adapter_name=first)
                for stage in others:
                    peft_model.load_adapter(str(adapters / stage), adapter_name=stage)
        try:
            return peft_model.to(self.device).eval()
        # torch's own errors here: a device that this build or machine lacks, or too little memory on it.
        except (RuntimeError, AssertionError) as error:
            raise VistaError(f"the model can't be put on {str(self.device)!r}: {first_line(error)}") from error

    @property
    def max_reference_tokens(self) -> int:
        """Longest reference of the training data of verify and categorise."""
        return min(m.max_reference_tokens for s, m in self.manifests.items() if s in STAGE_LABELS)

    @property
    def chunk_tokens(self) -> int:
        """Longest turn that is decomposed in one piece, by decompose's manifest."""
        return self.manifests["decompose"].chunk_tokens

    def manifest(self, stage: str) -> AdapterManifest:
        """What a stage's adapter says of itself."""
        return self.manifests[stage]

    def label_words(self, stage: str) -> Mapping[str, str]:
        """Answer words from the stage's manifest."""
        return self.manifests[stage].label_words

    def count(self, text: str) -> int:
        """Tokens of a text."""
        return self.encoder.count(text)

    def tail(self, text: str, limit: int) -> str:
        """The end of a text, at most `limit` tokens long."""
        return self.encoder.tail(text, limit)

    def describe(self) -> dict[str, Any]:
        """Hashes, number format and versions that a result depends on."""
        return {
            "backend": "transformers",
            "base": next(iter(self.manifests.values())).base_name,
            "base_sha256": self.base_hash,
            "adapters": {stage: m.adapter_sha256 for stage, m in self.manifests.items()},
            "prompt_version": PROMPT_VERSION,
            # Not part of the weights' hashes, and labels and claims depend on them.
            "calibration": {s: asdict(m.calibration) for s, m in self.manifests.items() if s in STAGE_LABELS},
            "limits": {
                s: m.max_reference_tokens if s in STAGE_LABELS else m.chunk_tokens for s, m in self.manifests.items()
            },
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": self.device.type,
            "token_budget": self.token_budget,
            "tie_margin": self.tie_margin,
            "software": {n: importlib.metadata.version(n) for n in ("torch", "transformers", "peft", "vista-local")},
        }

    @property
    def tie_margin(self) -> float:
        """See `Backend`; a temperature under 1 widens differences, so the margin widens with it."""
        temperatures = [m.calibration.temperature for s, m in self.manifests.items() if s in STAGE_LABELS]
        return TIE_MARGINS[self.dtype] / min([1.0, *temperatures])

    def _batches(self, lengths: Sequence[int], rows: int | None = None, tokens: int | None = None) -> list[list[int]]:
        """Indices grouped by like length within `tokens` (default the token budget), longest first."""
        budget = tokens or self.token_budget
        batches: list[list[int]] = []
        for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
            full = not batches or lengths[batches[-1][0]] * (len(batches[-1]) + 1) > budget
            if full or (rows is not None and len(batches[-1]) >= rows):
                batches.append([])
            batches[-1].append(i)
        return batches

    @torch.inference_mode()
    def classify(self, stage: str, requests: Sequence[ClassifyRequest]) -> list[list[list[float] | Unanswered]]:
        """Calibrated log-probabilities [requests][branches][labels]; see `Backend`.

        A branch that with its prefix is longer than the base can read is unanswered.
        """
        sequences: list[PackedSequence] = []
        owners: list[int] = []
        results: list[list[list[float] | Unanswered]] = []
        room = self.model.config.max_position_embeddings
        for number, request in enumerate(requests):
            prefix = self.encoder.prefix(request.prefix)
            branches = [self.encoder.branch(b) for b in request.branches]
            lengths = [len(prefix) + len(b) for b in branches]
            results.append([Unanswered(_too_long(n, room)) if n > room else [] for n in lengths])
            fitting = [b for b, n in zip(branches, lengths, strict=True) if n <= room]
            # The mask grows with the square of a sequence: a turn of hundreds of claims is packed in parts.
            for part in split_branches(len(prefix), fitting, self.token_budget):
                sequences.append(pack(prefix, part))
                owners.append(number)
        rows_of: list[list[list[float]]] = [[] for _ in sequences]
        self.model.set_adapter(stage)
        for batch in self._batches([len(s) for s in sequences]):
            rows = self._label_logits(stage, [sequences[i] for i in batch]).tolist()
            for i in batch:
                taken = len(sequences[i].read_at)
                rows_of[i], rows = rows[:taken], rows[taken:]
        answers: list[list[list[float]]] = [[] for _ in requests]
        for owner, answer in zip(owners, rows_of, strict=True):
            answers[owner].extend(answer)
        for row, found in zip(results, map(iter, answers), strict=True):
            row[:] = [r if isinstance(r, Unanswered) else next(found) for r in row]
        return results

    @torch.no_grad()
    def classify_alone(self, stage: str, requests: Sequence[ClassifyRequest]) -> list[list[list[float]]]:
        """As `classify`, each claim in fp32 in a batch and a sequence of its own; see `Backend`."""
        if not requests:
            return []
        self.model.set_adapter(stage)
        with in_fp32(self.model):
            return [
                [self._label_logits(stage, [s], torch.float32)[0].tolist() for s in self._one_by_one(request)]
                for request in requests
            ]

    def _one_by_one(self, request: ClassifyRequest) -> list[PackedSequence]:
        prefix = self.encoder.prefix(request.prefix)
        return [pack(prefix, [self.encoder.branch(b)]) for b in request.branches]

    def _label_logits(
        self, stage: str, sequences: Sequence[PackedSequence], dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Calibrated log-probabilities [all branches, labels] of one batch; `dtype` is that of attention scores."""
        batch = collate(sequences, self.tokenizer.pad_token_id or 0, dtype or self.dtype)
        self.tokens_computed[stage] += sum(len(s) for s in sequences)
        causal_lm = self.model.get_base_model()
        hidden = causal_lm.model(
            input_ids=batch.input_ids.to(self.device),
            attention_mask=batch.attention_mask.to(self.device),
            position_ids=batch.position_ids.to(self.device),
            use_cache=False,
        ).last_hidden_state
        answers = hidden[batch.read_rows.to(self.device), batch.read_columns.to(self.device)].float()
        # Only the label words' rows of the output matrix: 2 or 4 of 49,152 on the default base.
        rows = causal_lm.get_output_embeddings().weight[self._label_ids[stage]].float()
        return self._calibrated(stage, (answers @ rows.T).log_softmax(-1))

    def _calibrated(self, stage: str, log_probs: torch.Tensor) -> torch.Tensor:
        calibration = self.manifests[stage].calibration
        bias = [calibration.bias.get(label, 0.0) for label in STAGE_LABELS[stage]]
        shifted = log_probs / calibration.temperature + torch.tensor(bias, device=log_probs.device)
        answers = shifted.log_softmax(-1)
        if not answers.isfinite().all():  # as a NaN, it would become the first label
            raise ValueError(
                f"the {stage} adapter gives no number for its labels: are its or the base's weights damaged?"
            )
        return answers

    @torch.inference_mode()
    def generate(self, stage: str, prompts: Sequence[Prompt]) -> list[Generation]:
        """Greedy answers, guarded against loops; see `Backend`. A prompt that is too long has no answer."""
        encoded = [self.encoder.whole(p) for p in prompts]
        # A claim list is rarely longer than twice its turn; 48 covers turns of a few words.
        limits = [48 + 2 * self.encoder.count(reply_of(p.user)) for p in prompts]
        room = self.model.config.max_position_embeddings
        lengths = [len(ids) + limit for ids, limit in zip(encoded, limits, strict=True)]
        results = {i: Generation("", unscored=_too_long(n, room)) for i, n in enumerate(lengths) if n > room}
        fitting = [i for i in range(len(prompts)) if i not in results]
        self.model.set_adapter(stage)
        for batch in self._batches([lengths[i] for i in fitting], GENERATE_ROWS, GENERATE_TOKENS):
            rows = [fitting[i] for i in batch]
            answers = self._generate_batch(stage, [encoded[i] for i in rows], [limits[i] for i in rows])
            results.update(zip(rows, answers, strict=True))
        return [results[i] for i in range(len(prompts))]

    def _generate_batch(self, stage: str, prompts: Sequence[list[int]], limits: Sequence[int]) -> list[Generation]:
        longest = max(len(p) for p in prompts)
        pad = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else self.tokenizer.eos_token_id
        ids = torch.tensor([[pad] * (longest - len(p)) + p for p in prompts], device=self.device)
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=self.device)
        ends = self._end_tokens()
        stop = _ClaimLoopStop(self.tokenizer, longest, limits, ends)
        output = self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=False,
            num_beams=1,
            max_new_tokens=max(limits),
            stopping_criteria=StoppingCriteriaList([stop]),
            pad_token_id=pad,
        )
        answers = []
        for row, prompt in enumerate(prompts):
            kept = output[row, longest : longest + stop.length[row]].tolist()
            self.tokens_computed[stage] += len(prompt) + len(kept)
            answers.append(Generation(self.tokenizer.decode(kept, skip_special_tokens=True), stop.cut[row]))
        return answers

    def _end_tokens(self) -> set[int]:
        configured = self.model.generation_config.eos_token_id
        ends = {configured} if isinstance(configured, int) else set(configured or ())
        return ends | {self.tokenizer.eos_token_id} - {None}
