"""Two result files of the same conversations, claim by claim: what changed, and whether one is better.

Claims are the same if they stand on one turn of one conversation and have one text (`report.align.text_key`);
those that only one file has are counted and left out of every comparison. Figures that need no partner (VISTA
score, strict and safe turns, coverage) are of all claims of the conversations that both files have. Intervals are
bootstrapped by conversation, the difference on the same draws (paired).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from vista_local.corrections import Gold, result_gold
from vista_local.errors import InputError
from vista_local.labels import LABELS, MEANING, SAFE_LABELS, Label
from vista_local.metrics import (
    Confusion,
    Interval,
    McNemar,
    bootstrap_interval,
    claim_confusion,
    mcnemar_exact,
)
from vista_local.report.align import aligned, as_the_model_had_it, numbered, text_key
from vista_local.report.data import FEW_RESAMPLES, MANY, RESAMPLES, Ratio, pooled_ratio
from vista_local.schema import ClaimResult, ConversationResult, TurnStatus
from vista_local.scoring import Summary, Totals

#: Examples that the page holds at most; what is left out is counted.
EXAMPLES = 2000

_NUMBER = {label: i for i, label in enumerate(LABELS)}


@dataclass(frozen=True)
class Pair:
    """One claim in both files, and its gold label where there is one."""

    conversation: str
    turn: int
    first: ClaimResult
    second: ClaimResult
    gold: Label | None

    @property
    def judged(self) -> tuple[Label, Label | None, Label | None] | None:
        """Gold, and what the two models said; `None` without gold, or where a reviewer wrote one of the claims.

        In a merged file a corrected label is the reviewer's, who may be the gold: it is no model's merit.
        """
        said = [label for claim in (self.first, self.second) for _, label in as_the_model_had_it([claim])]
        return None if self.gold is None or len(said) < 2 else (self.gold, said[0], said[1])

    @property
    def changed(self) -> bool:
        """Whether the two labels differ (a missing one differs from any)."""
        return self.first.label is not self.second.label


@dataclass
class Comparison:
    """Everything that was counted; `pairs` holds each conversation's claims that both files have."""

    first: Summary = field(default_factory=Summary)
    second: Summary = field(default_factory=Summary)
    totals: list[tuple[Totals, Totals]] = field(default_factory=list)
    pairs: list[list[Pair]] = field(default_factory=list)
    conversations: dict[str, ConversationResult] = field(default_factory=dict)
    only_first_conversations: int = 0
    only_second_conversations: int = 0
    only_first_claims: int = 0
    only_second_claims: int = 0

    @property
    def every_pair(self) -> list[Pair]:
        """All pairs in file order."""
        return [p for pairs in self.pairs for p in pairs]


def compare_results(
    first: Iterable[ConversationResult], second: Iterable[ConversationResult], gold: Gold | None = None
) -> Comparison:
    """Align two sets of results.

    Args:
        first: results of one system; held in memory too, since the page shows examples of them.
        second: results of the other; held in memory.
        gold: gold claims; default those that the files carry themselves (the first, otherwise the second).

    Raises:
        InputError: the files have no conversation in common, or one has an id twice.
    """
    result = Comparison()
    others: dict[str, ConversationResult] = {}
    for theirs in second:
        if theirs.id in others:
            raise InputError(f"the id {theirs.id!r} is there twice", "the second file")
        others[theirs.id] = theirs
        result.second.add(theirs)
    for ours in first:
        score = result.first.add(ours)
        if ours.id in result.conversations:
            raise InputError(f"the id {ours.id!r} is there twice", "the first file")
        result.conversations[ours.id] = ours
        partner = others.pop(ours.id, None)
        if partner is None:
            result.only_first_conversations += 1
            continue
        result.totals.append((score.totals, Summary().add(partner).totals))
        known = (result_gold(ours) or result_gold(partner)) if gold is None else gold.get(ours.id, {})
        pairs = []
        seconds = {t.index: t for t in partner.turns if t.status is TurnStatus.SCORED}
        for turn in ours.turns:
            if turn.status is TurnStatus.UNREFERENCED:
                continue
            there = seconds.pop(turn.index, None)
            their_claims = there.claims if there else ()
            keys = numbered(text_key(c.text) for c in their_claims)
            by_key = dict(zip(keys, their_claims, strict=True))
            truths = aligned([c.text for c in turn.claims], known.get(turn.index, ()))
            found = 0
            for claim, key, truth in zip(
                turn.claims, numbered(text_key(c.text) for c in turn.claims), truths, strict=True
            ):
                if key in by_key:
                    found += 1
                    pairs.append(Pair(ours.id, turn.index, claim, by_key[key], truth))
                else:
                    result.only_first_claims += 1
            result.only_second_claims += len(their_claims) - found
        result.only_second_claims += sum(len(t.claims) for t in seconds.values())
        result.pairs.append(pairs)
    result.only_second_conversations = len(others)
    if not result.totals:
        raise InputError("the two files have no conversation in common")
    return result


