"""Differences of two groups with their uncertainty: rates, and positive amounts such as seconds, tokens and money.

Calls of one run, and runs of one session, fail together. So cases are grouped into clusters, and the variance is that
between clusters: Taylor linearization of a ratio (Cochran, Sampling Techniques, 1977, section 6.4), expressed as the
design effect (Kish, Survey Sampling, 1965, section 8.2). A difference of rates has the interval of Newcombe (Statistics
in Medicine 17, 1998, method 10) with effective sample sizes (Korn and Graubard, Survey Methodology 24, 1998). Amounts
are compared as logarithms, so that an outlier counts little, with the interval of Welch (Biometrika 34, 1947).

A page with several comparisons divides the permitted error among them (Bonferroni), so that all its intervals hold
together, and an interval that excludes 0 and the verdict of its row never disagree. People look at the impact page
while its cases grow, every day or more often. So its intervals are those of a confidence sequence, which hold at all
looks together (Waudby-Smith and others, Annals of Statistics 52, 2024, theorem 2.2). Two versions are compared once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

ERROR_RATE = 0.05
"""Probability that any interval of a page misses the true value."""
_NARROWEST_AT = 100
"""Effective cases at which confidence sequences are narrowest: as many as a difference of 20 points needs."""
_MIN_CLUSTERS = 20
"""A group with fewer clusters takes the design effect of both groups, if that is larger."""


class Rate(NamedTuple):
    """Part and total of a rate, and how much its variance exceeds that of independent cases."""

    part: int
    total: int
    design_effect: float = 1.0

    @property
    def value(self) -> float:
        return self.part / self.total

    @property
    def effective_total(self) -> float:
        """The number of independent cases that would be as certain."""
        return self.total / self.design_effect


class GroupDifference(NamedTuple):
    """An estimated difference and its interval."""

    estimate: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes 0, and more than a rounding error."""
        return self.low > 1e-9 or self.high < -1e-9


def error_of_look(error: float, first_cases: float, second_cases: float) -> float:
    """Return the error permitted to one look at two groups, so that all looks together keep `error`.

    Cases are those that would be as certain if they were independent. Looks may come at any time while they grow.
    """
    cases = first_cases * second_cases / (first_cases + second_cases)
    log_error = -2 * math.log(error)
    information = cases * (log_error + math.log(log_error) + 1) / _NARROWEST_AT
    quantile = math.sqrt((1 + 1 / information) * (log_error + math.log1p(information)))
    return max(math.erfc(quantile / math.sqrt(2)), 1e-15)  # less has no quantile


def compare_rates(first: Rate, second: Rate, error: float = ERROR_RATE) -> GroupDifference:
    """Return second minus first, as a share from -1 to 1. The interval misses the truth with this probability."""
    z = normal_quantile(1 - error / 2)
    (low, high), (other_low, other_high) = (_wilson_interval(rate, z) for rate in (first, second))
    p, q = first.value, second.value
    difference = q - p
    low, high = (
        difference - math.hypot(q - other_low, high - p),
        difference + math.hypot(other_high - q, p - low),
    )
    return GroupDifference(difference, low, high)


def _wilson_interval(rate: Rate, z: float) -> tuple[float, float]:
    total, p = rate.effective_total, rate.value
    middle = p + z * z / (2 * total)
    spread = z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total))
    return (middle - spread) / (1 + z * z / total), (middle + spread) / (1 + z * z / total)


Clusters = Sequence[tuple[int, int]]
"""Part and total of each cluster."""


def design_effects(first: Clusters, second: Clusters) -> tuple[float, float]:
    """Return the design effects of two groups; at least 1, because a smaller estimate is mostly chance."""
    groups = [[cluster for cluster in clusters if cluster[1]] for clusters in (first, second)]
    pooled = _design_effect(groups)
    left, right = (
        max(_design_effect([group]), pooled if len(group) < _MIN_CLUSTERS else 1.0) * _small_sample_factor(len(group))
        for group in groups
    )
    return left, right


