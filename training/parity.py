"""`python -m training.parity`: does the student match its teacher? Both side by side, with statistics.

Compared are the turns that both files hold (and the gold file, where one is given); what one of
them lacks is counted and named. Where both sides labelled the same claims in every turn, claims are
compared one by one; otherwise turn verdicts are, the claims by the best one-to-one matching, and it is
said that and where the claims differ. `--on` fixes this beforehand, like the margin at which the student's
non-inferiority is tested against gold labels.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from training.matching import Agreement, agree, match_claims
from training.noninferiority import Cluster, NonInferiority, non_inferiority
from training.record import record
from training.traces import Claims, Side, SideTurn, read_side, safe, strict
from vista_local.adapters import sha256_file
from vista_local.console import percent
from vista_local.errors import VistaError
from vista_local.files import whole_file
from vista_local.labels import LABELS
from vista_local.metrics import (
    Confusion,
    bootstrap_interval,
    claim_confusion,
    cohen_kappa,
    mcnemar_exact,
    pool,
    turn_confusion,
)
from vista_local.terminal import user_errors
from vista_local.text import counted

SEED = 17
RULES: dict[str, Callable[[Claims], bool]] = {"strict": strict, "safe": safe}


@dataclass(frozen=True)
class Pair:
    """One turn as teacher and student (and gold) have it. `same_claims`: all of them labelled the same claims."""

    teacher: SideTurn
    student: SideTurn
    gold: SideTurn | None
    same_claims: bool

    def claims(self, turn: SideTurn) -> Claims:
        """The claims of a side that are compared here."""
        return turn.given if self.same_claims else turn.own

    def verdict(self, turn: SideTurn, rule: str) -> bool | None:
        """Strict or safe verdict of a side; `None` where the turn as a whole failed."""
        return None if turn.failed is not None else RULES[rule](self.claims(turn))


Conversations = Sequence[Sequence[Pair]]
#: What is compared: claim by claim, or turn verdicts; `None` for claims if they are the same everywhere.
On = Literal["claims", "turns"]


@dataclass(frozen=True)
class Paired:
    """The common turns, conversation by conversation.

    Attributes:
        left_out: how many turns each side has alone.
        differing: common turns in which the claims are not the same, as (conversation, turn index).
        names: the conversations' ids.
    """

    conversations: list[list[Pair]]
    left_out: dict[str, int]
    differing: list[tuple[str, int]]
    names: list[str]


def _texts(claims: Claims) -> list[str]:
    return [text for text, _ in claims]


def pair_turns(teacher: Side, student: Side, gold: Side | None, on: On | None = None) -> Paired:
    """The common turns, conversation by conversation, and how many turns each side has alone.

    Without `on` the claims are the same only if they are so in every common turn: figures over two kinds of
    turns would belong to neither. With "claims" the turns in which they differ are left out.

    Raises:
        VistaError: no turn is common; one side labelled given claims and the other its own; with `on`
            "claims", the claims differ in every turn.
    """
    if None not in (teacher.given_claims, student.given_claims) and teacher.given_claims != student.given_claims:
        given, own = (teacher, student) if teacher.given_claims else (student, teacher)
        raise VistaError(
            f"{given.path} labels given claims (--given-claims), {own.path} claims of its own: make both with the "
            "option, or both without"
        )

    def keys(side: Side) -> set[tuple[str, int]]:
        return {(name, index) for name, turns in side.conversations.items() for index in turns}

    sides = [teacher, student] + ([gold] if gold else [])
    common = set.intersection(*map(keys, sides))
    if not common:
        raise VistaError(
            "no turn is in " + " and ".join(s.path for s in sides) + ": are the conversations' ids the same?"
        )
    order = [(name, index) for name, turns in teacher.conversations.items() for index in sorted(turns)]
    chosen = [key for key in order if key in common]

    def turn(side: Side, key: tuple[str, int]) -> SideTurn:
        return side.conversations[key[0]][key[1]]

    def same_claims(key: tuple[str, int]) -> bool:
        first, *others = (_texts(turn(side, key).given) for side in sides)
        return all(texts == first for texts in others)

    differing = [key for key in chosen if not same_claims(key)]
    same = on == "claims" or (on is None and not differing)
    if on == "claims":
        apart = set(differing)
        chosen = [key for key in chosen if key not in apart]
        if not chosen:
            raise VistaError("--on claims: the files' claims differ in every turn; were they made with --given-claims?")
    grouped: dict[str, list[Pair]] = {}
    for key in chosen:
        pair = Pair(turn(teacher, key), turn(student, key), turn(gold, key) if gold else None, same)
        grouped.setdefault(key[0], []).append(pair)
    names = ["teacher", "student", "gold"]
    left_out = {n: len(keys(s) - common) for n, s in zip(names, sides, strict=False)}
    return Paired(list(grouped.values()), left_out, differing, list(grouped))


# ---- figures ----


def _interval(items: Sequence[Any], statistic: Callable[[Sequence[Any]], float | None]) -> dict[str, Any]:
    interval = bootstrap_interval(items, statistic, seed=SEED)
    if interval is None:
        return {"value": None, "ci95": None}
    return {"value": interval.point, "ci95": [interval.low, interval.high]}


def _side_by_side(
    pairs: Sequence[tuple[Confusion[Any], Confusion[Any]]], figure: Callable[[Confusion[Any]], float | None]
) -> dict[str, Any]:
    """A figure of teacher and student, and their difference, each with its interval by conversation."""

    def of(which: int) -> Callable[[Sequence[tuple[Confusion[Any], Confusion[Any]]]], float | None]:
        return lambda sample: figure(pool(pair[which] for pair in sample))

    def gap(sample: Sequence[tuple[Confusion[Any], Confusion[Any]]]) -> float | None:
        teacher, student = of(0)(sample), of(1)(sample)
        return None if teacher is None or student is None else student - teacher

    return {
        "teacher": _interval(pairs, of(0)),
        "student": _interval(pairs, of(1)),
        "difference": _interval(pairs, gap),
    }


def _labels(claims: Claims) -> list[str | None]:
    return [None if label is None else label.value for _, label in claims]


def _mcnemar(teacher: Sequence[bool], student: Sequence[bool]) -> dict[str, Any] | None:
    test = mcnemar_exact(teacher, student)
    if test is None:
        return None
    return {"only_teacher": test.only_first, "only_student": test.only_second, "p_value": test.p_value}


def _test(clusters: Sequence[Cluster], margin: float) -> dict[str, Any] | None:
    outcome: NonInferiority | None = non_inferiority(clusters, margin, seed=SEED)
    return None if outcome is None else outcome.as_dict()


def gold_claim_figures(conversations: Conversations, margin: float) -> dict[str, Any]:
    """Claim by claim against gold: accuracy, macro-F1, every class, McNemar, non-inferiority."""
    matrices, clusters = [], []
    right: tuple[list[bool], list[bool]] = ([], [])
    for turns in conversations:
        truth = [label for p in turns if p.gold for label in _labels(p.gold.given)]
        sides = [_labels(claims) for claims in _given(turns)]
        known = [label for label in truth if label is not None]
        matrices.append((claim_confusion(known, sides[0]), claim_confusion(known, sides[1])))
        hits = [[t == v for t, v in zip(truth, side, strict=True)] for side in sides]
        clusters.append(Cluster.of(hits[0], hits[1]))
        for total, new in zip(right, hits, strict=True):
            total.extend(new)
    pooled = [pool(m[i] for m in matrices) for i in (0, 1)]
    return {
        "claims": pooled[0].n,
        "accuracy": _side_by_side(matrices, lambda m: m.accuracy),
        "macro_f1": _side_by_side(matrices, lambda m: m.macro_f1),
        "per_class": {
            label.value: {
                "gold": pooled[0].support[number],
                "teacher": pooled[0].classes[number].f1,
                "student": pooled[1].classes[number].f1,
            }
            for number, label in enumerate(LABELS)
        },
        "mcnemar": _mcnemar(*right),
        "non_inferiority": _test(clusters, margin),
    }


def _given(turns: Sequence[Pair]) -> tuple[Claims, ...]:
    """All given claims of a conversation as the teacher, then the student, labelled them."""
    teacher = tuple(claim for p in turns for claim in p.teacher.given)
    student = tuple(claim for p in turns for claim in p.student.given)
    return teacher, student


def gold_turn_figures(conversations: Conversations, rule: str, margin: float) -> dict[str, Any]:
    """Strict or safe verdicts of both sides against the gold claims' verdict."""
    matrices, clusters = [], []
    right: tuple[list[bool], list[bool]] = ([], [])
    for turns in conversations:
        truth = [RULES[rule](p.gold.given) for p in turns if p.gold]
        sides = [[p.verdict(p.teacher, rule) for p in turns], [p.verdict(p.student, rule) for p in turns]]
        matrices.append((turn_confusion(truth, sides[0]), turn_confusion(truth, sides[1])))
        hits = [[t == v for t, v in zip(truth, side, strict=True)] for side in sides]
        clusters.append(Cluster.of(hits[0], hits[1]))
        for total, new in zip(right, hits, strict=True):
            total.extend(new)
    return {
        "turns": sum(m[0].n for m in matrices),
        "accuracy": _side_by_side(matrices, lambda m: m.accuracy),
        "balanced_accuracy": _side_by_side(matrices, lambda m: m.balanced_accuracy),
        "macro_f1": _side_by_side(matrices, lambda m: m.macro_f1),
        "mcnemar": _mcnemar(*right),
        "non_inferiority": _test(clusters, margin),
    }


