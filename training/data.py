"""Teacher outputs to training samples. Pure: reads JSON Lines, renders the stages' own prompts.

The sample of verify and categorise is one turn: a shared prefix and one branch for each claim.
The sample of decompose is a prompt/completion pair in TRL's conversational form.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.trace_form import check_trace
from vista_local.chat import STAGE_LABELS, ChatEncoder
from vista_local.chunking import chunk_turn
from vista_local.corrections import CORRECTIONS_SCHEMA, gold_conversations
from vista_local.errors import InputError, VistaError
from vista_local.history import DECOMPOSE_HISTORY, RECENT, recent_history
from vista_local.labels import STORED_LABELS, UNVERIFIABLE, Label, parse_label
from vista_local.memory import KnowledgeStore
from vista_local.output import native_form
from vista_local.packing import PackedSequence, pack
from vista_local.prompts import (
    DECOMPOSE_SYSTEM,
    Prompt,
    StoreLine,
    Utterance,
    decompose_user,
    evidence_user,
    render_claim_list,
)
from vista_local.schema import Role, as_passages
from vista_local.stages import stage_system
from vista_local.text import split_sentences, words


@dataclass(frozen=True)
class TeacherTurn:
    """One assistant turn as the teacher labelled it, with what came before."""

    id: str
    turn: int
    history: tuple[Utterance, ...]
    text: str
    reference: tuple[str, ...]
    store: tuple[StoreLine, ...]
    claims: tuple[tuple[str, Label], ...]


@dataclass(frozen=True)
class ClassifySample:
    """A packed turn; `labels` index the stage's label list, one for each branch."""

    id: str
    sequence: PackedSequence
    labels: list[int]
    reference_tokens: int = 0


def load_teacher_turns(path: str | Path) -> list[TeacherTurn]:
    """Read teacher conversations: written ones, collected traces, or corrections as the report exports them.

    The store of a turn is what its trace says was shown, otherwise the conversation's background and
    every earlier VERIFIED or OUT_OF_SCOPE claim. A turn of which the teacher left something unscored is
    no example: it is left out, its labelled claims still count as memory.

    Corrections hold reviewed turns alone: what turns between them established that nobody reviewed is in
    no memory (`vista-local merge --as-data --all-turns` has it).

    Raises:
        InputError: the file can't be read, a line is cut off, not UTF-8 or no JSON, a field is missing or
            a label unknown, traces were made with other prompts, or corrections lack their conversations;
            names file and line.
    """
    turns: list[TeacherTurn] = []
    first = True
    for record, where in _records(Path(path)):
        if first and isinstance(record, dict) and record.get("schema") == CORRECTIONS_SCHEMA:
            return _corrected_turns(Path(path))
        first = False
        try:
            check_trace(record, where)
            turns.extend(_conversation_turns(record))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f"no teacher conversation: {error!r}", where) from error
    return turns


def _records(path: Path) -> Iterator[tuple[Any, str]]:
    """The JSON values of the lines that are not blank, each with its place for messages."""
    try:
        with open(path, "rb") as lines:  # bytes: a write can be cut off inside a character
            for number, line in enumerate(lines, start=1):
                where = f"{path}, line {number}"
                if line.strip():
                    yield _record(line, where), where
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", str(path)) from error


def _record(line: bytes, where: str) -> Any:
    try:
        return json.loads(line.decode("utf-8"))
    except RecursionError as error:
        raise InputError("no JSON that can be read: it is nested too deeply", where) from error
    except ValueError as error:
        if not line.endswith(b"\n"):
            raise InputError(
                "the line is cut off: the collection was stopped while it wrote; run training.collect again, "
                "which completes the file",
                where,
            ) from error
        reason = f"not UTF-8: {error.reason}" if isinstance(error, UnicodeDecodeError) else f"no JSON: {error}"
        raise InputError(reason, where) from error


def _corrected_turns(path: Path) -> list[TeacherTurn]:
    """The reviewed turns of a corrections file, several lines for one conversation put together."""
    corrected = ({"id": c.id, **native_form(c)} for c in gold_conversations(path))
    return [turn for record in corrected for turn in _conversation_turns(record)]


def _conversation_turns(record: dict[str, Any]) -> Iterable[TeacherTurn]:
    history: list[Utterance] = []
    store = [entry.line() for entry in KnowledgeStore(as_passages(record.get("background"))).entries]
    for index, turn in enumerate(record["turns"]):
        if turn["role"] == "assistant" and "claims" in turn:
            shown = turn["trace"]["memory"] if "trace" in turn else None
            labelled = [c for c in turn["claims"] if "unscored" not in c]
            claims = tuple((c["claim"], parse_label(c["label"])) for c in labelled)
            if "unscored" not in turn and len(labelled) == len(turn["claims"]):
                yield TeacherTurn(
                    id=record["id"],
                    turn=index,
                    history=tuple(history),
                    text=turn["text"],
                    reference=as_passages(turn.get("reference")),
                    store=tuple(
                        store if shown is None else (StoreLine(e["claim"], e["kind"] == "stated") for e in shown)
                    ),
                    claims=claims,
                )
            store.extend(StoreLine(c, label is Label.OUT_OF_SCOPE) for c, label in claims if label in STORED_LABELS)
        history.append(Utterance(Role(turn["role"]), turn["text"]))


