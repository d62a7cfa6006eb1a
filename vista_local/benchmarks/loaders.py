"""The benchmarks' published files, or some of their copies on the hub (*), to conversations with gold. No model.

| name | file | turns that count |
|---|---|---|
| faithdial* | JSON of dialogues with `utterances`, or rows with `dialog_idx` | every wizard turn, in its conversation |
| begin* | `begin_test_*.tsv` in a folder, or one such file | each row, after its `message` |
| ais | `ann_wow.csv` and Wizard of Wikipedia's `test_random_split.json` | each row that is not flagged |
| fade* | `human_verified_500.csv` | response and corrupted response of each row |
| vista | the VISTA repository's JSON | turns with human claims |
| human_dev, turns_dev | the project's JSON Lines | turns with claims |

An id names the row it comes from, so that gold from elsewhere can be put in its place. Rows are numbered from 1 below
the header, without blank lines; ids count on across the files of a folder, messages start anew in each.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vista_local.benchmarks import mapping
from vista_local.benchmarks.figures import GoldTurn
from vista_local.benchmarks.tables import (
    CORRUPTED_COLUMNS,
    FADE_FILE,
    FADE_REFERENCE_COLUMNS,
    HISTORY_COLUMNS,
    REFERENCE_COLUMNS,
    RESPONSE_COLUMNS,
    column_key,
    find_column,
    find_files,
    placed_table,
    rendered,
    utterances,
)
from vista_local.config import Unreferenced
from vista_local.errors import InputError, MissingExtraError, VistaError
from vista_local.formats import Format, detect, show
from vista_local.labels import Label
from vista_local.readers import parse_conversation
from vista_local.schema import Conversation, GivenClaim, Role, Turn, as_passages

#: Prefix of `--data` for a data set on the hub: hub:OWNER/NAME or hub:OWNER/NAME:SPLIT.
HUB = "hub:"


@dataclass(frozen=True)
class Item:
    """One conversation of a benchmark, and what is known of its turns; `form`, where the input has one.

    Items with one `cluster` have text in common, so that their figures depend on each other; by default an item
    stands alone, under its conversation's id.
    """

    conversation: Conversation
    gold: dict[int, GoldTurn]
    form: Format | None = None
    cluster: Hashable = None

    def __post_init__(self) -> None:
        if self.cluster is None:
            object.__setattr__(self, "cluster", self.conversation.id)


@dataclass(frozen=True)
class Row:
    """One row of a table or of a data set on the hub, under normalised column names; `where` is for messages."""

    where: str
    cells: Mapping[str, Any]

    def get(self, accepted: Sequence[str], what: str) -> Any:
        """The first of the accepted columns that the row has.

        Raises:
            InputError: it has none.
        """
        names = list(self.cells)
        return self.cells[names[find_column(names, accepted, what, self.where)]]


# ---- rows ----


def hub_rows(name: str) -> Iterator[Row]:
    """The rows of a data set on the hub (or in its local cache).

    Raises:
        MissingExtraError: `datasets` isn't installed.
        VistaError: there is no such data set or split, or it can't be reached.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError("datasets", "bench") from error
    repo, _, split = name.removeprefix(HUB).partition(":")
    try:
        rows = datasets.load_dataset(repo, split=split or "test")
    except Exception as error:  # the library's exceptions have no base in common
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise VistaError(f"data set {repo!r}, split {split or 'test'!r}: can't be loaded: {reason}") from error
    for number, row in enumerate(rows, 1):
        yield Row(f"{repo}, row {number}", {column_key(k): v for k, v in dict(row).items()})


def _table_rows(path: Path, **options: Any) -> Iterator[Row]:
    header, rows = placed_table(path, **options)
    keys = [column_key(name) for name in header]
    for where, row in rows:
        yield Row(where, dict(zip(keys, row, strict=False)))


