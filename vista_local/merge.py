"""Corrections applied to a result file: checked against it, scores recomputed, corrected claims marked."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from vista_local.corrections import (
    CorrectedClaim,
    Correction,
    TurnCorrection,
    collect,
    escape_surrogates,
    json_line,
    read_corrections,
    reviewed_claims,
    text_lines,
    with_claims,
)
from vista_local.errors import InputError, VistaError
from vista_local.files import whole_file
from vista_local.formats import show
from vista_local.output import native_form, parse_result_line, result_line
from vista_local.schema import ClaimResult, ConversationResult, Corrected, GivenClaim, TurnResult, TurnStatus
from vista_local.terminal import console, user_errors
from vista_local.text import counted


@dataclass
class MergeCount:
    """What a merge did. `unchanged` turns had the corrected claims already."""

    conversations: int = 0
    turns: int = 0
    unchanged: int = 0
    labels: int = 0
    edits: int = 0
    splits: int = 0
    added: int = 0
    deleted: int = 0


def apply(
    result: ConversationResult, run: str, corrections: Iterable[Correction], count: MergeCount | None = None
) -> ConversationResult:
    """A conversation's result with corrections applied; scores follow from its claims.

    References to claims of corrected turns (shown memory, evidence) are renumbered; those to a claim that was
    deleted are dropped.

    Args:
        result: what was scored.
        run: id of the run that it comes from.
        corrections: those of this conversation.
        count: where to add up what was done.

    Raises:
        InputError: a correction was made on another run's results, or fits no turn or claim of this one.
    """
    count = count if count is not None else MergeCount()
    changed: dict[int, TurnCorrection] = {}
    for correction in corrections:
        if correction.run != run:
            raise InputError(
                f"made on results of run {correction.run}, {show(result.id)} comes from run {run}; "
                "corrections fit the results they were made on alone",
                correction.where,
            )
        known = {t.index: t for t in result.turns}
        for turn in correction.turns:
            if turn.index not in known:
                accepted = ", ".join(map(str, known)) or "none"
                message = f"{show(result.id)} has no scored turn {turn.index}; accepted: {accepted}"
                raise InputError(message, correction.where)
            if turn.index not in changed and _fits(known[turn.index], turn, correction, count):
                changed[turn.index] = turn
    if not changed:
        return result
    count.conversations += 1
    moved = {index: _new_numbers(turn) for index, turn in changed.items()}
    turns = []
    for old in result.turns:
        new = _renumbered(old, moved)
        if old.index in changed:
            new = replace(new, **_reviewed(new, changed[old.index], count))
        turns.append(new)
    return replace(result, turns=tuple(turns))


def _fits(turn: TurnResult, wanted: TurnCorrection, correction: Correction, count: MergeCount) -> bool:
    """Whether there is something to apply; False if it has been applied before."""
    at = f"{correction.where}, turn {wanted.index}"
    if turn.status is TurnStatus.UNREFERENCED:
        raise InputError("the turn is unreferenced, its claims aren't scored", at)
    found = tuple(GivenClaim(c.text, c.label) for c in turn.claims)
    if turn.reviewed and found == wanted.given:
        count.unchanged += 1
        return False
    for number, (claim, there) in enumerate(zip(wanted.was, found, strict=False)):
        if claim != there:
            raise InputError(
                f"fits no claim: claim {number} was {_shown(claim)} for the reviewer, in the results {_shown(there)}",
                at,
            )
    if len(wanted.was) != len(found):
        raise InputError(f"fits no claim: {len(wanted.was)} claims were reviewed, {len(found)} are in the results", at)
    return True


def _shown(claim: GivenClaim) -> str:
    return f"{show(claim.text)} ({claim.label or 'unscored'})"


def _new_numbers(turn: TurnCorrection) -> dict[int, int]:
    numbers: dict[int, int] = {}
    for new, claim in enumerate(turn.claims):
        if claim.origin is not None:
            numbers.setdefault(claim.origin, new)
    return numbers


def _renumbered(turn: TurnResult, moved: Mapping[int, Mapping[int, int]]) -> TurnResult:
    def number(there: int, claim: int) -> int | None:
        return moved[there].get(claim) if there in moved else claim

    memory = tuple((t, new) for t, k in turn.memory if (new := number(t, k)) is not None)
    claims = []
    for claim in turn.claims:
        evidence = []
        for piece in claim.evidence:
            if piece.source == "memory" and piece.turn is not None and piece.claim is not None:
                new = number(piece.turn, piece.claim)
                if new is None:
                    continue
                piece = replace(piece, claim=new)
            evidence.append(piece)
        claims.append(replace(claim, evidence=tuple(evidence)))
    return replace(turn, memory=memory, claims=tuple(claims))


def _reviewed(turn: TurnResult, wanted: TurnCorrection, count: MergeCount) -> dict[str, Any]:
    count.turns += 1
    pieces = [c.origin for c in wanted.claims]
    claims = []
    for claim in wanted.claims:
        if claim.origin is None:
            count.added += 1
            claims.append(ClaimResult(claim.text, claim.label, corrected=Corrected("add")))
            continue
        old = turn.claims[claim.origin]
        before = old.corrected or Corrected(
            "label", old.text, old.label
        )  # what the model said, not an earlier reviewer
        if pieces.count(claim.origin) > 1:
            count.splits += pieces.index(claim.origin) == len(claims)
            claims.append(_rewritten(claim, "split", before))
        elif claim.text != old.text:
            count.edits += 1
            claims.append(_rewritten(claim, "edit", before))
        elif claim.label is not old.label:
            count.labels += 1
            action = before.action if old.corrected else "label"
            claims.append(
                replace(old, label=claim.label, unscored=None, evidence=(), corrected=replace(before, action=action))
            )
        else:
            claims.append(old)
    count.deleted += len(set(range(len(turn.claims))) - set(pieces))
    whole = all(c.label is not None for c in claims)
    return {"claims": tuple(claims), "reviewed": True, "unscored": None if whole else turn.unscored}


def _rewritten(claim: CorrectedClaim, action: Literal["edit", "split"], before: Corrected) -> ClaimResult:
    # The model never saw this text: its probabilities and evidence are of another claim.
    return ClaimResult(claim.text, claim.label, corrected=replace(before, action=action))


def read_with_run(path: Path) -> Iterator[tuple[ConversationResult, dict[str, Any]]]:
    """Results of a file, each with the record of its run.

    Raises:
        InputError: the file can't be read, is empty, or a line is no result line; names file and line.
    """
    empty = True
    for line, where in text_lines(path):
        result = parse_result_line(line, where)
        run = json.loads(line).get("run")
        yield result, run if isinstance(run, dict) else {}
        empty = False
    if empty:
        raise InputError("there are no results in it", str(path))


def merged(
    results: Path, corrections: Iterable[Correction], count: MergeCount
) -> Iterator[tuple[ConversationResult, dict[str, Any]]]:
    """The results of a file with corrections applied.

    Raises:
        InputError: a correction fits no conversation, turn or claim, or another run's results.
    """
    waiting = collect(corrections)
    for result, run in read_with_run(results):
        yield apply(result, str(run.get("id", "")), waiting.pop(result.id, ()), count), run
    for name, left in waiting.items():
        raise InputError(f"corrects conversation {show(name)}, which is not in {results}", left[0].where)


def data_form(result: ConversationResult, all_turns: bool) -> dict[str, Any] | None:
    """A result as training data (`training.data.load_teacher_turns` reads it); `None` if it has nothing to teach.

    Claims stand on reviewed turns only, and on the others as the model labelled them with `all_turns`.

    Raises:
        InputError: the line lacks its conversation.
    """
    claims = reviewed_claims(result)
    if all_turns and claims:
        claims = _labelled(result) | claims
    if not claims:
        return None
    if result.conversation is None:
        raise InputError(f"{show(result.id)} lacks its conversation; score without --compact")
    return {"id": result.id, **native_form(with_claims(result.conversation, claims))}


def _labelled(result: ConversationResult) -> dict[int, tuple[GivenClaim, ...]]:
    return reviewed_claims(replace(result, turns=tuple(replace(t, reviewed=True) for t in result.turns if t.claims)))


def merge(
    results: Annotated[Path, typer.Argument(help="result file of `vista-local score`")],
    corrections: Annotated[list[Path], typer.Argument(help="files exported from the report")],
    output: Annotated[Path, typer.Option("--output", "-o", help="merged file")],
    as_data: Annotated[
        bool, typer.Option("--as-data", help="write the reviewed conversations as training data instead of results")
    ] = False,
    all_turns: Annotated[
        bool, typer.Option("--all-turns", help="with --as-data: turns nobody reviewed too, as the model labelled them")
    ] = False,
) -> None:
    """Apply corrections to results: scores are recomputed, corrected claims marked."""
    with user_errors():
        if all_turns and not as_data:
            raise VistaError("--all-turns belongs to --as-data")
        count = MergeCount()
        read = [correction for path in corrections for correction in read_corrections(path)]
        written = gaps = 0
        with whole_file(output) as stream:
            for result, run in merged(results, read, count):
                if not as_data:
                    stream.write(escape_surrogates(result_line(result, run)) + "\n")
                elif (data := data_form(result, all_turns)) is not None:
                    written += 1
                    gaps += not all_turns and _has_gap(result)
                    stream.write(json_line(data) + "\n")
            if as_data and not written:
                raise VistaError("no turn is reviewed with all of its claims labelled: there is no data to write")
        done = ", ".join(f"{f.name} {getattr(count, f.name)}" for f in fields(count))
        console.print(done, markup=False, highlight=False, soft_wrap=True)
        if as_data:
            said = f"{counted(written, 'conversation')} written to {output}"
            console.print(said, markup=False, highlight=False, soft_wrap=True)
        if gaps:
            console.print(
                f"note: in {gaps} of them a reviewed turn follows one that nobody reviewed; what that established "
                "isn't in the data's memory (review it, or add --all-turns)",
                style="yellow",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )


def _has_gap(result: ConversationResult) -> bool:
    """Whether a reviewed turn follows one with claims that isn't gold."""
    gold = reviewed_claims(result)
    return any(t.claims and t.index not in gold and t.index < max(gold) for t in result.turns)
