"""`python -m training.collect INPUT -o TRACES --teacher FILE`: have a teacher score conversations, keep everything.

A trace is a conversation in the native form with the teacher's claims and labels, so `training` reads
it like any other data, and in `trace` what made it: on each turn the memory that was shown and every
call with its raw answers, on the conversation the run, the prompts' versions and digests. Lines are in
the order of the input, synced one by one; running the command again goes on where it stopped, and
answers that were paid for come from the cache.

Exit codes: 0, every conversation has its trace; 2, input, settings or endpoint can't be used, or the disk is full
(finished conversations are kept); 3, done, but conversations failed: their traces have an `error` and are no
examples for training; 130, stopped. A failed conversation is not asked about again by itself: delete its line and
those after it, and run the command again. What the teacher answered comes from the cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO, get_args

import typer

from training.trace_form import FORM, check_trace, trace_versions
from vista_local.backends.openai_backend import Exchange
from vista_local.config import ScoreConfig, format_defaults, load_config
from vista_local.errors import InputError, VistaError
from vista_local.fewshot import Shots, Stage, stage_messages
from vista_local.files import append_synced, full
from vista_local.memory import Entry, KnowledgeStore
from vista_local.output import native_form
from vista_local.prompted import Scored, TeacherEvaluator, TurnTrace
from vista_local.readers import open_conversations
from vista_local.schema import ClaimResult, Conversation, TurnResult, TurnStatus
from vista_local.teacher import Prices, load_teacher
from vista_local.terminal import console, role_mapping, user_errors
from vista_local.text import counted


def prompt_digests(shots: Shots) -> dict[str, str]:
    """SHA-256 of each stage's instructions and examples: what surrounds the user message of a call."""
    return {
        stage: hashlib.sha256(json.dumps(stage_messages(stage, "", shots)).encode()).hexdigest()
        for stage in get_args(Stage)
    }


def shown_memory(conversation: Conversation, turns: Sequence[TurnResult], trusted: bool) -> Iterator[list[Entry]]:
    """The store entries that each turn was shown: the store is filled once more, and read by number."""
    store = KnowledgeStore(conversation.background)
    for turn in turns:
        shown = set(turn.memory)
        yield [entry for entry in store.entries if (entry.turn, entry.claim) in shown]
        if turn.status is TurnStatus.SCORED:
            store.add_turn(turn.index, [(c.text, c.label) for c in turn.claims])
        elif trusted:
            store.trust_turn(turn.index, [c.text for c in turn.claims])


def trace_record(
    conversation: Conversation, scored: Scored, run: dict[str, Any], prices: Prices | None
) -> dict[str, Any]:
    """One line of a trace file."""
    shots: Shots = run["teacher"]["shots"]
    record: dict[str, Any] = {"id": conversation.id, **native_form(conversation)}
    for turn in record["turns"]:
        turn.pop("claims", None)  # the input's own, which the teacher's take the place of
    trusted = run["config"]["memory"]["unreferenced"] == "trust"
    memory = shown_memory(conversation, scored.result.turns, trusted)
    for result, trace, shown in zip(scored.result.turns, scored.traces, memory, strict=True):
        turn = record["turns"][result.index]
        if result.status is TurnStatus.SCORED:
            turn["claims"] = [_claim(claim) for claim in result.claims]
            if result.unscored is not None:
                turn["unscored"] = result.unscored
        turn["trace"] = _turn_trace(result, trace, shown)
    exchanges = [e for trace in scored.traces for e in trace.exchanges]
    models = sorted({r.model for e in exchanges for r in e.replies if r.model})
    record["usage"] = _usage(exchanges, prices)
    record["trace"] = {
        "form": FORM,
        **trace_versions(),
        "prompts": prompt_digests(shots),
        "models": models,
        "run": run,
    }
    if scored.result.error is not None:
        record["error"] = scored.result.error
    return record


def _claim(claim: ClaimResult) -> dict[str, Any]:
    data: dict[str, Any] = {"claim": claim.text, "label": claim.label and claim.label.value}
    if claim.probs:
        data["probs"] = claim.probs
    if claim.unscored is not None:
        data["unscored"] = claim.unscored
    return data


def _turn_trace(result: TurnResult, trace: TurnTrace, shown: Sequence[Entry]) -> dict[str, Any]:
    data: dict[str, Any] = {
        "status": result.status.value,
        "memory": [{"claim": e.text, "kind": e.kind.value, "turn": e.turn, "number": e.claim} for e in shown],
        "calls": [_call(exchange) for exchange in trace.exchanges],
        "unsupported_extraction": list(result.unsupported_extraction),
        "notes": list(result.notes),
    }
    if result.status is TurnStatus.UNREFERENCED:
        data["claims"] = [claim.text for claim in result.claims]  # stored unchecked, never labelled
    if trace.contradiction is not None:
        data["contradiction"] = {
            "contradicts": trace.contradiction.contradicts,
            "where": [{"reply": c.reply, "earlier": c.earlier} for c in trace.contradiction.where],
        }
    return data