class Diluter:
    """Hides a reference among sentences of other conversations' references.

    Real references are long, the data's are short: a model trained on these alone learns that
    everything shown matters.
    """

    def __init__(self, turns: Sequence[TeacherTurn]) -> None:
        self._sentences = [
            (t.id, s) for t in turns for passage in t.reference for s in split_sentences(passage) if len(s) > 20
        ]

    def dilute(self, turn: TeacherTurn, count: int, rng: random.Random) -> tuple[str, ...]:
        """The turn's reference with `count` foreign sentences around and, half of the time, inside.

        Raises:
            VistaError: there is no other conversation to take sentences from.
        """
        if count and all(owner == turn.id for owner, _ in self._sentences):
            raise VistaError(f"{turn.id}: no other conversation has sentences to dilute its reference with")
        foreign: list[str] = []
        while len(foreign) < count:
            start = rng.randrange(len(self._sentences))
            run = self._sentences[start : start + rng.randint(1, 6)]
            foreign.extend(s for owner, s in run if owner != turn.id)
        foreign = foreign[:count]
        own = [s for passage in turn.reference for s in split_sentences(passage)]
        if rng.random() < 0.5:
            at = rng.randint(0, count)
            return tuple(foreign[:at] + own + foreign[at:])
        places = sorted(rng.randint(0, count) for _ in own)
        mixed: list[str] = []
        for position in range(count + 1):
            mixed.extend(own[i] for i, place in enumerate(places) if place == position)
            mixed.extend(foreign[position : position + 1])
        return tuple(mixed)


def evidence_prompt(
    turn: TeacherTurn,
    encoder: ChatEncoder,
    system: str,
    *,
    with_history: bool = True,
    reference: tuple[str, ...] | None = None,
) -> Prompt:
    """The shared prefix of a turn's claims, as the pipeline renders it."""
    history = recent_history(turn.history, RECENT, encoder.tail, encoder.count) if with_history else []
    passages = turn.reference if reference is None else reference
    return Prompt(system, evidence_user(history, turn.store, "\n".join(passages)))


def sample_id(turn: TeacherTurn) -> str:
    """Names a turn among all conversations."""
    return f"{turn.id}#{turn.turn}"


def classify_samples(
    turns: Sequence[TeacherTurn],
    stage: str,
    encoder: ChatEncoder,
    *,
    rng: random.Random,
    diluter: Diluter | None = None,
    dilute_share: float = 0.0,
    dilute_sentences: tuple[int, int] = (5, 40),
    drop_context: float = 0.0,
) -> list[ClassifySample]:
    """Packed samples of verify (all claims) or categorise (unverifiable claims only).

    Args:
        dilute_share: share of the turns whose reference is hidden among foreign sentences.
        dilute_sentences: least and greatest number of those.
        drop_context: share of the turns that are shown no history.
    """
    system = stage_system(stage, encoder.label_words(stage))
    order = STAGE_LABELS[stage]
    samples = []
    for turn in turns:
        claims = [(c, label) for c, label in turn.claims if stage == "verify" or label is not Label.VERIFIED]
        if not claims:
            continue
        reference = None
        if diluter is not None and turn.reference and rng.random() < dilute_share:
            reference = diluter.dilute(turn, rng.randint(*dilute_sentences), rng)
        prompt = evidence_prompt(turn, encoder, system, with_history=rng.random() >= drop_context, reference=reference)
        answers = [label.value if label.value in order else UNVERIFIABLE for _, label in claims]
        sequence = pack(encoder.prefix(prompt), [encoder.branch(c) for c, _ in claims])
        shown = encoder.count("\n".join(turn.reference if reference is None else reference))
        samples.append(ClassifySample(sample_id(turn), sequence, [order.index(a) for a in answers], shown))
    return samples


def assign_claims_to_chunks(chunks: Sequence[str], claims: Sequence[str]) -> list[list[str]]:
    """Give each claim of a long turn to the chunk that holds most of its words, ties to the earlier.

    The teacher lists claims for whole turns; decompose works on chunks of long ones.
    """
    vocabularies = [set(words(c)) for c in chunks]
    assigned: list[list[str]] = [[] for _ in chunks]
    for claim in claims:
        claim_words = set(words(claim))
        overlap = [len(claim_words & vocabulary) for vocabulary in vocabularies]
        assigned[overlap.index(max(overlap))].append(claim)
    return assigned


def decompose_samples(turns: Sequence[TeacherTurn], encoder: ChatEncoder, chunk_tokens: int) -> list[dict[str, Any]]:
    """Prompt/completion pairs; a turn longer than `chunk_tokens` gives a pair for each chunk."""
    samples = []
    for turn in turns:
        chunks = chunk_turn(turn.text, chunk_tokens, encoder.count)
        claims = [c for c, _ in turn.claims]
        for number, (chunk, part) in enumerate(zip(chunks, assign_claims_to_chunks(chunks, claims), strict=True)):
            earlier = turn.history + tuple(Utterance(Role.ASSISTANT, c) for c in chunks[:number])
            history = recent_history(earlier, DECOMPOSE_HISTORY, encoder.tail, encoder.count)
            user = decompose_user(history, chunk)
            samples.append(
                {
                    "prompt": [{"role": "system", "content": DECOMPOSE_SYSTEM}, {"role": "user", "content": user}],
                    "completion": [{"role": "assistant", "content": render_claim_list(part)}],
                }
            )
    return samples
