"""Detection of secrets in sentences: "the client secret is ...", "use ... as the password", "das Passwort ist ..."."""

from __future__ import annotations

import re

from mulligan.redaction import secret_hints as hints
from mulligan.redaction.regex import LazyRegex
from mulligan.redaction.secret_hints import is_covered

_POSSESSIVES = "the|this|that|your|our|my|his|her|their|its"
_OWNERS = (
    "user|tenant|account|service|role|database|db|host|server|project|client|customer|org|organization|team|group|app"
    "|bot|environment|cluster|namespace|login|admin"
)
# Verbs of other languages too: "der API-Key lautet", "le token est".
_VERBS = r"is|was|are|be|to|used|use|set|ist|lautet|est|es|\u00e8|\u00e9"
# A name, words of a sentence, a separator, and a value, quoted or not. An owner is no value: "password for user bob".
_SENTENCE = LazyRegex(
    r"(?i:(?P<name>pass(?:word|phrase|code|wd|(?<=requirepass))|pwd|secret|token|key|cred(?:ential)?|identified by)s?"
    rf"(?P<words>(?:[ \t]{{1,3}}(?:(?:{_VERBS})(?![\w-])"
    rf"|(?:for|of)(?: (?:{_POSSESSIVES}))?(?: (?:{_OWNERS}))?(?! (?:{_POSSESSIVES}|{_OWNERS}) [\w\"'`])"
    r" [\"'`]?[\w.@-]{1,40}+[\"'`]?"
    r"(?:(?: [\w.@-]{1,30}+){1,2}?(?=[ \t]?[:=]| is | was ))?"
    r"|should|will|the|user|account|provided|using|with|value|new|old|now|i|we|you|sent|got|gave|me|have|back|from|given"
    r"|d[aei]|del|du|acc?esso?|acesso|api"
    r"|(?:(?:has|have|was) been )?(?:created|generated|issued|leaked|obtained|follows|below)(?=[ \t]?[:=])"
    r"|(?:rotated|changed|reset|updated|renewed|switched) to"
    r"|[\w.]{1,20}+@\S{1,60})){0,4}))"
    r"(?P<sign>[ \t:=]{1,3}(?:(?:->?|=>|[\u2013\u2014\u2192])[ \t]{1,3})?\(?(?:value: )?|,[ \t]{1,2})"
    r"(?:[\"'`\u201c\u2018](?P<quoted>[^\"'`\n\u201c\u201d\u2018\u2019]{4,200}+)[\"'`\u201d\u2019]"
    r"|[\"'`]?(?P<bare>[^\s\"'`()\u201c\u201d\u2018\u2019]{4,200}+))"
)
_VERB = LazyRegex(rf"(?i)\b(?:{_VERBS}|from)\b")
_REPLACEMENT = LazyRegex(r"[\"'`]? to [\"'`]?([^\s\"'`]{6,200}+)")
# "Use ... as the password", matched backwards from the name.
_VALUE_FIRST = LazyRegex(
    rf"[ \t]?(?:[\w-]{{1,16}}+[ \t]){{0,2}}?(?:{'|'.join(word[::-1] for word in _POSSESSIVES.split('|'))}|na?)[ \t]"
    r"(?:sa|si|saw)[ \t],?[\"'`]?([^\s\"'`,;]{6,200}+)"
)
_AFTER_NAME = LazyRegex(
    rf"\w*+(?:[.,;:!?)\"'`]|[ \t]{{0,20}}\r?\n|\s{{0,20}}(?:\Z|{hints.BARRIER})"
    r"|\s(?:for|to|in|on|when|and|at|with|but|because|of|or|now|here)\b)"
)
_CLASS_SWITCH = LazyRegex(r"[a-z](?=[A-Z0-9])|[A-Z](?=[0-9])|[0-9](?=[A-Za-z])")
_SLUG = LazyRegex(
    r"(?=[a-z\d_.-]*?(?<![a-z\d])[a-z]{3,}(?![a-z\d]))[a-z\d]+(?:[-_.][a-z\d]+)+"  # db-creds-v2
    r"|[a-z]+\d*(?:[-_.][a-z]*\d*)*|\d+-?[a-z]+(?:-[a-z]+)*"  # oauth2, 32-character
)
_LABEL = LazyRegex(r"[a-z]{2,}\d{0,3}(?:[-_.](?:[a-z]{2,}\d{0,3}|v?\d{1,4}))+")
"""The name of a resource: every part is a word or a short number."""
_LOGIN = LazyRegex(
    r"(?i:cred(?:ential)?s?(?: is| are)?(?: for [\w.@-]{1,40}+)?)[ \t:=]{1,3}[\w.@-]{1,40}+"
    r" ?/ ?[\"'`]?([^\s\"'`]{6,200}+)"
)
"""A user and a password: "credentials are bob / ..."."""
_IDENTIFIED_THINGS = ("revision", "resource", "object", "record", "commit", "entity", "item")
"""Words before "identified by" that are followed by an id."""
_NO_VALUE = LazyRegex(r"--?[a-z]|(?:[\w-]{1,60},)?(?:id|name|type|src)=|[A-Z][A-Z0-9_]{1,60}=")
"""A flag, or an attribute of the secret."""
_DATE = LazyRegex(r"\d{4}-\d\d-\d\d")
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

