"""Measurements that share answers: the model is asked once, and what comes back is what it said."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from scripted import talks

from training.evaluate import WholeTurns, modes_of
from training.remembered import RememberingBackend
from vista_local.backends.base import Generation, Row, Said, Unanswered
from vista_local.backends.scripted import ScriptedBackend
from vista_local.config import ScoreConfig
from vista_local.errors import VistaError
from vista_local.evaluator import Evaluator
from vista_local.output import result_line
from vista_local.prompts import Prompt
from vista_local.stages import ClassifyRequest


def scripted() -> ScriptedBackend:
    return ScriptedBackend(lambda p: "- " + p.user.rpartition("\n")[2], lambda s, p, c: [0.6, 0.1, 0.2, 0.1])


def scored(backend: object) -> list[str]:
    evaluator = Evaluator(backend, ScoreConfig())  # type: ignore[arg-type]
    return [result_line(r, evaluator.run_record()) for r in evaluator.score(talks(6))]


def test_results_are_the_models_and_a_second_process_asks_it_nothing(tmp_path: Path) -> None:
    model, again = scripted(), scripted()
    plain = scored(scripted())
    assert scored(RememberingBackend(model, tmp_path / "answers.sqlite")) == plain
    assert sum(n for _, n in model.calls) > 0
    assert scored(RememberingBackend(again, tmp_path / "answers.sqlite")) == plain
    assert sum(n for _, n in again.calls) == 0


def test_an_interrupted_measurement_keeps_what_was_answered(tmp_path: Path) -> None:
    class Stops(ScriptedBackend):
        def generate(self, stage: str, prompts: Sequence[Prompt]) -> list[Generation]:
            if len(self.calls) == 2:
                raise KeyboardInterrupt
            return super().generate(stage, prompts)

    prompts = [Prompt("s", f"reply {n}") for n in range(10)]
    stops = Stops(lambda p: p.user, lambda *_: [1.0, 0.0])
    with pytest.raises(KeyboardInterrupt):
        RememberingBackend(stops, tmp_path / "a", parts=3).generate("decompose", prompts)
    model = scripted()
    answers = RememberingBackend(model, tmp_path / "a", parts=3).generate("decompose", [*prompts, prompts[0]])
    assert [a.text for a in answers[:6]] == [p.user for p in prompts[:6]] and answers[10] == answers[0]
    assert sum(n for _, n in model.calls) == 4  # six were on file, and the repeated one was asked for once


class Says(ScriptedBackend):
    """Answers with less than probabilities, and cuts what it generates."""

    def __init__(self, adapter: str, temperature: float = 1.0) -> None:
        super().__init__(lambda p: p.user, lambda *_: [1.0, 0.0])
        self._said = {"adapters": {"verify": adapter}, "calibration": {"verify": {"temperature": temperature}}}

    def describe(self) -> dict[str, object]:
        return {"backend": "scripted", **self._said}

    def generate(self, stage: str, prompts: Sequence[Prompt]) -> list[Generation]:
        return [Generation("x", cut="length", unscored="why") for _ in super().generate(stage, prompts)]

    def classify(self, stage: str, requests: Sequence[ClassifyRequest]) -> list[list[Row]]:  # type: ignore[override]
        super().classify(stage, requests)
        return [[Said(1), Unanswered("no label word"), [-0.25, -1.5]] for _ in requests]


def test_every_kind_of_answer_comes_back_as_it_was(tmp_path: Path) -> None:
    request = ClassifyRequest(Prompt("s", "u"), ("a", "b", "c"))
    for _ in range(2):
        backend = RememberingBackend(Says("v1"), tmp_path / "a")
        assert backend.classify("verify", [request]) == [[Said(1), Unanswered("no label word"), [-0.25, -1.5]]]
        assert backend.generate("decompose", [request.prefix]) == [Generation("x", "length", "why")]


@pytest.mark.parametrize("other", [Says("v2"), Says("v1", temperature=2.0)])
def test_answers_of_other_weights_or_another_calibration_are_not_taken(tmp_path: Path, other: Says) -> None:
    request = ClassifyRequest(Prompt("s", "u"), ("a", "b", "c"))
    RememberingBackend(Says("v1"), tmp_path / "a").classify("verify", [request])
    RememberingBackend(other, tmp_path / "a").classify("verify", [request])
    assert other.calls == [("verify", 3)]
    RememberingBackend(other, tmp_path / "a").classify_alone("verify", [request])
    assert len(other.calls) == 2, "an answer computed in a batch stood for one computed alone"


def test_a_file_that_is_no_store_of_answers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("not a database, and long enough to be looked at" * 100)
    with pytest.raises(VistaError, match="can't be used"):
        RememberingBackend(scripted(), tmp_path / "a")


def test_each_set_is_measured_in_its_own_modes() -> None:
    every = ["given_claims", "end_to_end", "diluted", "whole_turns"]
    assert modes_of("turns_dev", every) == ["given_claims", "end_to_end"]
    assert modes_of("human_dev", every) == ["given_claims", "end_to_end", "diluted"]
    assert modes_of("long_dev", every) == every
    with pytest.raises(VistaError, match="unknown mode 'dilluted'; accepted: given_claims"):
        modes_of("long_dev", ["dilluted"])


def test_whole_turns_are_decomposed_in_one_piece() -> None:
    text = " ".join(f"Sentence number {n} says a little." for n in range(80))
    talk = {"id": "long", "turns": [{"role": "assistant", "text": text, "reference": ["It is so."]}]}
    chunked, whole = scripted(), scripted()
    list(Evaluator(chunked, ScoreConfig()).score([talk]))
    list(Evaluator(WholeTurns(whole), ScoreConfig()).score([talk]))
    assert dict(whole.calls)["decompose"] == 1 < dict(chunked.calls)["decompose"]