def agreement_figures(conversations: Conversations) -> dict[str, Any]:
    """How often the student says what the teacher says, whoever is right.

    Labels are compared on the same claims, or on those that the matching pairs. A claim that either
    side left unscored agrees with nothing; kappa, which needs two labels, counts the teacher's labelled ones.
    """
    pairs: list[list[tuple[str | None, str | None]]] = []
    found: list[Agreement] = []
    for turns in conversations:
        here: list[tuple[str | None, str | None]] = []
        total = Agreement()
        for p in turns:
            teacher, student = p.claims(p.teacher), p.claims(p.student)
            if p.same_claims:
                here += zip(_labels(teacher), _labels(student), strict=True)
            else:
                total = total + agree(_texts(student), _texts(teacher))
                labels = _labels(teacher), _labels(student)
                matched = match_claims(_texts(student), _texts(teacher))
                here += [(labels[0][m.teacher], labels[1][m.predicted]) for m in matched]
        pairs.append(here)
        found.append(total)
    flat = [pair for here in pairs for pair in here]
    labelled = [(t, s) for t, s in flat if t is not None]

    def share(sample: Sequence[Sequence[tuple[str | None, str | None]]]) -> float | None:
        items = [pair for here in sample for pair in here]
        return sum(t is not None and t == s for t, s in items) / len(items) if items else None

    same_claims = all(p.same_claims for turns in conversations for p in turns)
    return {
        "claims": len(flat),
        "on": "the same claims" if same_claims else "claims that the matching pairs",
        "labels": _interval(pairs, share),
        "kappa": cohen_kappa([t for t, _ in labelled], [s for _, s in labelled]),
        "decomposition": None if same_claims else sum(found, Agreement()).as_dict(),
        **{f"{rule}_verdicts": _verdict_agreement(conversations, rule) for rule in RULES},
    }


