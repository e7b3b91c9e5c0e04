"""Detection of secrets by their context: a name, a header, a URL, a flag, a sentence."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import msgspec

from mulligan.redaction import secret_hints as hints
from mulligan.redaction.command_programs import may_hold_secret
from mulligan.redaction.command_secrets import find_in_commands
from mulligan.redaction.regex import LazyRegex
from mulligan.redaction.secret_hints import BARRIER, is_covered, word_set
from mulligan.redaction.secret_sentences import find_in_foreign_sentences, find_in_sentences

# Words between a name and its value.
_FILLERS = word_set("is was are provided supplied given used value number header found received")
# Names that indicate a secret only if the value looks like one.
_LOOSE = word_set(
    """key login access_id accessid secret_id signature sig session sid sso salt seed license licence dsn pat auth sas
    appid"""
)
MAX_LABEL_CHARS = 80
"""Characters of a text whose names are read one by one. A pattern of all names takes 20 ms to compile."""
_DIGITS = word_set("pin cvv cvc")
_SIGNED = word_set("signature sig sas")
_PASSWORD_KINDS = word_set(
    """password passwd passwort passphrase passcode pwd pass pw kennwort contrasena motdepasse credential psk storepass
    keypass requirepass masterauth"""
)


def _reversed_pattern(known_words: frozenset[str]) -> str:
    """Return a pattern for the reversed words, grouped by first letter, for matching a text from its end."""
    endings_by_letter: dict[str, list[str]] = {}
    for word in sorted(known_words):
        endings_by_letter.setdefault(word[-1], []).append(word[-2::-1].replace("_", r"[_.\- ]?"))
    return "|".join(f"{first}(?:{'|'.join(endings)})" for first, endings in endings_by_letter.items())


class _NameMeaning(msgspec.Struct, frozen=True):
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
        if kind in _LOOSE and not (kind == "key" and (len(words) < 2 or words[-2] in hints.PLAIN_KEYS)):
            return _NameMeaning(kind, False)
    return None


_REFERRING_KINDS = word_set("secret secrets credential credentials")
_REFERENCE = LazyRegex(r"[A-Za-z_]\w*=|[\w-]+:/(?!/)")
"""The name of a secret with its source: `--set-secrets=NAME=...`, `LoadCredential=name:/path`."""
_CLASS_SWITCH = LazyRegex(r"[a-z](?=[A-Z0-9])|[A-Z](?=[0-9])|[0-9](?=[A-Za-z])")


def _is_value(meaning: _NameMeaning, value: str, is_quoted: bool, is_assigned: bool) -> bool:
    """Return whether the value beside a secret's name is the secret itself and not a word about it."""
    kind = meaning.kind
    if len(value) < 3 or value.lower() in hints.NO_VALUES or hints.is_placeholder(value):
        return False
    if kind not in _PASSWORD_KINDS and hints.is_sequential(value):
        return False
    if ".*" in value or "[^" in value:  # a regular expression
        return False
    if value.isdigit():
        return kind in hints.NUMERIC_KINDS
    if kind in _REFERRING_KINDS and _REFERENCE.match(value):
        return False
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
    min_chars = 12 if kind.endswith("key") and len(_CLASS_SWITCH.findall(value)) < 4 else 6
    return hints.is_random(value, max(10, min_chars)) or (
        len(value) >= min_chars and hints.has_letters_and_digits(value) and not hints.is_code(value)
    )


