"""A kind that a program names is stored as it was named, whether it is declared or not."""

from __future__ import annotations

import re

import pytest

from mulligan.classify.recorded_kinds import name_kind
from mulligan.core.failure import Kind, Remedy
from mulligan.core.kinds import KINDS


def test_declared_kind_is_found_without_a_warning() -> None:
    own = Kind("tool", "ticket_locked", Remedy.STOP)
    assert name_kind("tool", "timeout") == (KINDS["tool/timeout"], "")
    assert name_kind("TOOL", "Ticket_Locked", {**KINDS, str(own): own}) == (own, "")


def test_code_of_ones_own_is_stored_under_its_type_with_a_warning_that_names_the_declaration() -> None:
    kind, warning = name_kind("tool", "crm_ticket_locked")
    assert (kind, kind.type, kind.remedy) == ("tool/crm_ticket_locked", "tool", Remedy.REPLAN)
    assert kind.hint
    assert '[kinds."tool/crm_ticket_locked"]' in warning


def test_code_of_another_type_has_the_remedy_of_that_kind() -> None:
    kind, warning = name_kind("tool", "no_results")
    assert kind == "tool/no_results"
    assert kind.remedy == KINDS["retrieval/no_results"].remedy
    assert "Did you mean" in warning


@pytest.mark.parametrize(
    ("type", "code", "name"),
    [
        ("tool", "ticket locked!", "tool/ticket_locked"),
        ("billing", "Card-Declined", "billing/Card-Declined"),
        ("tool", "a/b", "tool/a_b"),
        ("tool", "x" * 10_000_000, f"tool/{'x' * 80}"),
        ("tool", "\ud800", "tool/unknown"),
        ("", "", "tool/unknown"),
    ],
)
def test_hostile_names_become_one_bounded_word(type: str, code: str, name: str) -> None:
    kind, warning = name_kind(type, code)
    assert str(kind) == name
    assert warning


@pytest.mark.parametrize("code", ["ticket_locked", "Ticket_Locked", "ticket locked!", 'ticket"] locked', "timout"])
def test_kind_declared_as_the_warning_suggests_is_that_of_the_code_as_sent(code: str) -> None:
    _, warning = name_kind("tool", code)
    match = re.search(r'\[kinds\."tool/([^"]*)"\]', warning)
    assert match is not None
    own = Kind("tool", match[1], Remedy.STOP)
    assert name_kind("tool", code, {**KINDS, str(own): own}) == (own, "")


def test_misspelled_code_is_stored_as_sent_with_the_nearest_kind_in_the_warning() -> None:
    kind, warning = name_kind("tool", "timout")
    assert kind == "tool/timout"
    assert "Did you mean 'tool/timeout'?" in warning
