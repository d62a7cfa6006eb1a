"""Joining the public labels with a user's own copies: the id rule, the file formats, the result's form."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from training import join_public as jp
from training import public_sources as ps
from vista_local.benchmarks.tables import FADE_FILE
from vista_local.errors import InputError, VistaError

ROOT = Path(__file__).parents[1]
LABELS = ROOT / "training" / "data" / "public_labels"
FULL = ROOT.parent / "shared" / "data" / "public"
needs_full = pytest.mark.skipif(not FULL.is_dir(), reason="the full public conversations are not on this machine")

RIVER = "The river Vell is 92 kilometres long."
RIVER_ID = "begin_dev_wow-e8459c26"
"""From the shell: printf 'therivervellis92kilometreslong|itis92kmlongithink' | sha1sum."""


def label_line(source: str, reference: str, response: str, turns: int, original: str) -> dict[str, Any]:
    return {
        "id": ps.public_id(source, reference, response),
        "source": source,
        "original_label": original,
        "turns": turns,
        "target": turns - 1,
        "claims": [{"claim": f"A claim of {source}.", "label": "VERIFIED"}],
    }


def write_table(path: Path, rows: list[list[str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)


def write_jsonl(path: Path, records: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    """Look-alikes of the three data sets and of the labels; the sentences are this test's own."""
    begin = tmp_path / "begin" / "wow" / "begin_dev_wow.tsv"
    begin.parent.mkdir(parents=True)
    begin.write_text(
        "model_name\tdata_source\tknowledge\tmessage\tresponse\tbegin_label\n"
        f't5\twow\t{RIVER}\t"how long is it?\tIt is 92 km long, I think!\tFully attributable\n'
        f"t5\twow\t{RIVER}\tI swim there.\tNice.\tGeneric\n",
        encoding="utf-8",
    )
    (begin.parent / "begin_test_wow.tsv").write_text("not a table that anybody may open\n", encoding="utf-8")
    audit = tmp_path / "faithdial" / "data-audit"
    header = ["knowledge", "history", "ctrl", "begin_label", "vrm_label"]
    write_table(
        audit / "CTRL" / "ctrl_processed_wow.csv",
        [header, ['A "kettle" boils,\nloudly.', "", "Kettles are loud.", "entailment", "edification"]],
    )
    write_table(
        audit / "gold" / "topical.csv",
        [["evidence", "history", "response", "BEGIN", "VRM"], ["Goats mow.", "[]", "They do.", "Entailment", "Ack."]],
    )
    knowledge = str({"subject": "Oda", "render": "Oda's film is from 1988"})
    history = str(["one", "two", "it's three", "four", "five"])
    write_table(
        tmp_path / "fade" / "human_verified_500.csv",
        [
            ["id", "history", "response", "corrupted_response", "knowledge_base"],
            ["0", history, "It is from 1988.", "It is from 1998.", knowledge],
            ["1", "Who made it?", "Oda did.", "Ota did.", json.dumps({"render": "Oda made it"})],
        ],
    )
    labels = {
        "train": [
            label_line("begin_dev_wow", RIVER, "It is 92 km long, I think!", 2, "Fully attributable"),
            label_line("faithdial_audit_CTRL_ctrl_wow", 'A "kettle" boils,\nloudly.', "Kettles are loud.", 1, "e|e"),
            label_line("fade_orig", "Oda's film is from 1988", "It is from 1988.", 5, "original"),
            label_line("fade_corrupt", "Oda's film is from 1988", "It is from 1998.", 4, "corrupted"),
        ],
        "dev": [
            label_line("fade_orig", "Oda made it", "Oda did.", 2, "original"),
            label_line("faithdial_audit_gold_topical", "Goats mow.", "They do.", 2, "Entailment|Ack."),
            label_line("begin_dev_cmu", "A film.", "Not in the copies.", 2, "Generic"),
        ],
    }
    for split, lines in labels.items():
        write_jsonl(tmp_path / "labels" / f"{split}.jsonl", lines)
    return tmp_path


def run(copies: Path, *options: str) -> Any:
    arguments = ["--labels", str(copies / "labels"), "--out", str(copies / "out"), *options]
    return CliRunner().invoke(jp.app, arguments)


def run_all(copies: Path) -> Any:
    sources = (("--begin", "begin"), ("--faithdial", "faithdial"), ("--fade", "fade"))
    return run(copies, *(word for option, name in sources for word in (option, str(copies / name))))


