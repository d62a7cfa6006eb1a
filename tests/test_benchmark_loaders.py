"""Benchmark files of the published forms to conversations with gold, and what their labels mean."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from benchmark_files import reply, table_file

from vista_local.benchmarks import mapping
from vista_local.benchmarks.loaders import HUB, load
from vista_local.benchmarks.tables import placed_table, read_table
from vista_local.errors import InputError, MissingExtraError, VistaError
from vista_local.labels import Label
from vista_local.schema import Role

# ---- loading ----


def test_begin_takes_each_row_with_its_message_and_leaves_quotes_alone(begin: Path) -> None:
    items = load("begin", str(begin))
    assert [i.conversation.id for i in items] == ["begin-1", "begin-2", "begin-3"]
    first, second, third = items
    assert [t.text for t in first.conversation.turns] == ["When was it built?", 'In 1912, they "say.']
    assert first.gold[1].original is True and first.conversation.turns[1].reference == ("The mill was built in 1912.",)
    assert second.gold[0].original is False and third.gold[1].original is False
    assert load("begin", str(begin.parent), limit=1) == items[:1]


def test_a_row_cut_short_is_named_and_blank_lines_are_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text('a,b\n\n1,"two\nlines"\n\n  \n3,4,5\n6\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"data\.csv, row 3 \(line 8\): the row is cut short: 1 cells, .* has 2"):
        placed_table(path)
    assert len(read_table(path)[1]) == 2, "a table that is looked up by content goes without it"
    path.write_text(path.read_text(encoding="utf-8").removesuffix("6\n"), encoding="utf-8")
    header, rows = placed_table(path)
    assert [where.removeprefix(str(path)) for where, _ in rows] == [", row 1 (line 3)", ", row 2 (line 7)"]
    assert read_table(path) == (header, [["1", "two\nlines"], ["3", "4", "5"]]) == (["a", "b"], [r for _, r in rows])


def test_an_id_and_a_message_name_the_same_row(begin: Path) -> None:
    lines = begin.read_text(encoding="utf-8").splitlines()
    begin.write_text("\n".join([lines[0], "", *lines[1:3], "", lines[3].replace("Generic", "Odd")]), encoding="utf-8")
    with pytest.raises(InputError, match=r"begin_test_wow\.tsv, row 3 \(line 6\): unknown label 'Odd'"):
        load("begin", str(begin))
    begin.write_text(begin.read_text(encoding="utf-8").replace("Odd", "Generic"), encoding="utf-8")
    assert [i.conversation.id for i in load("begin", str(begin))] == ["begin-1", "begin-2", "begin-3"]
    begin.write_text("\n".join([lines[0], lines[1], "t5\twow", lines[3]]), encoding="utf-8")
    with pytest.raises(InputError, match=r"row 2 \(line 3\): the row is cut short: 2 cells, the header has 6"):
        load("begin", str(begin))


def test_a_folder_of_begin_gives_its_test_files_alone(begin: Path) -> None:
    dev = begin.rename(begin.with_name("begin_dev_wow.tsv"))
    with pytest.raises(InputError, match="none of the expected files"):
        load("begin", str(begin.parent))
    assert len(load("begin", str(dev))) == 3


def test_items_with_text_in_common_are_one_cluster(begin: Path, fade: Path, ais: Path, native: Path) -> None:
    lines = begin.read_text(encoding="utf-8").splitlines()
    begin.write_text(
        "\n".join([*lines, lines[1].replace("t5", "gpt2").replace("1912, they", "1913")]), encoding="utf-8"
    )
    first, second, third, fourth = (item.cluster for item in load("begin", str(begin)))
    assert first == fourth and len({first, second, third}) == 3  # another message is another cluster
    header, row = read_table(fade)[0], read_table(fade)[1][0]
    table_file(fade, [header, row, row])
    assert list(Counter(item.cluster for item in load("fade", str(fade))).values()) == [2, 2]
    rows = ais.read_text(encoding="utf-8").splitlines()
    dialogues = json.loads((ais.parent / "test_random_split.json").read_text(encoding="utf-8"))
    (ais.parent / "test_random_split.json").write_text(json.dumps(dialogues * 2), encoding="utf-8")
    more = [rows[1].replace("0:3", "0:1"), rows[2].replace("0:3", "1:3")]
    ais.write_text("\n".join([*rows, *more]), encoding="utf-8")
    assert list(Counter(item.cluster for item in load("ais", str(ais))).values()) == [3, 1]
    assert [item.cluster for item in load("human_dev", str(native))] == ["mill", "lake"]


def test_fade_gives_two_turns_a_row_with_alternating_history(fade: Path) -> None:
    original, corrupted = load("fade", str(fade))
    assert (original.conversation.id, corrupted.conversation.id) == ("fade-1-original", "fade-1-corrupted")
    turns = original.conversation.turns
    assert [t.role for t in turns] == [Role.USER, Role.ASSISTANT, Role.USER, Role.ASSISTANT]
    assert turns[1].reference is None and turns[3].reference == ("Oda's film is from 1988",)
    assert (original.gold[3].original, corrupted.gold[3].original) == (True, False)


def test_ais_is_joined_by_place_and_leaves_flagged_rows_out(ais: Path) -> None:
    first, second = load("ais", str(ais))
    assert first.conversation.id == "ais-0:3-wow-t5" and len(first.conversation.turns) == 4
    assert first.conversation.turns[3].text == "it lies at 600 metres."
    assert first.conversation.turns[3].reference == ("The lake lies at 600 metres.",)
    assert first.conversation.turns[1].role is Role.ASSISTANT and first.conversation.turns[1].reference is None
    assert (first.gold[3].original, second.gold[3].original) == (True, False)


def test_ais_without_wizard_of_wikipedia_says_what_is_missing(ais: Path) -> None:
    (ais.parent / "test_random_split.json").unlink()
    with pytest.raises(InputError, match="their dialogues and sources are in Wizard of Wikipedia"):
        load("ais", str(ais))
    with pytest.raises(InputError, match="AIS is read from files"):
        load("ais", HUB + "owner/name")


def test_ais_names_a_row_whose_turn_is_not_there(ais: Path) -> None:
    (ais.parent / "test_random_split.json").write_text('[{"dialog": []}]', encoding="utf-8")
    with pytest.raises(InputError, match=r"row 1 \(line 2\): ex-idx '0:3' names no turn"):
        load("ais", str(ais))


def test_faithdial_is_the_dialogue_before_editing(faithdial: Path) -> None:
    (item,) = load("faithdial", str(faithdial))
    texts = [t.text for t in item.conversation.turns]
    assert texts == ["Mills?", "I own one from 1912!", "Sure?", "Yes, in 1912.", "Ok", "Good."]
    assert {i: t.original for i, t in item.gold.items()} == {1: False, 3: True, 5: None}
    assert all(item.conversation.turns[i].reference for i in item.gold)


def test_faithdial_as_rows_of_the_hub(faithdial: Path, tmp_path: Path) -> None:
    (dialogue,) = json.loads(faithdial.read_text(encoding="utf-8"))
    rows = [{"dialog_idx": 7, **u} for u in dialogue["utterances"]]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    (item,) = load("faithdial", str(path))
    assert (
        item.conversation.id == "faithdial-7"
        and item.conversation.turns == load("faithdial", str(faithdial))[0].conversation.turns
    )


def test_hub_data_sets_come_through_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    import types

    seen: list[tuple[str, str]] = []

    def load_dataset(name: str, split: str) -> list[dict[str, str]]:
        seen.append((name, split))
        if split == "none":
            raise ValueError("Unknown split")
        return [{"Knowledge": "K.", "message": "m", "response": "r", "BEGIN label": "Generic"}]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    (item,) = load("begin", "hub:owner/begin:dev")
    assert item.gold[1].original is False and seen == [("owner/begin", "dev")]
    with pytest.raises(VistaError, match="'owner/begin', split 'none': can't be loaded: Unknown split"):
        load("begin", "hub:owner/begin:none")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"vista-local\[bench\]"):
        load("begin", "hub:owner/begin")


@pytest.mark.parametrize("name", ["vista", "human_dev", "turns_dev"])
def test_benchmarks_that_are_files_only_say_so(name: str) -> None:
    with pytest.raises(InputError, match="hub:owner/name: this benchmark is read from a file or folder, not from the"):
        load(name, HUB + "owner/name")


def test_native_turns_have_claims_and_their_own_label(native: Path) -> None:
    mill, lake = load("human_dev", str(native))
    assert mill.gold[1].labels == (Label.VERIFIED, Label.OUT_OF_SCOPE) and mill.gold[1].original is False
    assert (mill.gold[1].strict, mill.gold[1].safe, mill.gold[3].original) == (False, True, True)
    assert lake.gold[1].safe is False


def test_conversations_of_a_folder_without_ids_are_told_apart_and_ids_given_twice_refused(tmp_path: Path) -> None:
    turns = [{"role": "wizard", "utterance": "Old.", "retrieved_document": "It is old.", "human_claims": []}]
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps(turns), encoding="utf-8")
    assert len({i.conversation.id for i in load("vista", str(tmp_path))}) == 2
    named = {"id": "x", "turns": [{"role": "assistant", "text": "Old.", "reference": [], "claims": []}]}
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps(named), encoding="utf-8")
    with pytest.raises(InputError, match=r"b\.json, record 1: .*'x' is there twice"):
        load("vista", str(tmp_path))


def test_json_lines_and_chat_logs_are_read_as_score_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    chats = [
        {"id": n, "messages": [{"role": "assistant", "content": "Old.\u2028New.", "context": "", "claims": []}]}
        for n in ("a", "b")
    ]
    path.write_text("".join(json.dumps(c, ensure_ascii=False) + "\n" for c in chats), encoding="utf-8")
    assert [i.conversation.turns[0].text for i in load("vista", str(path))] == ["Old.\u2028New."] * 2


def test_the_vista_repositorys_list_of_turns_is_one_conversation(tmp_path: Path) -> None:
    turns = [
        {"role": "apprentice", "utterance": "Mill?"},
        {"role": "wizard", "utterance": "1912.", "retrieved_document": "Built in 1912.", "label": "faithful",
         "human_claims": [{"claim": "built 1912", "label": "VERIFIABLE"}]},
    ]  # fmt: skip
    path = tmp_path / "vista.json"
    path.write_text(json.dumps(turns), encoding="utf-8")
    (item,) = load("vista", str(path))
    assert item.gold[1].labels == (Label.VERIFIED,) and item.gold[1].original is True


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("begin", "knowledge\tmessage\tresponse\n1\t2\t3\n", "no column for the label"),
        ("begin", "knowledge\tmessage\tresponse\tbegin_label\n1\t2\t3\tMaybe\n", "row 1 (line 2): unknown label"),
        ("faithdial", '[{"utterances": [{"history": [], "response": "r", "BEGIN": ["Odd"]}]}]', "unknown labels"),
        ("faithdial", "[3]", "a dialogue is expected, not 3"),
        ("faithdial", '[{"utterances": [{"history": 5}]}]', "record 1, utterance 1: history: a list is expected"),
        ("faithdial", '[{"utterances": [{"history": "Hi"}]}]', "utterance 1: history: a list is expected, not 'Hi'"),
        ("faithdial", '[{"utterances": "Hi"}]', "record 1: utterances: a list is expected, not 'Hi'"),
        ("faithdial", '[{"utterances": null}]', "record 1: utterances: a list is expected, not"),
        ("faithdial", "{\n3 4", "neither JSON nor JSON Lines"),
        ("human_dev", "[" * 100_000, "data: the JSON is nested too deeply"),
        ("human_dev", '{}\n{"turns": ' + "[" * 100_000, "data, line 2: the JSON is nested too deeply"),
        ("human_dev", '{"turns": [{"role": "assistant", "text": "", "reference": "", "claims": ["c"]}]}', "a label"),
        ("human_dev", "", "no conversation in it"),
        ("nothing", "", "unknown benchmark 'nothing'; accepted: faithdial"),
    ],
)  # fmt: skip
def test_faults_are_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / "data"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(VistaError) as error:
        load(name, str(path))
    assert message in str(error.value)


def test_gold_from_elsewhere_takes_the_place_of_the_benchmarks(begin: Path, tmp_path: Path) -> None:
    gold = tmp_path / "gold.jsonl"
    turns = [{"role": "user", "text": "When was it built?"}, reply("x", "y", ("built 1912", "CONTRADICTED"))]
    gold.write_text(json.dumps({"id": "begin-1", "turns": turns}) + "\n", encoding="utf-8")
    first, second, _ = load("begin", str(begin), gold=gold)
    assert first.gold[1].labels == (Label.CONTRADICTED,) and first.gold[1].original is True
    assert first.conversation.turns[1].claims is not None and second.gold[0].claims is None
    gold.write_text(json.dumps({"id": "other", "turns": turns}) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match="gold for none of the benchmark's conversations"):
        load("begin", str(begin), gold=gold)


# ---- the table of labels ----


def test_every_label_has_one_meaning_and_a_source() -> None:
    keys = [(rule.benchmark, rule.label) for rule in mapping.LABEL_RULES]
    assert len(keys) == len(set(keys)) and all(rule.source for rule in mapping.LABEL_RULES)
    assert all(rule.label == rule.label.lower() for rule in mapping.LABEL_RULES)


def test_any_hallucination_makes_a_faithdial_response_one() -> None:
    assert mapping.faithdial_label(["Entailment", "Hallucination"]) == "hallucination"
    assert mapping.faithdial_label(["Uncooperative", "Entailment"]) == "entailment"
    with pytest.raises(ValueError, match="accepted: hallucination"):
        mapping.faithdial_label(["x"])
