"""Programs that take a secret on their command line, and a quick check whether a text may contain such a command."""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec

from mulligan.redaction.regex import LazyRegex

LAST_POSITION = 9
"""Position of the last argument, however many there are."""


class SecretSlot(msgspec.Struct, frozen=True):
    """A slot where a program takes a secret: an item of `command_programs.txt`."""

    name: str
    """The flag, or the word before the secret; empty for the program itself."""
    position: int = 0
    """Of an argument after that word, from 1, or `LAST_POSITION`. Zero for the value of a flag."""
    sign: str = ""
    """What precedes the secret in the value: the colon of `user:password`. `*` is the same word, `_` the next one."""
    is_input: bool = False


class ProgramRule(msgspec.Struct, frozen=True):
    """A line of `command_programs.txt` for one of its programs."""

    words: frozenset[str]
    """Words that the command must contain, in lower case."""
    slots: tuple[SecretSlot, ...]


@functools.cache
def program_rules() -> dict[str, list[ProgramRule]]:
    rules: dict[str, list[ProgramRule]] = {}
    # As bytes: read_text imports the codec, and a child forked meanwhile would wait for that import forever.
    for line in Path(__file__).with_name("command_programs.txt").read_bytes().decode().splitlines():
        programs, _, items = line.partition("  ")
        words = frozenset(item[1:].lower() for item in items.split() if item[0] == "+")
        slots = tuple(_read_slot(item) for item in items.split() if item[0] != "+")
        for program in programs.split() if programs[0] != "#" else ():
            rules.setdefault(program, []).append(ProgramRule(words, slots))
    return rules


_ARGUMENT_ITEM = LazyRegex(r"(.+):(\d)(\W?)")


def _read_slot(item: str) -> SecretSlot:
    if item[0] == "|":
        return SecretSlot(item[1:].rstrip(":"), sign=":" if item[-1] == ":" else "", is_input=True)
    if argument := _ARGUMENT_ITEM.fullmatch(item):
        return SecretSlot("" if argument[1] == "0" else argument[1], int(argument[2]), argument[3])
    return SecretSlot(item) if item[0] == "/" or item[-1].isalnum() else SecretSlot(item[:-1], sign=item[-1])


def program_name(word: str) -> str:
    """Return the name of the program that a word starts: `/usr/bin/MySQL.exe` is `mysql`."""
    if word.isalnum():  # fast path
        return word.lower()
    return word.strip("[(").rpartition("/")[2].rpartition("\\")[2].lower().removesuffix(".exe")


# The quick check

_WORD_TABLE = (
    bytes(ord(char.lower()) if (char := chr(code)).isalnum() or char in "_.-" else 32 for code in range(128))
    + b" " * 128
)
"""Lower case, and a space for every byte that is not part of a name."""
_COMMON_PROGRAMS = frozenset(
    b"http https security su imp exp cf oc gh zip mount passwd az b2 p4 fly adb login signin".split()
)
"""Programs whose names occur in many texts without commands: a flag or a pipe must be there too, or they come first."""
_OTHER_SIGNS = frozenset(
    b"7z.exe expect setx netsh consul auth.txt sasl_passwd bcrypt hashpw -u --user --cookie --puk --key".split()
)
"""Words of commands with a secret that is no slot of a program."""
_FLAG_SIGN = LazyRegex(r"-(?<![^ \t\"'].)-?[A-Za-z]")
_NAME_SIGNS = frozenset(
    b"""set put config configure setx echo printf send identified password setenvironmentvariable net user expect cat
    tee by -value reset-admin-password""".split()
)
_NAME_SIGN = LazyRegex(
    r"(?:config(?:ure)?|(?:config:| )set| put|setx|echo|printf)[ :][^\n|]{0,100}?(?:pass|secret|token|key)"
    r"|<<-?[ \t]?\\?[\"']?[a-z]|password '|by '|setenviron|net user|-value "
    r"|set-(?:\w{1,20}-){1,3}password|<\((?:echo|printf)"
    r"|send [\"'-]|ssword:|(?:command|cmd)[\"'= ]{1,3}(?:echo|printf)"
)


@functools.cache
def _program_signs() -> frozenset[bytes]:
    rules = program_rules()
    programs = frozenset(name.encode() for name in rules if any(rule.slots for rule in rules[name]))
    return programs - _COMMON_PROGRAMS | _OTHER_SIGNS


@functools.cache
def _first_words() -> frozenset[bytes]:
    return _program_signs() | _COMMON_PROGRAMS


def may_hold_secret(raw: bytes, text: str, lower_text: str, has_names: bool) -> bool:
    """Return whether a text may contain a command with a secret. To parse it costs more than all other searches.

    `raw` and `lower_text` are the text as bytes and in lower case. `has_names` means that it contains a word for a
    secret. A secret with a name that is assigned or a flag is not looked for here.
    """
    has_flag = "-" in text and _FLAG_SIGN.search(text) is not None
    # One substring after the other: any() costs twice as much, and most texts have none of these. A single character is
    # found faster than two.
    if not (
        has_flag
        or "|" in text
        or ("<" in text and "<<" in text)
        or ("/" in text and " /" in text)
        or (has_names and ("set" in lower_text or "echo " in lower_text or "config" in lower_text))
        or (text[:1].islower() and (text[:24].partition(" ")[0].encode() in _first_words()))
    ):
        return False
    words = raw.translate(_WORD_TABLE).split()
    if not _program_signs().isdisjoint(words):
        return True
    if not _COMMON_PROGRAMS.isdisjoint(words) and (has_flag or "|" in text or words[0] in _COMMON_PROGRAMS):
        return True
    return has_names and not _NAME_SIGNS.isdisjoint(words) and _NAME_SIGN.search(lower_text) is not None
