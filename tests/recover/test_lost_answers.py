"""Which calls are the same, what settles a lost answer, and which values say which object a call is about."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mulligan.recover.lost_answers import (
    CallIdentity,
    LostAnswer,
    UserMessages,
    encode_arguments,
    find_identifiers,
)


def lost(arguments: dict[str, Any], *user_messages: UserMessages) -> LostAnswer:
    return LostAnswer(
        run="run_1",
        number=1,
        parent=None,
        tool="pay",
        call=CallIdentity("pay", "pay", 0, encode_arguments(arguments)),
        identifiers=find_identifiers(arguments, {"plan-2"}),
        failure=None,
        user_messages=user_messages,
        settled_calls=set(),
    )


@dataclass
class Line:
    item: str
    count: int


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": {"x": 1, "y": [1.0]}}, {"a": {"y": [1], "x": 1.0}}, True),
        ({"a": 120}, {"a": Decimal("120.00")}, True),
        ({"a": (1, 2)}, {"a": [1, 2]}, True),
        ({"a": Line("pen", 2)}, {"a": {"item": "pen", "count": 2}}, True),
        ({"a": date(2026, 1, 2)}, {"a": "2026-01-02"}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": "1"}, False),
        ({"a": 120}, {"a": 120.5}, False),
        ({"a": None}, {}, False),
        ({"a": [1, 2]}, {"a": [2, 1]}, False),
        ({"a": float("inf")}, {"a": float("nan")}, False),
    ],
)
def test_arguments_are_the_same_if_they_are_equal_as_json(one: Any, other: Any, is_same: bool) -> None:
    assert (encode_arguments(one) == encode_arguments(other)) is is_same


@given(
    st.dictionaries(
        st.text(), st.recursive(st.none() | st.booleans() | st.floats() | st.text() | st.binary(), st.lists)
    )
)
def test_any_arguments_can_be_compared(arguments: dict[str, Any]) -> None:
    shuffled = dict(reversed(list(arguments.items())))
    assert encode_arguments(arguments) == encode_arguments(shuffled)


def test_argument_that_contains_itself_can_be_compared() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    assert encode_arguments({"a": cycle}) == encode_arguments({"a": cycle})


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ({"invoice": "INV-1"}, {"inv-1"}),
        ({"order": "8f14e45f-ceea-467f-9af0-4f5d1c2b3a4d"}, {"8f14e45f-ceea-467f-9af0-4f5d1c2b3a4d"}),
        ({"to": "ann@example.org"}, {"ann@example.org"}),
        ({"path": "/srv/report.txt"}, {"/srv/report.txt"}),
        ({"invoice": 4711}, {"4711"}),
        ({"payment_id": "4711"}, {"4711"}),
        ({"order": {"lines": [{"sku": "A7-9"}]}}, {"a7-9"}),
        ({"to": "Ann", "unit": "EUR", "plan": "plan-2"}, set()),
        ({"amount": 1200, "price": "1200", "total": "12.50", "fee": "99EUR", "limit": 5000}, set()),
        ({"year": 2026, "day": "2026-01-02", "at": "09:30", "month": "2026-01"}, set()),
        ({"page": 2, "urgent": True, "share": 0.25, "note": "Order 12 of today"}, set()),
    ],
)
def test_only_values_that_name_one_object_identify_it(arguments: dict[str, Any], values: set[str]) -> None:
    assert {value for _, value in find_identifiers(arguments, {"plan-2"})} == values


@pytest.mark.parametrize(
    ("call", "arguments", "result", "is_looked_up"),
    [
        ({"invoice": "INV-1"}, {"invoice": "INV-1"}, None, True),
        ({"invoice": "INV-1"}, {"id": "inv-1"}, None, True),
        ({"invoice": "INV-1"}, {}, {"rows": [{"id": "INV-1", "state": "open"}]}, True),
        ({"invoice": "INV-1"}, {}, "INV-1 is open", True),
        ({"invoice": "INV-1"}, {"invoice": "INV-12"}, "INV-10 is open", False),
        ({"invoice": "INV-1"}, {}, [], False),
        ({"order_id": 7}, {"order_id": 7}, None, True),
        ({"order_id": 7}, {"limit": 7}, None, False),
        ({"order_id": 7}, {}, '{"orders": [{"order_id": 7}]}', True),
        ({"amount": 120}, {"amount": 120}, {"amount": 120}, False),
    ],
)
def test_lookup_is_about_the_same_object_if_it_shares_an_identifier(
    call: dict[str, Any], arguments: dict[str, Any], result: Any, is_looked_up: bool
) -> None:
    assert lost(call).is_looked_up(arguments, result) is is_looked_up


@pytest.mark.parametrize(
    ("texts", "starts_loop", "is_followed"),
    [
        (("Pay it.",), True, False),
        (("Pay it.", "Pay it."), True, True),
        (("Pay it again.",), True, True),
        (("Pay it.", "Pay it again."), False, True),
        (("Pay it.",), False, False),
        (("Review the plan.",), False, False),
        (("Hello.", "Pay it."), False, False),
    ],
)
def test_new_user_message_is_recognized(texts: tuple[str, ...], starts_loop: bool, is_followed: bool) -> None:
    assert lost({}, UserMessages(1, "Pay it.")).is_followed_by(texts, starts_loop=starts_loop) is is_followed


def test_user_message_is_not_new_if_it_is_unknown_what_was_written_before() -> None:
    assert not lost({}).is_followed_by(("Pay it.",), starts_loop=True)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (("pay", "pay", 1), ("pay", "pay", 2), True),  # a model names the tool, not its object
        (("pay", "pay_a", 1), ("pay", "pay_b", 1), False),
        (("pay", "", 1), ("pay", "pay_a", 1), True),  # the program called it, then a model
        (("pay", "", 1), ("pay", "pay_a", 2), False),
        (("pay", "pay", 0), ("refund", "pay", 0), False),
    ],
)
def test_calls_are_the_same_by_tool_and_arguments(one: Any, other: Any, is_same: bool) -> None:
    assert CallIdentity(*one, {}).is_same_as(CallIdentity(*other, {})) is is_same
