"""Speed of scoring, end to end, with the default model on two threads; and of the prompted pipeline beside it.

    python scripts/bench_score.py --data ../shared/data/test/human_dev.jsonl

Four fresh processes, one after the other, so that none warms up another and each has its own peak
memory: the command line on the first conversations (start to first result), the student on all of the
data, and the student and the prompted pipeline on the same first conversations. Run it on an idle
machine: two jobs on two cores fall to a tenth.

This parent process imports neither torch nor vista_local, because a child's peak memory, as the
kernel counts it, begins with what its parent had at the fork.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from training.record import ROOT, record

STAGES = ("decompose", "verify", "categorise")

#: Conversations that the command line gets: its first result is of the first one, whatever follows.
FIRST = 8

#: What the issue asks for.
TARGETS = {"turns_per_second": 0.8, "peak_rss_gib": 2.0, "first_result_seconds": 20.0}


# ---- in the child processes ----


def peak_rss_gib(usage: resource.struct_rusage) -> float:
    """Peak resident memory; Linux counts it in KiB, macOS in bytes."""
    return round(usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 2**30, 3)


class StageClock:
    """Seconds that a backend's verbs take, by stage; replaces the verbs of one backend object."""

    def __init__(self, backend: Any) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        for verb in ("generate", "classify", "classify_alone"):
            # On the object, not its class: the pipeline looks the verbs up there.
            setattr(backend, verb, self._timed(getattr(backend, verb)))

    def _timed(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        def timed(stage: str, requests: Any) -> Any:
            started = time.perf_counter()
            try:
                return verb(stage, requests)
            finally:
                self.seconds[stage] += time.perf_counter() - started

        return timed


def non_embedding_parameters(backend: Any, stage: str) -> int:
    """Weights that each token is multiplied with: the decoder's layers and this stage's adapter.

    The output matrix is left out: of it only the label words' rows are used, at the answer positions.
    """
    causal_lm = backend.model.get_base_model()
    tables = {id(m.weight) for m in (causal_lm.get_input_embeddings(), causal_lm.get_output_embeddings())}
    total = 0
    for name, parameter in causal_lm.named_parameters():
        other_adapter = "lora_" in name and f".{stage}." not in name
        if id(parameter) not in tables and not other_adapter:
            total += parameter.numel()
    return total


def matmul_rates(backend: Any, rows: int = 1024, seconds: float = 2.0) -> dict[str, float]:
    """GFLOP/s of torch's matrix products in the shapes of one decoder layer, by number format."""
    import torch
    from torch import nn

    layer = backend.model.get_base_model().model.layers[0]
    # Under PEFT a layer holds the base's Linear modules and, beside them, the adapters' own small ones.
    shapes = [m.weight.shape for n, m in layer.named_modules() if isinstance(m, nn.Linear) and "lora_" not in n]
    flops = sum(2 * rows * out * into for out, into in shapes)
    rates = {}
    with torch.inference_mode():
        for dtype in (torch.float32, torch.bfloat16):
            pairs = [
                tuple(torch.randn(*size, dtype=dtype, device=backend.device) for size in ((rows, shape[1]), shape))
                for shape in shapes
            ]

            def one_pass(pairs: list[Any] = pairs) -> float:
                started = time.perf_counter()
                for inputs, weight in pairs:
                    nn.functional.linear(inputs, weight)
                if backend.device.type == "cuda":
                    torch.cuda.synchronize()
                return time.perf_counter() - started

            one_pass()  # the first pass makes oneDNN's kernels
            # The fastest pass: the rate that the hardware reaches when nothing disturbs it.
            best, end = one_pass(), time.perf_counter() + seconds
            while time.perf_counter() < end:
                best = min(best, one_pass())
            rates[str(dtype).removeprefix("torch.")] = round(flops / best / 1e9, 1)
    return rates


def child(kind: str, data: Path, result: Path, threads: int, base: str | None, adapters: str | None) -> None:
    """Score `data` with the student or the prompted pipeline and write the measurements to `result`."""
    started = time.perf_counter()
    from vista_local.errors import VistaError
    from vista_local.evaluator import Evaluator

    try:
        if kind == "student":
            evaluator = Evaluator.from_pretrained(adapters, base=base, threads=threads)
        else:
            evaluator = prompted_evaluator(threads, base, adapters)
        measured = measure(kind, evaluator, data, time.perf_counter() - started)
    except VistaError as error:
        sys.exit(f"error: {error}")
    result.write_text(json.dumps(measured), encoding="utf-8")


def prompted_evaluator(threads: int, base: str | None, adapters: str | None) -> Any:
    """An evaluator that prompts the same base with full instructions and examples."""
    from prompted_baseline import PromptedBackend

    from vista_local.base import resolve_base
    from vista_local.evaluator import Evaluator, adapters_dir

    return Evaluator(PromptedBackend(resolve_base(base), adapters_dir(adapters), threads=threads))


def measure(kind: str, evaluator: Any, data: Path, load_seconds: float) -> dict[str, Any]:
    """Score everything and say what it took."""
    import torch

    from vista_local.schema import TurnStatus

    backend = evaluator.backend
    rates = matmul_rates(backend) if kind == "student" else {}
    clock = StageClock(backend)
    conversations = [json.loads(line) for line in json_lines(data)]
    started = time.perf_counter()
    results = list(evaluator.score(conversations))
    seconds = time.perf_counter() - started
    peak = peak_rss_gib(resource.getrusage(resource.RUSAGE_SELF))

    scored = [t for r in results for t in r.turns if t.status is TurnStatus.SCORED]
    turns, claims = len(scored), sum(len(t.claims) for t in scored)
    tokens = dict(backend.tokens_computed)
    measured: dict[str, Any] = {
        "conversations": len(results),
        "scored_turns": turns,
        "claims": claims,
        "load_seconds": round(load_seconds, 2),
        "seconds": round(seconds, 2),
        "seconds_by_stage": {s: round(clock.seconds[s], 2) for s in STAGES},
        "turns_per_second": per(turns, seconds),
        "claims_per_second": per(claims, seconds),
        "seconds_per_turn": per(seconds, turns),
        "tokens": tokens,
        "tokens_per_turn": {s: per(tokens[s], turns, 1) for s in STAGES} | {"all": per(sum(tokens.values()), turns, 1)},
        "peak_rss_gib": peak,
        "threads": torch.get_num_threads(),
        "run": evaluator.run_record(),
    }
    if kind == "student":
        dtype = str(backend.dtype).removeprefix("torch.")
        parameters = non_embedding_parameters(backend, "verify")
        rate = tokens["verify"] * 2 * parameters / clock.seconds["verify"] / 1e9 if clock.seconds["verify"] else None
        measured["verify"] = {
            # Padding and attention are not counted as work, tokenising and batching are counted as time:
            # the share is of useful products in the time that a user waits.
            "non_embedding_parameters": parameters,
            "gflop_per_second": rate and round(rate, 1),
            "matmul_gflop_per_second": rates,
            "dtype": dtype,
            "share_of_matmul_rate": rate and per(rate, rates[dtype]) if dtype in rates else None,
        }
    else:
        measured["prompt_tokens"] = backend.prompt_tokens()
        measured["calls"] = backend.calls
        measured["unreadable_answers"] = backend.unreadable
    return measured


# ---- in the parent ----


def per(amount: float, by: float, places: int = 3) -> float | None:
    """A ratio; None where there is nothing to divide by."""
    return round(amount / by, places) if by else None


def json_lines(path: Path) -> list[str]:
    """Non-empty lines. Not `splitlines`: JSON may hold other line separators inside its strings."""
    return [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]


def environment() -> dict[str, str]:
    """The children's environment: this checkout comes first, and nothing asks a hub."""
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH")) if p)
    return os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}


