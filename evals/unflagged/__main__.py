"""How many errors without a flag are found or suspected, and how much innocent content is accused.

python evals/unflagged               # both halves, by category
python evals/unflagged --opened      # the opened half only, with its mistakes: for work on the rules
python evals/unflagged --mistakes    # both halves with their mistakes
python evals/unflagged --commands    # the outputs of real commands instead, run in a folder of their own
python evals/unflagged --fifth       # the unflagged failures and innocent results of evals/errors instead
python evals/unflagged --seventh     # 130 failures and 130 innocent results by another author; one half is only counted
python evals/unflagged --update      # and put the table into docs/classification-figures.md

The halves were divided by a hash. The rules are written with the opened half in view.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "classification-figures.md"
sys.path[:0] = [str(ROOT / "evals"), str(ROOT / "src")]

from unflagged import commands, fifth, rows, seventh  # noqa: E402

from mulligan.classify.result_verdict import judge_result  # noqa: E402
from mulligan.classify.tool_category import find_category  # noqa: E402
from mulligan.core.records import Effects  # noqa: E402


def main() -> int:
    counts: Counter[tuple[str, bool, str]] = Counter()
    corpora = {"--commands": commands.read_rows, "--fifth": fifth.read_rows, "--seventh": seventh.read_rows}
    read_rows = next((reader for option, reader in corpora.items() if option in sys.argv), rows.read_rows)
    for row in read_rows():
        if "--opened" in sys.argv and not row.is_opened:
            continue
        category = find_category(row.tool, row.arguments)
        effects: Effects = "once" if category in ("action", "message") else "none"
        judgment = judge_result(row.result, category=category, effects=effects, arguments=row.arguments).judgment
        for name in (category, "opened half" if row.is_opened else "unopened half", "all"):
            counts[name, row.is_error, judgment] += 1
        if {"--opened", "--mistakes"} & {*sys.argv} and (judgment == "success") is row.is_error:
            print("MISSED" if row.is_error else f"ACCUSED ({judgment})", category, row.tool, row.arguments, row.result)
    lines = ["| tools | errors found | suspected | missed | content accused |", "| --- | --- | --- | --- | --- |"]
    names = sorted({name for name, *_ in counts} - {"all", "opened half", "unopened half"})
    for name in (*names, "opened half", "unopened half", "all"):
        found, suspected, missed = (counts[name, True, judgment] for judgment in ("failure", "suspected", "success"))
        accused = counts[name, False, "failure"] + counts[name, False, "suspected"]
        content = accused + counts[name, False, "success"]
        lines.append(f"| {name} | {found} | {suspected} | {missed} | {accused} of {content} |")
    table = "\n".join(lines)
    print(table)
    if "--update" in sys.argv:
        before, _, remainder = PAGE.read_text(encoding="utf-8").partition("<!-- unflagged -->\n")
        after = remainder.partition("<!-- end unflagged -->")[2]
        PAGE.write_text(f"{before}<!-- unflagged -->\n{table}\n<!-- end unflagged -->{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
