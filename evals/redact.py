"""How much redaction finds, what it hides wrongly, and what it costs.

    python evals/redact.py            # all rows, and whether each promise is kept
    python evals/redact.py --half 0   # the half of the rows that rules were written with
    python evals/redact.py --half 1   # the other half

Reads ../shared/data beside the checkout; says so when it is absent.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import math
import pathlib
import random
import re
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

from mulligan import prompt  # noqa: E402
from mulligan.classify.classifier import classify  # noqa: E402
from mulligan.core.failure import UNKNOWN_OUTCOME_HINT  # noqa: E402
from mulligan.core.kinds import KINDS  # noqa: E402
from mulligan.redaction import MAX_QUOTED_CHARS, Redactor, find_unsafe_text, quote_untrusted, sanitize  # noqa: E402


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--half", type=int, choices=(0, 1), help="even rows or odd ones; without it, all")
    options.add_argument("--misses", action="store_true", help="kinds and ids of what was missed, never the text")
    given = options.parse_args()
    if not (DATA / "secrets-dev.jsonl").exists():
        print(f"There is no {DATA.name} folder beside the checkout, so there is nothing to measure.")
        return
    rows = [row for place, row in enumerate(_lines("secrets-dev.jsonl")) if given.half in (None, place % 2)]
    _coverage(rows, given.misses)
    print()
    _presentation()
    print()
    _cost(rows)
    print()
    print("Promised")
    for is_kept, told in PROMISES:
        print(f"  {'kept' if is_kept else 'MISSED':<7}{told}")


PROMISES: list[tuple[bool, str]] = []
"""Whether each was kept, and what it was, as they are measured."""


def _promise(what: str, figure: float, unit: str, *, most: float = math.inf, least: float = -math.inf) -> None:
    limit = f"at least {least:g}" if most == math.inf else f"at most {most:g}"
    PROMISES.append((least <= figure <= most, f"{what}: {figure:.4g}{unit}, {limit}"))


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
    _promise("secrets covered", 100 * hit["all"] / max(1, total["all"]), " %", least=90)
    _promise("false alarms on benign rows", 100 * wrong / max(1, total["benign rows"]), " %", most=2)
    print(f"{'false alarms':<28}{total['benign rows']:>7}{100 * wrong / max(1, total['benign rows']):>8.2f} %")
    if misses:
        print("missed:", dict(missed.most_common()))
        print("false alarms:", dict(alarms.most_common()))


def _presentation() -> None:
    """Every error of the corpus, cleaned, quoted and as the answer a model would read."""
    rows = list(_lines("injections-dev.jsonl"))
    wrong: Counter[str] = Counter()
    for row in rows:
        said = list(_strings(row["error"]))
        for text in said:
            cleaned, quoted = sanitize(text), quote_untrusted(text, row["tool"])
            wrong["characters"] += _is_hidden(cleaned + quoted) or bool(set("<>|") & set(cleaned))
            wrong["longer"] += len(cleaned) > MAX_QUOTED_CHARS
            wrong["unmarked"] += bool(find_unsafe_text(quoted))
        failure = classify(row["error"], source="tool", tool=row["tool"])
        told = prompt.Prompt().answer(failure, tool=row["tool"])
        spoken = list(_strings(told))
        wrong["characters"] += any(map(_is_hidden, spoken))
        wrong["longer"] += any(len(text) > MAX_QUOTED_CHARS + 130 for text in spoken)
        outside = [text for name, value in told.items() if name not in ("message", "hint") for text in _strings(value)]
        wrong["unmarked"] += bool(find_unsafe_text(told["message"])) or any(_repeats(text, said) for text in outside)
        wrong["hints"] += told["hint"] not in OURS
    print(f"{len(rows)} hostile or genuine errors, cleaned, quoted and answered")
    for what, name in (
        ("characters", "with hidden characters or markup"),
        ("longer", f"with more than {MAX_QUOTED_CHARS} characters of foreign text"),
        ("unmarked", "with foreign text outside its mark"),
        ("hints", "with a hint copied from foreign text"),
    ):
        print(f"  {wrong[what]:>4}  {name}")
        _promise(f"texts {name}", wrong[what], "", most=0)


OURS = {sanitize(kind.hint, 300) for kind in KINDS.values()} | {UNKNOWN_OUTCOME_HINT}
"""Hints for models, as the table of kinds has them, and the one for a call that may have executed."""


def _is_hidden(text: str) -> bool:
    return any(unicodedata.category(c)[0] == "C" and c not in "\n\t" for c in text)


def _repeats(text: str, said: list[str]) -> bool:
    """Whether three words of what a stranger said stand in a text, in their order."""
    words = text.lower().split()
    known = " ".join(" ".join(said).lower().split())
    return any(" ".join(words[place : place + 3]) in known for place in range(len(words) - 2))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


# What people write who need a redactor by Friday.
FLOOR = [
    re.compile(pattern)
    for pattern in (
        r"sk-[A-Za-z0-9_-]{20,}", r"gh[pousr]_[A-Za-z0-9]{36}", r"AKIA[0-9A-Z]{16}", r"AIza[0-9A-Za-z_-]{35}",
        r"xox[baprs]-[0-9A-Za-z-]{10,}", r"eyJ[\w-]+\.[\w-]+\.[\w-]+", r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
        r"(?i)(?:password|passwd|pwd)\s*[:=]\s*\S+", r"(?i)(?:api[_-]?key|token|secret)\s*[:=]\s*\S+",
        r"(?i)bearer\s+[\w.-]+", r"[\w.+-]+@[\w-]+\.[\w.-]+", r"\b(?:\d[ -]?){13,16}\b",
    )
]  # fmt: skip


def _floor(text: str) -> str:
    for pattern in FLOOR:
        text = pattern.sub("[redacted]", text)
    return text


def _cost(rows: list[dict[str, Any]]) -> None:
    redactor = Redactor()
    texts = [_text(row["text_b64"]) for row in rows]
    calls = list(_calls())
    corpora = {
        "rows": texts,
        "rows of 200 bytes and more": [text for text in texts if len(text) >= 200],
        "rows in blocks of 4 KB": _blocks(iter(texts)),
        "recorded calls, 200 bytes +": [text for text in calls if len(text) >= 200][:800],
        "recorded calls in 4 KB": _blocks(iter(calls)),
    }
    print(f"{'us per KB, median':<30}{'redact':>18}{'12 regexes':>12}{'ratio':>7}{'clean':>8}")
    for name, blocks in corpora.items():
        steps: tuple[Callable[[str], object], ...] = (redactor.text, _floor, sanitize)
        for text in blocks[:50]:
            redactor.text(text)  # compiled by now, as in any process that has redacted before
        taken: list[list[float]] = [[], [], []]
        for text in blocks:  # one beside the other, so that what else the machine does meets them alike
            for place, step in enumerate(steps):
                taken[place].append(_seconds(step, text) * 1e6 / (len(text) / 1024))
        redact, floor, shown = map(statistics.median, taken)
        print(f"{name:<30}{redact:>18.0f}{floor:>12.0f}{redact / floor:>7.2f}{shown:>8.0f}")
        if name == "rows":
            _promise("redaction of a row, median", redact, " us per KB", most=150)
    print()
    print(f"{'us a text':<30}{'redact':>18}{'12 regexes':>12}")
    for text in ("ok", "No such file or directory.", "The search found 12 of 40 files in src/app, none newer."):
        figures = [min(_seconds(step, text) for _ in range(200)) * 1e6 for step in (redactor.text, _floor)]
        print(f"{len(text):>3} characters, nothing found {figures[0]:>18.1f}{figures[1]:>12.1f}")
    print()
    print(f"{'ms per KB, hostile text':<30}{'redact':>18}{'clean':>9}{'quote':>9}")
    worst: dict[str, tuple[float, float, float]] = {}
    for name, text in _hostile().items():
        kb = min(len(text), 10_240) / 1024  # the rest is cut before it is read
        # Of the processor's time: these take so long that somebody else's turn comes between.
        first, second, third = (
            _seconds(step, text, time.process_time) * 1e3 / kb for step in (redactor.text, sanitize, quote_untrusted)
        )
        worst[name] = (first, second, third)
    for name, figures_ in sorted(worst.items(), key=lambda one: -max(one[1]))[:8]:
        print(f"{name:<30}{figures_[0]:>18.2f}{figures_[1]:>9.2f}{figures_[2]:>9.2f}")
    _promise("redaction of the worst hostile text", max(one[0] for one in worst.values()), " ms per KB", most=2)
    _promise("showing the worst hostile text", max(map(max, worst.values())), " ms per KB", most=2)


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


def _seconds(step: Callable[[str], object], text: str, clock: Callable[[], float] = time.perf_counter) -> float:
    """The best of three goes, less what the clock itself takes."""
    best = own = math.inf
    for _ in range(3):
        start = clock()
        step(text)
        end = clock()
        best, own = min(best, end - start), min(own, clock() - end)
    return max(0.0, best - own)


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
        "variables": 'variable "key" {default = "a', "ports": ":5432:a:b:", "query": "https://a/?b=",
        "spaces": " ", "brackets": "(", "marks": "[said by ", "cookies": "cookie: a=", "names of tokens": "token ",
    }  # fmt: skip
    texts = {name: (piece * (16384 // len(piece) + 1))[:16384] for name, piece in pieces.items()}
    texts["base64 image"] = "data:image/png;base64," + "".join(draw.choice(base64ish) for _ in range(16362))
    texts["long hex"] = "".join(draw.choice("0123456789abcdef") for _ in range(16384))
    texts["long address"] = "https://a.example/" + "".join(draw.choice(base64ish + "%&=?") for _ in range(16366))
    texts["many secrets"] = " ".join(f"k{n}@a{n}.example.org" for n in range(900))[:16384]
    texts["many passwords"] = " ".join(f"password=Zq{n}x7{n} Zq{n}x7{n}!" for n in range(600))[:16384]
    texts["any characters"] = "".join(chr(draw.randrange(32, 0x3000)) for _ in range(16384))
    return texts


if __name__ == "__main__":
    main()