# Words for a password and for a key or token in other languages: first those in ASCII, then the others.
_ASCII_WORDS = ("passwort", "kennwort", "contrasena", "senha", "wachtwoord", "mot de passe")
_OTHER_WORDS = tuple(
    "contraseña hasło lösenord jelszó şifre khẩu пароль пароля 密码 密碼 パスワード 비밀번호 암호 المرور סיסמה".split()
)
_OTHER_KEYS = (
    "api-schlüssel",
    "api schlüssel",
    "clé api",
    "clé d'api",
    "apiキー",
    *"токен ключ 令牌 密钥 密鑰 トークン 토큰".split(),
)
_OTHER_PARTS = tuple(
    re.sub(r"[a-z' -]+", "", word) if word[0].isascii() else word[1:] for word in (*_OTHER_WORDS, *_OTHER_KEYS)
)
"""Parts of them without letters that may be capitals."""
# What follows such a word: a few words, a verb or a sign, and the value. Or the value at once.
_FOREIGN_VALUE = LazyRegex(
    r"(?:[^\n:=\uff1a]{0,24}?(?:[:=\uff1a]|[\u2013\u2014-](?=[ \t])"
    r"|(?<!\w)(?:ist|lautet|est|es|\u00e9|\u00e8|je|jest|to|\u00e4r|is|l\u00e0|olan)(?!\w)"
    r"|\u044d\u0442\u043e|\u662f|\u4e3a|\u70ba|\u306f|\uc740|\ub294)|(?=[ \t]))"
    r"[ \t]{0,3}[\"'`\u00ab\u300c\u300e\u201c\u201e]?[ \t]?(?P<value>(?![\"'`])[!-~]{6,200}+)"
)


def find_in_sentences(text: str, lower_text: str, findings: list[tuple[str, int, int]]) -> None:
    """Add the spans of secrets in sentences. `lower_text` is the text in lower case with the same length."""
    for word in ("pass", "pwd", "secret", "token", "key", "cred", "identified by"):
        position = lower_text.find(word)
        while position >= 0:
            before = lower_text[max(0, position - 16) : position].rstrip("_- ")
            if _can_name_secret(word, before, text, position):
                if sentence := _SENTENCE.match(text, position):
                    _check_sentence(before, sentence, findings)
                elif word == "cred" and (login := _LOGIN.match(text, position)) and _is_typed(login[1]):
                    findings.append(("password", *login.span(1)))
                _check_value_first(text, lower_text, position, word, findings)
            position = lower_text.find(word, position + len(word))


def _can_name_secret(word: str, before: str, text: str, position: int) -> bool:
    """Return whether the words before a name allow it to be a secret's."""
    if word == "key":
        return before.endswith(_KEY_KINDS) or _is_constant(text, position)
    # Not a list cursor, `nextPageToken`, and not a token of a parser.
    return word != "token" or not before.endswith((*hints.CURSORS, *_SYNTAX_WORDS))


def _is_constant(text: str, position: int) -> bool:
    """Return whether the word at an index ends a constant: `OPENAI_KEY`."""
    return text[max(0, position - 1) : position + 1] == "_K"


def find_in_foreign_sentences(text: str, lower_text: str, findings: list[tuple[str, int, int]]) -> None:
    """Add the spans of passwords that another language announces."""
    words: tuple[str, ...] = _ASCII_WORDS
    if not text.isascii() and any(map(text.__contains__, _OTHER_PARTS)):
        lower_text = lowered if len(lowered := text.lower()) == len(text) else text
        words = _ASCII_WORDS + _OTHER_WORDS + _OTHER_KEYS
    for word in words:
        position = lower_text.find(word)
        attempts = 0
        # Occurrences of one word that are read. A word may have two characters, and what follows it is read each time.
        while position >= 0 and attempts < 60:
            attempts += 1
            end = position + len(word)
            if hit := _FOREIGN_VALUE.match(text, end):
                start = hit.start("value")
                value = hit["value"].rstrip(".,;:!?\"'`)")
                is_key = word in _OTHER_KEYS
                is_secret = hints.is_random(value) if is_key else any(map(str.isdigit, value)) and _is_typed(value)
                if is_secret and not is_covered(start, start + len(value), findings):
                    findings.append(("token" if is_key else "password", start, start + len(value)))
            position = lower_text.find(word, end)


def _is_typed(value: str) -> bool:
    return hints.looks_like_password(value) and not hints.is_placeholder(value) and not _DATE.match(value)


