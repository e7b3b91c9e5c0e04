"""What is counted, and how counters answer a question. Everything here is pure.

`counting` makes counters of a run, which belong to a place: an hour, and who did what there. `answers` says which sums
of them a store keeps, and how those answer a question.
"""

from __future__ import annotations

from mulligan.figures.answers import (
    HOURS,
    TOOLS,
    By,
    Grain,
    Reading,
    Row,
    Slice,
    Stats,
    StatsQuery,
    answer,
    readings,
    rows,
    slices,
    stats,
)
from mulligan.figures.counters import DAY, HOUR, Cell, Cells, KindCell, Outline, Place, add, attempts, merge, only
from mulligan.figures.counting import (
    MANY_ATTEMPTS,
    Means,
    Successes,
    cells,
    is_within,
    model_of,
    of_call,
    of_run,
    of_success,
    place_of,
    repeated,
)
from mulligan.figures.histogram import BUCKETS, Histogram, bounds, bucket, enough, percentile, percentiles
from mulligan.figures.packing import has_rest, outline, pack, pack_outline, pack_rest, unpack, unpack_named

__all__ = [
    "BUCKETS",
    "DAY",
    "HOUR",
    "HOURS",
    "MANY_ATTEMPTS",
    "TOOLS",
    "By",
    "Cell",
    "Cells",
    "Grain",
    "Histogram",
    "KindCell",
    "Means",
    "Outline",
    "Place",
    "Reading",
    "Row",
    "Slice",
    "Stats",
    "StatsQuery",
    "Successes",
    "add",
    "answer",
    "attempts",
    "bounds",
    "bucket",
    "cells",
    "enough",
    "has_rest",
    "is_within",
    "merge",
    "model_of",
    "of_call",
    "of_run",
    "of_success",
    "only",
    "outline",
    "pack",
    "pack_outline",
    "pack_rest",
    "percentile",
    "percentiles",
    "place_of",
    "readings",
    "repeated",
    "rows",
    "slices",
    "stats",
    "unpack",
    "unpack_named",
]
