"""Do failures of one cause share a fingerprint, and failures of different causes not?

    python evals/fingerprints.py            the table
    python evals/fingerprints.py --update   and puts it into docs/classification-figures.md

Pairs are drawn from the recorded calls in ../shared/data, always of one tool and of two different runs, and judged by a
rule that knows nothing of masks or kinds: by the *set* of plain words of the two texts, without what is quoted, holds
a digit, a slash or an underscore, or stands in either call's values; the names of its arguments count wherever they
stand. The same set is the same cause; sets that share less than half of their words are different causes; what lies
between is not used. Refusals by the user are no failures, and are left out.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data" / "calls-dev.jsonl.gz"
PAGE = ROOT / "docs" / "classification-figures.md"
PAIRS = 1_000
sys.path.insert(0, str(ROOT / "src"))

from mulligan.classify.classifier import classify  # noqa: E402


def words(call: dict[str, Any], own: set[str]) -> frozenset[str]:
    """The plain words of what was said: small letters only, none of them from the calls themselves."""
    text = message(call["error"])
    said = re.sub(r"[\"'`“].*?[\"'`”]|\S*[/\\_\d]\S*", " ", text)
    found = {word for word in re.findall(r"\b[A-Za-z]?[a-z]{2,}\b", said) if word.lower() not in own}
    names = call["parameters"] if isinstance(call["parameters"], dict) else ()
    return frozenset(found | {f"={name}" for name in names if re.search(rf"['\"`]{re.escape(name)}['\"`]", text)})


def message(error: str) -> str:
    """The words inside a JSON answer, if it is one."""
    try:
        answer = json.loads(error)
    except ValueError:
        return error[:2_000]
    return (
        str(answer.get("error") or answer.get("message") or answer)[:2_000]
        if isinstance(answer, dict)
        else error[:2_000]
    )


def own_words(call: dict[str, Any]) -> set[str]:
    values = call["parameters"].values() if isinstance(call["parameters"], dict) else [call["parameters"]]
    return {word.lower() for word in re.findall(r"[A-Za-z]{2,}", json.dumps(list(values))[:4_000])}


def verdict(one: dict[str, Any], other: dict[str, Any]) -> bool | None:
    own = own_words(one) | own_words(other)
    first, second = words(one, own), words(other, own)
    if not first or not second:
        return None
    if first == second:
        return True
    return False if len(first & second) < 0.5 * len(first | second) else None


def drawn(calls: list[dict[str, Any]], wanted: bool, count: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Pairs of one tool and two runs with this verdict; tools take turns, so that no frequent one decides alone."""
    chance = random.Random(7)
    tools: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for call in calls:
        tools[call["dataset"], call["tool"]].append(call)
    groups = [group for group in tools.values() if len({call["run_id"] for call in group}) > 1]
    found: list[tuple[dict[str, Any], dict[str, Any]]] = []
    seen: set[tuple[int, int]] = set()
    for _ in range(60 * count):
        one, other = chance.sample(chance.choice(groups), 2)
        key = (min(id(one), id(other)), max(id(one), id(other)))
        if one["run_id"] == other["run_id"] or key in seen:
            continue
        seen.add(key)
        if verdict(one, other) is wanted:
            found.append((one, other))
            if len(found) == count:
                break
    return found


def fingerprint(call: dict[str, Any]) -> str:
    if "fingerprint" not in call:
        arguments = call["parameters"] if isinstance(call["parameters"], dict) else None
        failure = classify(text=call["error"], tool=call["tool"], arguments=arguments, is_error=True)
        call["fingerprint"] = failure.fingerprint
    return str(call["fingerprint"])


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--update", action="store_true", help="write the table into the documentation")
    options.add_argument("--misses", action="store_true", help="show pairs that went wrong, on the terminal only")
    chosen = options.parse_args()
    if not DATA.exists():
        print(f"No data: {DATA} is absent, so there is nothing to measure on.")
        return 0
    with gzip.open(DATA, "rt", encoding="utf-8") as lines:
        calls = [call for call in map(json.loads, lines) if call["outcome"] == "failure" and call["error"]]
    calls = [call for call in calls if classify(text=call["error"], tool=call["tool"]).is_failure]
    rows = ["| pairs | judged | share a fingerprint | target |", "| --- | --- | --- | --- |"]
    names = [("all", calls)] + [
        (name, [c for c in calls if c["dataset"] == name]) for name in sorted({c["dataset"] for c in calls})
    ]
    for wanted, said, target in ((True, "same cause", ">= 95 %"), (False, "different causes", "<= 1 %")):
        for name, some in names:
            pairs = drawn(some, wanted, PAIRS)
            if not pairs:
                continue
            same = [fingerprint(one) == fingerprint(other) for one, other in pairs]
            label = f"**{said}**" if name == "all" else f"{said}, {name}"
            rows.append(
                f"| {label} | {len(pairs)} | {100 * sum(same) / len(same):.1f} % | {target if name == 'all' else ''} |"
            )
            if chosen.misses:
                for (one, other), agree in list(zip(pairs, same, strict=True)):
                    if agree is not wanted:
                        print(wanted, one["tool"], repr(one["error"][:150]), "<>", repr(other["error"][:150]))
    made = "\n".join(rows)
    print(made)
    if chosen.update:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition("<!-- pairs -->\n")
        PAGE.write_text(
            f"{before}<!-- pairs -->\n{made}\n<!-- end pairs -->{rest.partition('<!-- end pairs -->')[2]}",
            encoding="utf-8",
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
