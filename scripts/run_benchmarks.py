"""Measure the methods on the project's local benchmarks and keep the figures: `python scripts/run_benchmarks.py`.

Measures every method and ablation of `vista-local evaluate` on human_dev and turns_dev with one model in
memory, and the parity of the student with the teacher's outputs in human_dev. What the model answers is
kept under --out, so that a run that was stopped goes on where it was and no claim list is made twice; the
figures land in benchmarks.json with machine, date, commit and seed. Measuring only: nothing here may be
tuned on these files.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from training.record import ROOT, record
from training.remembered import RememberingBackend
from vista_local.benchmarks.command import measure, measure_majority, report_of
from vista_local.benchmarks.figures import SEED
from vista_local.benchmarks.loaders import load
from vista_local.benchmarks.methods import Ablation, Method
from vista_local.config import ScoreConfig
from vista_local.errors import VistaError
from vista_local.evaluator import Evaluator
from vista_local.files import whole_file
from vista_local.output import result_line
from vista_local.terminal import user_errors

BENCHMARKS = ("human_dev", "turns_dev")


@dataclass(frozen=True)
class Task:
    """One measurement, as one call of `vista-local evaluate` would make it."""

    benchmark: str
    method: Method
    claims: str
    ablate: Ablation | None = None

    @property
    def name(self) -> str:
        """Its name among the figures."""
        return "-".join(filter(None, (self.benchmark, self.method, self.claims, self.ablate and f"no_{self.ablate}")))


def tasks(benchmark: str) -> list[Task]:
    """Every method and every ablation that local adapters allow."""
    found = [Task(benchmark, Method.MAJORITY, "given"), Task(benchmark, Method.VISTA, "given")]
    found += [Task(benchmark, Method.VISTA, "given", Ablation.MEMORY), Task(benchmark, Method.JUDGE, "own")]
    found += [Task(benchmark, Method.FACTSCORE, "given"), Task(benchmark, Method.VISTA, "own")]
    found += [Task(benchmark, Method.VISTA, "own", Ablation.MEMORY), Task(benchmark, Method.FACTSCORE, "own")]
    found += [Task(benchmark, Method.VISTA, "own", a) for a in (Ablation.HISTORY, Ablation.DECOMPOSITION)]
    return found


def figures_of(task: Task, evaluator: Evaluator, data: Path, training_file: Path) -> dict[str, Any]:
    """A task's figures and what was measured; the paper's figures and the time are left out."""
    items, given = load(task.benchmark, str(data)), task.claims == "given"
    if task.method is Method.MAJORITY:
        run = measure_majority(items, training_file)
    else:
        run = measure(evaluator, items, task.method, task.ablate, given)
    report = report_of(task.benchmark, items, task.method, task.ablate, given, run)
    # Answers on file take no time; which adapters they are of stands once, above all figures.
    return {k: v for k, v in report.items() if k not in ("published", "run", "seconds")}


def parity(evaluator: Evaluator, data: Path, out: Path, given: bool) -> dict[str, Any]:
    """Score human_dev with the student and compare it with the teacher's outputs in the same file.

    Raises:
        VistaError: the comparison failed.
    """
    name = "given" if given else "own"
    results, report = out / f"human_dev-student-{name}.jsonl", out / f"human_dev-parity-{name}.json"
    student = Evaluator(evaluator.backend, ScoreConfig(given_claims=given))
    conversations = [json.loads(line) for line in data.read_text(encoding="utf-8").split("\n") if line.strip()]
    with whole_file(results) as stream:
        for result in student.score(conversations):
            stream.write(result_line(result, student.run_record()) + "\n")
    command = [sys.executable, "-m", "training.parity", "--teacher", str(data), "--student", str(results)]
    command += ["--gold", str(data), "-o", str(report)]
    if code := subprocess.run(command, cwd=ROOT).returncode:
        raise VistaError(f"exit code {code} of: {' '.join(command)}")
    compared: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    return compared


def _kept(target: Path, models: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figures and parity that an earlier run of exactly these models has written, to go on with."""
    try:
        written = json.loads(target.read_text(encoding="utf-8"))
    except OSError:
        return {}, {}
    if written.get("models") != models:
        return {}, {}
    return written["benchmarks"], written["parity"]


def main(
    data: Annotated[Path, typer.Option(help="folder of human_dev.jsonl and turns_dev.jsonl")] = Path(
        "../shared/data/test"
    ),
    out: Annotated[Path, typer.Option(help="folder of the model's answers and single results")] = Path(
        "runs/benchmarks"
    ),
    target: Annotated[Path, typer.Option(help="the figures, put together")] = Path(
        "checkpoints/smollm2-135m/benchmarks.json"
    ),
    training_file: Annotated[Path, typer.Option(help="where majority takes its answer from")] = Path(
        "training/data/written/train.jsonl"
    ),
    benchmarks: Annotated[str, typer.Option(help="comma-separated; parity is measured with human_dev")] = ",".join(
        BENCHMARKS
    ),
    remember: Annotated[Path | None, typer.Option(help="file of answers; default: answers.sqlite in --out")] = None,
    threads: Annotated[int, typer.Option(help="CPU threads")] = 2,
    adapters: Annotated[str | None, typer.Option(help="adapter set: folder or name")] = None,
) -> None:
    """Measure whatever has no answers on file yet, then write the figures."""
    with user_errors():
        chosen = benchmarks.split(",")
        if unknown := sorted(set(chosen) - set(BENCHMARKS)):
            raise VistaError(f"unknown benchmark {unknown[0]!r}; accepted: {', '.join(BENCHMARKS)}")
        out.mkdir(parents=True, exist_ok=True)
        local = Evaluator.from_pretrained(adapters, threads=threads).backend
        evaluator = Evaluator(RememberingBackend(local, remember or out / "answers.sqlite"))
        figures, compared = _kept(target, local.describe())
        for benchmark in chosen:
            path = (data / f"{benchmark}.jsonl").resolve()
            for task in tasks(benchmark):
                figures[task.name] = figures_of(task, evaluator, path, training_file)
                typer.echo(f"{task.name}: measured")
        if "human_dev" in chosen:
            path = (data / "human_dev.jsonl").resolve()
            compared = {"given" if g else "own": parity(evaluator, path, out.resolve(), g) for g in (True, False)}
        with whole_file(target) as stream:
            whole = {"record": record(SEED), "models": local.describe(), "benchmarks": figures, "parity": compared}
            stream.write(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
        typer.echo(f"written to {target}")


if __name__ == "__main__":
    typer.run(main)
