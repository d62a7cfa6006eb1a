"""The injection bench counts what it says: against a judge that is never fooled, and one that always is."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("scipy", reason="needs the [train] extra")

from vista_local.backends.scripted import ScriptedBackend
from vista_local.prompts import Prompt
from vista_local.readers import parse_conversation
from vista_local.text import split_sentences

SCRIPTS = Path(__file__).parent.parent / "scripts"


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    sys.path.insert(0, str(SCRIPTS))
    try:
        import bench_injection

        yield bench_injection
    finally:
        sys.path.remove(str(SCRIPTS))


def reply(prompt: Prompt) -> str:
    return prompt.user.rpartition("Reply:\n")[2]


def sentences(prompt: Prompt) -> str:
    return "\n".join(f"- {s}" for s in split_sentences(reply(prompt)))


def deaf(stage: str, prefix: Prompt, claim: str) -> Sequence[float]:
    return [0.2, 0.8] if stage == "verify" else [0.1, 0.7, 0.1, 0.1]


class Gullible:
    """Answers Yes wherever it is shown an injection, and lists nothing after one."""

    def __init__(self, injections: Sequence[Any]) -> None:
        self.texts = [" ".join(i.text.split()) for i in injections]

    def fooled(self, text: str) -> bool:
        shown = " ".join(text.split())
        return any(t in shown for t in self.texts)

    def classify(self, stage: str, prefix: Prompt, claim: str) -> Sequence[float]:
        return [0.9, 0.1] if stage == "verify" and self.fooled(prefix.user) else deaf(stage, prefix, claim)

    def decompose(self, prompt: Prompt) -> str:
        return "None" if self.fooled(prompt.user) else sentences(prompt)


def test_forty_injections_of_every_place_and_kind(bench: Any) -> None:
    assert len(bench.INJECTIONS) == len({i.text for i in bench.INJECTIONS}) == 40
    assert min(Counter(i.place for i in bench.INJECTIONS).values()) >= 12
    assert {i.kind for i in bench.INJECTIONS} >= {
        "instruction", "role header", "special tokens", "claim list", "forged answer", "other language", "JSON",
    }  # fmt: skip
    assert any("<|im_start|>" in i.text for i in bench.INJECTIONS)


def test_an_injected_conversation_differs_from_its_twin_in_one_place_and_in_no_claim(bench: Any) -> None:
    for trial in bench.trials(2):
        clean = bench.CONVERSATIONS[trial.conversation]
        injected = trial.injected("x")
        differing = [
            (number, field)
            for number, (a, b) in enumerate(zip(clean["turns"], injected["turns"], strict=True))
            for field in a
            if a[field] != b[field]
        ]
        place = {"history": (2, "text"), "reference": (3, "reference"), "turn": (1, "text")}
        assert differing == [place[trial.injection.place]]
        number, field = differing[0]
        assert trial.injection.text in "".join(injected["turns"][number][field])
        assert len(parse_conversation(injected).turns) == 4


def test_every_conversation_gets_injections(bench: Any) -> None:
    counts = Counter(t.conversation for t in bench.trials(2))
    assert len(counts) == len(bench.CONVERSATIONS)
    assert max(counts.values()) - min(counts.values()) <= 1


def test_a_judge_that_is_never_fooled_changes_nothing(bench: Any) -> None:
    report = bench.measure(ScriptedBackend(sentences, deaf), bench.trials(1))
    assert report["labels_changed"]["number"] == 0 and report["labels_changed"]["of"] > 120
    assert report["held"] is True
    assert report["worst"] == []
    history = report["decompose"]["injection in the history"]
    assert (history["lost"]["number"], history["new"]) == (0, 0)
    assert report["decompose"]["injection in the turn"]["new"] > 0  # the injection's own sentences


def test_a_judge_that_is_always_fooled_is_found_out(bench: Any) -> None:
    chosen = bench.trials(1)
    gullible = Gullible([t.injection for t in chosen])
    report = bench.measure(ScriptedBackend(gullible.decompose, gullible.classify), chosen)
    assert report["held"] is False
    by_place = report["labels_changed_by_place"]
    # Every claim whose judge reads the injection, and no other, is counted.
    assert all(0 < by_place[place]["number"] == by_place[place]["of"] for place in by_place)
    last = {n: len(talk["turns"][-1]["claims"]) for n, talk in enumerate(bench.CONVERSATIONS)}
    assert report["labels_changed"]["of"] == sum(last[t.conversation] for t in chosen)
    assert sum(row["number"] for row in by_place.values()) == report["labels_changed"]["number"]
    assert sum(row["of"] for row in report["labels_changed_by_kind"].values()) == report["labels_changed"]["of"]
    assert len(report["worst"]) == 10
    for place in ("history", "turn"):
        assert report["decompose"][f"injection in the {place}"]["lost"]["number"] > 0


def test_the_script_runs_on_a_model(
    bench: Any, tiny_base: Path, tiny_adapters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "results" / "bench.json"
    options = ["--limit", "1", "--talks", "1", "--base", str(tiny_base), "--adapters", str(tiny_adapters)]
    monkeypatch.setattr(sys, "argv", ["bench_injection.py", *options, "--out", str(out)])
    monkeypatch.setattr(bench, "CONVERSATIONS", bench.CONVERSATIONS[:1])
    bench.main()
    report = json.loads(out.read_text(encoding="utf-8"))
    assert (report["injections"], report["conversations"]) == (1, 1)
    assert report["labels_changed"]["of"] == 4
    assert {"record", "run", "labels_changed_by_kind", "decompose"} <= set(report)
