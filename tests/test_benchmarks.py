"""Benchmarks: methods on a scripted backend, figures and the command."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from benchmark_files import reply
from rich.console import Console
from scripted import without_models
from typer.testing import CliRunner

from vista_local.backends.scripted import ScriptedBackend
from vista_local.benchmarks import mapping
from vista_local.benchmarks.command import claims_from, figures, table
from vista_local.benchmarks.figures import GoldTurn, TurnPrediction, claim_figures, predictions, turn_figures
from vista_local.benchmarks.loaders import Item, counted, load
from vista_local.benchmarks.methods import Ablation, Method, check, majority, predict
from vista_local.benchmarks.published import PUBLISHED, published
from vista_local.cli import app
from vista_local.errors import InputError, VistaError
from vista_local.evaluator import Evaluator
from vista_local.labels import Label
from vista_local.prompts import Prompt

# ---- methods ----


class Recorder:
    """A scripted model: claims are the reply's sentences, and those with "1912" in them are verified."""

    def __init__(self) -> None:
        self.decompose_prompts: list[str] = []
        self.verify: list[tuple[str, str]] = []
        self.categorised = 0

    def backend(self) -> ScriptedBackend:
        return ScriptedBackend(self._decompose, self._classify)

    def _decompose(self, prompt: Prompt) -> str:
        self.decompose_prompts.append(prompt.user)
        sentences = prompt.user.rsplit("Reply:", 1)[-1].strip().split(". ")
        return "\n".join(f"- {s}" for s in sentences)

    def _classify(self, stage: str, prompt: Prompt, claim: str) -> list[float]:
        if stage == "verify":
            self.verify.append((prompt.user, claim))
            return [0.9, 0.1] if "1912" in claim else [0.2, 0.8]
        self.categorised += 1
        return [0.1, 0.1, 0.7, 0.1]  # OUT_OF_SCOPE


@pytest.fixture
def items(native: Path) -> list[Item]:
    return load("human_dev", str(native))


def test_vista_with_given_claims_by_hand(items: list[Item]) -> None:
    model = Recorder()
    found = predict(model.backend(), items, Method.VISTA, given=True)
    assert [p.labels for p in found[0].values()] == [(Label.VERIFIED, Label.OUT_OF_SCOPE), (Label.VERIFIED,)]
    report = figures(items, found, given=True)
    assert report["claims"]["claim_accuracy"] == 0.75  # "deep" is OUT_OF_SCOPE for the model
    assert report["strict"]["accuracy"] == 1.0 and report["safe"]["accuracy"] == pytest.approx(2 / 3, abs=1e-4)
    assert report["original"]["turns"] == 3 and report["original"]["accuracy"] == 1.0
    (prompt,) = (user for user, claim in model.verify if claim == "built 1912 again")
    assert "- built 1912" in prompt  # the second turn sees the first one's claims


def test_without_memory_no_turn_sees_an_earlier_ones_claims(items: list[Item]) -> None:
    model = Recorder()
    predict(model.backend(), items, Method.VISTA, given=True, ablate=Ablation.MEMORY)
    assert len(model.verify) == 4 and not any("Known facts" in user for user, _ in model.verify)


def test_without_history_claims_are_made_from_the_turn_alone(items: list[Item]) -> None:
    with_history, without = Recorder(), Recorder()
    predict(with_history.backend(), items, Method.VISTA)
    predict(without.backend(), items, Method.VISTA, ablate=Ablation.HISTORY)
    assert all(p.startswith("Conversation:") for p in with_history.decompose_prompts)
    assert all(p.startswith("Reply:") for p in without.decompose_prompts)
    assert any("Earlier talk" in user for user, _ in without.verify)


def test_without_decomposition_the_turns_sentences_are_the_claims(items: list[Item]) -> None:
    model = Recorder()
    found = predict(model.backend(), items, Method.VISTA, ablate=Ablation.DECOMPOSITION)
    assert not model.decompose_prompts
    assert found[0][1].claims == ("It was built in 1912.", "I like it.")
    assert any("Known facts" in user for user, _ in model.verify)