def _rows(data: str, names: Iterable[str], pattern: str, **options: Any) -> Iterator[Row]:
    """Rows of a hub data set, of a file, or of the files with these names below a folder."""
    if data.startswith(HUB):
        yield from hub_rows(data)
        return
    path = Path(data)
    files = [path] if path.is_file() else find_files(path, names, pattern, lambda p: p.name.lower())
    for file in files:
        yield from _table_rows(file, **options)


def json_records(path: Path) -> list[tuple[str, Any]]:
    """The records of a JSON document (a list, or one object) or a JSON Lines file, each with its place.

    Raises:
        InputError: the file can't be read, is neither, or is nested too deeply.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"can't be read: {error}", str(path)) from error
    try:
        document = _parsed(text, str(path))
    except ValueError:
        records: list[tuple[str, Any]] = []
        # Not `splitlines`: JSON may hold other line separators inside its strings.
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                where = f"{path}, line {number}"
                try:
                    records.append((where, _parsed(line, where)))
                except ValueError as error:
                    raise InputError(f"neither JSON nor JSON Lines: {error}", where) from error
        return records
    items = document if isinstance(document, list) else [document]
    return [(f"{path}, record {number}", item) for number, item in enumerate(items, 1)]


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise InputError("the JSON is nested too deeply", where) from error


# ---- parts ----


def _alternating(texts: Sequence[str]) -> list[Turn]:
    """History before an assistant turn: the last utterance is the user's, and roles alternate backwards."""
    roles = [Role.USER if (len(texts) - i) % 2 else Role.ASSISTANT for i in range(len(texts))]
    return [Turn(role, text) for role, text in zip(roles, texts, strict=True)]


def _single(
    name: str, history: Sequence[Turn], response: str, reference: str, original: bool | None, cluster: Hashable
) -> Item:
    """A conversation whose last turn counts; earlier assistant turns have no reference and are history only."""
    turns = (*history, Turn(Role.ASSISTANT, response, as_passages(reference)))
    return Item(Conversation(name, turns), {len(turns) - 1: GoldTurn(None, (), original)}, cluster=cluster)


def _verdict(benchmark: str, label: object, where: str) -> bool | None:
    try:
        return mapping.faithful(benchmark, str(label))
    except ValueError as error:
        raise InputError(str(error), where) from error


# ---- the benchmarks ----


def load_begin(data: str, _: Path | None = None) -> Iterator[Item]:
    """BEGIN: one item for each row; ids are `begin-` and the row's number. Several systems answer one message."""
    names = {f"begin_test_{source}.tsv" for source in ("wow", "cmu", "tc")}
    # The published files quote nothing, and quotes stand unpaired in the text.
    rows = _rows(data, names, "*.tsv", delimiter="\t", quoting=csv.QUOTE_NONE)
    for number, row in enumerate(rows, 1):
        message = str(row.get(HISTORY_COLUMNS, "the previous message"))
        knowledge = str(row.get(REFERENCE_COLUMNS, "the knowledge"))
        yield _single(
            f"begin-{number}",
            [Turn(Role.USER, message)] if message.strip() else [],
            str(row.get(RESPONSE_COLUMNS, "the response")),
            knowledge,
            _verdict(mapping.BEGIN, row.get(("begin_label", "label"), "the label"), row.where),
            (knowledge, message),
        )


def load_fade(data: str, _: Path | None = None) -> Iterator[Item]:
    """FADE: two items for each row, `fade-N-original` and `fade-N-corrupted`."""
    for number, row in enumerate(_rows(data, {FADE_FILE}, "*.csv"), 1):
        history = _alternating(utterances(_text(row.get(HISTORY_COLUMNS, "the history"))))
        reference = rendered(_text(row.get(FADE_REFERENCE_COLUMNS, "the knowledge")))
        for label, columns in (("original", RESPONSE_COLUMNS), ("corrupted", CORRUPTED_COLUMNS)):
            text = str(row.get(columns, f"the {label} response"))
            verdict = _verdict(mapping.FADE, label, row.where)
            yield _single(f"fade-{number}-{label}", history, text, reference, verdict, number)


