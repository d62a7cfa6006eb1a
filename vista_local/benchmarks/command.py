"""`vista-local evaluate`: measure a method on a benchmark, and print it beside the paper's figures."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from vista_local.benchmarks.published import PART_OF, SOURCE, Published, published
from vista_local.errors import VistaError
from vista_local.terminal import user_errors

if TYPE_CHECKING:
    from vista_local.benchmarks.figures import Rule, TurnPrediction
    from vista_local.benchmarks.loaders import Item
    from vista_local.benchmarks.methods import Ablation, Method
    from vista_local.config import ScoreConfig
    from vista_local.evaluator import Evaluator
    from vista_local.teacher import TeacherConfig

SCHEMA = "vista-local-benchmark/1"
RULES: tuple[Rule, ...] = ("strict", "safe", "original")
ClaimsFrom = Literal["given", "own"]


@dataclass(frozen=True)
class Run:
    """What was measured and what it depends on."""

    predicted: list[dict[int, TurnPrediction]]
    seconds: float
    record: dict[str, Any]


def figures(items: Sequence[Item], predicted: Sequence[dict[int, TurnPrediction]], given: bool) -> dict[str, Any]:
    """All figures that predictions and gold allow, with the coverage that they are to be read with.

    Claim figures need the benchmark's own claims, labelled one by one; turn figures only need verdicts. Intervals
    are by cluster; `clusters` is their number where it isn't that of the conversations.
    """
    # numpy: not at every start of the CLI
    from vista_local.benchmarks.figures import claim_figures, coverage_figures, turn_figures

    # With given claims, a turn without any was not asked about.
    gold = [{i: t for i, t in item.gold.items() if not given or t.claims is not None} for item in items]
    turns = [turn for g in gold for turn in g.values()]
    clusters = [item.cluster for item in items]
    found: dict[str, Any] = {"conversations": len(items), "turns": len(turns)} | coverage_figures(predicted, gold)
    if (together := len(set(clusters))) != len(items):
        found["clusters"] = together
    labelled = [p.labels is not None for g, found_ in zip(gold, predicted, strict=True) for p in _present(g, found_)]
    if given and labelled and all(labelled):
        found["claims"] = claim_figures([item.conversation.id for item in items], predicted, gold, clusters)
    for rule in RULES:
        if any(turn.verdict(rule) is not None for turn in turns):
            found[rule] = turn_figures(predicted, gold, rule, clusters)
    return found


def _present(gold: dict[int, Any], found: dict[int, TurnPrediction]) -> list[TurnPrediction]:
    return [found[i] for i, turn in gold.items() if turn.claims is not None and i in found]


def claims_from(items: Sequence[Item], wanted: ClaimsFrom | None) -> bool:
    """Whether the benchmark's own claims are labelled: by default if all turns that count have some."""
    if wanted is not None:
        return wanted == "given"
    return all(turn.claims is not None for item in items for turn in item.gold.values())


def measure(
    evaluator: Evaluator,
    items: Sequence[Item],
    method: Method,
    ablate: Ablation | None,
    given: bool,
    *,
    prompted: bool = False,
) -> Run:
    """Run a method that needs a backend.

    Raises:
        VistaError: the combination measures nothing, or scoring failed as a whole.
    """
    from vista_local.benchmarks.methods import check, predict
    from vista_local.history import DECOMPOSE_HISTORY

    check(method, ablate, given, prompted, items)
    started = time.monotonic()
    predicted = predict(
        evaluator.backend,
        items,
        method,
        config=evaluator.config,
        ablate=ablate,
        given=given,
        # A prompted teacher has room for the whole talk; adapters see what they were trained with.
        decompose_history=None if prompted else DECOMPOSE_HISTORY,
        guard=evaluator.guard,
    )
    return Run(predicted, time.monotonic() - started, evaluator.run_record())


def measure_majority(items: Sequence[Item], training_file: Path) -> Run:
    """Run the majority baseline."""
    from vista_local.adapters import sha256_file
    from vista_local.benchmarks.methods import majority

    says = majority(training_file)
    predicted = [{index: says(turn) for index, turn in item.gold.items()} for item in items]
    record = {"training_file": training_file.name, "training_file_sha256": sha256_file(training_file)}
    return Run(predicted, 0.0, record)


def report_of(
    benchmark: str, items: Sequence[Item], method: Method, ablate: Ablation | None, given: bool, run: Run
) -> dict[str, Any]:
    """What was measured, with the paper's figures, as it is written."""
    return {
        "schema": SCHEMA,
        "benchmark": benchmark,
        "method": method.value,
        "ablate": None if ablate is None else ablate.value,
        "claims": "given" if given else "own",
        "figures": figures(items, run.predicted, given),
        "seconds": round(run.seconds, 1),
        "published": [_published_json(p) for p in published(benchmark)],
        "run": run.record,
    }