def test_id_rule_against_a_hash_from_the_shell() -> None:
    assert ps.norm("It is 92 km long, I think!") == "itis92kmlongithink"
    assert ps.public_id("begin_dev_wow", RIVER, "It is 92 km long, I think!") == RIVER_ID
    assert ps.public_id("begin_dev_wow", RIVER.upper(), " it is 92km LONG i think") == RIVER_ID


def test_norm_keeps_ascii_letters_and_digits_only() -> None:
    assert ps.norm("Café №5 – İstanbul") == "caf5istanbul"


def test_joins_all_three_sources(copies: Path) -> None:
    result = run_all(copies)
    assert result.exit_code == 0, result.output
    train, dev = read_jsonl(copies / "out" / "train.jsonl"), read_jsonl(copies / "out" / "dev.jsonl")
    assert train[0] == {
        "id": RIVER_ID,
        "source": "begin_dev_wow",
        "turns": [
            {"role": "user", "text": '"how long is it?'},
            {
                "role": "assistant",
                "text": "It is 92 km long, I think!",
                "reference": RIVER,
                "claims": [{"claim": "A claim of begin_dev_wow.", "label": "VERIFIED"}],
                "original_label": "Fully attributable",
            },
        ],
    }
    assert [turn["role"] for turn in train[1]["turns"]] == ["assistant"]
    assert train[1]["turns"][0]["reference"] == 'A "kettle" boils,\nloudly.'
    assert [(t["role"][0], t["text"]) for t in train[2]["turns"]] == [
        ("a", "two"),
        ("u", "it's three"),
        ("a", "four"),
        ("u", "five"),
        ("a", "It is from 1988."),
    ]
    assert [t["role"][0] for t in train[3]["turns"]] == ["u", "a", "u", "a"]
    assert train[3]["turns"][-1]["text"] == "It is from 1998."
    assert [t["text"] for t in dev[0]["turns"]] == ["Who made it?", "Oda did."]
    assert dev[1]["turns"][0] == {"role": "user", "text": "[]"}


def test_reports_what_is_missing_by_source(copies: Path) -> None:
    result = run_all(copies)
    missing = ps.public_id("begin_dev_cmu", "A film.", "Not in the copies.")
    assert "joined 6 of 7" in result.output
    assert f"missing of begin_dev_cmu: {missing}" in result.output
    assert json.loads((copies / "out" / "missing.json").read_text()) == {"begin_dev_cmu": [missing]}


def test_one_copy_is_enough_and_a_second_run_replaces_the_first(copies: Path) -> None:
    assert run_all(copies).exit_code == 0
    result = run(copies, "--fade", str(copies / "fade" / "human_verified_500.csv"))
    assert result.exit_code == 0
    assert "joined 3 of 7" in result.output
    assert {r["source"] for r in read_jsonl(copies / "out" / "train.jsonl")} == {"fade_orig", "fade_corrupt"}
    assert sorted(p.name for p in (copies / "out").iterdir()) == [
        ".gitignore",
        "dev.jsonl",
        "missing.json",
        "train.jsonl",
    ]


def test_a_new_output_folder_stays_out_of_git_and_an_old_one_is_left_alone(copies: Path) -> None:
    assert run_all(copies).exit_code == 0
    assert (copies / "out" / ".gitignore").read_text() == "*\n"
    (copies / "out" / ".gitignore").unlink()
    assert run_all(copies).exit_code == 0
    assert not (copies / "out" / ".gitignore").exists()


def test_a_short_history_is_joined_and_counted(copies: Path) -> None:
    path = copies / "labels" / "dev.jsonl"
    lines = read_jsonl(path)
    lines[0]["turns"], lines[0]["target"] = 4, 3
    write_jsonl(path, lines)
    result = run_all(copies)
    assert result.exit_code == 0
    assert "short history: the copy has fewer utterances" in result.output
    assert len(read_jsonl(copies / "out" / "dev.jsonl")[0]["turns"]) == 2