def _text(cell: object) -> str:
    """A cell as a table holds it; the hub gives lists and objects as they are."""
    return cell if isinstance(cell, str) else json.dumps(cell)


def load_ais(data: str, wow: Path | None = None) -> Iterator[Item]:
    """AIS's Wizard of Wikipedia part, joined with the dialogues it was made from. Several systems continue one.

    Args:
        data: `ann_wow.csv`, or a folder above it.
        wow: Wizard of Wikipedia's `test_random_split.json`; by default looked for below the folder of `data`.

    Raises:
        InputError: a file is missing or in another form, or a row names a turn that isn't there.
    """
    dialogues = _wizard_of_wikipedia(data, wow)
    for row in _rows(data, {"ann_wow.csv"}, "*.csv"):
        place = str(row.get(("ex_idx",), "the example's place"))
        try:
            conversation, number = (int(part) for part in place.split(":"))
            dialogue = dialogues[conversation]["dialog"]
            target = dialogue[number]
            earlier = [(str(t["speaker"]), str(t["text"])) for t in dialogue[:number]]
        except (ValueError, IndexError, KeyError, TypeError) as error:
            raise InputError(f"ex-idx {place!r} names no turn of Wizard of Wikipedia: {error!r}", row.where) from error
        flagged = str(row.get(("flagged",), "the flag")).strip() == "1"
        label = "flagged" if flagged else str(row.get(("int_&_ais", "ais"), "the judgement")).strip()
        original = _verdict(mapping.AIS, label, row.where)
        if original is None:
            continue
        history = [Turn(Role.ASSISTANT if "wizard" in s.lower() else Role.USER, text) for s, text in earlier]
        name = f"ais-{place}-{row.get(('model_name',), 'the model')}"
        output = str(row.get(("output",), "the output"))
        yield _single(name, history, output, _checked_sentence(target), original, conversation)


def _wizard_of_wikipedia(data: str, wow: Path | None) -> list[Any]:
    missing = (
        "AIS holds outputs and judgements only; their dialogues and sources are in Wizard of Wikipedia's "
        "test_random_split.json (from ParlAI): name it with --wow, or put it beside ann_wow.csv"
    )
    if data.startswith(HUB):
        raise InputError("AIS is read from files: ann_wow.csv and Wizard of Wikipedia's test_random_split.json", data)
    place = Path(data) if Path(data).is_dir() else Path(data).parent
    found = wow or next(iter(sorted(place.rglob("test_random_split.json"))), None)
    if found is None or not found.is_file():
        raise InputError(missing, str(found or place))
    return [record for _, record in json_records(found)]


def _checked_sentence(turn: Mapping[str, Any]) -> str:
    """The sentence that the wizard chose: text, or an object with one text; empty where none was chosen."""
    checked = turn.get("checked_sentence") or ""
    if isinstance(checked, Mapping):
        checked = next(iter(checked.values()), "")
    return "" if checked in ("no_passages_used", "__no_passages_used__") else str(checked)


def load_faithdial(data: str, _: Path | None = None) -> Iterator[Item]:
    """FaithDial: the dialogues with the wizard's *original* responses, which its BEGIN labels describe.

    A response that was not changed has no original of its own. Every wizard turn counts, and the
    memory of earlier ones is the same conversation's.
    """
    for name, turns in _faithdial_dialogues(data):
        spoken: list[Turn] = []
        gold: dict[int, GoldTurn] = {}
        for row in turns:
            earlier = row.get(("history",), "the history")
            history = [] if earlier is None else [str(u) for u in _listed(earlier, "history", row.where)]
            # The dialogue's own earlier turns are there already, as they were before editing.
            spoken += _alternating(history) if not spoken else [Turn(Role.USER, text) for text in history[-1:]]
            original = row.cells.get("original_response")
            labels = row.get(("begin",), "the BEGIN labels")
            try:
                label = mapping.faithdial_label([str(v) for v in labels])
            except (ValueError, TypeError) as error:
                raise InputError(str(error), row.where) from error
            gold[len(spoken)] = GoldTurn(None, (), mapping.faithful(mapping.FAITHDIAL, label))
            text = str(original or row.get(("response",), "the response"))
            knowledge = as_passages(str(row.get(("knowledge",), "the knowledge")))
            spoken.append(Turn(Role.ASSISTANT, text, knowledge))
        yield Item(Conversation(name, tuple(spoken)), gold)


