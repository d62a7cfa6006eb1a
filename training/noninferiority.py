"""Is one system at most a margin worse than another on the same items? Paired, clustered by conversation.

Contract: the margin, the level and the power are fixed before the data are seen; this module only
computes. Items of one conversation aren't independent, so the unit of resampling is the
conversation (a *cluster*), and the items needed are counted with the design effect of the clusters.

The verdict, in this order:

- "not enough data": fewer clusters with items than `MIN_CLUSTERS`, from which no bound can be trusted.
- "inferior": the one-sided upper bound of the difference (candidate - standard) lies below -margin.
- "not enough data": fewer items than are needed to show non-inferiority with the given power if the
  two systems were truly equal. A bound that happens to lie above -margin in so small a sample is no
  proof, so this comes before:
- "non-inferior": the one-sided lower bound lies above -margin.
- "not shown": the data would have sufficed for equal systems, but the bound does not clear the margin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Literal

from vista_local.metrics import bootstrap_interval

Verdict = Literal["inferior", "not enough data", "non-inferior", "not shown"]

#: Fewest clusters for a verdict either way: with five to thirty of them, intervals by
#: cluster are too narrow (Cameron, Gelbach & Miller 2008, Rev. Econ. Stat. 90:414-427).
MIN_CLUSTERS = 30


@dataclass(frozen=True)
class Cluster:
    """One conversation: how many items it has, and how many of them which system alone, or both, has right."""

    items: int
    both: int
    only_standard: int
    only_candidate: int

    @classmethod
    def of(cls, standard: Sequence[bool], candidate: Sequence[bool]) -> Cluster:
        """Count a conversation's items, given for each whether a system is right (unscored: not right).

        Raises:
            ValueError: lengths differ.
        """
        pairs = list(zip(standard, candidate, strict=True))
        return cls(
            len(pairs),
            sum(s and c for s, c in pairs),
            sum(s and not c for s, c in pairs),
            sum(c and not s for s, c in pairs),
        )

    @property
    def gain(self) -> int:
        """Items that the candidate has right, less those that the standard has right."""
        return self.only_candidate - self.only_standard


@dataclass(frozen=True)
class NonInferiority:
    """The test's outcome. Shares are in [0, 1]; `lower` and `upper` are one-sided bounds at `level` each."""

    difference: float
    lower: float
    upper: float
    standard_error: float
    margin: float
    level: float
    power: float
    items: int
    clusters: int
    discordant: int
    design_effect: float
    needed_items: int
    needed_clusters: int
    verdict: Verdict

    def as_dict(self) -> dict[str, object]:
        """The outcome as JSON values."""
        return asdict(self)


def difference(clusters: Sequence[Cluster]) -> float | None:
    """Share right of the candidate less that of the standard, pooled over items; `None` without items."""
    items = sum(c.items for c in clusters)
    return sum(c.gain for c in clusters) / items if items else None


def clustered_standard_error(clusters: Sequence[Cluster]) -> float:
    """Standard error of `difference` by linearisation of the ratio estimator.

    With g_i gains and n_i items of cluster i, k clusters and d = sum g / sum n:
    SE^2 = k / (k - 1) * sum (g_i - d n_i)^2 / (sum n)^2 (Cochran, Sampling Techniques, 1977, 6.3 with
    clusters as units). 0 for a single cluster, which says nothing of the spread between clusters.
    """
    d, k, items = difference(clusters), len(clusters), sum(c.items for c in clusters)
    if d is None or k < 2:
        return 0.0
    return math.sqrt(k / (k - 1) * math.fsum((c.gain - d * c.items) ** 2 for c in clusters)) / items


def design_effect(clusters: Sequence[Cluster]) -> float:
    """Variance of `difference` by cluster over that of independent items, at least 1 (Kish 1965, 8.2).

    Independent paired items have variance (psi - d^2) / n with psi the share of discordant items.
    """
    d, items = difference(clusters), sum(c.items for c in clusters)
    if d is None:
        return 1.0
    discordant = sum(c.only_standard + c.only_candidate for c in clusters)
    independent = (discordant / items - d * d) / items
    if independent <= 0.0:
        return 1.0
    return max(1.0, clustered_standard_error(clusters) ** 2 / independent)


def needed_items(discordant: int, items: int, margin: float, *, level: float, power: float, effect: float) -> int:
    """Items with which equal systems pass the test with the given power.

    n = effect * psi * ((z_level + z_power) / margin)^2, the sample size for the non-inferiority of
    paired proportions at a true difference of 0 (Liu, Hsueh, Hsieh & Chen 2002, Statist. Med. 21:231-245)
    times the design effect. psi is (discordant + 1) / (items + 2): with half an item added to each
    of the four cells (Agresti & Min 2005, Statist. Med. 24:729-740), a sample without a single
    disagreement doesn't claim that no further item is needed.
    """
    normal = NormalDist()
    psi = (discordant + 1) / (items + 2)
    return math.ceil(effect * psi * ((normal.inv_cdf(level) + normal.inv_cdf(power)) / margin) ** 2)


def non_inferiority(
    clusters: Sequence[Cluster],
    margin: float,
    *,
    level: float = 0.95,
    power: float = 0.8,
    resamples: int = 2000,
    seed: int = 0,
) -> NonInferiority | None:
    """Test whether the candidate is at most `margin` worse than the standard; see the module.

    The bounds are the 1 - level and level quantiles of the difference over bootstrap draws of whole
    clusters (`bootstrap_interval`). Clusters without items are left out.

    Returns:
        `None` without items.

    Raises:
        ValueError: margin, level or power is out of range.
    """
    if not 0.0 < margin < 1.0:
        raise ValueError(f"margin must be a share in (0, 1), not {margin}")
    if not (0.5 < level < 1.0 and 0.5 <= power < 1.0):
        raise ValueError(f"level must be in (0.5, 1) and power in [0.5, 1): {level}, {power}")
    filled = [c for c in clusters if c.items]
    # A two-sided interval of 2 * level - 1 leaves 1 - level on either side.
    interval = bootstrap_interval(filled, difference, resamples=resamples, level=2 * level - 1, seed=seed)
    if interval is None:
        return None
    items = sum(c.items for c in filled)
    discordant = sum(c.only_standard + c.only_candidate for c in filled)
    effect = design_effect(filled)
    wanted = needed_items(discordant, items, margin, level=level, power=power, effect=effect)
    wanted_clusters = max(MIN_CLUSTERS, math.ceil(len(filled) * wanted / items))
    verdict: Verdict
    if len(filled) < MIN_CLUSTERS:
        verdict = "not enough data"
    elif interval.high < -margin:
        verdict = "inferior"
    elif items < wanted:
        verdict = "not enough data"
    else:
        verdict = "non-inferior" if interval.low > -margin else "not shown"
    return NonInferiority(
        interval.point,
        interval.low,
        interval.high,
        clustered_standard_error(filled),
        margin,
        level,
        power,
        items,
        len(filled),
        discordant,
        effect,
        wanted,
        wanted_clusters,
        verdict,
    )