def _check_sentence(before: str, sentence: re.Match[str], findings: list[tuple[str, int, int]]) -> None:
    """Add the value of a sentence such as "the client secret is '...'", if it is a secret."""
    word, group = sentence["name"].lower(), "quoted" if sentence["quoted"] else "bare"
    first, text = sentence.start(group), sentence.string
    value = sentence[group].rstrip(".,;:!?")
    kind = hints.secret_kind(f"{before.rpartition(' ')[2]}_{word}") or hints.secret_kind(word) or "password"
    is_named = word in ("key", "secret") or before.endswith(_TOKEN_KINDS)
    is_owned = word == "secret" and before.endswith(_OWNED_SECRETS)
    is_stated = bool(_VERB.search(sentence["words"])) or not sentence["sign"].isspace()
    mark = text[sentence.start() - 1 : sentence.start()]
    if not sentence["words"] and is_stated and mark == "_":
        is_named = is_stated = False  # `API_KEY: ...` is no sentence: `_find_assigned` decides
    # arn:aws:secretsmanager:...:secret:name, tests/test_tokens.py::TestToken::test_expired
    is_path = mark == sentence["sign"] == ":" or sentence["sign"] == "::"
    # Words before "secret" that are followed by its name, not by its value
    if (
        is_path
        or (word == "secret" and before.endswith(("existing", "describe", "get", "delete", "edit", "patch", "view")))
        or (word == "key" and before.endswith("user.signing"))
        or (word == "identified by" and before.endswith(_IDENTIFIED_THINGS))
        or _NO_VALUE.match(value)
        or is_covered(first, first + len(value), findings)
    ):
        return
    if group == "bare" and (sentence["sign"][0] == "," or (word == "key" and not before.endswith(_KEY_KINDS))):
        is_secret = hints.is_random(value, 20) and hints.has_letters_and_digits(value) and not _SLUG.fullmatch(value)
    else:
        is_secret = _is_sentence_secret(
            word, value, is_named=is_named, is_owned=is_owned, is_stated=is_stated, is_quoted=group == "quoted"
        )
    if is_secret:
        findings.append((kind, first, first + len(value)))
        if sentence["words"].endswith("from") and (replacement_match := _REPLACEMENT.match(text, first + len(value))):
            replacement = replacement_match[1].rstrip(".,;:!?")
            if _is_typed(replacement):
                findings.append((kind, replacement_match.start(1), replacement_match.start(1) + len(replacement)))


def _check_value_first(
    text: str, lower_text: str, position: int, word: str, findings: list[tuple[str, int, int]]
) -> None:
    """Add the value before a name: "use ... as the password"."""
    window = lower_text[max(0, position - 48) : position]
    if " as " not in window and " is " not in window and " was " not in window:  # fast path
        return
    hit = _VALUE_FIRST.match(text[max(0, position - 260) : position][::-1])
    if hit is None or not _AFTER_NAME.match(text, position):
        return
    value, end = hit[1][::-1].lstrip("(["), position - hit.start(1)
    if not any(map(str.isdigit, value)) or hints.is_placeholder(value) or hints.is_code(value) or _DATE.match(value):
        return
    if _SLUG.fullmatch(value) or is_covered(end - len(value), end, findings):
        return
    is_password = word in ("pass", "pwd") and len(value) >= 8 and any(map(str.isalpha, value))
    if hints.is_random(value) or is_password:
        findings.append(("password" if is_password else hints.secret_kind(word) or word, end - len(value), end))


def _is_sentence_secret(
    word: str, value: str, *, is_named: bool, is_owned: bool, is_stated: bool, is_quoted: bool
) -> bool:
    """Return whether the value in a sentence about a secret is the secret itself.

    `is_named` says which secret it is ("api key", "refresh token"), `is_owned` also whose ("client secret"), and
    `is_stated` that a verb or a sign precedes the value.
    """
    has_digit = any(map(str.isdigit, value))
    is_password = word[:3] in ("pas", "pwd", "ide", "cre")
    if len(value) < 24 and not has_digit:  # mostly a plain word
        return (is_password or is_owned) and is_quoted and is_stated and _is_chosen_word(value)
    if hints.is_placeholder(value) or hints.is_code(value) or (not is_password and hints.is_sequential(value)):
        return False
    if " " in value:
        return is_password and is_stated and value.count(" ") <= 4
    if not is_stated and not is_quoted and not is_password and _LABEL.fullmatch(value):
        return False  # "get secret db-creds-v2"
    if _DATE.match(value) and not is_quoted:
        return False
    if hints.is_random(value):
        return True
    if is_password:
        return len(value) >= 6 and has_digit and (any(map(str.isalpha, value)) or not value.isalnum())
    if not hints.has_letters_and_digits(value) or "=" in value[:-2] or "://" in value:
        return False
    if not (is_named or is_stated):  # "Token k9Qz7Lm2XpA81 expired"
        return len(value) >= 10 and value.isalnum() and len(_CLASS_SWITCH.findall(value)) >= 5
    if is_quoted and is_named and is_stated:
        return len(value) >= 6
    if _SLUG.fullmatch(value):  # the name of a secret, a size, a format
        return False
    switches = len(_CLASS_SWITCH.findall(value))
    return switches >= (2 if (is_named and is_stated) or is_quoted else 3) and len(value) >= 8


def _is_chosen_word(value: str) -> bool:
    """Return whether a quoted text may be a password without a digit."""
    is_word = len(value) >= 6 and " " not in value and value.lower() not in hints.NO_VALUES
    return is_word and not hints.is_placeholder(value)
