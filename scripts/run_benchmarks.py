"""Measure the methods on the project's local benchmarks and keep the figures: `python scripts/run_benchmarks.py`.

Runs `vista-local evaluate` for each method and ablation on human_dev and turns_dev, and the parity of
the student with the teacher's outputs in human_dev. Each result is a file of its own under --out, so that
a run that was stopped goes on where it was; at the end the figures are put together in benchmarks.json
with machine, date, commit and seed. Measuring only: nothing here may be tuned on these files.
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
from vista_local.benchmarks.figures import SEED
from vista_local.errors import VistaError
from vista_local.files import whole_file
from vista_local.terminal import user_errors

#: The `vista-local` command of this checkout.
VISTA_LOCAL = [sys.executable, "-c", "from vista_local.cli import run; run()"]


@dataclass(frozen=True)
class Task:
    """One call of `vista-local evaluate`."""

    benchmark: str
    method: str
    claims: str
    ablate: str | None = None

    @property
    def name(self) -> str:
        """File name of its result."""
        return "-".join(filter(None, (self.benchmark, self.method, self.claims, self.ablate and f"no_{self.ablate}")))


def tasks() -> list[Task]:
    """Every method and every ablation that local adapters allow, on both benchmarks."""
    found = []
    for benchmark in ("human_dev", "turns_dev"):
        found += [Task(benchmark, "majority", "given"), Task(benchmark, "vista", "given")]
        found += [Task(benchmark, "vista", "given", "memory"), Task(benchmark, "judge", "own")]
        found += [Task(benchmark, "factscore", "given"), Task(benchmark, "vista", "own")]
        found += [Task(benchmark, "factscore", "own"), Task(benchmark, "vista", "own", "memory")]
        found += [Task(benchmark, "vista", "own", a) for a in ("history", "decomposition")]
    return found


def command(task: Task, data: Path, out: Path, training_file: Path, more: list[str]) -> list[str]:
    """Arguments of the call."""
    arguments = [*VISTA_LOCAL, "evaluate", "--benchmark", task.benchmark]
    arguments += ["--data", str(data / f"{task.benchmark}.jsonl"), "--method", task.method, "--claims", task.claims]
    if task.ablate:
        arguments += ["--ablate", task.ablate]
    if task.method == "majority":
        return [*arguments, "--training-file", str(training_file), "-o", str(out)]
    return [*arguments, "-o", str(out), *more]


def run(arguments: list[str]) -> None:
    """Run a command in the checkout.

    Raises:
        VistaError: it failed.
    """
    if code := subprocess.run(arguments, cwd=ROOT).returncode:
        raise VistaError(f"exit code {code} of: {' '.join(arguments)}")


def parity(data: Path, out: Path, more: list[str], given: bool) -> Path:
    """Score human_dev with the student and compare it with the teacher's outputs in the same file."""
    name = "given" if given else "own"
    results, report = out / f"human_dev-student-{name}.jsonl", out / f"human_dev-parity-{name}.json"
    source = str(data / "human_dev.jsonl")
    if not results.is_file():
        flags = ["--given-claims"] if given else []
        part = results.with_suffix(".part")
        part.unlink(missing_ok=True)
        run([*VISTA_LOCAL, "score", source, "-o", str(part), "--compact", *flags, *more])
        part.rename(results)
    sides = ["--teacher", source, "--student", str(results), "--gold", source, "-o", str(report)]
    run([sys.executable, "-m", "training.parity", *sides])
    return report


def summary(report: dict[str, Any]) -> dict[str, Any]:
    """What is kept of one result: its figures and what was measured, without the paper's."""
    return {k: v for k, v in report.items() if k not in ("published", "run")} | {"run_id": report["run"].get("id")}


def main(
    data: Annotated[Path, typer.Option(help="folder of human_dev.jsonl and turns_dev.jsonl")] = Path(
        "../shared/data/test"
    ),
    out: Annotated[Path, typer.Option(help="folder of the single results")] = Path("runs/benchmarks"),
    target: Annotated[Path, typer.Option(help="the figures, put together")] = Path(
        "checkpoints/smollm2-135m/benchmarks.json"
    ),
    training_file: Annotated[Path, typer.Option(help="where majority takes its answer from")] = Path(
        "training/data/written/train.jsonl"
    ),
    threads: Annotated[int, typer.Option(help="CPU threads")] = 2,
    adapters: Annotated[str | None, typer.Option(help="adapter set: folder or name")] = None,
) -> None:
    """Run whatever is missing, then write the figures."""
    more = ["--threads", str(threads), *(["--adapters", adapters] if adapters else [])]
    with user_errors():
        out.mkdir(parents=True, exist_ok=True)
        figures: dict[str, Any] = {}
        for task in tasks():
            result = out / f"{task.name}.json"
            if not result.is_file():
                run(command(task, data.resolve(), result.resolve(), training_file.resolve(), more))
            figures[task.name] = summary(json.loads(result.read_text(encoding="utf-8")))
        compared = {}
        for given in (True, False):
            report = parity(data.resolve(), out.resolve(), more, given)
            compared["given" if given else "own"] = json.loads(report.read_text(encoding="utf-8"))
        with whole_file(target) as stream:
            whole = {"record": record(SEED), "benchmarks": figures, "parity": compared}
            stream.write(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
        typer.echo(f"written to {target}")


if __name__ == "__main__":
    typer.run(main)