# --- figures --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """A figure of both files with its interval, the difference (second minus first) with its own."""

    name: str
    first: float | None
    second: float | None
    first_interval: tuple[float, float] | None
    second_interval: tuple[float, float] | None
    difference: float | None
    difference_interval: tuple[float, float] | None


def figures(comparison: Comparison, resamples: int | None = None) -> list[Figure]:
    """VISTA score, strict and safe turns, coverage over the common conversations; with gold accuracy and macro-F1.

    Args:
        resamples: of the bootstrap; default 1000, or 200 above 5,000 conversations, whose intervals are narrow.
    """
    if resamples is None:
        resamples = RESAMPLES if len(comparison.totals) <= MANY else FEW_RESAMPLES

    def ratios(part: Callable[[Totals], int], whole: Callable[[Totals], int]) -> list[tuple[Ratio, Ratio]]:
        return [((part(a), whole(a)), (part(b), whole(b))) for a, b in comparison.totals]

    wanted = ratios(lambda t: t.scored_turns, lambda t: t.scored_turns + t.unscored_turns)
    rows = [
        _figure("VISTA score", ratios(lambda t: t.safe_claims, lambda t: t.claims), pooled_ratio, resamples),
        _figure("strict turns", ratios(lambda t: t.strict_turns, lambda t: t.scored_turns), pooled_ratio, resamples),
        _figure("safe turns", ratios(lambda t: t.safe_turns, lambda t: t.scored_turns), pooled_ratio, resamples),
        _figure("claim coverage", ratios(lambda t: t.labelled_claims, lambda t: t.claims), pooled_ratio, resamples),
        _figure("turn coverage", wanted, pooled_ratio, resamples),
    ]
    judged = [[p.judged for p in pairs if p.judged is not None] for pairs in comparison.pairs]
    matrices = [
        (claim_confusion(gold, first), claim_confusion(gold, second))
        for gold, first, second in (zip(*triples, strict=True) for triples in judged if triples)
    ]
    if matrices:
        right = [((a.correct, a.n), (b.correct, b.n)) for a, b in matrices]
        rows.append(_figure("claim accuracy", right, pooled_ratio, resamples))
        rows.append(_figure("macro-F1", [(_flat(a), _flat(b)) for a, b in matrices], _macro_f1, resamples))
    return rows


def _flat(matrix: Confusion[str]) -> npt.NDArray[np.int64]:
    """[labels, labels + 1]: counts, unscored last. Arrays add up faster than matrices do."""
    return np.column_stack([np.array(matrix.counts), np.array(matrix.unscored)]).astype(np.int64)


def _macro_f1(sample: Sequence[npt.NDArray[np.int64]]) -> float | None:
    whole = np.sum(sample, axis=0).tolist()
    return Confusion(LABELS, tuple(tuple(row[:-1]) for row in whole), tuple(row[-1] for row in whole)).macro_f1


def _figure(
    name: str, items: Sequence[tuple[Any, Any]], statistic: Callable[[Sequence[Any]], float | None], resamples: int
) -> Figure:
    def ends(interval: Interval | None) -> tuple[float, float] | None:
        return None if interval is None else (interval.low, interval.high)

    def difference(sample: Sequence[tuple[Any, Any]]) -> float | None:
        a, b = statistic([x for x, _ in sample]), statistic([x for _, x in sample])
        return None if a is None or b is None else b - a

    firsts, seconds = [a for a, _ in items], [b for _, b in items]
    return Figure(
        name,
        statistic(firsts),
        statistic(seconds),
        ends(bootstrap_interval(firsts, statistic, resamples=resamples)),
        ends(bootstrap_interval(seconds, statistic, resamples=resamples)),
        difference(items),
        ends(bootstrap_interval(items, difference, resamples=resamples)),
    )


def mcnemar(comparison: Comparison) -> McNemar | None:
    """Exact McNemar test on the claims that have a gold label; `None` without any.

    It takes claims as independent, which claims of one conversation aren't quite: read it beside the
    interval of the difference, which is by conversation.
    """
    judged = [p.judged for p in comparison.every_pair if p.judged is not None]
    return mcnemar_exact([first is gold for gold, first, _ in judged], [second is gold for gold, _, second in judged])


def transitions(comparison: Comparison) -> list[list[int]]:
    """Claims by label in the first (rows) and second file (columns), in the order of `LABELS`, unscored last."""
    size = len(LABELS) + 1
    counts = [[0] * size for _ in range(size)]
    for pair in comparison.every_pair:
        counts[_position(pair.first.label)][_position(pair.second.label)] += 1
    return counts


