"""Regular expressions kept between processes: the same as compiled ones, and never in the way."""

from __future__ import annotations

import re
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mulligan.classify.rules import shell
from mulligan.hooks import regex_cache
from mulligan.hooks.regex_cache import RegexCache
from mulligan.redaction import personal_data, secret_contexts
from mulligan.redaction.lazy_regex import LazyRegex

OURS = [
    *((rule.pattern, re.IGNORECASE | re.MULTILINE) for rule in shell.PARTICULAR_RULES if rule.pattern),
    *(
        (each.pattern, each.flags)
        for module in (secret_contexts, personal_data)
        for each in vars(module).values()
        if isinstance(each, LazyRegex)
    ),
]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("MULLIGAN_HOME", str(tmp_path))
    return tmp_path


def again(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """The expression as the second process has it."""
    for _ in range(2):
        kept = RegexCache()
        made = kept(pattern, flags)
        kept.save()
    return made


def test_the_second_process_compiles_nothing(monkeypatch):
    first = RegexCache()
    for each in OURS:
        first(*each)
    first.save()
    monkeypatch.setattr(regex_cache, "compile_code", None)  # whoever calls it now, fails
    monkeypatch.setattr(re, "compile", None)
    second = RegexCache()
    assert len({second(*each) for each in OURS}) == len(set(OURS))


@pytest.mark.parametrize("place", range(0, len(OURS), 7))
def test_an_expression_of_ours_is_the_same_as_a_compiled_one(place):
    pattern, flags = OURS[place]
    made, compiled = again(pattern, flags), re.compile(pattern, flags)
    assert (made, made.flags, made.groups, made.groupindex) == (
        compiled, compiled.flags, compiled.groups, compiled.groupindex,
    )  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(text=st.text(max_size=60), place=st.integers(0, len(OURS) - 1))
def test_it_finds_the_same_in_any_text(text, place):
    pattern, flags = OURS[place]
    made, compiled = again(pattern, flags), re.compile(pattern, flags)
    said = f"{text} token=abc123 Error: exit code 2 {text}"
    assert [(each.span(), each.groupdict()) for each in made.finditer(said)] == [
        (each.span(), each.groupdict()) for each in compiled.finditer(said)
    ]


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "another version", "another thing"])
def test_a_damaged_file_is_made_anew(damage):
    kept = RegexCache()
    kept(r"a(?P<b>c)+", re.IGNORECASE)
    kept.save()
    with open(kept.path, "r+b") as file:
        data = bytearray(file.read())
        match damage:
            case "cut":
                data = data[:-5]
            case "flipped":
                data[-9] ^= 1
            case "empty":
                data = bytearray()
            case "another version":
                data = data.replace(sys.version[:4].encode(), b"9.9.")
            case "another thing":
                data = bytearray(b'{"a": 1}')
        file.seek(0)
        file.truncate()
        file.write(data)
    after = RegexCache()
    assert not after.codes
    assert after(r"a(?P<b>c)+", re.IGNORECASE).fullmatch("ACC")["b"] == "C"
    after.save()
    assert len(RegexCache().codes) == 1


def test_an_interpreter_that_does_it_in_another_way_compiles(monkeypatch):
    def refuse(*about):
        raise AttributeError("no such function")

    monkeypatch.setattr(regex_cache, "compile_code", refuse)
    kept = RegexCache()
    assert kept(r"\d+").fullmatch("17")
    kept.save()
    assert not (RegexCache()).codes


def test_what_cannot_be_compiled_is_told_as_ever():
    with pytest.raises(re.error):
        RegexCache()("(")
