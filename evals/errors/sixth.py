"""The sixth corpus: calls whose kind, remedy and harm were labelled by authors who had not read the rules.

    python evals/errors/sixth.py            both halves
    python evals/errors/sixth.py --misses   and what is wrong in the opened half
    python evals/errors/sixth.py --tenth    the tenth corpus instead: 67 failures and 40 innocent results that were
                                            written before the rules were read, and all read after the first count

Rules may be written while looking at the half that the hash of a name opens; the other half is only counted. *Harmful*
are remedies that the authors named as harmful for a row: `harmful` counts what the classifier says, `acted on` without
answers that recovery does not act on because words alone suggest them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "src")]

from measure import Row, interval, is_opened  # noqa: E402

from classify import is_same  # noqa: E402
from mulligan.classify.classifier import classify  # noqa: E402
from mulligan.classify.result_verdict import judge_result  # noqa: E402


def read_rows(corpus: str = "sixth") -> Iterator[Row]:
    """Yield the rows with their answers. A result with a status below 400 has none for the classifier."""
    for line in (HERE / f"{corpus}.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        text = f"Exit code {row['exit_code']}\n{row['text']}" if row["exit_code"] else row["text"]
        status = row["status"] if (row["status"] or 0) >= 400 else None
        context = {"tool": row["tool"], "source": row["source"], "category": row["category"]}
        failure = classify(text=text, status=status, is_error=row["flagged"] or None, **context)
        verdict = judge_result(text, category=row["category"], is_error=row["flagged"] or None)
        is_guess = getattr(failure, "is_guess", False)
        is_harmful = failure.remedy.value in row["harmful_remedies"]
        yield {
            **row,
            "found": str(failure.kind),
            "confidence": failure.confidence,
            "is_opened": is_opened(f"{row['kind']} {row['tool']} {row['text']}"),
            "is_right": bool(row["kind"]) and any(is_same(str(failure.kind), kind) for kind in row["kind"].split("|")),
            "is_remedy_right": failure.remedy.value == row["remedy"],
            "is_harmful": is_harmful,
            "is_acted_on": is_harmful and not is_guess,
            "judgment": verdict.judgment,
        }


def print_figures(title: str, rows: list[Row]) -> None:
    failures = [row for row in rows if row["kind"]]
    unflagged = [row for row in failures if not row["flagged"]]
    innocent = [row for row in rows if not row["is_failure"] and not row["flagged"]]
    certain = [row for row in failures if row["confidence"] >= 0.8]
    shares = {
        "kind": [row["is_right"] for row in failures],
        "kind, flagged": [row["is_right"] for row in failures if row["flagged"]],
        "remedy": [row["is_remedy_right"] for row in failures],
        "harmful": [row["is_harmful"] for row in failures],
        "harmful, acted on": [row["is_acted_on"] for row in failures],
        "kind, confidence 0.8 and above": [row["is_right"] for row in certain],
        "harmful, confidence 0.8 and above": [row["is_harmful"] for row in certain],
        "unflagged failures found or suspected": [row["judgment"] != "success" for row in unflagged],
        "innocent results failed": [row["judgment"] == "failure" for row in innocent],
        "innocent results suspected": [row["judgment"] == "suspected" for row in innocent],
    }
    print(title)
    for name, answers in shares.items():
        print(f"  {name:40} {interval(sum(answers), len(answers))}")


def main() -> None:
    rows = list(read_rows("tenth" if "--tenth" in sys.argv else "sixth"))
    opened = [row for row in rows if row["is_opened"]]
    print_figures("both halves", rows)
    print_figures("opened half", opened)
    print_figures("other half", [row for row in rows if not row["is_opened"]])
    if "--misses" in sys.argv:
        for row in opened:
            is_missed = not row["flagged"] and (row["judgment"] == "success") == row["is_failure"]
            if row["is_harmful"] or is_missed or (row["kind"] and not row["is_right"]):
                facts = f"{row['tool']} {row['category']} {row['status'] or ''} {row['exit_code'] or ''}"
                mark = f"{'harmful' if row['is_harmful'] else '':8}{'missed' if is_missed else '':7}"
                print(f"{mark}{row['kind']:30} {row['found']:30} {row['confidence']} {facts}: {row['text'][:200]!r}")


if __name__ == "__main__":
    main()