def test_a_claim_that_repeats_an_earlier_utterance_is_a_place_in_it() -> None:
    said = {"text": "It is.", "reference": "r", "claims": [{"claim": "Goats mow the lawn.", "label": "VERIFIED"}]}
    turns = [{"role": "user", "text": "Goats mow the lawn"}, {"role": "assistant", "text": "Do they?"}, said]
    labels = jp.labels_of({"id": ps.public_id("s", "r", "It is."), "source": "s", "turns": turns})
    assert "Goats" not in json.dumps(labels.record())
    rows = {"whole": ("Goats mow the lawn", "Do they?"), "short": ("Do they?",)}
    found: dict[str, Any] = {}
    for name, history in rows.items():
        counts: dict[str, jp.SourceCount] = {}
        index = jp.index_rows([("s", ps.SourceRow("r", "It is.", history))])
        found[name] = (jp.join([labels], index, counts), counts["s"].missing)
    ((whole,), missing), (none, left_out) = found["whole"], found["short"]
    assert whole["turns"][-1]["claims"] == said["claims"] and missing == []
    assert none == [] and left_out == [labels.id], "a claim without its words is no example, and is reported"


def test_rows_with_one_id_are_told_apart_by_their_history() -> None:
    rows = [ps.SourceRow("r", "t", ()), ps.SourceRow("r", "t", ("a", "b")), ps.SourceRow("r", "t", ("c",))]
    index = jp.index_rows(("s", row) for row in rows)
    for turns, expected in ((1, []), (2, ["c"]), (3, ["a", "b"])):
        labels = jp.TurnLabels(ps.public_id("s", "r", "t"), "s", None, turns, turns - 1, ())
        (joined,) = jp.join([labels], index, {})
        assert [turn["text"] for turn in joined["turns"][:-1]] == expected


def test_no_copy_or_a_missing_path_exits_2(copies: Path) -> None:
    assert run(copies).exit_code == 2
    result = run(copies, "--begin", str(copies / "nowhere"))
    assert result.exit_code == 2
    assert "no such file or folder" in result.output
    result = run(copies, "--begin", str(copies / "fade"))
    assert result.exit_code == 2
    assert "begin_dev_wow.tsv" in result.output
    assert not (copies / "out").exists()


def test_nothing_joined_exits_2_and_writes_nothing(copies: Path) -> None:
    write_table(copies / "fade" / "human_verified_500.csv", [["history", "response", "corrupted_response", "render"]])
    result = run(copies, "--fade", str(copies / "fade"))
    assert result.exit_code == 2
    assert "nothing joined" in result.output
    assert not (copies / "out").exists()


def test_an_unknown_column_is_named_with_those_accepted(copies: Path) -> None:
    path = copies / "faithdial" / "data-audit" / "gold" / "topical.csv"
    write_table(path, [["facts", "history", "response"], ["a", "b", "c"]])
    with pytest.raises(InputError, match=r"topical\.csv: no column for the knowledge; found: facts, .*evidence"):
        list(ps.read_faithdial(copies / "faithdial", ["faithdial_audit_gold_topical"]))


def test_column_names_compare_without_case_spaces_and_hyphens(copies: Path) -> None:
    path = copies / "faithdial" / "data-audit" / "gold" / "topical.csv"
    write_table(path, [["Knowledge", " History", "Model Response"], ["a", "b", "c"]])
    rows = list(ps.read_faithdial(copies / "faithdial" / "data-audit", ["faithdial_audit_gold_topical"]))
    assert rows == [("faithdial_audit_gold_topical", ps.SourceRow("a", "c", ("b",)))]


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ('["a", "b"]', ("a", "b")),
        ("['it''s', \"it's\"]", ("its", "it's")),
        ('[{"speaker": 1, "text": "a"}, {"utterance": "b"}]', ("a", "b")),
        ("a\nb", ("a", "b")),
        ("a </s> b [SEP] c", ("a", "b", "c")),
        ("[unclosed", ("[unclosed",)),
        ("just this one", ("just this one",)),
        ("", ()),
        ("[]", ()),
    ],
)
def test_history_cells(cell: str, expected: tuple[str, ...]) -> None:
    assert ps.utterances(cell) == expected


@pytest.mark.parametrize(
    "cell",
    ["a b", '{"render": "a b"}', "{'render': 'a b'}", '[{"render": "a"}, {"render": "b"}]', '{"render": ["a", "b"]}'],
)
def test_knowledge_cells(cell: str) -> None:
    assert ps.rendered(cell) == "a b"