def _verdict_agreement(conversations: Conversations, rule: str) -> dict[str, Any]:
    verdicts = [[(p.verdict(p.teacher, rule), p.verdict(p.student, rule)) for p in turns] for turns in conversations]

    def share(sample: Sequence[Sequence[tuple[bool | None, bool | None]]]) -> float | None:
        items = [pair for turns in sample for pair in turns]
        return sum(t is not None and t == s for t, s in items) / len(items) if items else None

    known = [(t, s) for turns in verdicts for t, s in turns if t is not None]
    return {**_interval(verdicts, share), "kappa": cohen_kappa([t for t, _ in known], [s for _, s in known])}


def compare(teacher: Side, student: Side, gold: Side | None, margin: float, on: On | None = None) -> dict[str, Any]:
    """Everything that is known of a teacher and its student, as JSON values; figures are shares in [0, 1].

    Raises:
        VistaError: see `pair_turns`.
    """
    paired = pair_turns(teacher, student, gold, on)
    conversations, left_out = paired.conversations, paired.left_out
    same = conversations[0][0].same_claims
    report: dict[str, Any] = {
        "margin": margin,
        "conversations": len(conversations),
        "turns": sum(map(len, conversations)),
        "left_out_turns": left_out,
        "claims_compared": "given" if same else "own",
        "turns_with_other_claims": {
            "number": len(paired.differing),
            "first": list(paired.differing[0]) if paired.differing else None,
            "left_out": same,
        },
        "agreement": agreement_figures(conversations),
        "usage": {
            "teacher": teacher.usage(paired.names) or None,
            "student": student.usage(paired.names) or None,
        },
        "verdict": None,
    }
    if gold is None:
        return report
    if same:
        report["claims"] = gold_claim_figures(conversations, margin)
    report |= {rule: gold_turn_figures(conversations, rule, margin) for rule in RULES}
    test = report["claims" if same else "safe"]["non_inferiority"]
    report["verdict"] = None if test is None else {"on": "claims" if same else "safe turns", "is": test["verdict"]}
    return report