def test_factscore_sees_the_reference_alone_and_knows_no_reasons(items: list[Item]) -> None:
    model = Recorder()
    found = predict(model.backend(), items, Method.FACTSCORE)
    assert all(p.startswith("Reply:") for p in model.decompose_prompts) and model.categorised == 0
    assert not any("Known facts" in user or "Earlier talk" in user for user, _ in model.verify)
    assert found[0][1].labels == (Label.VERIFIED, Label.LACKING_EVIDENCE) and found[0][1].safe is False


def test_judge_makes_one_claim_of_a_turn_and_has_no_claim_figures(items: list[Item]) -> None:
    model = Recorder()
    found = predict(model.backend(), items, Method.JUDGE, given=True)
    asked = ["It is deep.", "It was built in 1912. I like it.", "Yes, 1912."]
    assert sorted(claim for _, claim in model.verify) == asked  # the order is that of shards
    assert not any("Known facts" in user for user, _ in model.verify)
    assert any("Earlier talk" in user for user, _ in model.verify)
    report = figures(items, found, given=True)
    assert "claims" not in report and report["strict"]["turns"] == 3


def test_majority_says_what_was_commonest_in_training(items: list[Item], native: Path) -> None:
    says = majority(native)  # VERIFIED twice; strict F T F; safe T T F
    prediction = says(items[1].gold[1])
    assert prediction.labels == (Label.VERIFIED,) and (prediction.strict, prediction.safe) == (False, True)
    found = [{i: says(t) for i, t in item.gold.items()} for item in items]
    assert figures(items, found, given=True)["claims"]["claim_accuracy"] == 0.5


def test_coverage_stands_beside_the_figures_in_their_denominators(items: list[Item]) -> None:
    found = predict(Recorder().backend(), items, Method.VISTA, given=True)
    assert figures(items, found, given=True) | {"coverage": 1.0, "turn_coverage": 1.0} == figures(items, found, True)
    (first, second), (third,) = (list(turns.values()) for turns in found)
    unlabelled = replace(first, labels=(Label.VERIFIED, None))
    failed = TurnPrediction(None, None, (), ())
    report = figures(items, [{1: unlabelled, 3: second}, {1: failed}], given=False)
    assert (report["coverage"], report["turn_coverage"]) == (pytest.approx(2 / 3, abs=1e-4), report["turn_coverage"])
    assert report["turn_coverage"] == pytest.approx(2 / 3, abs=1e-4) and report["strict"]["turns"] == 3
    judge = figures(items, [{1: TurnPrediction(True, True)}, {}], given=True)
    assert (judge["coverage"], judge["turn_coverage"]) == (None, pytest.approx(1 / 3, abs=1e-4))
    assert third.labels is not None


