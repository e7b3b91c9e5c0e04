"""Detection of personal data in free text: email addresses, cards, accounts, phone numbers, national ids.

A number counts only if its check digits are valid, its punctuation is that of its country, or a word beside it names
it. Order numbers, timestamps and counts are evidence and stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from mulligan.redaction.regex import LazyRegex
from mulligan.redaction.secret_hints import BARRIER, word_set

_FILES = word_set(
    "png jpg jpeg gif svg webp js mjs ts tsx jsx css json py html md txt yaml yml toml lock go rs java so dll exe"
)
_NOT_PEOPLE = word_set("git hg svn root npm nobody ec2-user ubuntu debian centos vagrant azureuser")

# Country code and length of an account number.
_IBAN = """AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DK18 DO28 EE20 EG29 ES24 FI18
    FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 LB28 LC32 LI21 LT20
    LU20 LV21 MC27 MD24 ME22 MK19 MR27 MT31 MU30 NL18 NO15 PK24 PL28 PS29 PT25 QA29 RO24 RS22 SA24 SC31 SE24 SI19
    SK24 SM27 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20"""
_IBAN_LENGTHS = {country_length[:2]: int(country_length[2:]) for country_length in _IBAN.split()}

_DOMAIN = LazyRegex(r"(?:[A-Za-z0-9-]{1,63}+\.){1,6}?([A-Za-z]{2,24}+)(?![\w-]|\.\w)")
_LOCAL = LazyRegex(r"[\w.+%'-]{1,64}+")
# Digits with typical punctuation between them, and an optional final letter.
_NUMBER = LazyRegex(
    r"[+(0-9](?<![A-Za-z0-9_.+$#/%-].)(?:(?<=\+)[0-9]{1,3}(?:[ .-]?\(?[0-9]{1,5}\)?){2,6}"
    r"|(?<=\()[0-9]{3}\) ?[0-9]{3}[ .-][0-9]{4}"
    r"|(?<=[0-9])(?:[0-9]{7,18}+|[0-9]{2}\.[0-9]{3}\.[0-9]{3}-[0-9]{2}"
    r"|[0-9]{1,5}([ .:/-])[0-9]{2,7}(?:\1[0-9]{2,7}){0,3})(?:-?[A-Z])?)"
    r"(?![A-Za-z0-9_]|[.,-][0-9])"
)
_LETTERED = LazyRegex(r"[A-Z](?<![A-Za-z0-9_-].)[A-Z]{0,5}+ ?[0-9][A-Z0-9 ]{4,44}+")
_AMERICAN = LazyRegex(r"(?:1[ .-]?)?(?:\([2-9]\d\d\) ?|[2-9]\d\d[ .-])[2-9]\d\d[ .-]\d{4}")


def _translation_table(default_mark: str, chars_by_mark: dict[str, str]) -> bytes:
    marks_by_char = {c: mark for mark, characters in chars_by_mark.items() for c in characters}
    return "".join(marks_by_char.get(chr(c), default_mark) for c in range(256)).encode()


# For bytes.translate. NUMBER_MARKS: digits and punctuation inside numbers, `x` for characters that are neither in a
# number nor directly before one, spaces for the rest. LETTER_MARKS: capitals, digits, spaces, and `x` for the rest.
_CAPITALS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
NUMBER_MARKS = _translation_table(" ", {"0": "0123456789.+/-", "A": _CAPITALS, "x": f"{_CAPITALS.lower()}_$#%"})
LETTER_MARKS = _translation_table("x", {"0": "0123456789", "A": _CAPITALS, " ": " "})

_MAX_UNSPLIT_CHARS = 160
"""Shorter texts are searched as a whole, which is as fast as in parts."""


def find_numbers(text: str, marked: str, findings: list[tuple[str, int, int]]) -> None:
    """Add the spans of personal numbers. `marked` is a space and the text's bytes, translated by `NUMBER_MARKS`."""
    for first, last in _find_stretches(marked, " 0000000", "00 00"):
        for hit in _NUMBER.finditer(text, max(0, first - 1), last + 2):
            start, end = hit.span()
            if end - start > 6 and (kind := _classify_number(hit[0], text, start)):
                findings.append((kind, start, end))


def find_lettered(text: str, raw: bytes, findings: list[tuple[str, int, int]]) -> None:
    """Add the spans of numbers that begin with capitals. `raw` is the text with one byte per character."""
    if len(text) < _MAX_UNSPLIT_CHARS:
        if _LETTERED.search(text) is None:  # fast path
            return
        marked_text = ""
    else:
        marked_text = raw.translate(LETTER_MARKS).decode()
    for first, last in _find_stretches(marked_text, "A00", "A 00"):
        for hit in _LETTERED.finditer(text, first, last):
            start = hit.start()
            for kind, length in _match_lettered_forms(hit[0]):
                if not text[start + length : start + length + 1].isalnum():
                    findings.append((kind, start, start + length))
                    break
            else:
                first_word = hit[0].split(" ")[0]
                if len(first_word) > 6 and _is_announced(first_word, text, start):
                    findings.append(("personal_number", start, start + len(first_word)))