# ---- tables ----


def _percent(value: float | None, interval: Sequence[float] | None = None) -> str:
    if value is None:
        return "-"
    text = f"{100 * value:.2f}"
    return text if interval is None else f"{text} ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"


def _published_cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def table(report: dict[str, Any]) -> Table:
    """Our figures, and the paper's for the same benchmark below."""
    found = report["figures"]
    part = " (part of the paper's)" if report["benchmark"] in PART_OF else ""
    clusters = f" (clusters: {found['clusters']})" if "clusters" in found else ""
    shown = Table(
        "",
        "claim accuracy",
        "macro-F1",
        "strict turns",
        "safe turns",
        "coverage",
        title=f"{report['benchmark']}{part}, {found['turns']} turns of {found['conversations']} conversations"
        f"{clusters}, %",
        caption=f"balanced: balanced accuracy; paper: {SOURCE}, on its own samples",
    )
    claims = found.get("claims", {})
    # A benchmark without claims of its own has the strict verdict against its own labels.
    strict = found.get("original") if "strict" not in found else found["strict"]
    name = report["method"] + (f" without {report['ablate']}" if report["ablate"] else "")
    shown.add_row(
        f"{name}, {report['claims']} claims",
        _percent(claims.get("claim_accuracy"), claims.get("claim_accuracy_95")),
        _percent(claims.get("macro_f1"), claims.get("macro_f1_95")),
        _turn_cell(strict),
        _turn_cell(found.get("safe")),
        f"claims {_percent(found['coverage'])}\nturns {_percent(found['turn_coverage'])}",
        style="bold",
    )
    if "strict" in found and "original" in found:
        shown.add_row("against the benchmark's labels", "-", "-", _turn_cell(found["original"]), "-", "")
    for line in report["published"]:
        cells = (line["claim_accuracy"], line["macro_f1"], line["strict"], line["safe"])
        shown.add_row(f"paper: {line['system']}", *map(_published_cell, cells))
    return shown


def _turn_cell(part: dict[str, Any] | None) -> str:
    """Accuracy, and below it what accuracy alone hides where nearly all turns have one verdict."""
    if part is None:
        return "-"
    return f"{_percent(part['accuracy'], part['accuracy_95'])}\nbalanced {_percent(part['balanced_accuracy'])}"


def _published_json(line: Published) -> dict[str, Any]:
    return {
        "system": line.system,
        "claim_accuracy": line.claim_accuracy,
        "macro_f1": line.macro_f1,
        "strict": line.strict,
        "safe": line.safe,
        "ablate": line.ablate,
    }


# ---- the command ----


@contextmanager
def _evaluator(
    config: ScoreConfig,
    teacher: TeacherConfig | None,
    allow_remote: bool,
    max_cost: float | None,
    ablate: Ablation | None,
    **local: Any,
) -> Iterator[Evaluator]:
    """The local adapters, or a prompted teacher with its connections and its cache."""
    from vista_local.benchmarks.methods import Ablation
    from vista_local.evaluator import Evaluator

    local_options = {k: v for k, v in local.items() if v is not None}
    if teacher is None:
        yield Evaluator.from_pretrained(config=config, **local_options)
        return
    if named := sorted(set(local_options) - {"token_budget"}):
        raise VistaError(f"--{named[0]} is for local models; a --teacher's model is named in its file")
    from vista_local.prompted import TeacherEvaluator

    if ablate is Ablation.FEWSHOT:
        teacher = teacher.model_copy(update={"shots": "zero"})
    prompted = TeacherEvaluator(teacher, config, allow_remote=allow_remote, max_cost=max_cost)
    with prompted.session("the same command"):
        yield prompted


def _sha256(data: str) -> str | None:
    from vista_local.adapters import sha256_file

    return sha256_file(data) if Path(data).is_file() else None


def _check_training_file(training_file: Path, tested: Path) -> None:
    """Refuse a training file whose content is that of `tested`, or of a file below it.

    Raises:
        VistaError: it is.
    """
    files = [tested] if tested.is_file() else sorted(p for p in tested.rglob("*") if p.is_file())
    size = training_file.stat().st_size if training_file.is_file() else None
    for file in files:
        if file.stat().st_size == size and _sha256(str(file)) == _sha256(str(training_file)):
            raise VistaError(f"--training-file {training_file}: holds what is tested: the content of {file}")


