"""`python -m training.join_public`: the public part of the training data, made whole on the user's machine.

The repository holds the teacher's claims and labels of public turns, keyed by id, and none of their
text: a claim that repeats its turn or reference word for word is kept as a place in it. This joins
them with the user's own copies of BEGIN (dev files), FaithDial's data audit and FADE (human-verified
file), and writes conversations in the form of the other training files.

An id is its source's name, a hyphen, and the first 8 hex digits of the SHA-1 of
norm(reference) + "|" + norm(response). So a row is found by its content: the order of the rows, quotes
and white space of the copies don't matter.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from training.public_sources import (
    SourceRow,
    public_id,
    read_begin,
    read_fade,
    read_faithdial,
)
from training.spans import Span, cut, locate
from vista_local.benchmarks.tables import FADE_FILE
from vista_local.errors import InputError, VistaError
from vista_local.files import whole_file
from vista_local.labels import parse_label

DATA = Path(__file__).parent / "data"
SPLITS = ("train", "dev")
MISSING_FILE = "missing.json"
SHOWN_MISSING = 5
"""Missing ids printed for each source; all of them are in MISSING_FILE."""


@dataclass(frozen=True)
class TurnLabels:
    """What the repository holds of one public conversation; `turns` counts the scored turn in."""

    id: str
    source: str
    original_label: str | None
    turns: int
    target: int
    claims: tuple[tuple[str | Span, str], ...]

    def record(self) -> dict[str, Any]:
        """The line of the labels file."""
        return {
            "id": self.id,
            "source": self.source,
            "original_label": self.original_label,
            "turns": self.turns,
            "target": self.target,
            "claims": [
                {"claim": claim, "label": label} if isinstance(claim, str) else claim.record() | {"label": label}
                for claim, label in self.claims
            ],
        }

    def claim_records(self, texts: dict[str, str]) -> list[dict[str, str]]:
        """The claims in words; `texts` as `_texts` gives them.

        Raises:
            KeyError: a claim repeats an utterance that `texts` lacks.
        """
        return [
            {"claim": claim if isinstance(claim, str) else cut(claim, texts), "label": label}
            for claim, label in self.claims
        ]


@dataclass
class SourceCount:
    """How the labels of one source fared."""

    labelled: int = 0
    joined: int = 0
    short_history: int = 0
    missing: list[str] = field(default_factory=list)


def labels_of(conversation: Mapping[str, Any]) -> TurnLabels:
    """The labels of a full conversation, without a word of its turns or its reference.

    Raises:
        ValueError: not exactly one turn carries claims, or it isn't the last one.
        KeyError: a field is missing.
    """
    turns = conversation["turns"]
    targets = [index for index, turn in enumerate(turns) if "claims" in turn]
    if targets != [len(turns) - 1]:
        raise ValueError(f"the turns with claims are {targets}, not the last turn alone")
    target = turns[-1]
    texts = _texts(target["text"], target["reference"], [turn["text"] for turn in turns[:-1]])
    return TurnLabels(
        id=conversation["id"],
        source=conversation["source"],
        original_label=target.get("original_label"),
        turns=len(turns),
        target=targets[0],
        claims=tuple((locate(c["claim"], texts) or c["claim"], c["label"]) for c in target["claims"]),
    )


def _texts(response: str, reference: str, history: Sequence[str]) -> dict[str, str]:
    """The texts that a claim may repeat word for word; utterances before the scored one are counted backwards."""
    earlier = {f"utterance -{n}": text for n, text in enumerate(reversed(history), start=1)}
    return {"response": response, "reference": reference, **earlier}


def read_labels(path: Path) -> list[TurnLabels]:
    """The labels file of one split.

    Raises:
        InputError: no such file, or a line isn't in the form of `TurnLabels.record`; names file and line.
    """
    return [_parse_labels(record, where) for where, record in _json_lines(path)]


def _parse_labels(record: dict[str, Any], where: str) -> TurnLabels:
    try:
        claims = tuple((_claim(c), str(c["label"])) for c in record["claims"])
        for _, label in claims:
            parse_label(label)
        labels = TurnLabels(
            record["id"], record["source"], record["original_label"], record["turns"], record["target"], claims
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"no labels of a public turn: {error!r}", where) from error
    if labels.target != labels.turns - 1:
        raise InputError(f"target {labels.target} is not the last of {labels.turns} turns", where)
    return labels


def _claim(record: Mapping[str, Any]) -> str | Span:
    if "claim" in record:
        return str(record["claim"])
    start, end = record["span"]
    return Span(str(record["of"]), int(start), int(end), str(record["head"]), str(record["tail"]))


def _json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield f"{path}, line {number}", json.loads(line)
    except OSError as error:
        raise InputError(f"can't be read: {error.strerror}", str(path)) from error
    except ValueError as error:
        raise InputError(f"no JSON Lines: {error}", str(path)) from error


def index_rows(rows: Iterable[tuple[str, SourceRow]]) -> dict[str, list[SourceRow]]:
    """Rows by id. Rows that say the same under the same reference share an id and differ in history."""
    index: dict[str, list[SourceRow]] = defaultdict(list)
    for source, row in rows:
        index[public_id(source, row.reference, row.response)].append(row)
    return dict(index)


def join(
    labels: Iterable[TurnLabels], index: Mapping[str, Sequence[SourceRow]], counts: dict[str, SourceCount]
) -> list[dict[str, Any]]:
    """Conversations for all labels whose id is in `index`, in the labels' order; `counts` is added to."""
    conversations = []
    for turn in labels:
        count = counts.setdefault(turn.source, SourceCount())
        count.labelled += 1
        rows = index.get(turn.id)
        if not rows:
            count.missing.append(turn.id)
            continue
        # Of rows with one id, the one with just the history that the teacher saw, else a longer one.
        row = max(rows, key=lambda r: (len(r.history) == turn.target, len(r.history) > turn.target))
        try:
            joined = conversation(turn, row)
        except KeyError:  # a claim repeats an utterance that this copy lacks
            count.missing.append(turn.id)
            continue
        count.joined += 1
        count.short_history += len(row.history) < turn.target
        conversations.append(joined)
    return conversations


