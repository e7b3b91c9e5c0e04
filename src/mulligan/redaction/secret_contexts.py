"""Detection of secrets by their context: a name, a header, a URL, a flag, a sentence."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import NamedTuple

from mulligan.redaction import secret_hints as hints
from mulligan.redaction.regex import LazyRegex
from mulligan.redaction.secret_hints import BARRIER, word_set

# Words between a name and its value.
_FILLERS = word_set("is was are provided supplied given used value number header found received")
# Names that indicate a secret only if the value looks like one.
_LOOSE = word_set(
    "key login access_id accessid signature sig session sid sso salt seed license licence dsn pat auth sas"
)
_DIGITS = word_set("pin cvv cvc")
_SIGNED = word_set("signature sig sas")
_PLAIN_KEYS = word_set(
    """primary foreign sort partition cache public row map lookup idempotency object registry shift hot hash group join
    unique index dict json sorted range translation message event record bucket file s3 config setting option context
    property dedupe dedup composite candidate missing invalid unknown unexpected duplicate required the a an no this
    that each every by arrow enter escape any which wrong"""
)
_PASSWORD_KINDS = word_set(
    "password passwd passwort passphrase passcode pwd pass pw kennwort contrasena motdepasse credential"
)
_NO_VALUES = word_set(
    """string str text required optional password secret token value null none true false undefined nil any int number
    bool object array failed invalid incorrect expired missing wrong error not unknown denied empty hidden protected
    encrypted hashed disabled enabled default yes no basic bearer key api_key apikey type field input unauthorized
    rejected authentication authorization must cannot should is was has from with for and the user username login
    passwd pwd pass admin root prompt interactive accepted changed reset"""
)


def _reversed_pattern(known_words: frozenset[str]) -> str:
    """Return a pattern for the reversed words, grouped by first letter, for matching a text from its end."""
    endings_by_letter: dict[str, list[str]] = {}
    for word in sorted(known_words):
        endings_by_letter.setdefault(word[-1], []).append(word[-2::-1].replace("_", r"[_.\- ]?"))
    return "|".join(f"{first}(?:{'|'.join(endings)})" for first, endings in endings_by_letter.items())


class _NameMeaning(NamedTuple):
    """What a name says about its value. If that is uncertain, the value must look like a secret too."""

    kind: str
    is_sure: bool


@functools.lru_cache(maxsize=4096)
def _interpret_name(phrase: str) -> _NameMeaning | None:
    parts = phrase.split()
    while len(parts) > 1 and parts[-1].lower() in _FILLERS:
        parts.pop()
    name = "_".join(parts[-3:])
    if kind := hints.secret_kind(name):
        return _NameMeaning(kind, kind not in ("token", "auth"))
    words = hints.split_name(name)
    for kind in ("_".join(words[-1:]), "_".join(words[-2:])):
        if kind in _LOOSE and not (kind == "key" and (len(words) < 2 or words[-2] in _PLAIN_KEYS)):
            return _NameMeaning(kind, False)
    return None


def _is_value(meaning: _NameMeaning, value: str, is_quoted: bool, is_assigned: bool) -> bool:
    """Return whether the value beside a secret's name is the secret itself and not a word about it."""
    kind = meaning.kind
    if len(value) < 3 or value.lower() in _NO_VALUES or hints.is_placeholder(value):
        return False
    if kind not in _PASSWORD_KINDS and hints.is_sequential(value):
        return False
    if value.isdigit():
        return kind in hints.NUMERIC_KINDS
    if kind in _DIGITS:
        return False
    if kind in _SIGNED and not is_assigned:  # a header: it is valid only for the call it signed
        return False
    if not meaning.is_sure:
        return hints.is_random(value, 12) and not hints.is_code(value)
    if kind in _PASSWORD_KINDS:
        if is_quoted:
            return not value.endswith((" ", ":")) and value.count(" ") <= 4
        return (is_assigned and not hints.is_code(value)) or hints.looks_like_password(value)
    min_chars = 12 if kind.endswith("key") else 6
    return hints.is_random(value, max(10, min_chars)) or (
        len(value) >= min_chars and hints.has_letters_and_digits(value) and not hints.is_code(value)
    )


