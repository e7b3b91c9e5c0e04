"""What the classification of a failure costs: CPU per text, growth with a text's length, and many failures at once.

    python benchmarks/classify.py [--rounds 5] [--json]

The texts are the recorded errors in ../shared/data. Where they are absent, errors of the same lengths are generated.
Each text is classified in four contexts, without the cache of earlier failures. Then 2,000 different failures are
classified and redacted, as a server does. Hostile texts repeat one fragment up to 10 MB. Exit 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data" / "errors-dev.jsonl"
sys.path.insert(0, str(ROOT / "src"))

from mulligan.classify.classifier import Classifier  # noqa: E402
from mulligan.classify.fingerprint import build_template  # noqa: E402
from mulligan.core.record_redaction import RecordRedactor  # noqa: E402
from mulligan.core.records import Step  # noqa: E402
from mulligan.redaction import Redactor  # noqa: E402

MAX_MEDIAN_US = 300.0
"""Target: CPU per recorded error, at the median."""
MAX_GROWTH = 1.5
"""Target: growth of the CPU per character when a hostile text becomes ten times as long."""
MAX_P99_US = 2_000.0
"""Target: CPU of all but one in 100 recorded errors."""
MAX_FIRST_MS = 40.0
"""Target: CPU of the first failure of a process."""
MAX_LONGEST_MS = 10.0
"""Target: CPU of a text of 10 MB."""
MAX_MANY_SECONDS = 1.0
"""Target: CPU of 2,000 different failures."""
MANY, MANY_CHARS = 2_000, 400
LENGTHS = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
CONTEXTS: dict[str, dict[str, Any]] = {
    "tool": {"source": "tool", "tool": "search_orders"},
    "shell": {"source": "tool", "tool": "Bash", "is_error": True},
    "model": {"source": "model"},
    "unknown source": {},
}
FRAGMENTS = {
    "words": "error: could not find the file that the test failed to open ",
    "nested JSON": '{"error": {"message": "',
    "escaped JSON": '\\"error\\": \\"failed\\", ',
    "numbers": "1234567890 ",
    "paths": "/srv/data.d/",
    "quotes": "'it isn't \"",
    "backslashes": "\\",
    "spaces": " ",
    "lines": "\n",
    "equal signs": "= ",
    "letters": "a",
    "tags": "<title><h1 ",
    "traceback": 'Traceback (most recent call last):\n  File "a.py", line 1\nValueError: no\n',
}
WORDS = (
    "render parse table index order invoice customer retry token buffer socket module branch commit release header "
    "payload schema column migration worker queue cache session cursor widget layout route handler config"
).split()
SHAPES = (
    "Error: {} not found",
    'Exit code 1\nTraceback (most recent call last):\n  File "/srv/{}.py", line 12, in {}\nValueError: invalid {}\n',
    "Failed to {} the {}: permission denied (os error 13)",
    '{{"error": {{"code": "invalid_request", "message": "The {} must be a {}, got 12."}}}}',
    "src/{}.ts(12,3): error TS2304: Cannot find name '{}'.",
    "HTTP 503 for https://example.com/{}: {} is temporarily unavailable, try again in 20 seconds",
    "FAILED tests/test_{}.py::test_{} - assert 3 == 4\n1 failed, 3 passed in 0.12s",
    "The {} already has a {} with this name",
)


def generate_texts(count: int, seed: int = 19) -> list[str]:
    """Return texts in the lengths of the recorded errors: half have at most 120 characters, a tenth more than 900."""
    chance = random.Random(seed)
    texts = []
    for number in range(count):
        text = SHAPES[number % len(SHAPES)].format(*chance.choices(WORDS, k=4))
        length = chance.choice((0, 0, 0, 0, 0, 200, 300, 400, 900, 1500))
        while len(text) < length:
            text += f"\n{' '.join(chance.choices(WORDS, k=9))} {chance.randrange(1000)}"
        texts.append(text)
    return texts


def generate_failures() -> list[str]:
    """Return different texts of 400 characters that report a failure."""
    chance = random.Random(7)
    texts = []
    for number in range(MANY):
        text = SHAPES[number % len(SHAPES)].format(*chance.choices(WORDS, k=4)) + f" ({number})"
        while len(text) < MANY_CHARS:
            text += f" {chance.choice(WORDS)} {chance.randrange(10_000) if chance.random() < 0.1 else 'the'}"
        texts.append(text[:MANY_CHARS])
    return texts


def measure(function: Callable[[], object], rounds: int = 1) -> float:
    """Return the CPU seconds of the fastest round."""
    seconds = []
    for _ in range(rounds):
        started = time.process_time_ns()
        function()
        seconds.append((time.process_time_ns() - started) / 1e9)
    return min(seconds)


class Report:
    """Rows of the table, with the target of each."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, name: str, value: float, unit: str, target: float | None = None, note: str = "") -> None:
        row = {"name": name, "value": round(value, 3), "unit": unit, "target": target, "note": note}
        row["met"] = target is None or value <= target
        self.rows.append(row)

    @property
    def is_met(self) -> bool:
        return all(row["met"] for row in self.rows)

    def lines(self) -> Iterator[str]:
        for row in self.rows:
            target = "" if row["target"] is None else f"target {row['target']:g}: {'met' if row['met'] else 'MISSED'}"
            yield f"{row['name']:<46}{row['value']:>10.3f} {row['unit']:<4} {target:<22}{row['note']}".rstrip()


