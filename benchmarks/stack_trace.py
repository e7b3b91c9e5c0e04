"""The cost of reading the class and the stack trace of an exception, and of redacting them.

    python benchmarks/stack_trace.py

CPU time, median of 1,000 exceptions. Target: at most 50 us to read a usual one.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from mulligan.capture.stack_trace import describe_exception
from mulligan.redaction import Redactor

MAX_USUAL_US = 50.0


def fail(depth: int) -> None:
    if depth:
        fail(depth - 1)
    raise ValueError("the order has no price")


def fail_in_library() -> None:
    json.loads("{")


def fail_with_cause() -> None:
    try:
        fail_in_library()
    except ValueError as error:
        raise TimeoutError("no answer") from error


def measure(function: Callable[[], object], count: int) -> tuple[float, float, str]:
    """Return the median microseconds to read and to redact the trace of this function, and the trace."""
    redactor, trace = Redactor(), ""
    reading, redacting = [], []
    for _ in range(count):
        try:
            function()
        except Exception as error:  # noqa: BLE001
            started = time.thread_time()
            _, trace = describe_exception(error)
            ended = time.thread_time()
            redactor.text(trace)
            reading.append(ended - started)
            redacting.append(time.thread_time() - ended)
    return statistics.median(reading) * 1e6, statistics.median(redacting) * 1e6, trace


def main() -> bool:
    """Print the table. Return whether the target is met."""
    cases: list[tuple[str, Callable[[], object], int]] = [
        ("3 frames", lambda: fail(2), 1000),
        ("library", fail_in_library, 1000),
        ("cause", fail_with_cause, 1000),
        ("10,000 frames", lambda: fail(10_000), 20),
    ]
    is_met = True
    print("| exception | read, us | redact, us | characters |\n| --- | --- | --- | --- |")
    for name, function, count in cases:
        reading, redacting, trace = measure(function, count)
        is_met = is_met and (reading <= MAX_USUAL_US or count < 1000)
        print(f"| {name} | {reading:.0f} | {redacting:.0f} | {len(trace)} |")
    print(f"target {MAX_USUAL_US:.0f} us for the first three: {'met' if is_met else 'missed'}")
    return is_met


if __name__ == "__main__":
    sys.setrecursionlimit(50_000)
    threading.stack_size(256 * 1024 * 1024)
    with ThreadPoolExecutor(1) as pool:  # the main thread has no stack for 10,000 frames
        sys.exit(0 if pool.submit(main).result() else 1)