# ---- the table ----


def _cell(figure: dict[str, Any]) -> str:
    if figure["value"] is None:
        return "-"
    low, high = figure["ci95"]
    return f"{100 * figure['value']:.1f} ({100 * low:.1f} to {100 * high:.1f})"


def _test_line(name: str, test: dict[str, Any] | None, unit: str) -> str:
    if test is None:
        return f"{name}: no items"
    line = (
        f"{name}: {test['verdict']} at a margin of {100 * test['margin']:g} points "
        f"(difference {100 * test['difference']:+.1f}, one-sided 95 % bounds {100 * test['lower']:+.1f} "
        f"and {100 * test['upper']:+.1f})"
    )
    if test["verdict"] == "not enough data":
        line += (
            f"; needed: {test['needed_items']} {unit} in {test['needed_clusters']} conversations, "
            f"found: {test['items']} in {test['clusters']}"
        )
    return line


def render(report: dict[str, Any], console: Console) -> None:
    """Print the report."""
    title = f"{report['turns']} turns of {report['conversations']} conversations, {report['claims_compared']} claims"
    table = Table("%", "teacher", "student", "difference", "McNemar p", title=title)
    for name in ("claims", "strict", "safe"):
        if name not in report:
            continue
        part = report[name]
        for key in ("accuracy", "balanced_accuracy", "macro_f1"):
            if key in part:
                p = part["mcnemar"]["p_value"] if key == "accuracy" and part["mcnemar"] else None
                cells = [_cell(part[key][side]) for side in ("teacher", "student", "difference")]
                table.add_row(f"{name} {key.replace('_', ' ')}", *cells, "" if p is None else f"{p:.3g}")
    if "claims" in report:
        for label, f1 in report["claims"]["per_class"].items():
            table.add_row(f"F1 {label} ({f1['gold']})", percent(f1["teacher"]), percent(f1["student"]), "", "")
    if table.row_count:
        console.print(table)
    agreement = report["agreement"]
    kappa = agreement["kappa"]
    lines = [
        f"agreement of labels on {agreement['claims']} claims ({agreement['on']}): {_cell(agreement['labels'])} %, "
        f"kappa {'-' if kappa is None else f'{kappa:.3f}'}"
    ]
    if (found := agreement["decomposition"]) is not None:
        lines.append(
            f"agreement of decompositions: F1 {percent(found['f1'])}, precision {percent(found['precision'])}, "
            f"recall {percent(found['recall'])} ({found['predicted']} claims for the teacher's {found['teacher']})"
        )
    for rule in RULES:
        lines.append(f"agreement of {rule} verdicts: {_cell(agreement[f'{rule}_verdicts'])} %")
    for name, unit in (("claims", "claims"), ("strict", "turns"), ("safe", "turns")):
        if name in report:
            lines.append(_test_line(name, report[name]["non_inferiority"], unit))
    for side, usage in report["usage"].items():
        lines.append(
            f"{side}: "
            + (
                ", ".join(f"{k.replace('_', ' ')} {v:,.6g}" for k, v in usage.items())
                if usage
                else "cost and time not stated"
            )
        )
    other = report["turns_with_other_claims"]
    if other["number"]:
        name, index = other["first"]
        first = f"the first is turn {index + 1} of {name!r}"
        lines.append(
            f"{counted(other['number'], 'turn')} left out: the files' claims differ there ({first})"
            if other["left_out"]
            else f"turns are compared, not claims: the files' claims differ in {counted(other['number'], 'turn')}; "
            f"{first} (--on claims leaves those out)"
        )
    if any(report["left_out_turns"].values()):
        missing = ", ".join(f"{n} {name}" for name, n in report["left_out_turns"].items() if n)
        lines.append(f"turns that not all files have were left out: {missing}")
    if report["verdict"] is None:
        lines.append("no test: give --gold (labels that neither of the two made) to test non-inferiority")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def main(
    teacher: Annotated[Path, typer.Option(help="traces: conversations with the teacher's claims, or result lines")],
    student: Annotated[Path, typer.Option(help="result file of `vista-local score` over the same conversations")],
    gold: Annotated[
        Path | None, typer.Option(help="conversations with labelled claims that decide who is right")
    ] = None,
    margin: Annotated[float, typer.Option(help="points that the student may be worse", min=0.1, max=50)] = 4.0,
    on: Annotated[
        str | None,
        typer.Option(
            help="what is tested: claims (turns with other claims are left out) or turns; default: claims if "
            "they are the same in every turn"
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="also write the report as JSON")] = None,
    teacher_seconds: Annotated[
        float | None, typer.Option(min=0, help="time by the clock that the teacher's run took")
    ] = None,
    student_seconds: Annotated[
        float | None, typer.Option(min=0, help="time by the clock that scoring took, as `score` printed it")
    ] = None,
) -> None:
    """Compare a student with its teacher: accuracy, tests, agreement, cost and time."""
    with user_errors():
        if on not in (None, "claims", "turns"):
            raise VistaError(f"--on {on!r}; accepted: claims, turns")
        chosen: On | None = "claims" if on == "claims" else "turns" if on == "turns" else None
        sides = read_side(teacher), read_side(student)
        report = compare(sides[0], sides[1], read_side(gold, gold=True) if gold else None, margin / 100, chosen)
        for name, seconds in (("teacher", teacher_seconds), ("student", student_seconds)):
            if seconds is not None:
                report["usage"][name] = {**(report["usage"][name] or {}), "seconds_by_the_clock": seconds}
        files = {"teacher": teacher, "student": student} | ({"gold": gold} if gold else {})
        report["files"] = {name: {"name": path.name, "sha256": sha256_file(path)} for name, path in files.items()}
        report["record"] = record(SEED)
        render(report, Console())
        if out is not None:
            with whole_file(out) as stream:
                stream.write(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    typer.run(main)