# A separator, preceded by the end of a name that may indicate a secret. The text is matched backwards: the end of a
# name is decisive, and most separators fail after one letter. An equals sign is searched as a colon: a pattern with a
# fixed first character is twice as fast.
_NAMED_VALUE = LazyRegex(
    r":(?=[a-z0-9_\"'\])`\\? ])[ \t\r\n\"'\])`\\?]{0,8}+(?:[0-9]{1,4}[_.\- ]?|)"
    rf"(?:{_reversed_pattern(hints.SECRET_NAME_ENDINGS | hints.VALUE_FORM_WORDS | _LOOSE | _FILLERS)})"
)
_SEPARATOR = LazyRegex(r"[:=](?!//|:[^:=])[:=]{0,3}>?")
_BEFORE = LazyRegex(r"[\s\"'\])`\\?]{0,8}+([\w.\- ]{1,56}+)")
_VALUE = LazyRegex(
    r"[ \t]{0,8}+(?:[|>]-?)?(?:\r?\n[ \t]{1,16}+)?(?:\\{0,3}(?P<quote>[\"'`])(?P<quoted>[^\"'`\n\\]{1,500}+)"
    r"|(?P<bare>[^\s\"'`,;&<>(){}\[\]|\\]{1,500}+))"
)
_SCHEME = LazyRegex(r"\s{0,4}+\\?[\"']?(?i:bearer|basic|token|apikey|api-key|negotiate|key|oauth|jwt|bot)[ =:]{1,3}")
_COOKIE = LazyRegex(r"=([^\s;\"',=]{6,4000}+)")
_URL = LazyRegex(r"://([^\s:/@\"'<>]{0,128}+):([^\s/\"'<>`]{1,256})@(?=[\w\[])|://([\w.~%+-]{16,256}+):?@(?=[\w\[])")
_ELEMENT = LazyRegex(r">(?<=[\w\"'].)([^<>\s]{4,200}+)</")
_FLAG = LazyRegex(r"-(?<![A-Za-z0-9_-].)-?([A-Za-z][A-Za-z0-9_-]{1,40}+)[ \t=]{1,2}[\"']?([^\s\"'`]{3,500}+)")
_PAIRED = LazyRegex(
    r"[\s\"'\\]{1,12}+,?(?:[\"'\\]{1,3}([\w .-]{1,60}+)[\"'\\]{1,3}|([\w.-]{1,60}+))"
    r"\s{0,2}[:=]\s{0,2}[\"'\\]{0,3}(?:eman|yek)"
)
# A name, words of a sentence, a separator, and a value, quoted or not.
_SENTENCE = LazyRegex(
    r"(?i:(?P<name>pass(?:word|phrase|code|wd)|pwd|secret|token|key|credential|identified by)s?"
    r"(?P<words>(?:[ \t]{1,3}(?:is|was|are|be|should|(?:for|of) [\w.@-]{1,40}+|to|the|user|account|provided|using|with"
    r"|set|now|value|new|old|i|we|you|used|use|sent|got|have|back|[\w.]{1,20}+@\S{1,60})){0,4}))"
    r"(?P<sign>[ \t:=]{1,3}(?:(?:->?|=>|[\u2013\u2014\u2192])[ \t]{1,3})?\(?(?:value: )?|,[ \t](?=[\"'`]))"
    r"(?:[\"'`\u201c\u2018](?P<quoted>[^\"'`\n\u201c\u201d\u2018\u2019]{4,200}+)[\"'`\u201d\u2019]"
    r"|[\"'`]?(?P<bare>[^\s\"'`()\u201c\u201d\u2018\u2019]{4,200}+))"
)
_VERB = LazyRegex(r"(?i)\b(?:is|was|are|be|to|used|use|set)\b")
_CLASS_SWITCH = LazyRegex(r"[a-z](?=[A-Z0-9])|[A-Z](?=[0-9])|[0-9](?=[A-Za-z])")
_SLUG = LazyRegex(
    r"(?=[a-z\d_.-]*?(?<![a-z\d])[a-z]{3,}(?![a-z\d]))[a-z\d]+(?:[-_.][a-z\d]+)+"  # db-creds-v2
    r"|[a-z]+\d*(?:[-_.][a-z]*\d*)*|\d+-?[a-z]+(?:-[a-z]+)*"  # oauth2, 32-character
)
_OWNED_SECRETS = ("client", "consumer", "shared", "signing", "webhook", "app", "application")
"""Words before "secret" that make it a credential, even if its value is a plain word."""
_TOKEN_KINDS = tuple("refresh access auth api bearer session oauth personal service bot app id deploy csrf".split())
"""Words before "token" that make it a credential."""
_KEY_KINDS = tuple(
    """api access secret encryption signing private account master auth service shared license licence deploy
    session subscription integration admin hmac""".split()
)
"""Words before "key" that make it a credential."""
_SYNTAX_WORDS = ("unexpected", "unrecognized", "unknown", "illegal", "expected", "undefined", "reserved")
"""Words before "token" that make it a part of a program."""
_CODE = LazyRegex(r"(otp|passcode|pin|code)(?:[ \t]+(?:is|was|of))?[ \t:=#]{1,3}(\d{4,8})(?![\w.:/-])")
_CODES = ("verification ", "security ", "recovery ", "backup ", "access ", "login ", "one-time ")
_SENTENCE_WORDS = ("pass", "pwd", "secret", "token", "key", "credential", "identified by")