def conversation(labels: TurnLabels, row: SourceRow) -> dict[str, Any]:
    """One conversation in the form of the training files.

    The teacher saw the last `labels.target` utterances. The one before the scored turn is the user's,
    and roles alternate from there backwards.
    """
    history = row.history[-labels.target :] if labels.target else ()
    turns: list[dict[str, Any]] = [
        {"role": "user" if (len(history) - position) % 2 else "assistant", "text": text}
        for position, text in enumerate(history)
    ]
    scored = {
        "role": "assistant",
        "text": row.response,
        "reference": row.reference,
        "claims": labels.claim_records(_texts(row.response, row.reference, history)),
        "original_label": labels.original_label,
    }
    return {"id": labels.id, "source": labels.source, "turns": [*turns, scored]}


def _write(path: Path, text: str) -> None:
    """Write a file and the folders above it; readers see the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as stream:
        stream.write(text)


def _lines(records: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def write_labels(data: Path, out: Path) -> int:
    """Make the labels files of the repository from the full conversations; return their number.

    Raises:
        InputError: a file is missing, or a line isn't a public conversation.
    """
    total = 0
    for split in SPLITS:
        labels = []
        for where, record in _json_lines(data / f"{split}.jsonl"):
            try:
                labels.append(labels_of(record))
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(f"no public conversation: {error!r}", where) from error
        _write(out / f"{split}.jsonl", _lines(turn.record() for turn in labels))
        total += len(labels)
    return total


def join_public(
    labels: Path, out: Path, begin: Path | None = None, faithdial: Path | None = None, fade: Path | None = None
) -> dict[str, SourceCount]:
    """Join the labels in `labels` with the copies given, write both splits and MISSING_FILE to `out`.

    Raises:
        InputError: a path is missing, or a file isn't in the form expected.
        VistaError: no copy is given, or nothing joined; nothing is written then.
    """
    if begin is None and faithdial is None and fade is None:
        raise VistaError("no copy given; accepted: --begin DIR, --faithdial DIR, --fade FILE_OR_DIR, one or more")
    splits = {split: read_labels(labels / f"{split}.jsonl") for split in SPLITS}
    sources = sorted({turn.source for turns in splits.values() for turn in turns})
    rows: list[tuple[str, SourceRow]] = []
    if begin is not None:
        rows.extend(read_begin(begin, [s for s in sources if s.startswith("begin_dev_")]))
    if faithdial is not None:
        rows.extend(read_faithdial(faithdial, [s for s in sources if s.startswith("faithdial_audit_")]))
    if fade is not None:
        rows.extend(read_fade(fade))
    index = index_rows(rows)
    counts: dict[str, SourceCount] = {}
    joined = {split: join(turns, index, counts) for split, turns in splits.items()}
    if not any(joined.values()):
        total = sum(count.labelled for count in counts.values())
        raise VistaError(f"nothing joined: none of the {total} labelled turns is among the {len(rows)} turns read")
    _ignore_in_git(out)
    for split, conversations in joined.items():
        _write(out / f"{split}.jsonl", _lines(conversations))
    missing = {source: count.missing for source, count in sorted(counts.items()) if count.missing}
    if missing:
        _write(out / MISSING_FILE, json.dumps(missing, indent=1) + "\n")
    else:
        (out / MISSING_FILE).unlink(missing_ok=True)
    return counts


def _ignore_in_git(out: Path) -> None:
    """Keep a new output folder out of git: most of its text is under licences of its own."""
    if not out.exists():
        _write(out / ".gitignore", "*\n")


def report(counts: Mapping[str, SourceCount]) -> str:
    """The table of sources, then the missing ids."""
    width = max(len(source) for source in (*counts, "source"))
    lines = [f"{'source':<{width}}  labelled  joined  missing  short history"]
    for source, c in sorted(counts.items()):
        lines.append(f"{source:<{width}}  {c.labelled:8d}  {c.joined:6d}  {len(c.missing):7d}  {c.short_history:13d}")
    joined = sum(c.joined for c in counts.values())
    total = sum(c.labelled for c in counts.values())
    lines.append(f"joined {joined} of {total}")
    if any(c.short_history for c in counts.values()):
        lines.append("short history: the copy has fewer utterances before the turn than the teacher saw")
    for source, c in sorted(counts.items()):
        if c.missing:
            rest = len(c.missing) - SHOWN_MISSING
            more = f" and {rest} more, see {MISSING_FILE}" if rest > 0 else ""
            lines.append(f"missing of {source}: {' '.join(c.missing[:SHOWN_MISSING])}{more}")
    return "\n".join(lines)


app = typer.Typer(add_completion=False)


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    begin: Annotated[Path | None, typer.Option(help="folder with BEGIN's begin_dev_*.tsv, at any depth")] = None,
    faithdial: Annotated[Path | None, typer.Option(help="FaithDial's repository or its data-audit folder")] = None,
    fade: Annotated[Path | None, typer.Option(help=f"FADE's {FADE_FILE}, or a folder above it")] = None,
    out: Annotated[Path, typer.Option(help="output folder", show_default="training/data/public")] = DATA / "public",
    labels: Annotated[
        Path, typer.Option(help="folder of the labels", show_default="training/data/public_labels")
    ] = DATA / "public_labels",
) -> None:
    """Join the public labels with your own copies of BEGIN, FaithDial's data audit and FADE."""
    if context.invoked_subcommand is not None:
        return
    try:
        counts = join_public(labels, out, begin, faithdial, fade)
    except VistaError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    typer.echo(report(counts))


@app.command(name="strip-labels", hidden=True)
def strip_labels(
    data: Annotated[Path, typer.Argument(help="folder of the full train.jsonl and dev.jsonl")],
    out: Annotated[Path, typer.Option(help="output folder", show_default="training/data/public_labels")] = DATA
    / "public_labels",
) -> None:
    """Make the committed labels from the full conversations (maintainers only)."""
    try:
        typer.echo(f"{write_labels(data, out)} turns")
    except VistaError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error


if __name__ == "__main__":
    app()
