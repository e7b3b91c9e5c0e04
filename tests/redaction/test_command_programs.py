"""The table of programs that take a secret, through the redactor that uses it."""

from __future__ import annotations

import pytest

from mulligan.redaction import Redactor
from mulligan.redaction.command_programs import SecretSlot, program_name, program_rules

SECRET = "tulip-marble"


def commands_of(program: str, words: frozenset[str], slot: SecretSlot) -> list[str]:
    """Commands that have a secret at a slot of the table."""
    start = " ".join([program, *sorted(words - {slot.name})])
    sign = slot.sign
    if slot.is_input:
        flag = f" {slot.name}" if slot.name else ""
        return [f"echo '{'ann:' if sign else ''}{SECRET}' | {start}{flag}"]
    if slot.position:
        others = " ".join(f"x{n}" for n in range(1, slot.position))
        name = "" if not slot.name else f"{slot.name}repo" if slot.name[-1] == "." else slot.name
        return [f"{start} {name} {others} {'ann' + sign if sign else ''}{SECRET}"]
    if sign == "=":
        return [f"{start} {slot.name} NAME={SECRET}"]
    value = f"ann{sign}{SECRET}" if sign in (":", "%", ",") and sign else SECRET
    glued = f"{start} {slot.name}{'=' if len(slot.name) > 3 and slot.name[0] == '-' else ''}{value}"
    return (
        [glued]
        if sign == "*" or slot.name.endswith(":")
        else [f"{start} {slot.name} {value}"] + ([glued] if sign != "_" and not slot.name.startswith("/") else [])
    )


ROWS = [
    (program, command)
    for program, rules in program_rules().items()
    for rule in rules
    for slot in rule.slots
    for command in commands_of(program, rule.words, slot)
]


@pytest.mark.parametrize(("program", "command"), ROWS, ids=[command for _, command in ROWS])
def test_each_slot_of_the_table_is_redacted(program: str, command: str) -> None:
    (arguments,) = Redactor().record({"command": command})
    assert SECRET not in arguments["command"]


def test_a_program_is_named_by_its_file() -> None:
    assert program_name("/usr/bin/mysql") == program_name(r"C:\bin\MySQL.exe") == "mysql"