def _design_effect(groups: Iterable[Clusters]) -> float:
    between = independent = 0.0
    for clusters in groups:
        if len(clusters) < 2:
            continue
        total = sum(cases for _, cases in clusters)
        p = sum(part for part, _ in clusters) / total
        squares = math.fsum((part - p * cases) ** 2 for part, cases in clusters)
        between += squares * len(clusters) / (len(clusters) - 1)
        independent += total * p * (1 - p)
    return max(1.0, between / independent) if independent else 1.0


def _small_sample_factor(clusters: int) -> float:
    """Return by how much few clusters widen an interval: the squared ratio of the t and the normal quantile."""
    return (t_quantile(0.975, max(clusters - 1, 1)) / normal_quantile(0.975)) ** 2 if clusters > 1 else 1.0


Amounts = Sequence[Sequence[float]]
"""The amounts of each cluster, not negative."""


def compare_amounts(first: Amounts, second: Amounts, unit: float, error: float = ERROR_RATE) -> GroupDifference | None:
    """Return the relative difference of two geometric means: -0.2 for a fifth less. None with too few clusters.

    `unit` is added to each amount: the smallest that matters, so that 0 has a logarithm.
    """
    groups = [[cluster for cluster in clusters if len(cluster)] for clusters in (first, second)]
    if min(map(len, groups)) < 2:
        return None
    (mean, variance, df), (other_mean, other_variance, other_df) = (_log_mean(group, unit) for group in groups)
    total = variance + other_variance
    degrees = total**2 / (variance**2 / df + other_variance**2 / other_df) if total else df + other_df
    spread = t_quantile(1 - error / 2, degrees) * math.sqrt(total)
    middle = other_mean - mean
    return GroupDifference(*(math.expm1(min(bound, 700)) for bound in (middle, middle - spread, middle + spread)))


def _log_mean(clusters: Amounts, unit: float) -> tuple[float, float, int]:
    """Return the mean logarithm, its variance between clusters, and the degrees of freedom."""
    logs = [[math.log(amount + unit) for amount in cluster] for cluster in clusters]
    count, k = sum(map(len, logs)), len(logs)
    mean = math.fsum(map(math.fsum, logs)) / count
    squares = math.fsum((math.fsum(cluster) - mean * len(cluster)) ** 2 for cluster in logs)
    return mean, squares / count**2 * k / (k - 1), k - 1


def cases_for_power(rate: float, effect: float, share: float, design_effect: float, error: float) -> int:
    """Return how many cases a clear result needs with 80 % probability, if `share` of them is in the smaller group.

    Normal approximation (Fleiss, Statistical Methods for Rates and Proportions, 2003, section 4.2).
    """
    other_rate = min(max(rate + effect, 0.0), 1.0)
    variance = other_rate * (1 - other_rate) / (1 - share) + rate * (1 - rate) / share
    cases = _NARROWEST_AT / share
    for _ in range(10):  # the error of a look depends on the number of cases, a little
        groups = [max(cases / design_effect * part, 1.0) for part in (share, 1 - share)]
        z = normal_quantile(1 - error_of_look(error, *groups) / 2) + normal_quantile(0.8)
        cases = design_effect * variance * (z / effect) ** 2
    return math.ceil(cases)


@lru_cache(maxsize=256)
def normal_quantile(probability: float) -> float:
    from statistics import NormalDist  # lazy: it imports decimal, which few commands need

    return NormalDist().inv_cdf(probability)


def t_quantile(probability: float, df: float) -> float:
    """Return the quantile of Student's t: exact for 1 and 2 degrees, else Hill's expansion (Algorithm 396, 1970)."""
    if df < 1.5:
        return math.tan(math.pi * (probability - 0.5))
    if df < 2.5:
        return (2 * probability - 1) * math.sqrt(2 / (4 * probability * (1 - probability)))
    z = normal_quantile(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / df ** (power + 1) for power, term in enumerate(terms))
