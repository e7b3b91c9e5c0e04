"""Hints of a secret: the name of an argument, a header, a variable or a field, and the look of a value."""

from __future__ import annotations

import functools
import math

from mulligan.redaction.regex import LazyRegex

BARRIER = "\x1e"
"""Character between texts that are searched together. No finding, and no word that decides about one, crosses it."""

_WORD_REGEX = LazyRegex(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


# A name that ends in one of these holds a secret, whatever precedes it.
_SECRET_WORDS = word_set(
    """password passwd passwort passphrase passcode pwd pass pw secret secrets credential credentials creds
    authorization bearer cookie cookies jwt otp totp pin cvv cvc ssn iban mnemonic apikey apitoken authtoken accesstoken
    accesskey secretkey privatekey clientsecret connectionstring kennwort contrasena motdepasse psk storepass keypass
    requirepass masterauth"""
)
# Pairs of words that indicate a secret only together.
_SECRET_WORD_PAIRS = word_set(
    """api_key app_key access_key secret_key private_key encryption_key signing_key account_key master_key auth_key
    service_key shared_key storage_key license_key licence_key ssh_key deploy_key consumer_key session_key
    subscription_key integration_key ingest_key write_key admin_key server_key root_key user_key hmac_key aes_key
    connection_string card_number security_code account_number routing_number tax_id social_security
    national_id passport_number recovery_code backup_code seed_phrase access_code verification_code basic_auth
    proxy_auth http_auth x_auth"""
)
# Words before "token" that make it a list cursor or a text token.
CURSORS = tuple(
    """next page previous prev continuation cursor sync start starting resume pagination scroll skip stop pad eos bos
    mask unk end begin max min num per total first last special image new old each one""".split()
)
VALUE_FORM_WORDS = word_set("base value val str string text raw plain plaintext env header base64 b64 hash")
"""Words after a secret's name that do not change its meaning."""

STAGES = word_set("prod production dev development staging stage live sandbox qa uat old new v")
"""Words after a secret's name that say which one it is: `DB_PASSWORD_PROD`, `API_KEY_V2`."""

NUMERIC_KINDS = word_set(
    """pin otp totp cvv cvc ssn passcode password passwd pwd pass card_number account_number routing_number tax_id
    national_id social_security security_code verification_code access_code recovery_code backup_code"""
)
"""Kinds whose values may be numbers. A number under any other name is a count."""
SECRET_NAME_ENDINGS = frozenset((*_SECRET_WORDS, *_SECRET_WORD_PAIRS, "token"))
"""Endings of names that indicate a secret, optionally followed by a word of `VALUE_FORM_WORDS`."""

PLAIN_KEYS = word_set(
    """primary foreign sort partition cache public row map lookup idempotency object registry shift hot hash group join
    unique index dict json sorted range translation message event record bucket file s3 config setting option context
    property dedupe dedup composite candidate missing invalid unknown unexpected duplicate required the a an no this
    that each every by arrow enter escape any which wrong"""
)
"""Words before "key" that make it no credential."""

NO_VALUES = word_set(
    """string str text required optional password secret token value null none true false undefined nil any int number
    bool object array failed invalid incorrect expired missing wrong error not unknown denied empty hidden protected
    encrypted hashed disabled enabled default yes no basic bearer key api_key apikey type field input unauthorized
    rejected authentication authorization must cannot should is was has from with for and the user username login
    passwd pwd pass admin root prompt interactive accepted changed reset aws4-hmac-sha256"""
)
"""Words beside the name of a secret that are no values."""


def split_name(name: str) -> list[str]:
    """Return the words of a name in lower case. `userPassword2`, `user-password` and `USER_PASSWORD` are equal."""
    parts = [word[0].lower() for word in _WORD_REGEX.finditer(name[-80:])]
    while parts and parts[-1].isdigit():
        parts.pop()
    return parts


@functools.lru_cache(maxsize=4096)  # the same few names occur in every call
def secret_kind(name: str) -> str:
    """Return the kind of secret that a name indicates, such as `api_key`, or an empty string.

    `access_token` indicates one. `max_tokens`, `token_count`, `next_page_token` and `password_policy` do not.
    """
    parts = split_name(name)
    if not parts:
        return ""
    last, pair = parts[-1], "_".join(parts[-2:])
    if last in _SECRET_WORDS:
        return last
    if last == "token":
        return "" if parts[-2:-1] and parts[-2] in CURSORS else "token"
    if last in VALUE_FORM_WORDS or last in STAGES:
        return secret_kind("_".join(parts[:-1]))
    if pair in _SECRET_WORD_PAIRS:
        return pair
    if pair.replace("_", "") in _SECRET_WORDS:
        return pair.replace("_", "")
    return "auth" if parts == ["auth"] else ""


# Values: generated by a machine, chosen by a person, or a placeholder

_STAND_INS = (
    "example", "placeholder", "redacted", "change", "dummy", "insert", "xxxx", "***", "####", "...", "\u2026", "\u2022",
    "_here", "todo", "-my-", "your",
)  # fmt: skip
_CLOSER = LazyRegex(r"change(?!.?me)|(?<![_-])your(?![_-])")
_OPENINGS = ("<", "{", "[", "(", "@", "%", "${", "$(", "my_", "my-")
_DIGITS = frozenset("0123456789")
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_BITS = [0.0, *(n * math.log2(n) for n in range(1, 65))]
_CODE = LazyRegex(
    r"[A-Za-z_][A-Za-z_]*(?:\.[A-Za-z_][A-Za-z_\d]*)+|[A-Z][A-Z]*(?:_[A-Z]+)+|[a-z]+(?:_[a-z]+)+|[a-z]+(?:-[a-z]+)+"
    r"|[a-z]+(?:[A-Z][a-z]+)+|[A-Z][A-Za-z]+(?:-[A-Za-z]+)+|[A-Z][a-z]+(?:[A-Z][a-z]+)+|(?:https?:/)?(?:\.{0,2}|~)/\S*|[\w.-]+(?:/[\w.-]+)+\.[a-z\d]{1,8}|0x[0-9a-f]{1,8}|v?\d+(?:\.\d+)+"
)
# Long filler values that people type. Generated values do not contain eight letters in alphabetical order.
_SEQUENCES = (
    *("abcdefghijklmnopqrstuvwxyz"[start : start + 8] for start in range(19)),
    *("1234567890", "0123456789", "9876543210", "1234-1234", "qwertyuiop", "deadbeef"),
)


def is_sequential(value: str) -> bool:
    """Return whether a value contains a typed sequence: `klmnopqrst`, `1234567890`."""
    return any(map(value.lower().__contains__, _SEQUENCES))


def entropy(value: str) -> float:
    """Return the entropy in bits per character of the first 64 characters."""
    value = value[:64]
    size = len(value)
    return math.log2(size) - sum([_BITS[value.count(c)] for c in set(value)]) / size if size else 0.0


def _has_entropy(value: str, min_bits: float) -> bool:
    """Return whether the entropy is at least `min_bits`. For most values the number of distinct characters decides."""
    size, distinct_chars = min(len(value), 64), len(set(value[:64]))
    if distinct_chars <= 1:
        return min_bits <= 0
    if math.log2(distinct_chars) < min_bits:
        return False  # the maximum entropy for so many distinct characters is too low
    max_repeats = size - distinct_chars + 1
    return math.log2(size) - _BITS[max_repeats] / size >= min_bits or entropy(value) >= min_bits


def is_placeholder(value: str) -> bool:
    """Return whether a value is a placeholder: `xxxxxxxx`, `<token>`, `${TOKEN}`, `your_api_key`."""
    return _is_placeholder_text(value) or (len(value) >= 10 and not _has_entropy(value, 2.2))


def _is_placeholder_text(value: str) -> bool:
    lower_text = value.lower()
    if lower_text.startswith(_OPENINGS) or lower_text.endswith(("(", "{")) or not lower_text.strip("x*.#_-"):
        return True
    if value[:1] == "$" and value[1:].partition("/")[0].removeprefix("env:").isidentifier():  # a shell variable
        return True
    if not any(map(lower_text.__contains__, _STAND_INS)):
        return False
    return any(map(_CLOSER.sub("", lower_text).__contains__, _STAND_INS))


def is_low_entropy(value: str) -> bool:
    """Return whether a long value has too few distinct characters to be generated: `5555555dAAAAA7777`."""
    return len(value) >= 30 and not _has_entropy(value, 3.0)


def has_letters_and_digits(value: str) -> bool:
    """Return whether a value contains both letters and digits, as generated values do."""
    return not _DIGITS.isdisjoint(value) and not _LETTERS.isdisjoint(value)


def is_random(value: str, min_chars: int = 16) -> bool:
    """Return whether a value is long and has high entropy."""
    if len(value) < min_chars or not _has_entropy(value, 3.0) or _is_placeholder_text(value):
        return False
    return has_letters_and_digits(value) or (len(value) >= 24 and _has_entropy(value, 4.0) and not is_code(value))


def is_code(value: str) -> bool:
    """Return whether a value is an identifier, a path, a constant or a version."""
    return _CODE.fullmatch(value) is not None


def looks_like_password(value: str) -> bool:
    """Return whether a value resembles a password chosen by a person: a word with digits or punctuation."""
    return len(value) >= 6 and not value.isalpha() and any(c.isalpha() for c in value) and not is_code(value)


def is_covered(start: int, end: int, findings: list[tuple[str, int, int]]) -> bool:
    """Return whether a recent finding covers this span: checking a value costs more than finding it."""
    return any(a <= start and end <= b for _, a, b in findings[-4:]) if findings else False