def _is_typed(value: str) -> bool:
    return hints.looks_like_password(value) and not hints.is_placeholder(value)


def _is_bearer(value: str) -> bool:
    return hints.is_random(value, 8) and not hints.is_code(value)


def _is_user_and_password(value: str) -> bool:
    import binascii  # lazy: needed for texts with "basic" only

    try:
        user, colon, password = binascii.a2b_base64(value + "=" * (-len(value) % 4)).partition(b":")
    except binascii.Error:
        return False
    return bool(colon and password) and (user + password).isascii() and bytes(user).decode("ascii").isprintable()


class _Surrounding:
    """Words around a secret: a pattern of what precedes them, the words, and what follows, with the value as a group.

    A search for the words spares the pattern for most texts.
    """

    __slots__ = ("is_secret", "kind", "regex", "words")

    def __init__(
        self, words: str, after: str, kind: str, is_secret: Callable[[str], bool] = _is_typed, before: str = ""
    ) -> None:
        self.words, self.kind, self.is_secret = tuple(words.split("|")), kind, is_secret
        self.regex = LazyRegex(f"{before}(?i:{'|'.join(map(re.escape, self.words))}){after}", re.ASCII)


_FLAGS = (
    _Surrounding(
        "-u",
        r"(?:ser)?[ =]?[\"']?[^\s:\"']{1,64}+:([^\s\"']{3,200}+)",
        "password",
        lambda value: not hints.is_placeholder(value),
        before=r"(?<![\w-])-?(?:-proxy)?",
    ),
    _Surrounding(
        "mysql|mariadb|sshpass|redis-cli|mongo|docker login|twine upload",
        r"[^\n|;&]{0,200}?[ \t]-[pa][ \t]?[\"']?([^\s\"'-][^\s\"']{3,100}+)",
        "password",
    ),
)
_AUTHORIZATIONS = (
    _Surrounding("bearer", r"[ \t=:]{1,3}[\"']?([\w.~+/=-]{8,4000}+)", "bearer", _is_bearer),
    _Surrounding("basic", r"[ \t]{1,3}[\"']?([A-Za-z0-9+/]{8,400}+={0,2})", "basic_auth", _is_user_and_password),
)
# A line of .pgpass, an Oracle thin URL, a Terraform variable, a setting of Bundler: all with a colon or a sign.
_ASSIGNMENTS = (
    _Surrounding(":5432:|:5433:|:6432:|:*:", r"[\w*-]{1,63}+:[\w*-]{1,63}+:([^\s:\"']{4,100}+)(?=\s|\Z)", "password"),
    _Surrounding(":thin:", r"[\w.$-]{1,60}+/([^\s@/\"']{3,100}+)@", "password"),
    _Surrounding(
        'variable "',
        rf"[\w-]{{0,60}}?(?:password|secret|token|key)\"\s{{0,3}}\{{[^{{}}{BARRIER}]{{0,300}}?\bdefault\s{{0,20}}="
        r"\s{0,3}\"([^\"\n$]{4,200}+)\"",
        "password",
    ),
    _Surrounding(
        "bundle_", r"[A-Z_]{3,60}[\"']?\s{0,3}[:=]\s{0,3}[\"']?([^\s\"':]{1,100}+:[^\s\"']{1,100}+)", "password", bool
    ),
)
_ASSIGNMENT_WORDS = tuple(word for rule in _ASSIGNMENTS for word in rule.words)