# A separator, preceded by the end of a name that may indicate a secret. The text is matched backwards: the end of a
# name is decisive, and most separators fail after one letter. An equals sign is searched as a colon: a pattern with a
# fixed first character is twice as fast.
_NAMED_VALUE = LazyRegex(
    r":(?=[a-z0-9_\"'\])`\\? ])[ \t\r\n\"'\])`\\?]{0,8}+(?:[0-9]{1,4}[_.\- ]?|)"
    rf"(?:{_reversed_pattern(hints.SECRET_NAME_ENDINGS | hints.VALUE_FORM_WORDS | hints.STAGES | _LOOSE | _FILLERS)})"
)
_NAME_ENDINGS = _reversed_pattern(hints.SECRET_NAME_ENDINGS | hints.VALUE_FORM_WORDS | hints.STAGES | _LOOSE)
# A name in quotes before a comma, and a name before a parenthesis, matched backwards: ("X-Api-Key", "..."),
# setPassword("...").
_NAMED_ARGUMENT = LazyRegex(rf",[\"'](?:{_NAME_ENDINGS})")
_LOGIN_CALLS = word_set(
    """basicauth basic_auth login getconnection connect credential credentials passwordauthentication mysqli
    mysqli_connect create_user create_superuser"""
)
_NAMED_CALL = LazyRegex(
    rf"\((?:[:=]htua|{_reversed_pattern(hints.SECRET_NAME_ENDINGS | _LOGIN_CALLS | word_set('key str'))})"
)
# The arguments of a login: an optional server, a user and a password.
_LOGIN = LazyRegex(
    r"\(\s{0,3}(?P<server>[\"'][^\"'\n]{0,200}+[\"'],\s{0,3})?[\"'][^\"'\n]{0,80}+[\"'],\s{0,3}"
    r"[\"'](?P<value>[^\"'\n]{4,200}+)[\"']"
)
_ARGUMENT = LazyRegex(r",[ \t\r\n]{0,20}+[bru]?([\"'])(?P<value>[^\"'\n]{4,500}+)\1\s{0,3}[)\]]")
_CALL = LazyRegex(r"\(\s{0,3}[bru]?[\"'](?P<value>[^\"'\n ]{6,500}+)[\"']")
_READING_VERBS = word_set(
    """get find read fetch load lookup delete remove has is check validate verify decode parse require ask prompt
    generate create list describe invalid missing no resolve retrieve hash revoke expect assert"""
)
# Encoded punctuation, which is replaced by the character and spaces, so that indexes stay equal.
_ENCODED = LazyRegex(r"%(?:2[0267C]|3[AD]|7[BD]|0A)|&(?:quot|apos|amp|#34|#39);|\\u00(?:2[267]|3[ad])", re.IGNORECASE)
_DECODED = {"26": "&", "2c": ",", "3a": ":", "3d": "=", "7b": "{", "7d": "}", "0a": "\n", "amp": "&"}
_SEPARATOR = LazyRegex(r"[:=](?!//|:[^:=])[:=]{0,3}>?")
_BEFORE = LazyRegex(r"[\s\"'\])`\\?]{0,8}+([\w.\- ]{1,56}+)")
_VALUE = LazyRegex(
    r"[ \t]{0,8}+(?:!{1,2}(?:str|binary|vault|secret|sensitive)[ \t]{1,3})?(?:[|>]-?)?(?:\r?\n[ \t]{1,16}+)?"
    r"(?:(?:String::from|Some|(?:new )?String|Buffer\.from|bytes)\()?"
    r"(?:[@bruBRU]?\\{0,3}(?P<quote>[\"'`])(?P<quoted>(?! )[^\"'`\n\\]{1,500}+)"
    r"|(?P<bare>[^\s\"'`,;&<>(){}\[\]|\\]{1,500}+))"
)
_SECRET_REFERENCE = LazyRegex(r"-secrets[ =]\w{1,60}\Z")
_ENVIRONMENT = LazyRegex(r"(?:PASS|PASSWORD|PWD|SECRET|TOKEN|KEY|PAT|AUTH|pass|password|secret|token)\Z")
_SCHEME = LazyRegex(r"\s{0,4}+\\?[\"']?(?i:bearer|basic|token|apikey|api-key|negotiate|key|oauth|jwt|bot)[ =:]{1,3}")
_OTHER_SCHEME = LazyRegex(r"\s{0,4}+\\?[\"']?[A-Za-z][\w-]{1,24}+[ =]{1,2}(?=([\w.~+/=-]{16,500}))")
_ARN = LazyRegex(r"arn:[\w:-]{6,80}:secret\Z")
_COOKIE = LazyRegex(r"=([^\s;\"',=]{6,4000}+)")
_URL = LazyRegex(r"://([^\s:/\"'<>]{0,128}+):([^\s/\"'<>`]{1,256})@(?=[\w\[])|://([\w.~%+-]{16,256}+):?@(?=[\w\[])")
_ELEMENT = LazyRegex(r">(?<=[\w\"'].)([^<>\s]{4,200}+)</")
_PROPERTY = LazyRegex(r"<key>([\w.-]{1,60})</key>[ \t\r\n]{0,20}<string\Z")
_MANIFEST = LazyRegex(r"kind[\"']?:[ \t]?[\"']?secret\b", re.IGNORECASE)
_MANIFEST_VALUE = LazyRegex(r"\n[ \t]{1,8}[\w.-]{1,80}:[ \t]{1,4}[\"']?([A-Za-z0-9+/]{8,4000}+={0,2})[\"']?(?=\s|\Z)")
_INSERT = LazyRegex(
    r"(?i:insert into) [\w.\"'`\[\]]{1,80}+ ?\((?P<columns>[^()]{1,400}+)\)\s{0,4}(?i:values)"
    r"\s{0,4}\((?P<values>[^()]{1,2000}+)\)"
)
_SQL_VALUE = LazyRegex(r"[NE]?'([^'\n]{0,400}+)'|[^\s,']{1,200}+")
_FLAG = LazyRegex(r"-(?<![A-Za-z0-9_-].)-?([A-Za-z][A-Za-z0-9_-]{1,40}+)[ \t=]{1,2}[\"']?([^\s\"'`]{3,500}+)")
_NO_FLAG_VALUE = LazyRegex(r"-|(?:[\w-]{1,60},)?(?:id|type|src)=|(?:file|env|fd):")
_PAIRED = LazyRegex(
    r"[\s\"'\\]{1,12}+,?(?:[\"'\\]{1,3}([\w .-]{1,60}+)[\"'\\]{1,3}|([\w.-]{1,60}+)[\"'\\]{0,3})"
    r"\s{0,2}[:=]\s{0,2}[\"'\\]{0,3}(?:eman|yek)"
)
_CODE = LazyRegex(r"(otp|passcode|pin|code)(?:[ \t]+(?:is|was|of))?[ \t:=#]{1,3}(\d{4,8})(?![\w.:/-])")
_CODES = tuple(
    f"{word} "
    for word in "verification security recovery backup access login one-time your confirmation 2fa mfa sms".split()
)