def _listed(value: object, name: str, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f"{name}: a list is expected, not {show(value)}", where)
    return value


def _faithdial_dialogues(data: str) -> Iterator[tuple[str, list[Row]]]:
    rows: list[Row] = []
    if data.startswith(HUB):
        rows = list(hub_rows(data))
    else:
        path = Path(data)
        file = path if path.is_file() else find_files(path, {"test.json"}, "*.json", lambda p: p.name.lower())[0]
        for number, (where, record) in enumerate(json_records(file)):
            if not isinstance(record, dict):
                raise InputError(f"a dialogue is expected, not {show(record)}", where)
            turns = _listed(record.get("utterances", [record]), "utterances", where)
            for at, turn in enumerate(turns, 1):
                if not isinstance(turn, dict):
                    raise InputError(f"an utterance is expected, not {show(turn)}", f"{where}, utterance {at}")
                dialogue = record.get("dialog_idx", number)
                cells = {"dialog_idx": dialogue} | {column_key(k): v for k, v in turn.items()}
                rows.append(Row(f"{where}, utterance {at}", cells))
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(f"faithdial-{row.get(('dialog_idx',), 'the dialogue')}", []).append(row)
    yield from grouped.items()


def load_native(data: str, _: Path | None = None) -> Iterator[Item]:
    """Conversations in the project's own form, or in the VISTA repository's: turns with labelled claims.

    A turn's own label (`original_label`, or the repository's `label`) is taken where the table of labels has it.

    Raises:
        InputError: a file is in neither form, a claim has no label, or `data` is on the hub.
    """
    if data.startswith(HUB):
        raise InputError(
            "this benchmark is read from a file or folder, not from the hub, whose tables can't tell a reference that "
            "is null (judged by memory) from a missing one (not scored): download the data set and name its file",
            data,
        )
    path = Path(data)
    files = [path] if not path.is_dir() else sorted(p for p in path.rglob("*.json*") if p.is_file())
    if not files:
        raise InputError("no JSON file in this folder", str(path))
    number, ids = 0, set[str]()
    for file in files:
        records = json_records(file)
        if records and all(isinstance(r, dict) and ("utterance" in r or "text" in r) for _, r in records):
            records = [(str(file), [r for _, r in records])]  # one conversation as a list of its turns
        for where, record in records:
            number += 1  # on across files: conversations without ids are named by it
            item = _native_item(record, where, number)
            if item.conversation.id in ids:
                raise InputError(f"the id {item.conversation.id!r} is there twice; gold labels go by ids", where)
            ids.add(item.conversation.id)
            yield item


def _native_item(record: Any, where: str, number: int) -> Item:
    conversation = parse_conversation(record, where, number=number)
    turns: Any = record.get("turns", record.get("messages", [])) if isinstance(record, dict) else record
    labels = turns if len(turns) == len(conversation.turns) else [{}] * len(conversation.turns)
    gold: dict[int, GoldTurn] = {}
    for index, turn in enumerate(conversation.turns):
        # Claims of an unreferenced turn need no label to be memory: then they are no gold.
        unlabelled = turn.reference is None and any(c.label is None for c in turn.claims or ())
        if turn.role is Role.ASSISTANT and turn.claims is not None and not unlabelled:
            own = labels[index].get("original_label", labels[index].get("label"))
            verdict = mapping.any_faithful(str(own)) if own is not None else None
            gold[index] = gold_turn(turn.claims, verdict, f"{where}, turn {index + 1}")
    return Item(conversation, gold, detect(record))