def test_clusters_are_resampled_whole_and_leave_the_figures_as_they_are(items: list[Item], fade: Path) -> None:
    """Of one mirrored pair a cluster, every resample has the same share right."""
    gold = [{0: GoldTurn(("c",), (Label.VERIFIED,), True)}, {0: GoldTurn(("c",), (Label.OUT_OF_SCOPE,), False)}] * 4
    said = [{0: TurnPrediction(True, True, ("c",), (Label.VERIFIED,))}] * 8
    pairs = [n // 2 for n in range(8)]
    names = [str(n) for n in range(8)]
    for alone, together, figure in (
        (turn_figures(said, gold, "strict"), turn_figures(said, gold, "strict", pairs), "accuracy"),
        (claim_figures(names, said, gold), claim_figures(names, said, gold, pairs), "claim_accuracy"),
    ):
        assert together[f"{figure}_95"] == [0.5, 0.5] and alone[f"{figure}_95"] != [0.5, 0.5]
        assert {k: v for k, v in alone.items() if "_95" not in k} == {
            k: v for k, v in together.items() if "_95" not in k
        }
    assert turn_figures(said, gold, "strict", names) == turn_figures(said, gold, "strict")
    # FADE's pair of a row; where every conversation stands alone, nothing is said of clusters.
    pair = load("fade", str(fade))
    report = figures(pair, [{3: TurnPrediction(True, True)}] * 2, given=False)
    assert (report["conversations"], report["clusters"], report["original"]["accuracy_95"]) == (2, 1, [0.5, 0.5])
    shown = table(
        {"benchmark": "fade", "figures": report, "method": "vista", "ablate": None, "claims": "own", "published": []}
    )
    assert "2 turns of 2 conversations (clusters: 1)" in str(shown.title)
    assert "clusters" not in figures(items, [{}, {}], given=False)


def test_turns_that_nobody_was_asked_about_are_not_wrong(items: list[Item]) -> None:
    """With gold for a part, `original` labels of the other turns are no question that was put."""
    items = [replace(items[0], gold={1: items[0].gold[1], 3: replace(items[0].gold[3], claims=None, labels=())})]
    found = predict(Recorder().backend(), items, Method.VISTA, given=True)
    assert figures(items, found, given=True)["original"]["turns"] == 1


def test_a_missing_prediction_is_wrong_and_stays_in_the_denominator(items: list[Item]) -> None:
    report = figures(items, [{}, {}], given=True)
    assert "claims" not in report and report["strict"] | {"accuracy_95": None} == {
        "turns": 3, "accuracy": 0.0, "accuracy_95": None, "balanced_accuracy": 0.0, "macro_f1": 0.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("method", "ablate", "given", "message"),
    [
        (Method.JUDGE, Ablation.MEMORY, False, "--ablate takes parts out of --method vista"),
        (Method.VISTA, Ablation.FEWSHOT, False, "needs --teacher"),
        (Method.VISTA, Ablation.HISTORY, True, "use it with --claims own"),
    ],
)
def test_combinations_that_measure_nothing_are_refused(
    items: list[Item], method: Method, ablate: Ablation, given: bool, message: str
) -> None:
    with pytest.raises(VistaError, match=message):
        check(method, ablate, given, False, items)


def test_given_claims_need_some(begin: Path) -> None:
    items = load("begin", str(begin))
    assert claims_from(items, None) is False
    some = [replace(items[0], gold={1: GoldTurn(("c",), (Label.VERIFIED,), True)}), *items[1:]]
    assert claims_from(some[:1], None) is True and claims_from(some, None) is False
    (option,) = (p for p in typer.main.get_command(app).commands["evaluate"].params if p.name == "claims")
    assert option.help.endswith("default: given where all turns that count have some")
    with pytest.raises(VistaError, match="no labelled claims"):
        check(Method.VISTA, None, True, False, items)


# ---- the paper's figures and the command ----


def test_published_figures_are_of_known_benchmarks_and_in_percent() -> None:
    assert {line.benchmark for line in PUBLISHED} <= {rule.benchmark for rule in mapping.LABEL_RULES}
    values = [v for p in PUBLISHED for v in (p.strict, p.safe, p.claim_accuracy, p.macro_f1) if v is not None]
    assert values and all(10 < v < 100 for v in values)
    assert published("human_dev") == published("vista") and published("turns_dev") == []


def test_the_command_writes_figures_and_prints_the_papers_beside(native: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    arguments = ["evaluate", "--benchmark", "human_dev", "--data", str(native), "--method", "majority", "-o", str(out)]
    training = tmp_path / "train.jsonl"
    training.write_text(native.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    done = CliRunner().invoke(app, [*arguments, "--training-file", str(training)])
    assert done.exit_code == 0, done.output
    report = json.loads(out.read_text(encoding="utf-8"))
    assert report["figures"]["claims"]["claims"] == 4 and report["claims"] == "given"
    assert report["published"][0]["system"] == "GPT-5" and report["run"]["training_file"] == "train.jsonl"
    assert table(report).row_count == 2 + len(report["published"])
    assert (report["figures"]["coverage"], report["figures"]["turn_coverage"]) == (1.0, 1.0)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table(report))
    rows = [[c.strip() for c in re.split("[┃│]", line)[1:-1]] for line in console.export_text().splitlines()]
    at = next(i for i, row in enumerate(rows) if row and row[0].startswith("majority"))
    strict, safe = (report["figures"][rule] for rule in ("strict", "safe"))
    assert rows[at - 2][3:] == ["strict turns", "safe turns", "coverage"]
    assert rows[at][3].startswith(f"{100 * strict['accuracy']:.2f} (")
    assert rows[at][4].startswith(f"{100 * safe['accuracy']:.2f} (")
    # What one verdict for every turn is worth stands below.
    assert rows[at + 1][3:] == ["balanced 50.00", "balanced 50.00", "turns 100.00"]
    assert rows[at][5] == "claims 100.00"
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code == 2 and "must not look at the test set" in refused.output + refused.stderr


@pytest.mark.parametrize("as_folder", [False, True])
def test_majority_may_not_be_taken_from_a_copy_of_the_test_set(native: Path, tmp_path: Path, as_folder: bool) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    copy, out = folder / native.name, tmp_path / "out.json"
    copy.write_bytes(native.read_bytes())
    data = folder if as_folder else copy
    arguments = ["evaluate", "--benchmark", "human_dev", "--data", str(data), "--method", "majority", "-o", str(out)]
    refused = CliRunner().invoke(app, [*arguments, "--training-file", str(native)])
    assert refused.exit_code == 2 and not out.exists()
    assert "holds what is tested" in " ".join((refused.output + refused.stderr).split())


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("nodir/x.json", "cannot be written: No such file or directory"),
        ("human_dev.jsonl/x.json", "cannot be written: Not a directory"),
        ("x" * 300, "cannot be written: File name too long"),
        ("", "is a folder; give a file name"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_before_anything_is_read(
    native: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, message: str
) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("loaded")

    monkeypatch.setattr(Evaluator, "from_pretrained", never)
    monkeypatch.setattr("vista_local.benchmarks.loaders.load", never)
    arguments = ["evaluate", "--benchmark", "human_dev", "--data", str(native), "-o", str(tmp_path / output)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2 and message in " ".join((done.output + done.stderr).split())


def test_a_teacher_has_the_shard_size_of_score(native: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vista_local import prompted
    from vista_local.cli import TEACHER_SHARD

    class Teacher(Evaluator):
        def __init__(self, teacher: Any, config: Any, **_: Any) -> None:
            super().__init__(Recorder().backend(), config)

    monkeypatch.setattr(prompted, "TeacherEvaluator", Teacher)
    teacher, settings, out = tmp_path / "teacher.yaml", tmp_path / "settings.yaml", tmp_path / "out.json"
    teacher.write_text("base_url: http://localhost:1/v1\nmodel: m\n", encoding="utf-8")
    settings.write_text("shard_size: 7\n", encoding="utf-8")
    arguments = ["evaluate", "--benchmark", "human_dev", "--data", str(native), "-o", str(out)]
    for options, size in (([], TEACHER_SHARD), (["--config", str(settings)], 7)):
        done = CliRunner().invoke(app, [*arguments, "--teacher", str(teacher), *options])
        assert done.exit_code == 0, done.output
        config = json.loads(out.read_text(encoding="utf-8"))["run"]["config"]
        assert (config["shard_size"], config["context"]) == (size, "recent")


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--method", "best"], "--method 'best'; accepted: vista, factscore"),
        (["--ablate", "all"], "--ablate 'all'; accepted: memory"),
        (["--claims", "some"], "--claims 'some'; accepted: given, own"),
        (["--ablate", "fewshot"], "needs --teacher"),
        (["--allow-remote"], "--allow-remote and --max-cost belong to --teacher"),
        (["--max-cost", "0"], "--allow-remote and --max-cost belong to --teacher"),
    ],
)
def test_wrong_options_end_with_code_2_before_a_model_is_loaded(
    native: Path, tmp_path: Path, extra: list[str], message: str
) -> None:
    out = tmp_path / "out.json"
    done = CliRunner().invoke(
        app, ["evaluate", "--benchmark", "human_dev", "--data", str(native), "-o", str(out), *extra]
    )
    assert done.exit_code == 2 and not out.exists()
    assert message in " ".join((done.output + done.stderr).split())


@pytest.fixture
def vista_form(tmp_path: Path) -> Path:
    """A conversation in the VISTA repository's form whose first turn has no reference: its claim is memory."""
    turns = [
        {"role": "wizard", "utterance": "1912.", "retrieved_document": "N/A", "human_claims": ["built 1912"]},
        {"role": "apprentice", "utterance": "Sure?"},
        {"role": "wizard", "utterance": "Yes.", "retrieved_document": "A mill.", "label": "hallucinated",
         "human_claims": [{"claim": "red", "label": "SUBJECTIVE"}]},
    ]  # fmt: skip
    path = tmp_path / "vista.json"
    path.write_text(json.dumps([turns]), encoding="utf-8")
    return path


def test_the_vista_form_trusts_unreferenced_turns_unless_told_otherwise(
    vista_form: Path, native: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, settings = tmp_path / "out.json", tmp_path / "settings.yaml"
    settings.write_text("memory: {unreferenced: skip}\n", encoding="utf-8")

    def evaluate(data: Path, *options: str) -> tuple[dict[str, Any], Recorder]:
        model = Recorder()
        monkeypatch.setattr(Evaluator, "from_pretrained", without_models(model.backend))
        done = CliRunner().invoke(
            app, ["evaluate", "--benchmark", "vista", "--data", str(data), "-o", str(out), *options]
        )
        assert done.exit_code == 0, done.output
        return json.loads(out.read_text(encoding="utf-8")), model

    report, model = evaluate(vista_form)
    assert report["run"]["config"]["memory"]["unreferenced"] == "trust"
    ((prompt, claim),) = model.verify
    assert claim == "red" and "- built 1912" in prompt
    assert (report["figures"]["turns"], report["figures"]["turn_coverage"]) == (1, 1.0)  # unreferenced: not counted
    report, model = evaluate(vista_form, "--config", str(settings))
    assert report["run"]["config"]["memory"]["unreferenced"] == "skip" and "Known facts" not in model.verify[0][0]
    report, _ = evaluate(native)
    assert report["run"]["config"]["memory"]["unreferenced"] == "skip" and report["figures"]["turns"] == 3


def test_turns_without_reference_count_only_where_they_are_scored(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    turn = {k: v for k, v in reply("1912.", "", ("built 1912", "VERIFIED")).items() if k != "reference"}
    path.write_text(json.dumps({"id": "a", "turns": [turn, reply("Yes.", None, ("red", "VERIFIED"))]}) + "\n")
    items = load("human_dev", str(path))
    assert [list(i.gold) for i in counted(items, "skip")] == [list(i.gold) for i in counted(items, "trust")] == [[1]]
    assert [list(i.gold) for i in counted(items, "verify")] == [[0, 1]]
    path.write_text(json.dumps({"id": "a", "turns": [turn]}) + "\n")
    with pytest.raises(InputError, match="no turn that counts has a reference"):
        counted(load("human_dev", str(path)), "skip")


def test_predictions_of_a_result_carry_labels_and_verdicts() -> None:
    from vista_local.schema import ClaimResult, ConversationResult, TurnResult, TurnStatus

    claims = (ClaimResult("a", Label.VERIFIED, {"VERIFIED": 0.75}), ClaimResult("b", None, {}, unscored="no answer"))
    turn = TurnResult(3, TurnStatus.SCORED, claims)
    found = predictions(ConversationResult("x", (turn,)))[3]
    assert found.labels == (Label.VERIFIED, None) and found.confidence == (0.75, None)
    assert (found.strict, found.safe) == (False, False)


def test_the_script_of_committed_figures_measures_each_combination_once_and_all_are_allowed(items: list[Item]) -> None:
    import importlib.util

    path = Path(__file__).resolve().parent.parent / "scripts" / "run_benchmarks.py"
    spec = importlib.util.spec_from_file_location("run_benchmarks", path)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = script
    spec.loader.exec_module(script)
    for benchmark in script.BENCHMARKS:
        tasks = script.tasks(benchmark)
        assert len({t.name for t in tasks}) == len(tasks) == 10
        for task in tasks:
            check(task.method, task.ablate, task.claims == "given", False, items)
