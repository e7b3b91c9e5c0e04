"""Two simulated weeks of an agent that knows the right call more often if it reads advice, and what `impact` says.

The simulation puts in a known effect: the share of failures that the model fixes at its first attempt.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

DAYS = 14
DAY_SECONDS = 86_400
WITH_ADVICE, WITHOUT_ADVICE = 0.95, 0.2
"""How often the model's first attempt after a failure is right."""
Typed = Callable[..., tuple[int, str, str]]

SHIFTED_CLOCK = """
import os, time
def shifted(clock, unit):
    def read():
        with open(os.environ["TEST_CLOCK_FILE"]) as file:
            return clock() + type(clock())(float(file.read()) * unit)
    return read
time.time, time.time_ns = shifted(time.time, 1), shifted(time.time_ns, 10**9)
"""
"""Runs first in a process: its clock is shifted by the seconds in a file."""


class SimulatedModel:
    """Chooses what a model calls after a failure."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def is_right(self, has_advice: bool) -> bool:
        return self._chance.random() < (WITH_ADVICE if has_advice else WITHOUT_ADVICE)


def start_times(count: int) -> Iterator[float]:
    """Yield when runs start: seconds before now, over two weeks, the oldest first."""
    yield from (-DAYS * DAY_SECONDS * (1 - number / count) for number in range(count))


def check_impact(types: Typed, help: str = "fix") -> dict[str, Any]:
    """Check that the page says what the simulation put in. Return the row."""
    code, out, _ = types("impact", "--since", "20d", "--json")
    facts = json.loads(out)
    assert code == 0
    [row] = [row for row in facts["summary"] if row["name"] == "fixed at the first attempt" and row["help"] == help]
    assert row["verdict"] == "better", row
    assert row["low"] <= 100 * (WITH_ADVICE - WITHOUT_ADVICE) <= row["high"]
    assert abs(row["estimate"] - 100 * (WITH_ADVICE - WITHOUT_ADVICE)) < 25
    assert len([day for day in facts["curve"] if day["failed"]]) >= DAYS - 2
    return row


def check_show(types: Typed, held_out_run: str, advised_run: str) -> None:
    assert "not told: held out, " in types("show", held_out_run)[1]
    text = types("show", advised_run)[1]
    assert "told: " in text
    assert "held out" not in text
