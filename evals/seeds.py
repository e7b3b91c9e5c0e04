"""How often a seed speaks of a recorded failure, by dataset and seed; tools of simulated worlds should hear of none.

    python evals/seeds.py [--show SEED]

Reads ../shared/data. `--show` prints what the failures said that found a seed, for whoever judges whether it is right.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

from mulligan.classify.classifier import classify
from mulligan.learn.seeds import load_seeds, match_seeds

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--show", metavar="SEED", help="print what found this seed; all for every one")
    given = asked.parse_args()
    if not DATA.exists():
        sys.exit(f"{DATA} is not here: this evaluation reads recorded failures that are not part of the project.")
    names = {each.id: name for name, each in load_seeds().items()}
    total: Counter[str] = Counter()
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for dataset, tool, text, source in rows():
        total[dataset] += 1
        failure = classify(source=source, tool=tool, text=text, is_error=True)
        for seed in match_seeds(load_seeds().values(), tool, failure):
            found[dataset][names[seed.id]] += 1
            if given.show in (names[seed.id], "all"):
                print(f"  {dataset:<12} {tool[:20]:<20} {names[seed.id]:<28} {' '.join(text.split())[:160]}")
    for dataset, count in total.items():
        many = sum(found[dataset].values())
        print(f"{dataset}: {many} of {count} distinct failures find a seed ({many / count:.1%}).")
        for name, often in found[dataset].most_common():
            print(f"  {often:>5}  {name}")


def rows() -> list[tuple[str, str, str, str | None]]:
    """Dataset, tool, text and type of each distinct failure."""
    kept: dict[tuple[str, str, str], str | None] = {}
    with gzip.open(DATA / "calls-dev.jsonl.gz", "rt") as file:
        for line in file:
            row = json.loads(line)
            if row["outcome"] == "failure" and isinstance(row["error"], str):
                kept[row["dataset"], row["tool"], row["error"]] = "tool"
    for line in (DATA / "errors-dev.jsonl").read_text().splitlines():
        row = json.loads(line)
        source = row["kind"].partition("/")[0]
        text = row.get("message") or row.get("text") or ""
        kept["errors", row.get("tool") or "", text] = source if source in ("tool", "model", "retrieval") else None
    return [(dataset, tool, text, source) for (dataset, tool, text), source in kept.items()]


if __name__ == "__main__":
    main()
