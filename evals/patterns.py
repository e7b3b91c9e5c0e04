"""Do patterns part recorded failures as a person would? The adjusted Rand index against causes judged beforehand.

    python evals/patterns.py            the table
    python evals/patterns.py --misses   and where the two part ways, on the terminal only
    python evals/patterns.py --update   and puts the table into docs/classification-figures.md

`evals/causes/` holds the labels and says how they were made; the failures themselves are read from ../shared/data.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from math import comb
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data" / "calls-dev.jsonl.gz"
LABELS = ROOT / "evals" / "causes" / "labels.jsonl"
PAGE = ROOT / "docs" / "classification-figures.md"
sys.path.insert(0, str(ROOT / "src"))

from mulligan.classify.classifier import classify  # noqa: E402


def adjusted_rand(one: Sequence[object], other: Sequence[object]) -> float:
    """How far two partitions of the same things agree on pairs: 1 is perfect, 0 is what chance gives."""
    both = sum(comb(count, 2) for count in Counter(zip(one, other, strict=True)).values())
    first = sum(comb(count, 2) for count in Counter(one).values())
    second = sum(comb(count, 2) for count in Counter(other).values())
    expected = first * second / comb(len(one), 2)
    most = (first + second) / 2
    return 1.0 if most == expected else (both - expected) / (most - expected)


def pattern(call: dict[str, Any]) -> tuple[str, str]:
    arguments = call["parameters"] if isinstance(call["parameters"], dict) else None
    failure = classify(text=call["error"], tool=call["tool"], arguments=arguments, is_error=True)
    return call["tool"], failure.fingerprint


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--update", action="store_true", help="write the table into the documentation")
    options.add_argument("--misses", action="store_true", help="show what went wrong, on the terminal only")
    chosen = options.parse_args()
    if not DATA.exists():
        print(f"No data: {DATA} is absent, so there is nothing to measure on.")
        return 0
    labels = {(row["run_id"], row["seq"]): row for row in map(json.loads, LABELS.read_text().splitlines())}
    with gzip.open(DATA, "rt", encoding="utf-8") as lines:
        calls = [call for call in map(json.loads, lines) if (call["run_id"], call["seq"]) in labels]
    found = [pattern(call) for call in calls]
    rows = [
        "| failures | of | causes | patterns | adjusted Rand index | splits of one error text undone |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    names = ["all", *sorted({call["dataset"] for call in calls})]
    for name in names:
        some = [index for index, call in enumerate(calls) if name in ("all", call["dataset"])]
        judged = [labels[calls[index]["run_id"], calls[index]["seq"]] for index in some]
        here = [found[index] for index in some]
        strict = adjusted_rand([row["cause"] for row in judged], here)
        broad = adjusted_rand([row["broader"] for row in judged], here)
        causes = len({row["cause"] for row in judged})
        label = "**all**" if name == "all" else name
        rows.append(f"| {label} | {len(some)} | {causes} | {len(set(here))} | {strict:.4f} | {broad:.4f} |")
    made = "\n".join(rows)
    print(made)
    if chosen.misses:
        _show_misses(calls, labels, found)
    if chosen.update:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition("<!-- causes -->\n")
        after = rest.partition("<!-- end causes -->")[2]
        PAGE.write_text(f"{before}<!-- causes -->\n{made}\n<!-- end causes -->{after}", encoding="utf-8")
    return 0


def _show_misses(
    calls: list[dict[str, Any]], labels: dict[tuple[str, int], dict[str, Any]], found: list[tuple[str, str]]
) -> None:
    split: dict[str, dict[tuple[str, str], list[int]]] = defaultdict(lambda: defaultdict(list))
    merged: dict[tuple[str, str], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for index, call in enumerate(calls):
        cause = labels[call["run_id"], call["seq"]]["broader"]
        split[cause][found[index]].append(index)
        merged[found[index]][cause].append(index)
    for said, groups in (("one cause, several patterns", split), ("one pattern, several causes", merged)):
        for key, parts in groups.items():
            if len(parts) > 1:
                print(f"\n{said}: {key}")
                for part in parts.values():
                    print(f"  {len(part)} x {calls[part[0]]['error'][:160]!r}")


if __name__ == "__main__":
    sys.exit(main())