def evaluate(
    benchmark: Annotated[
        str, typer.Option(help="faithdial, begin, ais, fade, vista, or the project's human_dev, turns_dev")
    ],
    data: Annotated[
        str, typer.Option(help="its file or folder; for faithdial, begin and fade also hub:OWNER/NAME[:SPLIT]")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="figures as JSON")],
    method: Annotated[str, typer.Option(help="vista, factscore, judge or majority")] = "vista",
    ablate: Annotated[
        str | None, typer.Option(help="leave out: memory, history, fewshot (with --teacher) or decomposition")
    ] = None,
    claims: Annotated[
        str | None,
        typer.Option(
            help="given: label the benchmark's claims; own: make claims; "
            "default: given where all turns that count have some"
        ),
    ] = None,
    gold: Annotated[Path | None, typer.Option(help="labels that take the place of the benchmark's")] = None,
    training_file: Annotated[
        Path | None, typer.Option(help="labelled conversations that --method majority takes its answer from")
    ] = None,
    wow: Annotated[Path | None, typer.Option(help="Wizard of Wikipedia's test_random_split.json, for ais")] = None,
    limit: Annotated[int | None, typer.Option(help="only the first conversations", min=1)] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of settings")] = None,
    profile: Annotated[str | None, typer.Option(help="'paper': the published method's main setting")] = None,
    base: Annotated[str | None, typer.Option(help="base model folder or cached hub id")] = None,
    adapters: Annotated[str | None, typer.Option(help="adapter set: folder or name")] = None,
    device: Annotated[str | None, typer.Option(help="torch device; default: a GPU if there is one")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; default: torch's choice")] = None,
    token_budget: Annotated[int, typer.Option(help="most padded tokens in a batch")] = 4096,
    teacher: Annotated[Path | None, typer.Option(help="YAML file of a prompted teacher instead of adapters")] = None,
    allow_remote: Annotated[bool, typer.Option("--allow-remote", help="a teacher on another machine")] = False,
    max_cost: Annotated[float | None, typer.Option(min=0, help="most money that a teacher may cost")] = None,
) -> None:
    """Measure a method on a benchmark, with the paper's figures beside."""
    from vista_local.benchmarks.loaders import counted, form_of, load
    from vista_local.benchmarks.methods import Ablation, Method, check
    from vista_local.cli import TEACHER_SHARD
    from vista_local.config import format_defaults, load_config
    from vista_local.files import check_writable, whole_file
    from vista_local.teacher import load_teacher

    with user_errors():
        check_writable(output)
        chosen, left_out = _one_of(Method, method, "method"), _one_of(Ablation, ablate, "ablate") if ablate else None
        if claims not in (None, "given", "own"):
            raise VistaError(f"--claims {claims!r}; accepted: given, own")
        if teacher is None and (allow_remote or max_cost is not None):
            raise VistaError("--allow-remote and --max-cost belong to --teacher")
        asked = None if teacher is None else load_teacher(teacher)
        items = load(benchmark, data, wow=wow, gold=gold, limit=limit)
        defaults = format_defaults(form_of(items))
        if asked is not None:
            defaults |= {"context": asked.context, "shard_size": TEACHER_SHARD}
        settings = load_config(config, {}, profile, defaults)
        items = counted(items, settings.memory.unreferenced)
        given = claims_from(items, "given" if claims == "given" else "own" if claims == "own" else None)
        check(chosen, left_out, given, teacher is not None, items)  # before a model is loaded
        if chosen is Method.MAJORITY:
            if training_file is None:
                raise VistaError("--method majority needs --training-file: it must not look at the test set")
            for tested in (Path(data), gold):
                if tested is not None:
                    _check_training_file(training_file, tested)
            run = measure_majority(items, training_file)
        else:
            local = {"base": base, "adapters": adapters, "device": device, "threads": threads}
            with _evaluator(
                settings, asked, allow_remote, max_cost, left_out, token_budget=token_budget, **local
            ) as evaluator:
                run = measure(evaluator, items, chosen, left_out, given, prompted=teacher is not None)
        report = report_of(benchmark, items, chosen, left_out, given, run) | {
            "data": {"name": data if data.startswith("hub:") else Path(data).name, "sha256": _sha256(data)},
            "gold": None if gold is None else {"name": gold.name, "sha256": _sha256(str(gold))},
        }
        with whole_file(output) as stream:
            stream.write(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
        Console().print(table(report))


def _one_of(kind: Any, value: str, option: str) -> Any:
    try:
        return kind(value.lower())
    except ValueError:
        raise VistaError(f"--{option} {value!r}; accepted: {', '.join(kind)}") from None
