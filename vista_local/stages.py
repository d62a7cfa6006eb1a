"""The three stages as pure functions: typed inputs to prompts, outputs to labels. No model here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vista_local.labels import UNVERIFIABLE, UNVERIFIABLE_LABELS, Label
from vista_local.memory import Entry
from vista_local.prompts import (
    DECOMPOSE_SYSTEM,
    Prompt,
    Utterance,
    categorise_system,
    decompose_user,
    evidence_user,
    verify_system,
)

#: A windowed claim is CONTRADICTED only if some window says so this clearly (DESIGN.md, section 2).
WINDOW_CONTRADICTION = 0.6


@dataclass(frozen=True)
class ClassifyRequest:
    """The shared prefix of a turn's claims, and one branch for each claim."""

    prefix: Prompt
    branches: tuple[str, ...]


def decompose_prompt(history: Sequence[Utterance], reply: str) -> Prompt:
    """Prompt of the decompose stage."""
    return Prompt(DECOMPOSE_SYSTEM, decompose_user(history, reply))


def stage_system(stage: str, label_words: Mapping[str, str]) -> str:
    """Instruction of verify or categorise with the adapter's answer words (by label name)."""
    if stage == "verify":
        return verify_system(label_words[Label.VERIFIED.value], label_words[UNVERIFIABLE])
    return categorise_system({label: label_words[label.value] for label in UNVERIFIABLE_LABELS})


def classify_request(
    stage: str,
    label_words: Mapping[str, str],
    history: Sequence[Utterance],
    store: Sequence[Entry],
    reference: str,
    claims: Sequence[str],
) -> ClassifyRequest:
    """Request of verify or categorise for some claims of one turn against one window.

    Args:
        label_words: the stage's answer words by label name, as the adapter's manifest gives them.
    """
    user = evidence_user(history, [e.line() for e in store], reference)
    return ClassifyRequest(Prompt(stage_system(stage, label_words), user), tuple(claims))


def combine_verify(windows: Sequence[float]) -> float:
    """P(VERIFIED) of a claim over its windows: the largest, since one passage suffices as support."""
    return max(windows)


def combine_categorise(windows: Sequence[Sequence[float]]) -> list[float]:
    """Distribution over the four unverifiable labels (order of `UNVERIFIABLE_LABELS`) over windows.

    One window stands as it is. Over several, a window that says CONTRADICTED with at least
    `WINDOW_CONTRADICTION` decides; otherwise the mean counts, without CONTRADICTED (a window that
    holds nothing on the claim can't refute it).
    """
    if len(windows) == 1:
        return list(windows[0])
    at = UNVERIFIABLE_LABELS.index(Label.CONTRADICTED)
    clearest = max(windows, key=lambda q: q[at])
    if clearest[at] >= WINDOW_CONTRADICTION:
        return list(clearest)
    mean = [sum(column) / len(windows) for column in zip(*windows, strict=True)]
    mean[at] = 0.0
    total = sum(mean)
    # All mass on CONTRADICTED in every window without reaching the threshold can't happen (< 0.6 each).
    return [m / total for m in mean]


def _near(p: float, threshold: float, margin: float) -> bool:
    """Whether two probabilities differ by less than `margin` in log-odds."""
    if not 0 < p < 1:
        return False
    return abs(math.log(p / (1 - p)) - math.log(threshold / (1 - threshold))) < margin


def _top_two_near(weights: Sequence[float], margin: float) -> bool:
    """Whether the largest weight leads the second by less than `margin` in log."""
    second, first = sorted(weights)[-2:]
    return second > 0 and math.log(first / second) < margin


def undecided_verify(windows: Sequence[float], margin: float) -> list[int]:
    """Windows of a claim whose p_v is so close to 0.5 that another batch could change the label.

    None where another window is VERIFIED beyond doubt: the largest counts.
    """
    near = [i for i, p in enumerate(windows) if _near(p, 0.5, margin)]
    return [] if any(p >= 0.5 and i not in near for i, p in enumerate(windows)) else near


def undecided_categorise(windows: Sequence[Sequence[float]], margin: float) -> list[int]:
    """Windows of a claim (all or none) whose distributions are a near-tie under `combine_categorise`."""
    everything = list(range(len(windows)))
    if len(windows) == 1:
        return everything if _top_two_near(windows[0], margin) else []
    contradicted = [q[UNVERIFIABLE_LABELS.index(Label.CONTRADICTED)] for q in windows]
    near = [i for i, q in enumerate(contradicted) if _near(q, WINDOW_CONTRADICTION, margin)]
    if any(q >= WINDOW_CONTRADICTION and i not in near for i, q in enumerate(contradicted)):
        return []
    return everything if near or _top_two_near(combine_categorise(windows), margin) else []


def claim_label(p_verified: float, q: Sequence[float] | None) -> Label:
    """VERIFIED from 0.5 on, otherwise the largest of categorise's four (the first on a tie)."""
    if p_verified >= 0.5:
        return Label.VERIFIED
    if q is None:
        raise ValueError("an unverifiable claim needs categorise's distribution")
    return UNVERIFIABLE_LABELS[max(range(len(q)), key=lambda i: q[i])]


def claim_probs(p_verified: float, q: Sequence[float] | None) -> dict[str, float]:
    """Probabilities as a result line carries them, rounded to six places.

    With `q`: P(VERIFIED) = p_v and P(k) = (1 - p_v) q_k. Without: {VERIFIED, UNVERIFIABLE}.
    """
    if q is None:
        return {Label.VERIFIED.value: round(p_verified, 6), UNVERIFIABLE: round(1 - p_verified, 6)}
    rest = {
        label.value: round((1 - p_verified) * share, 6) for label, share in zip(UNVERIFIABLE_LABELS, q, strict=True)
    }
    return {Label.VERIFIED.value: round(p_verified, 6), **rest}
