"""How often the kind is right, on recorded errors of real programs.

    python evals/classify.py            the table
    python evals/classify.py --update   and puts it into docs/classification-figures.md
    python evals/classify.py --misses SOURCE   what went wrong there, on the terminal only

The data stands beside the repository, in ../shared/data, and is not part of it. No text of it is written anywhere.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data" / "errors-dev.jsonl"
PAGE = ROOT / "docs" / "classification-figures.md"
sys.path.insert(0, str(ROOT / "src"))

from mulligan.classify.classifier import classify  # noqa: E402
from mulligan.classify.error_numbers import parse_overflow  # noqa: E402

LOOKED_AT = ("claude-code-sessions", "bfcl-multi-turn", "litellm-tests", "sdk-over-mock:openai", "provoked:requests")
"""Sources that were read while the rules were written. Every other one was opened once, when they were finished."""

ALIKE = (
    {"precondition", "constraint_violation", "conflict"},
    {"file_not_found", "not_found", "no_results"},
    {"command_not_found", "not_found"},
    {"auth_error", "permission_denied"},
    {"invalid_output", "unknown_tool"},
    {"timeout", "unavailable"},
)
"""Codes the text alone cannot tell apart, counted as equal."""

CATEGORIES = {
    "tool/build_failure": "BuildFailure",
    "tool/test_failure": "TestFailure",
    "tool/edit_mismatch": "EditMismatch",
    "tool/file_not_found": "FileNotFound",
}


def is_same(found: str, label: str) -> bool:
    """Equal, or one of the pairs that count as equal."""
    if found == label:
        return True
    (type_found, code_found), (type_label, code_label) = found.split("/"), label.split("/")
    if code_found == code_label:
        return code_found in ("connection_error", "timeout") and {type_found, type_label} == {"tool", "retrieval"}
    alike = any(code_found in group and code_label in group for group in ALIKE)
    of_a_model = (type_found == "model") != (type_label == "model")
    return alike and (not of_a_model or "invalid_output" in (code_found, code_label))


def category(kind: str) -> str:
    return "none" if kind.startswith("none/") else CATEGORIES.get(kind, "ToolError")


def judged(row: dict[str, Any]) -> dict[str, Any]:
    failure = classify(text=row["text"], tool=row["tool"], status=row["status"], exception=row["exception"])
    kind = str(failure.kind)
    same = is_same(kind, row["kind"])
    return {
        "source": row["source"],
        "found": kind,
        "label": row["kind"],
        "kind": same,
        # Where two kinds count as equal, so do their types.
        "type": same or kind.split("/")[0] == row["kind"].split("/")[0],
        "model": same if row["model_error"] else None,
        "coding": category(kind) == row["coding"].split(":")[0] if row["coding"] else None,
        "overflow": (parse_overflow(row["text"]) is not None or kind.endswith("context_length_exceeded"))
        == (row["kind"] == "model/context_length_exceeded")
        if row["model_error"]
        else None,
        "confidence": failure.confidence,
        "text": row["text"],
        "tool": row["tool"],
    }


def wilson(right: int, total: int) -> float:
    """The lower end of the interval in which the true share lies (95 %)."""
    if not total:
        return 0.0
    z, share = 1.96, right / total
    middle = share + z * z / (2 * total)
    return (middle - z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))) / (1 + z * z / total)


def share(rows: Iterable[dict[str, Any]], what: str) -> str:
    asked = [row[what] for row in rows if row[what] is not None]
    if not asked:
        return "-"
    return f"{100 * sum(asked) / len(asked):.1f} % of {len(asked)}"


def table(rows: list[dict[str, Any]]) -> str:
    groups: list[tuple[str, list[dict[str, Any]]]] = []
    for name, sources in (("looked at", LOOKED_AT), ("opened once, read since", None)):
        chosen = [row for row in rows if (row["source"] in LOOKED_AT) == (sources is not None)]
        groups.append((f"**{name}**", chosen))
        sources_here = sorted({row["source"] for row in chosen})
        groups.extend((source, [row for row in chosen if row["source"] == source]) for source in sources_here)
    groups.append(("**all**", rows))
    lines = [
        "| source | rows | type | kind | lower end | provider errors | coding categories | overflow or not |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, chosen in groups:
        if not chosen:
            continue
        low = wilson(sum(row["kind"] for row in chosen), len(chosen))
        columns = [share(chosen, what).split(" of")[0] for what in ("type", "kind")]
        columns += [f"{100 * low:.1f} %", *(share(chosen, what) for what in ("model", "coding", "overflow"))]
        lines.append(f"| {name} | {len(chosen)} | " + " | ".join(columns) + " |")
    types = sum(row["found"].split("/")[0] == row["label"].split("/")[0] for row in rows)
    exact = sum(row["found"] == row["label"] for row in rows)
    strictly = f"type {100 * types / len(rows):.1f} %, kind {100 * exact / len(rows):.1f} %"
    return "\n".join([*lines, "", f"Counted strictly, with no two kinds taken for equal: {strictly}."])


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--update", action="store_true", help="write the table into the documentation")
    options.add_argument("--misses", metavar="SOURCE", help="show what went wrong in one source")
    options.add_argument("--only", action="store_true", help="only the sources that were looked at")
    chosen = options.parse_args()
    if not DATA.exists():
        print(f"No data: {DATA} is absent, so there is nothing to measure on.")
        return 0
    with DATA.open(encoding="utf-8") as lines:
        wanted = [json.loads(line) for line in lines]
    if chosen.only or chosen.misses in LOOKED_AT:
        wanted = [row for row in wanted if row["source"] in LOOKED_AT]
    rows = [judged(row) for row in wanted]
    if chosen.misses:
        for row in rows:
            if row["source"] == chosen.misses and (not row["kind"] or row["coding"] is False):
                print(
                    f"{row['label']:32} {row['found']:32} {row['confidence']:.2f} {row['tool']} {row['text'][:150]!r}"
                )
        return 0
    made = table(rows)
    print(made)
    if chosen.update:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition("<!-- table -->\n")
        after = rest.partition("<!-- end -->")[2]
        PAGE.write_text(f"{before}<!-- table -->\n{made}\n<!-- end -->{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
