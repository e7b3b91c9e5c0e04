"""Confidence of each repair strategy: its measured success rate.

`evals/repair.py` measures it on recorded failures, `evals/repair_perturbed.py` on calls broken on purpose. Below 0.80 a
repair is only suggested. For strategies that are too rare to measure the value is a cautious estimate.
"""

from __future__ import annotations

from collections.abc import Iterable

STRATEGY_CONFIDENCE: dict[str, float] = {
    # Tool names
    "tool junk": 0.85,
    "tool spelling": 0.88,
    "tool part": 0.85,
    "tool other": 0.70,
    "tool slip": 0.70,
    "tool near": 0.50,
    "tool fits": 0.45,
    "tool nameless": 0.75,
    "tool alone": 0.30,
    "tool answered": 0.06,
    # Argument names
    "empty key": 0.97,
    "drop empty": 0.92,
    "rename spelling": 0.95,
    "rename slip": 0.90,
    "rename part": 0.60,
    "rename only": 0.70,
    "drop unknown": 0.70,
    "unnest": 0.93,
    "nest": 0.90,
    "default": 0.90,
    # Argument values
    "cast": 0.95,
    "cast name": 0.70,
    "cast loose": 0.60,
    "parse": 0.94,
    "wrap": 0.92,
    "split": 0.55,
    "unwrap": 0.75,
    "enum spelling": 0.95,
    "enum slip": 0.88,
    "enum part": 0.65,
    "trim": 0.93,
    "clamp": 0.90,
    "bound in error": 0.85,
    "expected in error": 0.50,
    "rest in error": 0.35,
    # Values from this run
    "same id": 0.85,
    "seen form": 0.60,
    "same record": 0.50,
    "answered": 0.30,
    "near id": 0.38,
    "filled": 0.40,
    "only value": 0.25,
    "beside": 0.15,
    "one of several": 0.10,
    "last part": 0.25,
    "first part": 0.15,
    "leave out": 0.10,
    # From other runs: a fix with a record has its own confidence
    "fix": 0.80,
    "exemplar": 0.50,
    "prerequisite": 0.80,
}


def lowest_confidence(strategies: Iterable[str]) -> float:
    """Return the confidence of a repair: the lowest of its strategies."""
    return min((STRATEGY_CONFIDENCE[strategy] for strategy in strategies), default=0.0)