def find_by_context(text: str, lower_text: str, has_codes: bool, findings: list[tuple[str, int, int]]) -> None:
    """Add the spans of secrets that are identified by their context.

    `lower_text` is the text in lower case with the same length. `has_codes` means that it contains four consecutive
    digits.
    """
    if ":" in text or "=" in text:
        if "@" in text and "://" in text:
            _find_url_credentials(text, findings)
        backwards = lower_text[::-1].replace("=", ":")
        if _NAMED_VALUE.search(backwards):  # a search is faster than an iterator, and most texts have no hit
            hits = _NAMED_VALUE.finditer(backwards)
            _find_assigned(text, sorted([len(text) - 1 - hit.start() for hit in hits]), findings)
        for word in _ASSIGNMENT_WORDS:
            if word in lower_text:
                _find_surrounded(text, lower_text, _ASSIGNMENTS, findings)
                break
    # One character is found faster than two, and is usually absent.
    if "-" in text and (" -" in text or "-u" in text or "\t-" in text):
        for hit in _FLAG.finditer(text):
            meaning = _interpret_name(hit[1])
            if meaning and _is_value(meaning, hit[2], False, True):
                findings.append((meaning.kind, *hit.span(2)))
        _find_surrounded(text, lower_text, _FLAGS, findings)
    if "<" in text and "</" in text:
        for hit in _ELEMENT.finditer(text):
            meaning = _interpret_name(_name_before(text, hit.start()))
            if meaning and _is_value(meaning, hit[1], True, True):
                findings.append((meaning.kind, *hit.span(1)))
    if "bearer" in lower_text or "basic" in lower_text:
        _find_surrounded(text, lower_text, _AUTHORIZATIONS, findings)
    if has_codes and ("code" in lower_text or "pin" in lower_text or "otp" in lower_text):
        _find_codes(lower_text, findings)
    # Parts of all words that begin a sentence, some shared: "access key", "credential", "identified by".
    if (
        "key" in lower_text
        or "token" in lower_text
        or "pass" in lower_text
        or "secret" in lower_text
        or "enti" in lower_text
        or "pwd" in lower_text
    ):
        _find_in_sentences(text, lower_text, findings)


def _name_before(text: str, start: int) -> str:
    """Return the name that ends before an index. Matched backwards, so that only the adjacent name is read."""
    before = _BEFORE.match(text[max(0, start - 64) : start][::-1])
    return before[1][::-1] if before else ""


def _find_surrounded(
    text: str, lower_text: str, rules: tuple[_Surrounding, ...], findings: list[tuple[str, int, int]]
) -> None:
    for rule in rules:
        for word in rule.words:
            if word in lower_text:
                findings += [
                    (rule.kind, *hit.span(1))
                    for hit in rule.regex.finditer(text)
                    if not _is_covered(*hit.span(1), findings) and rule.is_secret(hit[1])
                ]
                break


def _find_in_sentences(text: str, lower_text: str, findings: list[tuple[str, int, int]]) -> None:
    for word in _SENTENCE_WORDS:
        position = lower_text.find(word)
        while position >= 0:
            before = lower_text[max(0, position - 16) : position].rstrip("_- ")
            if word != "key" or before.endswith(_KEY_KINDS):
                sentence = _SENTENCE.match(text, position)
                # Not a list cursor, `nextPageToken`, and not a token of a parser.
                if sentence and not (word == "token" and before.endswith((*hints.CURSORS, *_SYNTAX_WORDS))):
                    _check_sentence(before, sentence, findings)
            position = lower_text.find(word, position + len(word))


def _check_sentence(before: str, sentence: re.Match[str], findings: list[tuple[str, int, int]]) -> None:
    """Add the value of a sentence such as "the client secret is '...'", if it is a secret."""
    word, group = sentence["name"].lower(), "quoted" if sentence["quoted"] else "bare"
    first = sentence.start(group)
    value = sentence[group].rstrip(".,;:!?")
    kind = hints.secret_kind(f"{before.rpartition(' ')[2]}_{word}") or hints.secret_kind(word) or "password"
    is_named = word in ("key", "secret") or before.endswith(_TOKEN_KINDS)
    is_owned = word == "secret" and before.endswith(_OWNED_SECRETS)
    is_stated = bool(_VERB.search(sentence["words"])) or not sentence["sign"].isspace()
    if not sentence["words"] and is_stated and sentence.string[sentence.start() - 1 : sentence.start()] == "_":
        is_named = is_stated = False  # `API_KEY: ...` is no sentence: `_find_assigned` decides
    if not _is_covered(first, first + len(value), findings) and _is_sentence_secret(
        word, value, is_named=is_named, is_owned=is_owned, is_stated=is_stated, is_quoted=group == "quoted"
    ):
        findings.append((kind, first, first + len(value)))


def _is_covered(start: int, end: int, findings: list[tuple[str, int, int]]) -> bool:
    """Return whether a recent finding covers this span: checking a value costs more than finding it."""
    return any(a <= start and end <= b for _, a, b in findings[-4:]) if findings else False