def _position(label: Label | None) -> int:
    return len(LABELS) if label is None else _NUMBER[label]


# --- page -----------------------------------------------------------------------------------------


def compare_data(
    comparison: Comparison, *, title: str, names: tuple[str, str], resamples: int | None = None
) -> dict[str, Any]:
    """What the page holds: figures, transitions, and an example for each changed label (at most `EXAMPLES`)."""
    changed = [p for p in comparison.every_pair if p.changed]
    test = mcnemar(comparison)
    return {
        "title": title,
        "names": list(names),
        "labels": [
            {"name": x.value, "letter": x.letter, "meaning": MEANING[x], "safe": x in SAFE_LABELS} for x in LABELS
        ],
        "figures": [vars(f) for f in figures(comparison, resamples)],
        "mcnemar": None if test is None else vars(test),
        "judged": sum(p.judged is not None for p in comparison.every_pair),
        "transitions": transitions(comparison),
        "claims": len(comparison.every_pair),
        "changed": len(changed),
        "conversations": len(comparison.totals),
        "unaligned": {
            name: getattr(comparison, name)
            for name in (
                "only_first_conversations",
                "only_second_conversations",
                "only_first_claims",
                "only_second_claims",
            )
        },
        "examples": [_example(p, comparison.conversations[p.conversation]) for p in changed[:EXAMPLES]],
    }


def _example(pair: Pair, result: ConversationResult) -> dict[str, Any]:
    data: dict[str, Any] = {"id": pair.conversation, "turn": pair.turn, "text": pair.first.text}
    for side, claim in (("a", pair.first), ("b", pair.second)):
        label = claim.label
        data[side] = {"l": None if label is None else _NUMBER[label]}
        if label is not None and label.value in claim.probs:
            data[side]["p"] = round(claim.probs[label.value], 4)
        if claim.unscored is not None:
            data[side]["why"] = claim.unscored
    if pair.gold is not None:
        data["gold"] = _NUMBER[pair.gold]
    if result.conversation is not None:
        talk = result.conversation.turns
        data["said"] = talk[pair.turn].text
        data["asked"] = next((t.text for t in reversed(talk[: pair.turn])), None)
        data["reference"] = list(talk[pair.turn].reference or ())
    return data


# --- tables ---------------------------------------------------------------------------------------


def comparison_tables(data: dict[str, Any]) -> list[RenderableType]:
    """The page's figures for a terminal."""
    first, second = (_printable(name) for name in data["names"])
    table = Table(title=f"A: {first}   B: {second}", title_justify="left")
    for name in ("%", "A", "B", "B - A"):
        table.add_column(name, justify="left" if name == "%" else "right")
    for row in data["figures"]:
        table.add_row(
            row["name"],
            _with_interval(row["first"], row["first_interval"]),
            _with_interval(row["second"], row["second_interval"]),
            _with_interval(row["difference"], row["difference_interval"], "+"),
        )
    lines = [
        f"{data['conversations']} conversations and {data['claims']} claims are in both; "
        f"{data['changed']} claims have another label in B."
    ]
    left = {
        name.replace("_", " ").replace("first", "in A").replace("second", "in B"): n
        for name, n in data["unaligned"].items()
    }
    if any(left.values()):
        lines.append("Not aligned: " + ", ".join(f"{name} {n}" for name, n in left.items() if n) + ".")
    test = data["mcnemar"]
    if test is not None:
        lines.append(
            f"Of {data['judged']} claims with a gold label A alone has {test['only_first']} right, B alone "
            f"{test['only_second']}: exact McNemar test, p {_p_value(test['p_value'])}."
        )
    moved = Table(title="Labels: A in rows, B in columns", title_justify="left")
    names = [*(x.value for x in LABELS), "unscored"]
    moved.add_column("")
    for name in names:
        moved.add_column(name[0] if name != "unscored" else "-", justify="right")
    for name, counts in zip(names, data["transitions"], strict=True):
        if name != "unscored" or any(counts):
            moved.add_row(name, *(str(n) if n else "·" for n in counts))
    return [table, *(Text(line) for line in lines), moved]


def _p_value(p: float) -> str:
    return "< 0.0001" if p < 0.0001 else f"= {p:.4f}"


def _with_interval(value: float | None, interval: Sequence[float] | None, sign: str = "") -> str:
    if value is None:
        return "-"
    between = "" if interval is None else f" ({100 * interval[0]:{sign}.1f} to {100 * interval[1]:{sign}.1f})"
    return f"{100 * value:{sign}.1f}{between}"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text).replace("[", "\\[")