def _find_stretches(marked: str, *markers: str) -> list[tuple[int, int]]:
    """Return the stretches between two `x` that contain a marker and need a closer search."""
    if len(marked) < _MAX_UNSPLIT_CHARS:  # as fast as a search in parts
        return [(0, _MAX_UNSPLIT_CHARS)]
    spans_by_start = {}
    for marker in markers:
        position = marked.find(marker)
        while position >= 0:
            end = marked.find("x", position)
            end = len(marked) if end < 0 else end
            spans_by_start[marked.rfind("x", 0, position) + 1] = end
            position = marked.find(marker, end)
    return sorted(spans_by_start.items())


# One random number in ten has a valid card check digit, so a name such as "order" overrides it.
_NAMED = LazyRegex(
    r"(?:id|ids|order|ref|ticket|trace|seq|offset|time|timestamp|ts|epoch)[\"']?[ \t:=#\"']{0,4}\Z", re.IGNORECASE
)


def _classify_number(number: str, text: str, start: int) -> str:
    """Return the kind of a number by its format, its check digits or the words before it."""
    if number[:2] in ("20", "19") and number[4:5] in ("-", "/", "."):  # a date, the most common number in logs
        return ""
    if number[0] == "+":
        return "phone" if 8 <= sum(c.isdigit() for c in number) <= 15 else ""
    if number[-1].isalpha():
        return "national_id" if _is_spanish_or_finnish(number) else ""
    is_bare = number.isdigit()
    if len(number) > 10:  # the shortest number with check digits, or with nine digits in groups
        if kind := _classify_by_check_digits(number):
            is_named = kind == "card" and is_bare and _NAMED.search(text, max(0, start - 40), start)
            return "" if is_named else kind
        if (
            len(number) > 11
            and "card" in text[max(0, start - 24) : start].rpartition(BARRIER)[2].lower()
            and 12 <= sum(c.isdigit() for c in number) <= 19
        ):
            return "card" if _passes_luhn(re.sub(r"\D", "", number)) else ""
        if not is_bare and _AMERICAN.fullmatch(number):
            return "phone"
    return "personal_number" if _is_announced(number, text, start) else ""


# Words before a number that make it personal, and words that do so only in combination: "account number", "tax id".
_ANNOUNCING_WORDS = word_set(
    """phone tel telephone mobile fax whatsapp ssn security passport licence license nhs medicare aadhaar itin nino nif
    pesel"""
)
_QUALIFYING_WORDS = word_set("account tax national identity routing bank driver identification")
_NUMBER_WORDS = word_set("number no num nr id is was card my code")
_LAST = tuple(_ANNOUNCING_WORDS | _NUMBER_WORDS | {"account"})
_ENDINGS = frozenset(word[-2:] for word in _LAST)
"""Last two letters of these words, as a fast check."""


def _is_announced(number: str, text: str, start: int) -> bool:
    before = text[max(0, start - 40) : start].lower()
    last = before.rstrip(" \t\n:=#\"'.,;()[]{}<>*/|_-+0123456789")
    if last[-2:] not in _ENDINGS or not last.endswith(_LAST):
        return False
    preceding_words = re.findall("[a-z]+", before)[-3:]
    if not preceding_words or (number[3:4] == "-" and _SHAPES.get(tuple(map(len, number.split("-")))) is _is_ssn):
        return False  # the format of a social security number, but invalid: an example
    words = ["", *preceding_words]
    while len(words) > 2 and words[-1] in _NUMBER_WORDS and words[-2] not in _QUALIFYING_WORDS:
        words.pop()
    has_announcing_word = (
        words[-1] in _ANNOUNCING_WORDS
        or words[-2:] == ["bank", "account"]
        or (words[-1] in _NUMBER_WORDS and words[-2] in _QUALIFYING_WORDS)
    )
    return has_announcing_word and (7 if number[0].isdigit() else 5) <= sum(c.isdigit() for c in number) <= 19


_REMOTE_LOGIN = LazyRegex(
    r"\b(?:(?:auto)?ssh|scp|sftp|rsync|mosh|sshfs|plink|pscp|ssh-copy-id)(?:\.exe)? [^\n|;&]{0,190}\Z"
)
"""The beginning of a command whose arguments are users at hosts."""


