"""What the benchmarks' own labels say of a turn: the one table, and where each line comes from.

The strict rule of the paper asks whether every claim of a turn is verified, so each label becomes
*faithful* (true), *not faithful* (false), or `None`: the label does not say, and the turn is left out
of figures against the benchmark's own labels, and counted.
"""

from __future__ import annotations

from dataclasses import dataclass

FAITHDIAL, BEGIN, AIS, FADE, VISTA = "faithdial", "begin", "ais", "fade", "vista"


@dataclass(frozen=True)
class LabelRule:
    """One label of one benchmark (lower case) and what it says of a turn; `source` is where that is defined."""

    benchmark: str
    label: str
    faithful: bool | None
    source: str


_FAITHDIAL_SOURCE = "BEGIN field of FaithDial, its data card and arXiv 2204.07931, section 3"
_BEGIN_SOURCE = "begin_label of BEGIN, its README and arXiv 2105.00071"
_AIS_SOURCE = "'INT & AIS' and 'Flagged' of ann_wow.csv, the README of AIS and arXiv 2112.12870"
_FADE_SOURCE = "columns of FADE's human_verified_500.csv"
_VISTA_SOURCE = "turn labels of the VISTA human set (arXiv 2510.27052)"

LABEL_RULES: tuple[LabelRule, ...] = (
    # FaithDial labels a response with a list; `faithdial_label` reduces it to the first of these that it holds.
    LabelRule(FAITHDIAL, "hallucination", False, _FAITHDIAL_SOURCE),
    LabelRule(FAITHDIAL, "entailment", True, _FAITHDIAL_SOURCE),
    LabelRule(FAITHDIAL, "generic", None, _FAITHDIAL_SOURCE + ": conveys nothing that could be attributed"),
    LabelRule(FAITHDIAL, "uncooperative", None, _FAITHDIAL_SOURCE + ": judges manner, not content"),
    LabelRule(BEGIN, "fully attributable", True, _BEGIN_SOURCE),
    LabelRule(BEGIN, "not fully attributable", False, _BEGIN_SOURCE),
    LabelRule(BEGIN, "not attributable", False, _BEGIN_SOURCE + " (first release)"),
    LabelRule(BEGIN, "generic", False, _BEGIN_SOURCE + ": not attributed to the knowledge"),
    LabelRule(AIS, "1", True, _AIS_SOURCE),
    LabelRule(AIS, "0", False, _AIS_SOURCE + "; uninterpretable output counts as not attributable"),
    LabelRule(AIS, "flagged", None, _AIS_SOURCE + ": the task is malformed"),
    LabelRule(FADE, "original", True, _FADE_SOURCE + ": response"),
    LabelRule(FADE, "corrupted", False, _FADE_SOURCE + ": corrupted_response"),
    LabelRule(VISTA, "faithful", True, _VISTA_SOURCE),
    LabelRule(VISTA, "hallucinated", False, _VISTA_SOURCE),
)

_BY_LABEL = {(rule.benchmark, rule.label): rule.faithful for rule in LABEL_RULES}


def accepted_labels(benchmark: str) -> list[str]:
    """The labels that the table knows of a benchmark."""
    return [rule.label for rule in LABEL_RULES if rule.benchmark == benchmark]


def faithful(benchmark: str, label: str) -> bool | None:
    """What a benchmark's own label says of a turn.

    Raises:
        ValueError: the benchmark has no such label; the message lists those that it has.
    """
    key = (benchmark, label.strip().lower())
    if key not in _BY_LABEL:
        raise ValueError(f"unknown label {label!r}; accepted: {', '.join(accepted_labels(benchmark))}")
    return _BY_LABEL[key]


def any_faithful(label: str) -> bool | None:
    """The same for a label whose benchmark isn't stated; `None` for a label that no benchmark has.

    No label means different things in two benchmarks, but for FaithDial's "generic", which stands
    only inside its lists: there BEGIN's meaning is taken.
    """
    wanted = label.strip().lower()
    found = [rule.faithful for rule in LABEL_RULES if rule.label == wanted and rule.benchmark != FAITHDIAL]
    return found[0] if found else None


def faithdial_label(labels: list[str]) -> str:
    """One label for FaithDial's list: a response with any hallucination is one, whatever else it is.

    Raises:
        ValueError: none of them is in the table.
    """
    held = {label.strip().lower() for label in labels}
    first = next((label for label in accepted_labels(FAITHDIAL) if label in held), None)
    if first is None:
        raise ValueError(f"unknown labels {labels!r}; accepted: {', '.join(accepted_labels(FAITHDIAL))}")
    return first
