"""How often a response that is an error is recognized, and how often a success is taken for one.

python evals/responses.py               # both halves of the corpus in evals/response_corpus
python evals/responses.py --opened      # the opened half only, with its mistakes: for work on the rules
python evals/responses.py --update      # and put the table into docs/classification-figures.md
python evals/responses.py --installed   # false alarms on documentation and JSON files of the installed packages

The halves were divided by a hash before any rule was written. Rules are written with the opened half in view.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "classification-figures.md"
sys.path[:0] = [str(ROOT / "evals"), str(ROOT / "src")]

from response_corpus.rows import Row, read_rows  # noqa: E402

from mulligan.classify.classifier import classify  # noqa: E402
from mulligan.classify.result_verdict import judge_result  # noqa: E402

Z = 1.96


def wilson(hits: int, total: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a share."""
    if not total:
        return 0.0, 1.0
    share, square = hits / total, Z * Z
    middle = (share + square / (2 * total)) / (1 + square / total)
    spread = Z * ((share * (1 - share) + square / (4 * total)) / total) ** 0.5 / (1 + square / total)
    return max(0.0, middle - spread), min(1.0, middle + spread)


def describe(hits: int, total: int) -> str:
    if not total:
        return "-"
    low, high = wilson(hits, total)
    return f"{hits} of {total}: {hits / total:.1%} ({low:.1%} to {high:.1%})"


def is_error(response: Any) -> bool:
    """Return whether a response of a tool without effects is a failure, or looks like one."""
    return judge_result(response).judgment != "success"


def has_right_kind(row: Row) -> bool:
    kind = classify(row.response, source="tool", tool="call", is_error=True).kind
    return kind.code in row.kinds.split("|")


def iter_installed() -> Iterator[Any]:
    """Yield paragraphs of documentation and source, and objects of JSON files, written by other authors."""
    folder = Path(sysconfig.get_path("purelib"))
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".md", ".rst", ".py", ".txt") and path.stat().st_size < 1_000_000:
            paragraphs = path.read_text(encoding="utf-8", errors="replace").split("\n\n")
            yield from random.Random(path.name).sample(paragraphs, min(5, len(paragraphs)))
        elif path.name.endswith((".json", ".json.gz")) and "endpoint-rule-set" not in path.name:
            data = path.read_bytes()
            try:
                values = [json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)]
            except ValueError:
                continue
            for _ in range(100):
                value = values.pop() if values else None
                if isinstance(value, dict):
                    yield value
                    values.extend(value.values())
                elif isinstance(value, list):
                    values.extend(value[:5])


def main() -> int:
    if "--installed" in sys.argv:
        alarms = [is_error(value) for value in iter_installed()]
        print(f"{sum(alarms)} of {len(alarms)} texts and objects of installed packages are taken for errors")
        return 0
    rows = list(read_rows())
    if "--opened" in sys.argv:
        rows = [row for row in rows if row.is_opened]
    counts: Counter[tuple[str, bool, str]] = Counter()
    for row in rows:
        is_found = is_error(row.response)
        outcomes = ["all", "found"] if is_found else ["all"]
        if row.is_error and row.kinds:
            outcomes.append("labeled")
            outcomes += ["right kind"] if has_right_kind(row) else []
        for name in ("all", row.source):
            for outcome in outcomes:
                counts[f"{'opened' if row.is_opened else 'unopened'}: {name}", row.is_error, outcome] += 1
        if "--opened" in sys.argv:
            text = json.dumps(row.response, ensure_ascii=False)[:200]
            if is_found != row.is_error:
                print("MISSED" if row.is_error else "FALSE ALARM", row.source, "/", row.case, text)
            elif "--kinds" in sys.argv and row.is_error and row.kinds and not has_right_kind(row):
                print("KIND", classify(row.response, source="tool", tool="call", is_error=True).kind, row.kinds, text)
    table = ["| half and source | errors recognized | false alarms | right kind |", "| --- | --- | --- | --- |"]
    names = {key[0] for key in counts if "--sources" in sys.argv or key[0].endswith(": all")}
    for name in sorted(names):
        found = describe(counts[name, True, "found"], counts[name, True, "all"])
        alarms = describe(counts[name, False, "found"], counts[name, False, "all"])
        kinds = describe(counts[name, True, "right kind"], counts[name, True, "labeled"])
        table.append(f"| {name.removesuffix(': all')} | {found} | {alarms} | {kinds} |")
    rendered = "\n".join(table)
    print(rendered)
    if "--update" in sys.argv:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition("<!-- responses -->\n")
        after = rest.partition("<!-- end responses -->")[2]
        PAGE.write_text(f"{before}<!-- responses -->\n{rendered}\n<!-- end responses -->{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