def measure_recorded(report: Report, texts: list[str], rounds: int) -> None:
    for name, context in CONTEXTS.items():
        warm = Classifier()  # compiles what the rounds use
        for text in texts:
            failure = warm.classify(text=text, **context)
            assert failure.confidence > 0, failure.evidence  # classification failed
        best = [float("inf")] * len(texts)
        for _ in range(rounds):
            classifier = Classifier()  # a new one, so that nothing is in its cache
            for index, text in enumerate(texts):
                seconds = measure(partial(classifier.classify, text=text, **context))
                best[index] = min(best[index], seconds)
        microseconds = sorted(seconds * 1e6 for seconds in best)
        median = statistics.median(microseconds)
        p99 = microseconds[int(0.99 * (len(microseconds) - 1))]
        report.add(f"{name}, p50", median, "us", MAX_MEDIAN_US, f"max {microseconds[-1]:.0f} us")
        report.add(f"{name}, p99", p99, "us", MAX_P99_US)


def measure_growth(report: Report, rounds: int) -> None:
    classifier = Classifier()
    for name, fragment in FRAGMENTS.items():
        worst_growth, longest = 0.0, 0.0
        previous = None
        for length in LENGTHS:
            text = (fragment * (length // len(fragment) + 1))[:length]
            seconds = max(
                measure(partial(classifier.classify, text=text, **context), rounds) for context in CONTEXTS.values()
            )
            # Below a millisecond the fixed cost and the clock decide, not the length.
            if previous is not None and seconds > 0.001:
                worst_growth = max(worst_growth, seconds / max(previous, 0.001) / 10)
            previous = longest = seconds
        report.add(f"10 MB of {name}", longest * 1e3, "ms", MAX_LONGEST_MS)
        report.add(f"10 MB of {name}, growth per tenfold length", worst_growth, "x10", MAX_GROWTH)


def measure_many(report: Report, rounds: int) -> None:
    texts = generate_failures()
    redactor = RecordRedactor(Redactor())
    classified, redacted, templated = [], [], []
    for _ in range(rounds + 1):  # the first round compiles what the others use
        classifier = Classifier()
        steps: list[Step] = []
        classified.append(measure(partial(_add_steps, steps, classifier, texts)))
        redacted.append(measure(partial(redactor.redact_steps, steps)))
        messages = [step.failure.message for step in steps if step.failure]
        templated.append(measure(partial(list, map(build_template, messages))))
    report.add("2,000 failures, classified", min(classified), "s", MAX_MANY_SECONDS)
    report.add("2,000 failures, redacted", min(redacted), "s")
    report.add(
        "2,000 failures, message templates", min(templated), "s", None, "computed again for the store's patterns"
    )


def _add_steps(steps: list[Step], classifier: Classifier, texts: list[str]) -> None:
    steps.extend(_to_step(number, classifier, text) for number, text in enumerate(texts))


def _to_step(number: int, classifier: Classifier, text: str) -> Step:
    arguments = {"path": f"/srv/{number}", "limit": 10}
    failure = classifier.classify(text=text, source="tool", tool="search_orders", is_error=True, arguments=arguments)
    return Step(
        run="run_1", seq=number + 1, call=number + 1, attempt=1, type="tool", name="search_orders", outcome="failure",
        started_at=0, arguments=arguments, failure=failure,
    )  # fmt: skip


COLD = """
import time
from mulligan.classify.classifier import classify  # noqa: E402
started = time.process_time()
classify(text="Exit code 1: failed to open the file: permission denied", source="tool", tool="Bash")
print(time.process_time() - started)
"""


def measure_first(report: Report, rounds: int) -> None:
    """Measure the first classification of a process, which compiles what it needs."""
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r})\n{COLD}"]
    seconds = [float(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(rounds)]
    report.add("first failure of a process", min(seconds) * 1e3, "ms", MAX_FIRST_MS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if DATA.exists():
        texts = [json.loads(line)["text"] for line in DATA.read_text(encoding="utf-8").splitlines()]
    else:
        texts = generate_texts(860)
    report = Report()
    measure_first(report, arguments.rounds)
    measure_recorded(report, texts, arguments.rounds)
    measure_many(report, arguments.rounds)
    measure_growth(report, min(arguments.rounds, 2))
    if arguments.json:
        print(json.dumps(report.rows))
    else:
        print(f"{len(texts)} {'recorded' if DATA.exists() else 'generated'} errors, CPU time")
        print("\n".join(report.lines()))
    sys.exit(0 if report.is_met else 1)


if __name__ == "__main__":
    main()
