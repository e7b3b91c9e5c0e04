"""How often the category of a coding agent's failure is right (B4), over the recorded sessions themselves.

    python evals/coding.py            the table
    python evals/coding.py --misses   and what went wrong, by category, on the terminal only

Each failed call of the sessions in calls-dev is classified as a hook would, with its tool and arguments. What it is,
is told by the labelled message of the same text in errors-dev, or, where the message was cut differently, by the only
label of messages that begin alike. The data stands in ../shared/data. No text of it is written anywhere.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CALLS = ROOT.parent / "shared" / "data" / "calls-dev.jsonl.gz"
ERRORS = ROOT.parent / "shared" / "data" / "errors-dev.jsonl"
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "evals")]

from classify import category  # noqa: E402
from mulligan.classify.classifier import classify  # noqa: E402
from mulligan.core.calls import wilson_lower_bound  # noqa: E402

AIM = 0.95
ALIKE = 60
"""Characters at the beginning of two messages that are one."""


class Labels:
    """What is known of each message."""

    def __init__(self) -> None:
        self._whole: dict[str, str] = {}
        self._beginning: dict[str, set[str]] = defaultdict(set)
        with ERRORS.open(encoding="utf-8") as lines:
            for row in map(json.loads, lines):
                if row["coding"]:
                    label = row["coding"].split(":")[0]
                    self._whole[row["text"].strip()] = label
                    self._beginning[row["text"].strip()[:ALIKE]].add(label)

    def of(self, text: str) -> str | None:
        known = self._whole.get(text.strip())
        begins = self._beginning.get(text.strip()[:ALIKE], set())
        return known or (next(iter(begins)) if len(begins) == 1 else None)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--misses", action="store_true", help="show what went wrong, on the terminal only")
    chosen = options.parse_args()
    if not CALLS.exists() or not ERRORS.exists():
        print(f"No data: {CALLS} or {ERRORS} is absent, so there is nothing to measure on.")
        return 0
    labels = Labels()
    seen, right, misses, unlabelled = Counter[str](), Counter[str](), Counter[tuple[str, str]](), 0
    with gzip.open(CALLS, "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            if row["dataset"] != "claude-code-sessions" or row["outcome"] != "failure":
                continue
            label = labels.of(row["error"])
            if label is None:
                unlabelled += 1
                continue
            given = row["parameters"] if isinstance(row["parameters"], dict) else None
            failure = classify(text=row["error"], tool=row["tool"], source="tool", is_error=True, arguments=given)
            found = category(str(failure.kind))
            seen[label] += 1
            right[label] += found == label
            if found != label:
                misses[label, str(failure.kind)] += 1
    total, good = sum(seen.values()), sum(right.values())
    print("| category | failed calls | right | share |")
    print("| --- | --- | --- | --- |")
    for label, count in seen.most_common():
        print(f"| {label} | {count} | {right[label]} | {right[label] / count:.1%} |")
    print(f"| **all** | {total} | {good} | {good / total:.1%}, at least {wilson_lower_bound(good, total, 1.96):.1%} |")
    print(f"\n{unlabelled} failed calls have no label.")
    if chosen.misses:
        for (label, kind), count in misses.most_common():
            print(count, label, "taken for", kind)
    return 0 if good >= AIM * total else 1


if __name__ == "__main__":
    sys.exit(main())
