"""How often an error in the clothes of a success is recognised, and a success accused.

    python evals/results.py            the table
    python evals/results.py --update   and puts it into docs/classification-figures.md
    python evals/results.py --mistakes also lists the calls that are judged wrongly

Every recorded call in ../shared/data is judged by its tool and its text, without its flag. Found and accused count
failures and suspected failures.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data" / "calls-dev.jsonl.gz"
PAGE = ROOT / "docs" / "classification-figures.md"
sys.path.insert(0, str(ROOT / "src"))

from mulligan.classify.result_verdict import judge_result  # noqa: E402
from mulligan.classify.tool_category import find_category  # noqa: E402


def main() -> int:
    if not DATA.exists():
        print(f"No data: {DATA} is absent, so there is nothing to measure on.")
        return 0
    counted: Counter[tuple[str, bool, bool]] = Counter()
    with gzip.open(DATA, "rt", encoding="utf-8") as lines:
        for call in map(json.loads, lines):
            failed = call["outcome"] == "failure"
            said = call["error"] if failed else call["result_excerpt"]
            given = call["parameters"] if isinstance(call["parameters"], dict) else {}
            category = find_category(call["tool"], given)
            found = judge_result(said, category=category, arguments=given).judgment != "success"
            counted[call["dataset"], failed, found] += 1
            if found != failed and "--mistakes" in sys.argv:
                print("missed" if failed else "accused", category, call["tool"], repr(given)[:100], repr(said)[:200])
    rows = ["| calls | failures recognised | successes accused |", "| --- | --- | --- |"]
    for name in sorted({key[0] for key in counted}):
        found, missed = counted[name, True, True], counted[name, True, False]
        accused, worked = counted[name, False, True], counted[name, False, False]
        rows.append(f"| {name} | {found} of {found + missed} | {accused} of {accused + worked} |")
    made = "\n".join(rows)
    print(made)
    if "--update" in sys.argv:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition("<!-- results -->\n")
        after = rest.partition("<!-- end results -->")[2]
        PAGE.write_text(f"{before}<!-- results -->\n{made}\n<!-- end results -->{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