def test_a_failed_write_leaves_the_old_file(copies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_all(copies).exit_code == 0
    before = {p.name: p.read_bytes() for p in (copies / "out").iterdir()}

    def fail(*_: object) -> None:
        raise OSError(28, "disk full")

    monkeypatch.setattr("os.replace", fail)
    result = run(copies, "--fade", str(copies / "fade"))
    assert result.exit_code == 2
    assert "disk full" in result.output
    assert {p.name: p.read_bytes() for p in (copies / "out").iterdir()} == before


def test_a_bad_labels_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    write_jsonl(path, [{"id": "x"}])
    with pytest.raises(InputError, match=r"train\.jsonl, line 1"):
        jp.read_labels(path)
    with pytest.raises(VistaError, match=r"absent\.jsonl"):
        jp.read_labels(tmp_path / "absent.jsonl")


@pytest.mark.parametrize(("split", "turns", "claims"), [("train", 1906, 4437), ("dev", 184, 465)])
def test_committed_labels_hold_no_text_of_turns(split: str, turns: int, claims: int) -> None:
    records = read_jsonl(LABELS / f"{split}.jsonl")
    assert all(set(r) == {"id", "source", "original_label", "turns", "target", "claims"} for r in records)
    spans = [c for r in records for c in r["claims"] if "claim" not in c]
    assert spans
    assert all(set(c) == {"of", "span", "head", "tail", "label"} for c in spans)
    assert not any(c.isalnum() for span in spans for c in span["head"] + span["tail"])
    assert all(set(c) == {"claim", "label"} for r in records for c in r["claims"] if "claim" in c)
    assert (len(records), sum(len(r["claims"]) for r in records)) == (turns, claims)
    assert len({r["id"] for r in records}) == turns


@needs_full
def test_committed_labels_come_from_the_full_conversations(tmp_path: Path) -> None:
    jp.write_labels(FULL, tmp_path)
    for split in jp.SPLITS:
        assert (tmp_path / f"{split}.jsonl").read_bytes() == (LABELS / f"{split}.jsonl").read_bytes()


@needs_full
def test_no_committed_claim_repeats_its_turn_or_reference() -> None:
    texts = {r["id"]: r["turns"][-1] for split in jp.SPLITS for r in read_jsonl(FULL / f"{split}.jsonl")}
    for split in jp.SPLITS:
        for turn in jp.read_labels(LABELS / f"{split}.jsonl"):
            words = [claim for claim, _ in turn.claims if isinstance(claim, str)]
            assert not any(claim in texts[turn.id][field] for claim in words for field in ("text", "reference"))


@needs_full
def test_every_id_of_the_full_conversations_follows_the_rule() -> None:
    records = [record for split in jp.SPLITS for record in read_jsonl(FULL / f"{split}.jsonl")]
    recomputed = [ps.public_id(r["source"], r["turns"][-1]["reference"], r["turns"][-1]["text"]) for r in records]
    assert recomputed == [r["id"] for r in records]
    assert len(records) == 2090


@needs_full
def test_files_rebuilt_from_the_full_conversations_join_to_the_same_bytes(tmp_path: Path) -> None:
    """All 2,090 turns through files in the sources' formats: the result is the file the adapters learnt from."""
    tables: dict[str, list[list[str]]] = {}
    fade = [["history", "response", "corrupted_response", "knowledge_base"]]
    for record in (r for split in jp.SPLITS for r in read_jsonl(FULL / f"{split}.jsonl")):
        *history, scored = record["turns"]
        texts, source = [turn["text"] for turn in history], record["source"]
        if source.startswith("fade"):
            pair = [scored["text"], ""] if source == "fade_orig" else ["", scored["text"]]
            fade.append([str(texts), *pair, str({"render": scored["reference"]})])
        else:
            tables.setdefault(source, []).append([scored["reference"], "".join(texts), scored["text"]])
    for source, rows in tables.items():
        if source.startswith("begin"):
            lines = [["knowledge", "message", "response"], *rows]
            path = tmp_path / "begin" / f"{source}.tsv"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join("\t".join(line) + "\n" for line in lines), encoding="utf-8", newline="")
        else:
            folder, name = source.removeprefix("faithdial_audit_").split("_", 1)
            header = (
                ["evidence", "history", "response"] if folder == "gold" else ["knowledge", "history", folder.lower()]
            )
            stem = name if folder == "gold" else name.replace("_", "_processed_", 1)
            write_table(tmp_path / "faithdial" / folder / f"{stem}.csv", [header, *rows])
    write_table(tmp_path / "fade" / FADE_FILE, fade)
    counts = jp.join_public(LABELS, tmp_path / "out", tmp_path / "begin", tmp_path / "faithdial", tmp_path / "fade")
    assert not any(count.missing or count.short_history for count in counts.values())
    for split in jp.SPLITS:
        assert (tmp_path / "out" / f"{split}.jsonl").read_bytes() == (FULL / f"{split}.jsonl").read_bytes()