def find_addresses(text: str, findings: list[tuple[str, int, int]]) -> None:
    """Add the spans of email addresses."""
    position = text.find("@")
    while position >= 0:
        domain = _DOMAIN.match(text, position + 1)
        if domain and domain[1].lower() not in _FILES:
            # Match backwards from the sign, so that a long word is not read repeatedly.
            local = _LOCAL.match(text[max(0, position - 64) : position][::-1])
            start = position - len(local[0]) if local else 0
            if local and local[0][::-1].lstrip("'") not in _NOT_PEOPLE and not _is_part_of_login(text, start):
                findings.append(("email", start, domain.end()))
        position = text.find("@", position + 1)


def _is_part_of_login(text: str, start: int) -> bool:
    """Return whether the text at an index is part of a URL, such as a path or `https://name:`, or a user at a host."""
    if _REMOTE_LOGIN.search(text, max(0, start - 200), start):
        return True
    before = text[start - 1 : start]
    return before in ("/", "$") or (before == ":" and "//" in text[max(0, start - 80) : start].rpartition(" ")[2])


def _classify_by_check_digits(number: str) -> str:
    """Return the kind of a number by its check digits and punctuation, or an empty string."""
    if number.isdigit() and len(number) != 11:  # the most common
        return "card" if len(set(number)) > 1 and _is_card(number) else ""
    digits, marks = re.sub(r"\D", "", number), set(re.sub(r"\d", "", number))
    groups = tuple(map(len, re.split(r"\D", number)))
    if not marks and len(number) == 11:
        return "national_id" if _is_pesel(number) else ""
    if len(marks) > 1:
        is_cpf = re.fullmatch(r"\d{3}\.\d{3}\.\d{3}-\d\d", number) and _is_cpf(digits)
        return "national_id" if is_cpf else ""
    if len(set(digits)) < 2:
        return ""
    is_card_shape = not marks or (groups in ((4, 4, 4, 4), (4, 6, 5), (4, 6, 4)) and marks <= {" ", "-"})
    if is_card_shape and _is_card(digits):
        return "card"
    check = _SHAPES.get(groups)
    return "national_id" if check and check(digits, *marks) else ""


def _weighted_sum(digits: str, weights: str) -> int:
    return sum(int(digit) * int(weight, 36) for digit, weight in zip(digits, weights, strict=False))


_DOUBLED = bytes.maketrans(b"0123456789", b"0246813579")  # doubled digits with their digits added


def _passes_luhn(digits: str) -> bool:
    raw = digits.encode()
    return (sum(raw[::-2]) + sum(raw[-2::-2].translate(_DOUBLED)) - 48 * len(raw)) % 10 == 0


_CARD_PREFIXES = {
    14: LazyRegex("3[0689]"),
    15: LazyRegex("3[47]"),
    16: LazyRegex("[456]|35|222[1-9]|22[3-9]|2[3-6]|27[01]|2720"),
    19: LazyRegex("[46]"),
}
"""First digits of cards, by length."""


def _is_card(digits: str) -> bool:
    prefix = _CARD_PREFIXES.get(len(digits))
    return prefix is not None and prefix.match(digits) is not None and _passes_luhn(digits)


def _is_ssn(digits: str, mark: str) -> bool:
    area, group, serial = digits[:3], digits[3:5], digits[5:]
    if mark in ":/" or group == "00" or serial == "0000" or digits in ("078051120", "219099999", "123456789"):
        return False
    if area[0] == "9":  # an individual taxpayer number
        return 50 <= int(group) <= 99 and group not in ("66", "67", "68", "69", "89", "93")
    return area not in ("000", "666")


def _has_date(digits: str, century_months: int = 100) -> bool:
    """Return whether digits begin with a birth date: year, month and day. Some numbers add the century to the month."""
    return 1 <= int(digits[2:4]) % century_months <= 12 and 1 <= int(digits[4:6]) <= 31


def _is_pesel(digits: str) -> bool:
    return _has_date(digits, 20) and _weighted_sum(digits, "13791379131") % 10 == 0


def _is_aadhaar(digits: str, mark: str) -> bool:
    if mark not in " -:" or digits[0] in "01":
        return False
    check = 0
    for index, digit in enumerate(map(int, reversed(digits))):  # Verhoeff algorithm
        for _ in range(index % 8):
            digit = (1, 5, 7, 6, 2, 8, 3, 0, 9, 4)[digit]
        if check < 5:
            check = (check + digit) % 5 + (5 if digit >= 5 else 0)
        else:
            check = (check - digit) % 5 + (5 if digit < 5 else 0)
    return check == 0


