"""A conversation that can't be scored is recorded with its error; the others, and the run, go on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from scripted import BatchSensitive, talks, without_models, write_talks
from typer.testing import CliRunner, Result

from vista_local.backends.base import Generation
from vista_local.cli import app
from vista_local.config import ScoreConfig
from vista_local.errors import VistaError
from vista_local.evaluator import Evaluator
from vista_local.offline import OfflineError
from vista_local.output import parse_result_line, read_results, result_line
from vista_local.pipeline import Pipeline
from vista_local.prompts import Prompt
from vista_local.readers import parse_conversation
from vista_local.schema import TurnStatus
from vista_local.scoring import Summary
from vista_local.stages import ClassifyRequest


class Failing(BatchSensitive):
    """Raises `error` for a batch with a claim that holds `poison`, or of more than `most` claims."""

    def __init__(self, error: BaseException, poison: str = "\0", most: int = 1000, stage: str = "verify") -> None:
        super().__init__()
        self.error, self.poison, self.most, self.stage = error, poison, most, stage

    def _check(self, stage: str, texts: Sequence[str]) -> None:
        if stage == self.stage and (len(texts) > self.most or any(self.poison in t for t in texts)):
            raise self.error

    def generate(self, stage: str, prompts: Sequence[Prompt]) -> list[Generation]:
        self._check(stage, [p.user for p in prompts])
        return super().generate(stage, prompts)

    def classify(self, stage: str, requests: Sequence[ClassifyRequest]) -> list[list[list[float]]]:
        self._check(stage, [b for r in requests for b in r.branches])
        return super().classify(stage, requests)


ODD = RuntimeError("shape mismatch\nin layer 7")
REASON = "RuntimeError: shape mismatch in layer 7"
NO_MEMORY = (
    "out of memory with 2 conversations in the shard; a smaller --shard-size or --token-budget needs a new output"
)


@pytest.mark.parametrize("stage", ["decompose", "verify"])
def test_a_failing_conversation_is_recorded_and_the_others_are_scored(stage: str) -> None:
    results = Pipeline(Failing(ODD, "talk 2", stage=stage)).score_shard(talks(4))
    assert [r.error for r in results] == [None, None, REASON, None]
    failed = results[2]
    assert [(t.index, t.status, t.unscored, t.claims) for t in failed.turns] == [
        (number, TurnStatus.SCORED, REASON, ()) for number in range(3)
    ]
    for number in (0, 1, 3):
        (alone,) = Pipeline(BatchSensitive()).score_shard([talks(4)[number]])
        assert results[number] == alone


def test_what_fails_only_in_a_batch_is_scored_alone() -> None:
    results = Pipeline(Failing(ODD, most=1)).score_shard(talks(4))
    assert [r.error for r in results] == [None] * 4
    assert [len(r.turns) for r in results] == [1, 2, 3, 1]


def test_nothing_of_a_failed_conversation_leaves_a_denominator() -> None:
    turns = [
        {"role": "assistant", "text": "x", "reference": "r", "claims": ["talk 2", "b"]},
        {"role": "assistant", "text": "y", "claims": ["c"]},
        {"role": "assistant", "text": "z", "reference": "r"},
    ]
    config = ScoreConfig(given_claims=True, shard_size=2)
    (result,) = Pipeline(Failing(ODD, "talk 2"), config).score_shard([parse_conversation({"id": "x", "turns": turns})])
    first, unreferenced = result.turns  # the third has no claims key and was not asked for
    assert [(c.text, c.label, c.unscored) for c in first.claims] == [("talk 2", None, REASON), ("b", None, REASON)]
    assert (unreferenced.status, unreferenced.unscored) == (TurnStatus.UNREFERENCED, None)
    summary = Summary()
    summary.add(result)
    assert (summary.failed, summary.totals.claims, summary.totals.unscored_claims) == (1, 2, 2)
    assert (summary.totals.unscored_turns, summary.totals.turn_coverage) == (1, 0.0)
    assert parse_result_line(result_line(result, {"id": "r"})) == result


def test_an_errors_text_is_bounded_and_can_be_written() -> None:
    (result,) = Pipeline(Failing(ValueError("\ud800" + "x" * 10_000), "talk 0")).score_shard(talks(1))
    assert result.error is not None and len(result.error) <= 500
    result_line(result, {"id": "r"}).encode()


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (VistaError("the settings are wrong"), VistaError, "settings"),
        (OfflineError("a connection was refused"), VistaError, "refused"),
        (MemoryError(), VistaError, NO_MEMORY),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory."), VistaError, NO_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), VistaError, NO_MEMORY),
        (KeyboardInterrupt(), KeyboardInterrupt, "^$"),
        (SystemExit(1), SystemExit, "1"),
    ],
)
def test_what_concerns_the_whole_run_ends_it(error: BaseException, raised: type[BaseException], message: str) -> None:
    with pytest.raises(raised, match=message):
        Pipeline(Failing(error, "talk 1")).score_shard(talks(2))


@pytest.fixture
def score(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[Result, Path]]:
    source, out = write_talks(tmp_path / "in.jsonl", 12), tmp_path / "out.jsonl"

    def call(make: Any, *options: str) -> tuple[Result, Path]:
        monkeypatch.setattr(Evaluator, "from_pretrained", without_models(make))
        return CliRunner().invoke(app, ["score", str(source), "-o", str(out), "--shard-size", "4", *options]), out

    return call


def test_the_exit_code_says_that_conversations_failed(score: Callable[..., tuple[Result, Path]]) -> None:
    result, out = score(lambda: Failing(ODD, "talk 6"))
    assert result.exit_code == 3, result.output
    said = " ".join(result.stderr.split())
    assert "1 conversation failed" in said and "failed conversations" in said and "Traceback" not in said
    found = list(read_results(out))
    assert [r.error for r in found] == [REASON if r.id == "c6é" else None for r in found]
    assert len(found) == 12
    assert json.loads(out.read_text(encoding="utf-8").splitlines()[6])["error"] == REASON


def test_a_run_with_a_failure_resumes_to_the_same_bytes_and_the_same_code(
    score: Callable[..., tuple[Result, Path]],
) -> None:
    _, out = score(lambda: Failing(ODD, "talk 6"))
    whole = out.read_bytes()
    for lines in (5, 9, 12):
        out.write_bytes(b"".join(whole.splitlines(keepends=True)[:lines])[:-20])
        result, _ = score(lambda: Failing(ODD, "talk 6"), "--resume")
        assert result.exit_code == 3
        assert out.read_bytes() == whole


def test_resuming_a_finished_run_scores_nothing_and_sums_up_the_file(score: Callable[..., tuple[Result, Path]]) -> None:
    """Twelve conversations are shards of 1, 4, 4 and 3: the last one isn't whole, and is done all the same."""
    _, out = score(BatchSensitive)
    whole = out.read_bytes()
    result, _ = score(lambda: Failing(VistaError("asked again"), ""), "--resume")
    assert result.exit_code == 0, result.output
    assert "12 (12 from an earlier run)" in result.stderr
    assert out.read_bytes() == whole


def test_the_exit_codes_are_in_the_help() -> None:
    text = " ".join(CliRunner().invoke(app, ["score", "--help"]).output.replace("│", " ").split())
    for words in ("Exit codes: 0", "3, done, but conversations failed", "130, stopped"):
        assert words in text


def test_a_broken_record_late_in_the_input_keeps_the_results_before_it(
    score: Callable[..., tuple[Result, Path]], tmp_path: Path
) -> None:
    source = tmp_path / "in.jsonl"
    good = source.read_text(encoding="utf-8").splitlines(keepends=True)
    source.write_text("".join([*good[:9], "{broken\n", *good[9:]]), encoding="utf-8")
    result, out = score(BatchSensitive)
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert "line 10" in said and "results so far are kept" in said and "--resume" in said
    assert len(out.read_bytes().splitlines()) == 9
    source.write_text("".join(good), encoding="utf-8")
    assert score(BatchSensitive, "--resume")[0].exit_code == 0
    assert len(list(read_results(out))) == 12


def test_a_run_that_wrote_nothing_leaves_no_file(score: Callable[..., tuple[Result, Path]]) -> None:
    result, out = score(lambda: Failing(VistaError("no"), "talk 0"))
    assert result.exit_code == 2
    assert not out.exists()
