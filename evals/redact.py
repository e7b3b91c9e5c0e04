"""How much redaction finds, what it hides wrongly, and what it costs.

    python evals/redact.py            # the half of the rows that rules were written with
    python evals/redact.py --half 1   # the other half

Reads ../shared/data beside the checkout; says so when it is absent.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import pathlib
import random
import statistics
import sys
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
sys.path.insert(0, str(ROOT / "src"))

from mulligan.redaction import FOREIGN, Redactor, clean, faults, quote  # noqa: E402
from mulligan.redaction.detect import might_hold  # noqa: E402


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--half", type=int, choices=(0, 1), default=0, help="even rows or odd ones")
    options.add_argument("--misses", action="store_true", help="kinds and ids of what was missed, never the text")
    given = options.parse_args()
    if not (DATA / "secrets-dev.jsonl").exists():
        print(f"There is no {DATA.name} folder beside the checkout, so there is nothing to measure.")
        return
    rows = [row for place, row in enumerate(_lines("secrets-dev.jsonl")) if place % 2 == given.half]
    _coverage(rows, given.misses)
    print()
    _presentation()
    print()
    _cost(rows)


def _lines(name: str) -> Iterator[dict[str, Any]]:
    with (DATA / name).open() as file:
        yield from map(json.loads, file)


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode("utf-8", "replace")


def _covered(secret: str, text: str) -> bool:
    """No run of 8 of its characters is left over more than a tenth of it."""
    if len(secret) < 8:
        return secret not in text
    left = {n for at in range(len(secret) - 7) if secret[at : at + 8] in text for n in range(at, at + 8)}
    return len(left) <= len(secret) / 10


def _coverage(rows: list[dict[str, Any]], misses: bool) -> None:
    redactor = Redactor()
    total: Counter[str] = Counter()
    hit: Counter[str] = Counter()
    alarms: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    for row in rows:
        text = _text(row["text_b64"])
        redacted = redactor.text(text)
        if row["label"] == "benign":
            total["benign rows"] += 1
            if redacted != text:
                alarms[row["kind"]] += 1
            continue
        group = "secrets in agents' text" if row["source"].startswith("synthetic") else "secrets in foreign fixtures"
        group = "personal data" if row["label"] == "pii" else group
        for secret in map(_text, row["secrets_b64"]):
            covered = _covered(secret, redacted)
            for name in (group, "all"):
                total[name] += 1
                hit[name] += covered
            if not covered:
                missed[row["kind"]] += 1
    print(f"{'':<28}{'rows':>7}{'covered':>9}")
    for group in ("secrets in agents' text", "secrets in foreign fixtures", "personal data", "all"):
        print(f"{group:<28}{total[group]:>7}{100 * hit[group] / max(1, total[group]):>8.1f} %")
    wrong = sum(alarms.values())
    print(f"{'false alarms':<28}{total['benign rows']:>7}{100 * wrong / max(1, total['benign rows']):>8.2f} %")
    if misses:
        print("missed:", dict(missed.most_common()))
        print("false alarms:", dict(alarms.most_common()))


def _presentation() -> None:
    rows = list(_lines("injections-dev.jsonl"))
    wrong = 0
    for row in rows:
        for text in _strings(row["error"]):
            cleaned, quoted = clean(text), quote(text, row["tool"])
            hidden = any(unicodedata.category(c)[0] == "C" and c not in "\n\t" for c in cleaned + quoted)
            wrong += hidden or len(cleaned) > FOREIGN or bool(faults(quoted)) or bool(set("<>|") & set(cleaned))
    print(f"{len(rows)} hostile or genuine errors cleaned and quoted: {wrong} not presentable")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def _cost(rows: list[dict[str, Any]]) -> None:
    redactor = Redactor()
    corpora = {"these rows": _blocks(_text(row["text_b64"]) for row in rows), "recorded calls": _blocks(_calls())}
    print(f"{'us per KB, median of blocks':<28}{'prefilter':>11}{'redact':>9}{'clean':>9}")
    for name, blocks in corpora.items():
        figures = [
            statistics.median(_seconds(step, block) * 1e6 / (len(block) / 1024) for block in blocks)
            for step in (might_hold, redactor.text, clean)
        ]
        print(f"{name:<28}{figures[0]:>11.1f}{figures[1]:>9.0f}{figures[2]:>9.0f}")
    print()
    print(f"{'ms per KB, hostile text':<28}{'redact':>11}{'clean':>9}{'quote':>9}")
    worst: dict[str, tuple[float, float, float]] = {}
    for name, text in _hostile().items():
        kb = len(text) / 1024
        first, second, third = (_seconds(step, text) * 1e3 / kb for step in (redactor.text, clean, quote))
        worst[name] = (first, second, third)
    for name, figures_ in sorted(worst.items(), key=lambda one: -max(one[1]))[:8]:
        print(f"{name:<28}{figures_[0]:>11.2f}{figures_[1]:>9.2f}{figures_[2]:>9.2f}")


def _calls() -> Iterator[str]:
    with gzip.open(DATA / "calls-dev.jsonl.gz") as file:
        for place, line in enumerate(file):
            if place % 20 == 0:
                row = json.loads(line)
                yield "\n".join(str(row.get(field) or "") for field in ("parameters", "error", "result_excerpt"))[:4000]


def _blocks(texts: Iterator[str]) -> list[str]:
    """Texts put together to about 4 KB, so that what is measured is the text and not the call."""
    blocks, held, size = [], [], 0
    for text in texts:
        held.append(text)
        size += len(text)
        if size > 4096:
            blocks.append("\n".join(held))
            held, size = [], 0
    return blocks


def _seconds(step: Callable[[str], object], text: str) -> float:
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        step(text)
        best = min(best, time.perf_counter() - start)
    return best


def _hostile() -> dict[str, str]:
    draw = random.Random(7)
    base64ish = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    pieces = {
        "one letter": "a", "nested quotes": "\"'\"\\'", "at signs": "@", "addresses": "a@b.c.d.",
        "digits": "1234567890",
        "groups of digits": "4012 8888 ", "dashes": "12-", "equals": "a=", "keys": "key=", "passwords": "password: ",
        "bearers": "bearer ", "sentences": "password is for of ", "key heads": "-----BEGIN RSA PRIVATE KEY-----\n",
        "key tails": "-----END RSA PRIVATE KEY-----\n", "schemes": "://", "credentials": "://a:b@", "prefixes": "sk-",
        "half tokens": "eyJhbGciOiJI.", "flags": "--a ", "countries": "AB12 ", "names": '"name": "x", "value": ',
        "frames": "at ", "files": 'File "', "hosts": "host=a;", "labels": "a.", "tens": "10.", "colons": "::",
        "escapes": "\x1b[", "titles": "\x1b]", "accents": "\u0301\u0323", "ligatures": "\ufdfa",
        "elements": "password>aaaa</",
        "spaces": " ", "brackets": "(", "marks": "[said by ", "cookies": "cookie: a=", "names of tokens": "token ",
    }  # fmt: skip
    texts = {name: (piece * (16384 // len(piece) + 1))[:16384] for name, piece in pieces.items()}
    texts["base64 image"] = "data:image/png;base64," + "".join(draw.choice(base64ish) for _ in range(16362))
    texts["any characters"] = "".join(chr(draw.randrange(32, 0x3000)) for _ in range(16384))
    return texts


if __name__ == "__main__":
    main()