def form_of(items: Sequence[Item]) -> Format | None:
    """The form that all conversations of a benchmark have in their files; `None` where they have none or several."""
    forms = {item.form for item in items}
    return forms.pop() if len(forms) == 1 else None


def counted(items: Sequence[Item], unreferenced: Unreferenced) -> list[Item]:
    """The items with gold on turns that are scored alone: unreferenced ones are in no denominator.

    Raises:
        InputError: nothing is left.
    """
    if unreferenced == "verify":
        return list(items)
    kept = [
        replace(item, gold={i: g for i, g in item.gold.items() if item.conversation.turns[i].reference is not None})
        for item in items
    ]
    if not any(item.gold for item in kept):
        raise InputError(
            "no turn that counts has a reference (null for none to judge by memory alone); "
            "to score unreferenced turns, set memory.unreferenced to verify"
        )
    return kept


def gold_turn(claims: Sequence[GivenClaim], original: bool | None, where: str) -> GoldTurn:
    """Gold of a turn whose claims are labelled.

    Raises:
        InputError: a claim has no label.
    """
    labels: list[Label] = []
    for claim in claims:
        if claim.label is None:
            raise InputError(f"gold needs a label on every claim; {show(claim.text)} has none", where)
        labels.append(claim.label)
    return GoldTurn(tuple(c.text for c in claims), tuple(labels), original)


LOADERS: dict[str, Callable[[str, Path | None], Iterator[Item]]] = {
    mapping.FAITHDIAL: load_faithdial,
    mapping.BEGIN: load_begin,
    mapping.AIS: load_ais,
    mapping.FADE: load_fade,
    mapping.VISTA: load_native,
    "human_dev": load_native,
    "turns_dev": load_native,
}


def load(
    name: str, data: str, *, wow: Path | None = None, gold: Path | None = None, limit: int | None = None
) -> list[Item]:
    """The conversations of a benchmark.

    Args:
        name: a key of `LOADERS`.
        data: a file, a folder, or (FaithDial, BEGIN and FADE) hub:OWNER/NAME[:SPLIT].
        wow: Wizard of Wikipedia's file, for AIS.
        gold: a file whose claim labels take the place of the benchmark's, by conversation id and turn.
        limit: only the first conversations.

    Raises:
        VistaError: the name is unknown, the data are missing or in another form, or nothing is in them.
    """
    if name not in LOADERS:
        raise VistaError(f"unknown benchmark {name!r}; accepted: {', '.join(LOADERS)}")
    items = list(LOADERS[name](data, wow))[:limit]
    if not items:
        raise InputError("no conversation in it", data)
    return items if gold is None else with_gold(items, gold)


def with_gold(items: Sequence[Item], path: Path) -> list[Item]:
    """The items with the claims and labels of a gold file; turns that it doesn't have keep theirs.

    Raises:
        InputError: the file has no gold for any of these conversations, or names a turn that isn't there.
    """
    from vista_local.corrections import gold_claims

    found = gold_claims(path)
    changed: list[Item] = []
    for item in items:
        turns, gold = list(item.conversation.turns), dict(item.gold)
        for index, claims in found.get(item.conversation.id, {}).items():
            if not (0 <= index < len(turns) and turns[index].role is Role.ASSISTANT):
                raise InputError(f"conversation {item.conversation.id!r} has no assistant turn {index}", str(path))
            original = gold[index].original if index in gold else None
            gold[index] = gold_turn(claims, original, str(path))
            turns[index] = replace(turns[index], claims=tuple(claims))
        ordered = dict(sorted(gold.items()))
        changed.append(replace(item, conversation=replace(item.conversation, turns=tuple(turns)), gold=ordered))
    if not any(item.conversation.id in found for item in items):
        raise InputError("it has gold for none of the benchmark's conversations (are the ids the same?)", str(path))
    return changed