def _is_chosen(value: str) -> bool:
    return value.lower() not in hints.NO_VALUES and not hints.is_placeholder(value)


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


_AUTHORIZATIONS = (
    _Surrounding("bearer", r"[ \t=:]{1,3}[\"']?([\w.~+/=-]{8,4000}+)", "bearer", _is_bearer),
    _Surrounding("basic", r"[ \t]{1,3}[\"']?([A-Za-z0-9+/]{8,400}+={0,2})", "basic_auth", _is_user_and_password),
)
# A line of .pgpass, an Oracle thin URL, a Terraform variable, a setting of Bundler: all with a colon or a sign.
_ASSIGNMENTS = (
    _Surrounding(":5432:|:5433:|:6432:|:*:", r"[\w*-]{1,63}+:[\w*-]{1,63}+:([^\s:\"']{4,100}+)(?=\s|\Z)", "password"),
    _Surrounding(" /p:", r"(?!\w{1,60}=)([^\s\"']{6,100}+)", "password"),
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


def find_by_context(
    text: str, raw: bytes, lower_text: str, has_codes: bool, findings: list[tuple[str, int, int]]
) -> None:
    """Add the spans of secrets that are identified by their context.

    `raw` is the text in ASCII and `lower_text` in lower case, both with the same length. `has_codes` means that it
    contains four consecutive digits.
    """
    has_command = False
    if ":" in text or "=" in text:
        if "@" in text and "://" in text:
            _find_url_credentials(text, findings)
        has_command = _find_named_values(text, lower_text[::-1].replace("=", ":"), findings)
        # Parts of all their words. A chain is faster than a loop.
        if (
            "43" in text
            or "*:" in text
            or "/p:" in text
            or "thin:" in lower_text
            or "variable" in lower_text
            or "bundle_" in lower_text
        ):
            _find_surrounded(text, lower_text, _ASSIGNMENTS, findings)
    if "@" in text and ("@tcp(" in text or "@unix(" in text):
        has_command = True
    if "%3" in text or ("&" in text and ("&quot" in text or "&#3" in text)) or ("\\" in text and "\\u00" in text):
        decoded_text = _ENCODED.sub(_decode, lower_text)
        _find_named_values(_ENCODED.sub(_decode, text), decoded_text[::-1].replace("=", ":"), findings)
    if ("(" in text or "[" in text) and ('("' in text or "('" in text or '["' in text or "['" in text):
        _find_arguments(text, lower_text[::-1], findings)
    # One character is found faster than two, and is usually absent.
    if "-" in text and (" -" in text or "-u" in text or "\t-" in text):
        for hit in _FLAG.finditer(text):
            meaning = _interpret_name(hit[1])
            if meaning:
                has_command = True
                if not _NO_FLAG_VALUE.match(hit[2]) and _is_value(meaning, hit[2], False, True):
                    findings.append((meaning.kind, *hit.span(2)))
    if "<" in text and "</" in text:
        for hit in _ELEMENT.finditer(text):
            name = _name_before(text, hit.start())
            if name == "string" and (key := _PROPERTY.search(text, max(0, hit.start() - 120), hit.start())):
                name = key[1]
            meaning = _interpret_name(name)
            if meaning and _is_value(meaning, hit[1], True, True):
                findings.append((meaning.kind, *hit.span(1)))
    if "bearer" in lower_text or "basic" in lower_text:
        _find_surrounded(text, lower_text, _AUTHORIZATIONS, findings)
    if has_codes and ("code" in lower_text or "pin" in lower_text or "otp" in lower_text):
        _find_codes(lower_text, findings)
    # Parts of all words that begin a sentence: "enti" of "identified by".
    has_names = (
        ("ke" in lower_text and ("key" in lower_text or "token" in lower_text))
        or "pass" in lower_text
        or "secret" in lower_text
        or "pwd" in lower_text
        or "creds" in lower_text
    )
    if has_command or may_hold_secret(raw, text, lower_text, has_names):
        find_in_commands(text, findings)
    if has_names or "enti" in lower_text:
        find_in_sentences(text, lower_text, findings)
        if "secret" in lower_text and _MANIFEST.search(text):
            _find_in_manifest(text, findings)
        if "values" in lower_text and "insert" in lower_text:
            _find_inserted(text, findings)
        if "passwort" in lower_text or "mot de passe" in lower_text:
            find_in_foreign_sentences(text, lower_text, findings)
    if (
        ("en" in lower_text and ("kennwort" in lower_text or "contrasena" in lower_text or "senha" in lower_text))
        or "wachtwoord" in lower_text
        or not text.isascii()
    ):
        find_in_foreign_sentences(text, lower_text, findings)


def _find_named_values(text: str, backwards: str, findings: list[tuple[str, int, int]]) -> bool:
    """Add values after a name. `backwards` is the text reversed, in lower case, with colons as equals signs.

    Return whether one of the names is assigned with an equals sign, as in a command.
    """
    if len(text) <= MAX_LABEL_CHARS and "=" not in text and not _has_secret_name(text):
        return False
    if not _NAMED_VALUE.search(backwards):  # a search is faster than an iterator, and most texts have no hit
        return False
    positions = sorted([len(text) - 1 - hit.start() for hit in _NAMED_VALUE.finditer(backwards)])
    return _find_assigned(text, positions, findings)


def _has_secret_name(text: str) -> bool:
    """Return whether one of the names before a colon may be that of a secret."""
    names = [_name_before(text, position) for position, character in enumerate(text) if character == ":"]
    return any(_interpret_name(name) is not None or name.lower().endswith("value") for name in names)


def _decode(hit: re.Match[str]) -> str:
    """Return the character that is encoded, or a space for a quotation mark, padded to the same length."""
    encoded_char = hit[0].lower().lstrip("%&\\").removeprefix("u00").rstrip(";")
    return _DECODED.get(encoded_char, " ").ljust(len(hit[0]))


def _find_arguments(text: str, backwards: str, findings: list[tuple[str, int, int]]) -> None:
    """Add values that follow their name in a call: `("X-Api-Key", "...")`, `setPassword("...")`."""
    for hit in _NAMED_ARGUMENT.finditer(backwards) if '",' in text or "'," in text else ():
        position = len(text) - 1 - hit.start()
        name = _name_before(text, position)
        is_first = text[position - len(name) - 3 : position - len(name) - 2] in ("(", "[")
        argument = _ARGUMENT.match(text, position) if is_first else None
        if argument and (meaning := _interpret_name(name)):
            _add_argument(meaning, argument, findings)
    for hit in _NAMED_CALL.finditer(backwards) if "(" in text else ():
        position = len(text) - 1 - hit.start()
        name = _name_before(text, position).rpartition(".")[2]
        verbs = hints.split_name(name)
        login = _LOGIN.match(text, position)
        if login and (login["server"] or verbs[-1:] != ["connect"]):
            # create_superuser("ann", "ann@...", "..."), basic_auth("ann", "...")
            if (verbs[:1] == ["create"] or verbs[-1:] in (["login"], ["auth"])) and _is_chosen(login["value"]):
                findings.append(("password", *login.span("value")))
            else:
                _add_argument(_NameMeaning("password", True), login, findings)
        argument = _CALL.match(text, position)
        if argument and _READING_VERBS.isdisjoint(verbs) and (meaning := _interpret_name(name)):
            _add_argument(meaning, argument, findings)


def _add_argument(meaning: _NameMeaning, argument: re.Match[str], findings: list[tuple[str, int, int]]) -> None:
    value = argument["value"]
    if meaning.kind in _PASSWORD_KINDS and not (_is_typed(value) and any(map(str.isdigit, value))):
        return
    if not is_covered(*argument.span("value"), findings) and _is_value(meaning, value, True, True):
        findings.append((meaning.kind, *argument.span("value")))


def _find_in_manifest(text: str, findings: list[tuple[str, int, int]]) -> None:
    """Add the values of a Kubernetes secret. They are in base64."""
    start = text.find("\ndata:")
    for hit in _MANIFEST_VALUE.finditer(text, start + 1) if start >= 0 else ():
        if len(hit[1]) % 4 == 0 and not is_covered(*hit.span(1), findings):
            findings.append(("secret", *hit.span(1)))


def _find_inserted(text: str, findings: list[tuple[str, int, int]]) -> None:
    """Add the values of SQL that belong to a column of passwords: `INSERT INTO users (name, password) VALUES (...)`."""
    for statement in _INSERT.finditer(text):
        columns = statement["columns"].split(",")
        values = list(_SQL_VALUE.finditer(text, statement.start("values"), statement.end("values")))
        for column, value in zip(columns, values, strict=False):
            meaning = _interpret_name(column.strip(" \"'`[]"))
            if meaning and value[1] and _is_value(meaning, value[1], True, True):
                findings.append((meaning.kind, *value.span(1)))


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
                    if not is_covered(*hit.span(1), findings) and rule.is_secret(hit[1])
                ]
                break