def _is_cpf(digits: str) -> bool:
    first = _weighted_sum(digits[:9], "a98765432") * 10 % 11 % 10
    second = _weighted_sum(digits[:10], "ba98765432") * 10 % 11 % 10
    return digits[9:] == f"{first}{second}"


def _is_nine_digit_id(digits: str, mark: str) -> bool:
    """Return whether three groups of three digits are a valid Canadian or Australian number."""
    tax = _weighted_sum(digits, "14375869a") % 11 == 0
    company = (10 - _weighted_sum(digits[:8], "87654321") % 10) % 10 == int(digits[8])
    return mark in " -" and (_passes_luhn(digits) or tax or company)


def _is_birth_number(digits: str, mark: str) -> bool:
    """Return whether the digits are a birth date and a serial number: Sweden with ten digits, Korea with thirteen."""
    is_valid = _passes_luhn(digits) if len(digits) == 10 else digits[6] != "0"
    return mark == "-" and _has_date(digits) and is_valid


_SHAPES: dict[tuple[int, ...], Callable[[str, str], bool]] = {
    (3, 2, 4): _is_ssn,
    # United Kingdom: NHS number
    (3, 3, 4): lambda digits, mark: mark in " -" and _weighted_sum(digits, "a987654321") % 11 == 0,
    (4, 4, 4): _is_aadhaar,
    (3, 3, 3): _is_nine_digit_id,
    # Australia: business number (ABN)
    (2, 3, 3, 3): lambda digits, mark: mark == " " and (_weighted_sum(digits, "a13579bdfhj") - 10) % 89 == 0,
    (6, 4): _is_birth_number,
    (6, 7): _is_birth_number,
}
"""Checks of national numbers by the lengths of their groups. They get the digits and the mark between groups."""

_SPANISH_LETTERS = "TRWAGMYFPDXBNJZSQVHLCKE"
_FINNISH_LETTERS = "0123456789ABCDEFHJKLMNPRSTUVWXY"
_SINGAPORE_LETTERS = {"S": "JZIHGFEDCBA", "T": "GFEDCBAJZIH", "F": "XWUTRQPNMLK", "G": "RQPNMLKXWUT"}


def _is_spanish_or_finnish(number: str) -> bool:
    if re.fullmatch(r"\d{8}-?[A-Z]", number):
        return number[-1] == _SPANISH_LETTERS[int(number[:8]) % 23]
    if re.fullmatch(r"\d{6}[-+]\d{3}[A-Z]", number):
        check = _FINNISH_LETTERS[int(number[:6] + number[7:10]) % 31]
        return number[-1] == check and 1 <= int(number[2:4]) <= 12
    return False


def _is_nie(number: str) -> bool:
    return number[8] == _SPANISH_LETTERS[int(str("XYZ".index(number[0])) + number[1:8]) % 23]


def _is_nric(number: str) -> bool:
    return _SINGAPORE_LETTERS[number[0]][_weighted_sum(number[1:8], "2765432") % 11] == number[8]


_FORMS: tuple[tuple[LazyRegex, Callable[[str], bool]], ...] = (
    (LazyRegex(r"[A-Z]{6}\d\d[ABCDEHLMPRST]\d\d[A-Z]\d{3}[A-Z]"), bool),  # Italy
    (LazyRegex(r"[A-Z]{4}\d{6}[HM][A-Z]{5}[A-Z0-9]\d"), bool),  # Mexico
    (LazyRegex(r"[A-Z]{3}[ABCFGHJLPT][A-Z]\d{4}[A-Z]"), bool),  # India
    # United Kingdom
    (LazyRegex(r"(?!BG|GB|NK|KN|TN|NT|ZZ)[ABCEGHJ-PRSTW-Z][ABCEGHJ-NPRSTW-Z] ?\d\d ?\d\d ?\d\d ?[A-D]"), bool),
    (LazyRegex(r"[XYZ]\d{7}[A-Z]"), _is_nie),
    (LazyRegex(r"[STFG]\d{7}[A-Z]"), _is_nric),
)


def _match_lettered_forms(text: str) -> Iterator[tuple[str, int]]:
    """Yield kind and length of each id that a text with leading capitals may be."""
    if length := _IBAN_LENGTHS.get(text[:2]):
        char_count = 0
        for index, c in enumerate(text, 1):
            char_count += c != " "
            if char_count == length:
                if _is_iban(text[:index].replace(" ", "")):
                    yield "iban", index
                break
    for form, check in _FORMS:
        if (hit := form.match(text)) and check(hit[0]):
            yield "national_id", hit.end()


def _is_iban(iban: str) -> bool:
    return iban[2:4].isdigit() and int("".join(str(int(c, 36)) for c in iban[4:] + iban[:4])) % 97 == 1
