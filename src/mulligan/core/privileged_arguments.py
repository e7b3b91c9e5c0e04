"""Privileged arguments: names that mulligan never changes, adds or shows automatically (SAFETY S2)."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection

from mulligan.redaction.regex import LazyRegex

PRIVILEGED_WORDS: dict[str, str] = {
    "identity": (
        "user username userid uid account accountid tenant tenantid owner ownerid customer customerid client clientid "
        "org organization organisation member assignee approver reviewer employee patient subscriber"
    ),
    "authority": (
        "admin root sudo role roles scope scopes permission permissions privilege privileges grant force confirm "
        "confirmed approve approved dry dryrun verify verified auth oauth authorization token secret password passwd "
        "credential credentials key apikey override bypass unsafe insecure trust trusted"
    ),
    "money": (
        "amount price total payment pay currency iban card fee discount refund balance credit debit salary wage bonus "
        "commission tax deposit donation bid bet wager stake tip cent euro dollar usd eur gbp chf jpy pence penny yen "
        "coin satoshi wei"
    ),
    "destination": (
        "to cc bcc recipient receiver payee beneficiary email mail phone address path file filename filepath dir "
        "directory folder url uri host hostname domain endpoint webhook port bucket target destination dest branch "
        "remote"
    ),
    "code": (
        "header headers command cmd commands script code sql query_sql statement shell exec env environment body html "
        "template expression eval args argv patch diff"
    ),
}
"""Words in argument names that mark them as privileged, by category."""

_ALL_PRIVILEGED_WORDS = frozenset(word for words in PRIVILEGED_WORDS.values() for word in words.split())
_IDENTITY_OR_MONEY = frozenset(f"{PRIVILEGED_WORDS['identity']} {PRIVILEGED_WORDS['money']}".split())
_POSITION_WORDS = frozenset("page next continuation cursor sync".split())
"""Words that make a token the position in a list of results."""
_PLURALS = (("s", ""), ("es", ""), ("ies", "y"))
_QUANTITY_WORDS = frozenset({"tokens"})
"""Plurals that usually are quantities: `max_tokens` limits a response and grants no access."""


MAX_NAME_CHARS = 200
"""Characters of an argument name that are read. Longer names count as privileged."""

_WORD_BOUNDARY = LazyRegex(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[A-Za-z])(?=[0-9])")


def split_words(name: str) -> list[str]:
    """Split a name into words: `accountId`, `account-id`, `ACCOUNTId` and `account_id2` all contain "account"."""
    return [word for word in _WORD_BOUNDARY.split(unicodedata.normalize("NFKC", name)) if word]


def is_privileged(path: str, declared: Collection[str] = (), unprivileged: Collection[str] = ()) -> bool:
    """Return whether an argument names identity, authority, money, destination or code, or is declared privileged."""
    parts = path.split(".")
    if any(part in unprivileged for part in (path, *parts)):
        return False
    if any(part in declared for part in (path, *parts)):
        return True
    words = [word.casefold() for word in split_words(path)]
    if words[-1:] == ["token"] and not _POSITION_WORDS.isdisjoint(words):
        return False
    return len(path) > MAX_NAME_CHARS or any(_is_marked(word, _ALL_PRIVILEGED_WORDS) for word in words)


def names_identity_or_money(path: str) -> bool:
    """Return whether an argument's name refers to identity or money."""
    return any(_is_marked(word.casefold(), _IDENTITY_OR_MONEY) for word in split_words(path[:MAX_NAME_CHARS]))


def _is_marked(word: str, marked: Collection[str]) -> bool:
    """Return whether a word, or its singular, is one of the marked words."""
    if word in marked or word in _QUANTITY_WORDS or len(word) < 4:
        return word in marked
    return any(word.endswith(end) and word.removesuffix(end) + singular_end in marked for end, singular_end in _PLURALS)