def run_child(kind: str, data: Path, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measurements of a fresh process; ends this one if the child failed."""
    result = folder / f"{kind}.json"
    command = [sys.executable, str(Path(__file__).resolve()), "--child", kind, "--data", str(data)]
    command += ["--out", str(result), "--threads", str(options.threads)]
    for name in ("base", "adapters"):
        if getattr(options, name):
            command += [f"--{name}", getattr(options, name)]
    done = subprocess.run(command, env=environment())
    if done.returncode:
        sys.exit(f"the {kind} run failed with exit code {done.returncode}")
    measured: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return measured


def run_command_line(data: Path, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The real command on the data: seconds from its start to its first written line, and to its end."""
    output = folder / "out.jsonl"
    command = [sys.executable, "-c", "from vista_local.cli import run; run()", "score", str(data), "-o", str(output)]
    command += ["--threads", str(options.threads)]
    for name in ("base", "adapters"):
        if getattr(options, name):
            command += [f"--{name}", getattr(options, name)]
    log = folder / "cli.log"
    started = time.perf_counter()
    first: float | None = None
    with open(log, "wb") as stream:
        process = subprocess.Popen(command, env=environment(), stdout=stream, stderr=stream)
        try:
            while True:
                # wait4, because it gives the memory of this one child.
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if first is None and output.exists() and output.stat().st_size:
                    # Lines of a shard are written at once and synced: a size above 0 is a whole line.
                    first = time.perf_counter() - started
                if pid:
                    process.returncode = os.waitstatus_to_exitcode(status)
                    break
                time.sleep(0.05)
        except BaseException:
            process.terminate()
            raise
    seconds = time.perf_counter() - started
    if process.returncode:
        sys.exit(f"the command line failed with exit code {process.returncode}:\n{log.read_text(encoding='utf-8')}")
    return {
        "first_result_seconds": first and round(first, 2),
        "seconds": round(seconds, 2),
        "peak_rss_gib": peak_rss_gib(usage),
    }


def compared(student: dict[str, Any], prompted: dict[str, Any]) -> dict[str, Any]:
    """How many times the prompted pipeline's time and tokens a turn are the student's."""

    def ratio(of: dict[str, Any], to: dict[str, Any], key: str) -> float | None:
        return per(of[key], to[key], 2) if of[key] is not None and to[key] else None

    return {
        "time": ratio(prompted, student, "seconds_per_turn"),
        "time_by_stage": {s: ratio(prompted["seconds_by_stage"], student["seconds_by_stage"], s) for s in STAGES},
        "tokens": ratio(prompted["tokens_per_turn"], student["tokens_per_turn"], "all"),
        "tokens_by_stage": {s: ratio(prompted["tokens_per_turn"], student["tokens_per_turn"], s) for s in STAGES},
    }


def shown(value: Any) -> str:
    """A figure for the table; a dash where there is none."""
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def tables(report: dict[str, Any]) -> list[Table]:
    """The report as two tables: the student on all of the data, and both pipelines on the same conversations."""
    whole, line, verify = report["end_to_end"], report["command_line"], report["end_to_end"]["verify"]
    first = Table("end to end", "measured", "to reach", title_justify="left")
    counts = ", ".join(str(whole[key]) for key in ("conversations", "scored_turns", "claims"))
    first.add_row("conversations, scored turns, claims", counts)
    first.add_row("turns/s", shown(whole["turns_per_second"]), f">= {TARGETS['turns_per_second']}")
    first.add_row("claims/s", shown(whole["claims_per_second"]))
    for stage in (*STAGES, "all"):
        first.add_row(f"tokens a turn, {stage}", shown(whole["tokens_per_turn"][stage]))
    for name, rate in verify["matmul_gflop_per_second"].items():
        first.add_row(f"matrix products, {name}, GFLOP/s", shown(rate))
    first.add_row(f"verify, {verify['dtype']}, GFLOP/s", shown(verify["gflop_per_second"]))
    first.add_row("share of the matrix-product rate in verify", shown(verify["share_of_matmul_rate"]))
    peak = max(whole["peak_rss_gib"], line["peak_rss_gib"])
    first.add_row("peak RSS, GiB", shown(peak), f"< {TARGETS['peak_rss_gib']}")
    wanted = f"<= {TARGETS['first_result_seconds']}"
    first.add_row("start to first result, s", shown(line["first_result_seconds"]), wanted)

    if "subset" not in report:
        return [first]
    student, prompted, ratio = (report["subset"][k] for k in ("student", "prompted", "ratio"))
    second = Table("the same conversations", "student", "prompted", "ratio", title_justify="left")
    for key in ("conversations", "scored_turns", "claims"):
        second.add_row(key.replace("_", " "), shown(student[key]), shown(prompted[key]))
    values = [shown(side["seconds_per_turn"]) for side in (student, prompted)]
    second.add_row("seconds a turn", *values, shown(ratio["time"]))
    for stage in STAGES:
        values = [shown(side["seconds_by_stage"][stage]) for side in (student, prompted)]
        second.add_row(f"seconds, {stage}", *values, shown(ratio["time_by_stage"][stage]))
    for stage in (*STAGES, "all"):
        values = [shown(side["tokens_per_turn"][stage]) for side in (student, prompted)]
        times = ratio["tokens"] if stage == "all" else ratio["tokens_by_stage"][stage]
        second.add_row(f"tokens a turn, {stage}", *values, shown(times))
    second.add_row("answers not readable", "-", shown(sum(prompted["unreadable_answers"].values())))
    return [first, second]


def benchmark(options: argparse.Namespace) -> dict[str, Any]:
    """All measurements, one process after the other."""
    data = Path(options.data)
    lines = json_lines(data)[: options.limit]
    if not lines:
        sys.exit(f"error: {data}: no conversations")
    console = Console(stderr=True)
    report: dict[str, Any] = {
        "record": record(),
        "settings": {
            "data": data.name,
            "data_sha256": hashlib.sha256(data.read_bytes()).hexdigest(),
            "limit": options.limit,
            "prompted_limit": options.prompted_limit,
            "threads": options.threads,
        },
        "targets": TARGETS,
    }
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        everything, first, subset = (folder / f"{name}.jsonl" for name in ("data", "first", "subset"))
        first.write_text("\n".join(lines[:FIRST]) + "\n", encoding="utf-8")
        everything.write_text("\n".join(lines) + "\n", encoding="utf-8")
        subset.write_text("\n".join(lines[: options.prompted_limit]) + "\n", encoding="utf-8")
        console.print("command line ...")
        report["command_line"] = run_command_line(first, folder, options)
        console.print("student ...")
        report["end_to_end"] = run_child("student", everything, folder, options)
        if options.prompted_limit:
            console.print("student and prompted pipeline on the same conversations ...")
            student = run_child("student", subset, folder, options)
            prompted = run_child("prompted", subset, folder, options)
            report["subset"] = {"student": student, "prompted": prompted, "ratio": compared(student, prompted)}
    return report


def main() -> None:
    """Measure, print the tables, write the report."""
    parser = argparse.ArgumentParser(description="Speed of scoring, end to end, beside the prompted pipeline.")
    parser.add_argument("--data", required=True, help="JSON Lines file of conversations in the native form")
    parser.add_argument("--limit", type=int, help="only the first N conversations")
    parser.add_argument("--prompted-limit", type=int, default=6, help="conversations for the comparison; 0: none")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--base", help="base model folder; default: the one that `vista-local fetch` brings")
    parser.add_argument("--adapters", help="adapter set: folder or name; default: the default model's")
    parser.add_argument("--out", type=Path, default=ROOT / "scripts" / "results" / "bench_score.json")
    parser.add_argument("--child", choices=("student", "prompted"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, Path(options.data), options.out, options.threads, options.base, options.adapters)
        return
    report = benchmark(options)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    console = Console()
    for table in tables(report):
        console.print(table)


if __name__ == "__main__":
    main()
