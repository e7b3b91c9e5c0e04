"""What becomes of each class of failed model call, through the real clients over a fake provider on loopback.

python evals/providers.py               # prints the table
python evals/providers.py --write       # and puts it into docs/models.md
"""

from __future__ import annotations

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "src")]

import outcomes  # noqa: E402 - found where the tests have it

PAGE = ROOT / "docs" / "models.md"


def main() -> int:
    clients = [client for client in outcomes.CLIENTS if client.is_here]
    absent = sorted({client.package for client in outcomes.CLIENTS if not client.is_here})
    if absent:
        print(f"not installed, and so not in the table: {', '.join(absent)}", file=sys.stderr)
    rows, wrong = [], 0
    for case in outcomes.CASES:
        cells = []
        for client in clients:
            if not outcomes.is_about(case, client):
                cells.append("")
                continue
            told, provider, _ = outcomes.outcome(case, client)
            requests = len(provider.requests)
            wrong += told != case.expected
            cells.append(f"{requests}" if told == case.expected else f"**{told}**")
        rows.append(f"| {case.name} | {case.expected} | {' | '.join(cells)} |")
    head = ["failure", "outcome", *(client.name for client in clients)]
    table = "\n".join([f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |", *rows])
    print(table)
    if "--write" in sys.argv:
        begin, end = "<!-- outcomes -->\n", "<!-- end -->"
        text = re.sub(f"{begin}.*?{end}", lambda _: f"{begin}{table}\n{end}", PAGE.read_text(), flags=re.DOTALL)
        PAGE.write_text(text)
    return 1 if wrong or absent else 0


if __name__ == "__main__":
    sys.exit(main())
