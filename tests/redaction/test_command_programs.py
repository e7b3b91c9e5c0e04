"""The table of programs that take a secret, through the redactor that uses it."""

from __future__ import annotations

import pytest

from mulligan.redaction import Redactor
from mulligan.redaction.command_programs import Place, program_name, program_rules

SECRET = "tulip-marble"


def commands_of(program: str, words: frozenset[str], place: Place) -> list[str]:
    """Commands that have a secret at a place of the table."""
    start = " ".join([program, *sorted(words - {place.name})])
    sign = place.sign
    if place.is_input:
        flag = f" {place.name}" if place.name else ""
        return [f"echo '{'ann:' if sign else ''}{SECRET}' | {start}{flag}"]
    if place.position:
        others = " ".join(f"x{n}" for n in range(1, place.position))
        name = "" if not place.name else f"{place.name}repo" if place.name[-1] == "." else place.name
        return [f"{start} {name} {others} {'ann' + sign if sign else ''}{SECRET}"]
    if sign == "=":
        return [f"{start} {place.name} NAME={SECRET}"]
    value = f"ann{sign}{SECRET}" if sign in (":", "%", ",") and sign else SECRET
    glued = f"{start} {place.name}{'=' if len(place.name) > 3 and place.name[0] == '-' else ''}{value}"
    return (
        [glued]
        if sign == "*" or place.name.endswith(":")
        else [f"{start} {place.name} {value}"] + ([glued] if sign != "_" and not place.name.startswith("/") else [])
    )


ROWS = [
    (program, command)
    for program, rules in program_rules().items()
    for rule in rules
    for place in rule.places
    for command in commands_of(program, rule.words, place)
]


@pytest.mark.parametrize(("program", "command"), ROWS, ids=[command for _, command in ROWS])
def test_each_place_of_the_table_is_redacted(program: str, command: str) -> None:
    (arguments,) = Redactor().record({"command": command})
    assert SECRET not in arguments["command"]


def test_a_program_is_named_by_its_file() -> None:
    assert program_name("/usr/bin/mysql") == program_name(r"C:\bin\MySQL.exe") == "mysql"
