"""Small files of the benchmarks' published forms, and conversations of the project's own. Fixtures."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

# ---- files of the published forms ----


def table_file(path: Path, rows: list[list[str]], **options: Any) -> Path:
    with open(path, "w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, **options).writerows(rows)
    return path


@pytest.fixture
def begin(tmp_path: Path) -> Path:
    header = ["model", "data_source", "knowledge", "message", "response", "begin_label"]
    rows = [
        ["t5", "wow", "The mill was built in 1912.", "When was it built?", 'In 1912, they "say.', "Fully attributable"],
        ["gpt2", "wow", "The mill was built in 1912.", "", "It has a red roof.", "Not fully attributable"],
        ["gpt2", "wow", "The mill was built in 1912.", "Hi", "Nice!", "Generic"],
    ]
    path = tmp_path / "begin_test_wow.tsv"
    path.write_text("\n".join("\t".join(row) for row in [header, *rows]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def fade(tmp_path: Path) -> Path:
    history = str(
        [{"speaker": "user", "message": "Who made it?"}, {"speaker": "bot", "message": "Oda."}, {"message": "When?"}]
    )
    rows = [
        ["history", "response", "corrupted_response", "knowledge_base"],
        [history, "In 1988.", "In 1998.", str({"path": [], "render": "Oda's film is from 1988"})],
    ]
    return table_file(tmp_path / "human_verified_500.csv", rows)


def wizard(speaker: str, text: str, sentence: str | None = None) -> dict[str, Any]:
    return {"speaker": speaker, "text": text} | ({"checked_sentence": {"chosen_0": sentence}} if sentence else {})


@pytest.fixture
def ais(tmp_path: Path) -> Path:
    folder = tmp_path / "ais"
    folder.mkdir()
    dialog = [
        wizard("0_Apprentice", "Tell me of lakes."),
        wizard("1_Wizard", "They are wet.", "Lakes hold water."),
        wizard("0_Apprentice", "How high?"),
        wizard("1_Wizard", "At 600 metres.", "The lake lies at 600 metres."),
    ]
    (folder / "test_random_split.json").write_text(json.dumps([{"dialog": dialog}]), encoding="utf-8")
    header = ["ex-idx ", "doc-url", "doc-url-hash", "model-name", "output", "INT", "INT & AIS", "Flagged", "Q1", "Q2"]
    rows = [
        ["0:3", "NA", "NA", "wow-t5", "it lies at 600 metres.", "1", "1", "0", "", ""],
        ["0:3", "NA", "NA", "wow-dodeca", "it is deep.", "1", "0", "0", "", ""],
        ["0:1", "NA", "NA", "wow-t5", "garbled", "0", "0", "1", "", ""],
    ]
    return table_file(folder / "ann_wow.csv", [header, *rows])


@pytest.fixture
def faithdial(tmp_path: Path) -> Path:
    def utterance(history: list[str], response: str, original: str | None, *labels: str) -> dict[str, Any]:
        return {
            "history": history,
            "speaker": "Wizard",
            "knowledge": "The mill was built in 1912.",
            "original_response": original,
            "response": response,
            "BEGIN": list(labels),
            "VRM": ["Disclosure"],
        }

    dialogue = {
        "utterances": [
            utterance(["Mills?"], "One was built in 1912.", "I own one from 1912!", "Hallucination", "Entailment"),
            utterance(["Mills?", "One was built in 1912.", "Sure?"], "Yes, in 1912.", "", "Entailment"),
            utterance(["Mills?", "One was built in 1912.", "Sure?", "Yes, in 1912.", "Ok"], "Good.", None, "Generic"),
        ]
    }
    path = tmp_path / "test.json"
    path.write_text(json.dumps([dialogue]), encoding="utf-8")
    return path


def reply(text: str, reference: Any, *claims: tuple[str, str], **more: Any) -> dict[str, Any]:
    labelled = [{"claim": claim, "label": label} for claim, label in claims]
    return {"role": "assistant", "text": text, "reference": reference, "claims": labelled, **more}


CONVERSATIONS = [
    {
        "id": "mill",
        "turns": [
            {"role": "user", "text": "Mill?"},
            reply(
                "It was built in 1912. I like it.",
                "Built in 1912.",
                ("built 1912", "VERIFIED"),
                ("likes it", "SUBJECTIVE"),
                original_label="hallucinated",
            ),
            {"role": "user", "text": "Really?"},
            reply("Yes, 1912.", [], ("built 1912 again", "VERIFIED"), original_label="faithful"),
        ],
    },
    {
        "id": "lake",
        "turns": [
            {"role": "user", "text": "Lake?"},
            reply("It is deep.", "The lake lies north.", ("deep", "LACKING_EVIDENCE"), original_label="hallucinated"),
        ],
    },
]


@pytest.fixture
def native(tmp_path: Path) -> Path:
    path = tmp_path / "human_dev.jsonl"
    path.write_text("".join(json.dumps(c) + "\n" for c in CONVERSATIONS), encoding="utf-8")
    return path
