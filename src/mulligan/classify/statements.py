"""Whether a short text states that the call failed, by its words, although no rule knows the sentence.

A statement is a few sentences without data. Words of failure count, and so do words about the call and its service.
Words of records, headings and successes count against it. What a text quotes does not count.
"""

from __future__ import annotations

import functools
import re

from mulligan.classify.rules import compile_rule_pattern, read_pattern, read_sections
from mulligan.classify.rules.words import is_english

MAX_STATEMENT_CHARS = 320
MAX_STATEMENT_LINES = 4
MAX_SENTENCES = 3
"""As many sentences are a story, unless the first words name an error."""
MIN_SCORE = 3
"""Score of a statement: its words of failure and about the call, less those against it."""
MIN_FILE_SCORE = 4
"""The same for tools whose results may be any text."""
MIN_REPORT_SCORE = 2
"""The same for tools that change something, whose results report whether they did."""
MIN_FOREIGN_SPACES = 3
"""Spaces of a text without English words that may be a sentence in another language."""
FAILURE_PHRASES = (
    "not ", "n't ", "nothing ", "timed out", "timeout", "quota", "unavailable", "invalid", "unable", "expired",
    "unknown", "missing", "no longer", "you ", "in to ", "down", "offline", "fail", "denied", "ended", "locked",
    "already", "stop", "exceed", "limit", "requir", "must ", "refus", "reject", "block", "again", "too ", "full",
    "no ", "err", "busy", "closed", "used ", "wrong", "conflict", "first", "crash", "died",
    "kill", "halt", "stuck", "frozen", "interrupt",
    "at most", "only", "need", "wait", "slow", "many", "allowed", "permi", "auth", "expect", "should", "throttl", "mal",
    "mis", "corrupt", "broken", "revoke", "violat", "illegal", "stale", "out of", "outside", "beyond", "able",
    "discard", "declined", "lost", "removed", "pending", "hold", "never", "none", "exhaust", "restrict",
    "prohibit", "consum", "reach",
    "consider", "omitted", "gone", "empty",
)  # fmt: skip
"""Phrases of which one is in nearly every short sentence that says in English what failed."""
_LABEL = r"(?:\A|[.;,]\s+|\n\s*)@?[\w-]{1,20}(?: [\w-]{1,20}){0,3}: "
"""A name before a value. Two of them are data, unless the first one names an error."""
_QUOTATION = r"""(?:["«“„`‘「『]|(?<!\w)')[^\n]{1,200}?(?:["»”“`’」』]|'(?!\w))"""  # noqa: RUF001 - quotation marks
_PROGRAM = r"\A(?-i:[a-z])[\w.-]{1,40}: "
"""The name of a tool or a program before its report."""


def may_state_failure(text: str) -> bool:
    """Return whether a text has a word of a failure, or is in another language. Cheap: each short result is checked."""
    if not text.isascii():
        return True
    sentence = text.lower()
    for phrase in FAILURE_PHRASES:
        if phrase in sentence:
            return True
    return text.count(" ") >= MIN_FOREIGN_SPACES and not is_english(text)


def states_failure(text: str, min_score: int = MIN_SCORE) -> bool:
    """Return whether a text is one statement that says that the call failed."""
    return score_statement(text) >= min_score


@functools.lru_cache(maxsize=512)
def score_statement(text: str) -> int:
    """Return how clearly a short text states that the call failed. Cached: tools return the same texts again."""
    statement = text.strip() if len(text) <= MAX_STATEMENT_CHARS and may_state_failure(text) else ""
    if not statement or statement.count("\n") >= MAX_STATEMENT_LINES:
        return 0
    statement = compile_rule_pattern(_QUOTATION).sub("...", statement)
    sections = (_compile_phrases(section, r"\b") for section in ("failure", "weak"))
    if is_english(statement) and not any(pattern.search(statement) for pattern in sections):
        return 0
    is_opened = _has("openings", statement)
    is_program = compile_rule_pattern(_PROGRAM).match(statement) is not None
    names_error = is_opened or (is_program and "_" in statement.partition(":")[0])
    if not names_error and len(compile_rule_pattern(_LABEL).findall(statement)) > 1:
        return 0
    is_story = not is_opened and len(compile_rule_pattern(r"[.!?](?:\s|\Z)").findall(statement)) >= MAX_SENTENCES
    if is_story or _has("data", statement):
        return 0
    statement = compile_rule_pattern(read_pattern("statements", "asides")).sub(" ", statement)
    failures = _count("failure", statement)
    if not failures and not is_english(statement):
        failures = 2 * _count("failure in other languages", statement)
        failures += 2 * _count("failure in languages without spaces", statement, boundary="")
    elif statement.isascii() and not _has("predicates", statement):
        return 0  # a heading
    score = 2 * min(failures, 2) + min(_count("weak", statement), 3)
    if not score:
        return 0
    score += min(_count("call", statement), 2) + (is_opened or is_program)
    return score - 2 * _count("record", statement)


def _has(section: str, text: str) -> bool:
    return compile_rule_pattern(read_pattern("statements", section)).search(text) is not None


def _count(section: str, text: str, boundary: str = r"\b") -> int:
    """Return how many different phrases of a section a text has."""
    return len({match.group().lower() for match in _compile_phrases(section, boundary).finditer(text)})


@functools.cache
def _compile_phrases(section: str, boundary: str) -> re.Pattern[str]:
    """Compile a section of phrases that commas separate. Phrases with the same first letter are tried together."""
    by_letter: dict[str, list[str]] = {}
    for phrase in re.split(r",?\s*\n|, ", read_sections("statements")[section].strip()):
        letter = phrase[0] if re.match(r"[a-z](?![?*+{])", phrase) else ""
        by_letter.setdefault(letter, []).append(phrase[len(letter) :])
    groups = (f"{letter}(?:{'|'.join(phrases)})" for letter, phrases in by_letter.items())
    return compile_rule_pattern(f"{boundary}(?:{'|'.join(groups)}){boundary}")