def _find_codes(lower_text: str, findings: list[tuple[str, int, int]]) -> None:
    for code in _CODE.finditer(lower_text):
        before = lower_text[max(0, code.start() - 16) : code.start()]
        if before.endswith(_CODES) if code[1] == "code" else not before[-1:].isalnum():
            findings.append((code[1], *code.span(2)))


def _find_assigned(text: str, positions: list[int], findings: list[tuple[str, int, int]]) -> None:
    skip_until = 0
    for start in positions:
        if start < skip_until:  # inside cookies that were already read
            continue
        separator = _SEPARATOR.match(text, start)
        if separator is None:
            continue
        end = separator.end()
        name = _name_before(text, start)
        if not name or name.startswith("redacted "):  # our own placeholder
            continue
        meaning = _interpret_name(name)
        if meaning is None and name.endswith("value"):
            meaning = _interpret_paired_name(text[max(0, start - 140) : start])
        if meaning is None:
            continue
        if meaning.kind in ("cookie", "cookies"):
            line = text.find("\n", end, end + 4000)
            skip_until = line if line > 0 else min(len(text), end + 4000)
            findings += [
                ("cookie", *cookie.span(1))
                for cookie in _COOKIE.finditer(text, end, skip_until)
                if hints.is_random(cookie[1], 8)
            ]
            continue
        if scheme := _SCHEME.match(text, end):
            end = scheme.end()
        hit = _VALUE.match(text, end)
        if hit is None:
            continue
        group = "quoted" if hit["quote"] else "bare"
        value, (first, last) = hit[group], hit.span(group)
        if group == "bare":
            value = value.rstrip(".:!?")
            if text[last : last + 1] in ("(", "["):  # a call or an index: code that fetches the secret
                continue
        if _is_covered(first, first + len(value), findings):
            continue
        if _is_value(meaning, value, group == "quoted", text[start:end] != ":"):
            findings.append((meaning.kind, first, first + len(value)))


def _interpret_paired_name(before: str) -> _NameMeaning | None:
    """Interpret the name in the preceding field: `{"name": "DB_PASSWORD", "value": ...}`."""
    hit = _PAIRED.match(before.rstrip("\"'\\ ")[:-5][::-1])
    return _interpret_name((hit[1] or hit[2])[::-1]) if hit else None


def _find_url_credentials(text: str, findings: list[tuple[str, int, int]]) -> None:
    for hit in _URL.finditer(text):
        if hit[2] is None:
            if hints.is_random(hit[3]):
                findings.append(("url_credential", *hit.span(3)))
        elif hit[2].lower() not in _NO_VALUES and not hints.is_placeholder(hit[2]):
            # Include the user name: some services put the secret there.
            findings.append(("url_credential", hit.start(1), hit.end(2)))


def _is_sentence_secret(
    word: str, value: str, *, is_named: bool, is_owned: bool, is_stated: bool, is_quoted: bool
) -> bool:
    """Return whether the value in a sentence about a secret is the secret itself.

    `is_named` says which secret it is ("api key", "refresh token"), `is_owned` also whose ("client secret"), and
    `is_stated` that a verb or a sign precedes the value.
    """
    has_digit = any(map(str.isdigit, value))
    is_password = word[:3] in ("pas", "pwd", "ide")
    if len(value) < 24 and not has_digit:  # mostly a plain word
        return (is_password or is_owned) and is_quoted and is_stated and _is_chosen_word(value)
    if hints.is_placeholder(value) or hints.is_code(value) or (not is_password and hints.is_sequential(value)):
        return False
    if " " in value:
        return is_password and is_stated and value.count(" ") <= 4
    if hints.is_random(value):
        return True
    if is_password:
        return len(value) >= 6 and has_digit and (any(map(str.isalpha, value)) or not value.isalnum())
    if not (is_named or is_stated) or not hints.has_letters_and_digits(value) or "=" in value[:-2] or "://" in value:
        return False
    if is_quoted and is_named and is_stated:
        return len(value) >= 6
    if _SLUG.fullmatch(value):  # the name of a secret, a size, a format
        return False
    switches = len(_CLASS_SWITCH.findall(value))
    return switches >= (2 if (is_named and is_stated) or is_quoted else 3) and len(value) >= 8


def _is_chosen_word(value: str) -> bool:
    """Return whether a quoted text may be a password without a digit."""
    return len(value) >= 6 and " " not in value and value.lower() not in _NO_VALUES and not hints.is_placeholder(value)