def _call(exchange: Exchange) -> dict[str, Any]:
    data: dict[str, Any] = {"stage": exchange.stage, "user": exchange.user}
    data["answers"] = [
        {"text": r.text, "finish": r.finish, **({"declined": r.declined} if r.declined else {})}
        for r in exchange.replies
    ]
    if exchange.unscored is not None:
        data["unscored"] = exchange.unscored
    return data


def _usage(exchanges: Sequence[Exchange], prices: Prices | None) -> dict[str, float]:
    """Calls, tokens, seconds and cost of one conversation, as its answers were when they were made."""
    replies = [r for e in exchanges for r in e.replies]
    usage: dict[str, float] = {
        "calls": len(replies),
        "input_tokens": sum(r.prompt_tokens for r in replies),
        "output_tokens": sum(r.completion_tokens for r in replies),
        "seconds": round(sum(r.seconds for r in replies), 3),
    }
    if prices is not None:
        usage["cost"] = round(sum(prices.cost(r.prompt_tokens, r.completion_tokens) for r in replies), 8)
    return usage


@dataclass
class TraceFile:
    """The file of one collection: locked, appended to line by line, each line synced.

    Args:
        path: the file; what an interrupted write left at its end is dropped.
        run: the run record; lines that are there must carry the same one.

    `kept` are the ids of the conversations in it, `failed` the numbers of the lines with an `error`.

    Raises:
        VistaError: the file can't be written, is in use, or holds something else; nothing is changed then.
    """

    path: Path
    run: dict[str, Any]

    def __post_init__(self) -> None:
        self.kept: list[str] = []
        self.failed: list[int] = []
        self._end = 0  # where the last whole line ends
        try:
            self._stream: BinaryIO = open(self.path, "a+b")  # noqa: SIM115 - closed by `close`
        except OSError as error:
            raise VistaError(f"{self.path}: cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._stream.close()
            raise VistaError(f"{self.path}: another collection is writing to this file") from error
        try:
            self._end = self._read()
            self._stream.truncate(self._end)
        except BaseException:
            self._stream.close()
            raise

    def _read(self) -> int:
        """Where the last whole line ends."""
        self._stream.seek(0)
        end = 0
        for number, line in enumerate(self._stream, start=1):
            if not line.endswith(b"\n"):
                break  # the tail of an interrupted write
            where = f"{self.path}, line {number}"
            try:
                record = json.loads(line)
                _, run_id = record["id"], record["trace"]["run"]["id"]
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise InputError("no trace; nothing was changed", where) from error
            check_trace(record, where)
            if run_id != self.run["id"]:
                raise InputError(
                    f"collected by run {run_id}, this is run {self.run['id']} (another teacher, other settings or "
                    "versions); choose another output file",
                    where,
                )
            self._note(record)
            end += len(line)
        return end

    def _note(self, record: dict[str, Any]) -> None:
        self.kept.append(record["id"])
        if "error" in record:
            self.failed.append(len(self.kept))

    def append(self, record: dict[str, Any]) -> None:
        """Write a line and wait until it is on disk.

        Raises:
            VistaError: the disk is full or fails; whole lines stay as they are.
        """
        # A lone surrogate can't be encoded; in ASCII it is an escape like any other.
        text = json.dumps(record, ensure_ascii=False)
        data = (text if _is_utf8(text) else json.dumps(record)).encode() + b"\n"
        try:
            append_synced(self._stream.fileno(), data, self._end)
        except OSError as error:
            room = " once there is room" if full(error) else ""
            raise VistaError(
                f"{self.path}: {error.strerror}; finished conversations are kept, run again{room}"
            ) from error
        self._end += len(data)
        self._note(record)

    def close(self) -> None:
        """Release the file; an empty one is taken away again."""
        if not self._end:
            self.path.unlink(missing_ok=True)
        self._stream.close()


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def collect(evaluator: TeacherEvaluator, conversations: Iterable[Conversation], out: TraceFile) -> int:
    """Collect a trace of every conversation that `out` doesn't hold yet.

    Returns:
        Number of claims and turns that are unscored among the new ones.

    Raises:
        InputError: the input doesn't begin with the conversations in `out`.
        VistaError: the endpoint can't be used, or money has run out.
    """
    iterator = iter(conversations)
    for number, kept in enumerate(out.kept, start=1):
        found = next(iterator, None)
        if found is None or found.id != kept:
            name = "nothing" if found is None else repr(found.id)
            raise InputError(
                f"holds {kept!r} as conversation {number}, the input {name}: another input?", str(out.path)
            )
    unscored = 0
    # A few conversations at a time: the input may be larger than memory.
    while batch := list(islice(iterator, 4 * evaluator.teacher.concurrency)):
        for conversation, scored in zip(batch, evaluator.prompted.score_traced(batch), strict=True):
            out.append(trace_record(conversation, scored, out.run, evaluator.teacher.prices))
            turns = scored.result.turns
            unscored += sum((t.unscored is not None) + sum(c.unscored is not None for c in t.claims) for t in turns)
    return unscored


def main(
    source: Annotated[str, typer.Argument(metavar="INPUT", help="conversations, in any form that `score` reads")],
    output: Annotated[Path, typer.Option("--output", "-o", help="trace file (JSON Lines); run again to go on")],
    teacher: Annotated[Path, typer.Option(help="YAML file of the teacher")],
    config: Annotated[Path | None, typer.Option(help="YAML file of settings, as for `score`")] = None,
    profile: Annotated[str | None, typer.Option(help="'paper': the published method's main setting")] = None,
    context: Annotated[str | None, typer.Option(help="history shown to verify: none, recent or full")] = None,
    unreferenced: Annotated[str | None, typer.Option(help="turns without reference: skip, trust or verify")] = None,
    given_claims: Annotated[bool, typer.Option("--given-claims", help="label the input's own claims")] = False,
    roles: Annotated[list[str] | None, typer.Option("--role", help="role name mapping, such as speaker1=user")] = None,
    skip_bad_records: Annotated[
        bool, typer.Option("--skip-bad-records", help="count broken records and go on")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="only the first conversations")] = None,
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="the teacher may be on another machine: conversations are sent there")
    ] = False,
    max_cost: Annotated[float | None, typer.Option(min=0, help="stop before this run costs more")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="only estimate calls, tokens and cost; no connection")
    ] = False,
) -> None:
    """Have a teacher score INPUT and keep prompts, answers, claims, labels and memory for training.

    Exit codes: 0, every conversation has its trace; 2, input, settings or endpoint can't be used, or the disk is full
    (the message says what to do); 3, done, but conversations failed (their traces have an "error"); 130, stopped by
    Ctrl-C, go on with the same command.
    """
    with user_errors():
        settings = load_teacher(teacher)
        overrides: dict[str, Any] = {} if context is None else {"context": context}
        if given_claims:
            overrides["given_claims"] = True
        if unreferenced:
            overrides["memory"] = {"unreferenced": unreferenced}
        mapping = role_mapping(roles or [])
        reader = open_conversations(source, roles=mapping, on_warning=_note, skip_bad=skip_bad_records)
        defaults = format_defaults(reader.format) | {"context": settings.context}
        score_config: ScoreConfig = load_config(config, overrides, profile, defaults)
        if score_config.oracle_memory:
            raise VistaError("oracle_memory is for analysis: a trace holds the memory that the teacher made itself")
        conversations = islice(reader, limit)
        evaluator = TeacherEvaluator(
            settings, score_config, allow_remote=allow_remote, max_cost=max_cost, dry_run=dry_run
        )
        if dry_run:
            for line in evaluator.estimate(conversations):
                typer.echo(line)
            return
        if notice := evaluator.notice():
            _note(notice)
        with evaluator.session("the same command"):
            out = TraceFile(output, evaluator.run_record())
            try:
                earlier = len(out.kept)
                unscored = collect(evaluator, conversations, out)
            except KeyboardInterrupt as stopped:
                _note(f"stopped with {counted(len(out.kept), 'conversation')} in {output}: go on with the same command")
                raise typer.Exit(130) from stopped
            finally:
                out.close()
        if reader.skipped:
            _note(f"skipped {counted(len(reader.skipped), 'broken record')}; the first: {reader.skipped[0]}")
        note = f", {unscored} claims or turns unscored" if unscored else ""
        kept = counted(len(out.kept), "conversation")
        _note(f"{kept} in {output} ({earlier} from earlier runs){note}; {evaluator.usage()}")
        if out.failed:
            _note(
                f"{counted(len(out.failed), 'conversation')} failed: an 'error' in {output}, the first in line "
                f"{out.failed[0]}; to try again, delete that line and all after it and run the same command: what the "
                "teacher answered comes from the cache"
            )
            raise typer.Exit(3)


def _note(message: str) -> None:
    console.print(f"note: {message}", style="yellow", markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