def _find_codes(lower_text: str, findings: list[tuple[str, int, int]]) -> None:
    for code in _CODE.finditer(lower_text):
        before = lower_text[max(0, code.start() - 16) : code.start()]
        if before.endswith(_CODES) if code[1] == "code" else not before[-1:].isalnum():
            findings.append((code[1], *code.span(2)))


def _find_assigned(text: str, positions: list[int], findings: list[tuple[str, int, int]]) -> bool:
    skip_until = 0
    has_assignment = False
    for start in positions:
        if start < skip_until:  # inside cookies that were already read
            continue
        separator = _SEPARATOR.match(text, start)
        if separator is None:
            continue
        end = separator.end()
        name = _name_before(text, start)
        if not name or name.startswith("redacted ") or text[start - 1] == ":":  # our own placeholder, a name of a test
            continue
        if name in (" string", " str", " String") and text[start - len(name) - 2 : start].lstrip()[:1] == ":":
            name = _name_before(text, text.rfind(":", 0, start))  # a type: `apiKey: string = "..."`
        meaning = _interpret_name(name)
        if meaning is None and name.endswith("value"):
            meaning = _interpret_paired_name(text[max(0, start - 140) : start])
        if text[start] == "=" and (meaning is not None or _ENVIRONMENT.search(name)):
            has_assignment = True
        if meaning is None or _ARN.search(text, max(0, start - 90), start):
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
        if (scheme := _SCHEME.match(text, end)) or (
            meaning.kind == "authorization"
            and (scheme := _OTHER_SCHEME.match(text, end))
            and hints.is_random(scheme[1])
        ):
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
        if is_covered(first, first + len(value), findings):
            continue
        if _SECRET_REFERENCE.search(text, max(0, start - 80), start):  # --set-secrets=NAME=reference
            continue
        if value[:1] == "?" and text[start : start + 2] == ":?":  # ${PASSWORD:?missing}
            continue
        if _is_value(meaning, value, group == "quoted", text[start:end] != ":"):
            findings.append((meaning.kind, first, first + len(value)))
    return has_assignment


def _interpret_paired_name(before: str) -> _NameMeaning | None:
    """Interpret the name in the preceding field: `{"name": "DB_PASSWORD", "value": ...}`."""
    hit = _PAIRED.match(before.rstrip("\"'\\ ")[:-5][::-1])
    return _interpret_name((hit[1] or hit[2])[::-1]) if hit else None


def _find_url_credentials(text: str, findings: list[tuple[str, int, int]]) -> None:
    for hit in _URL.finditer(text):
        if hit[2] is None:
            if hints.is_random(hit[3]):
                findings.append(("url_credential", *hit.span(3)))
        elif hit[2].lower() not in hints.NO_VALUES and not hints.is_placeholder(hit[2]):
            # Include the user name: some services put the secret there.
            findings.append(("url_credential", hit.start(1), hit.end(2)))
