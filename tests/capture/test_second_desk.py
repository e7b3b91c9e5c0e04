"""Failures of a second service desk, whose tools were described by other hands: references, choices, open objects.

They were written to ask the engine about what it had not been mended for; what they are about stands in its page.
"""

from __future__ import annotations

from typing import Any

import pytest

from mulligan.capture.suggestions import SuggestionResult, suggest_repairs

TEXT = {"type": "string"}


def takes(required: list[str], **properties: Any) -> dict[str, Any]:
    """As most models of arguments are written: nothing is said of other names."""
    return {"type": "object", "properties": properties, "required": required}


BOOK = {
    "type": "object",
    "$defs": {
        "Passenger": takes(["first_name", "date_of_birth"], first_name=TEXT, date_of_birth=TEXT),
        "Payment": takes(["payment_id", "amount"], payment_id=TEXT, amount={"type": "number"}),
    },
    "properties": {
        "user_id": TEXT,
        "cabin": {"anyOf": [{"type": "string", "enum": ["basic_economy", "economy", "business"]}, {"type": "null"}]},
        "trip": {"type": "string", "enum": ["one_way", "round_trip"]},
        "passengers": {"type": "array", "items": {"$ref": "#/$defs/Passenger"}},
        "payments": {"type": "array", "items": {"$ref": "#/$defs/Payment"}},
        "bags": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "insured": {"type": "boolean"},
    },
    "required": ["user_id", "trip", "passengers", "payments"],
}
IDS = {"type": "array", "items": TEXT}
TOOLS: dict[str, dict[str, Any]] = {
    "book": BOOK,
    "get_order_details": takes(["order_id"], order_id=TEXT),
    "get_reservation": takes(["reservation_id"], reservation_id=TEXT),
    "get_user": takes(["user_id"], user_id=TEXT),
    "find_user": takes(["email"], email=TEXT),
    "swap": takes(["order_id", "item_ids", "new_item_ids"], order_id=TEXT, item_ids=IDS, new_item_ids=IDS, method=TEXT),
    "get_product": takes(["product_id"], product_id=TEXT),
    "list_products": takes([]),
    "refuel": takes(["line_id", "gigabytes"], line_id=TEXT, gigabytes={"type": "number"}),
    "list_bills": takes(["line_id"], line_id=TEXT, limit={"type": "integer"}),
    "buy": takes(["item_id", "quantity"], item_id=TEXT, quantity={"type": "integer"}),
    "get_line": takes(["phone_number"], phone_number=TEXT),
    "deliver": takes(["order_id", "place"], order_id=TEXT, place=takes(["city", "street"], city=TEXT, street=TEXT)),
}
PASSENGER = {"first_name": "Noor", "date_of_birth": "1990-01-02"}
BOOKED: dict[str, Any] = {
    "user_id": "noor_haddad_2210",
    "cabin": "economy",
    "trip": "one_way",
    "passengers": [PASSENGER],
    "payments": [{"payment_id": "card_7781", "amount": 300.0}],
    "bags": 2,
}
SWAPPED = {"order_id": "#Q1", "item_ids": ["11", "22"], "new_item_ids": ["33", "44"]}
ITEMS = [
    {"name": name, "item_id": item}
    for name, item in (("lamp", "8830217"), ("cup", "8831111"), ("pan", "8832222"), ("kettle", "8834460"))
]


def booked(**changed: Any) -> dict[str, Any]:
    return {**BOOKED, **changed}


def paying(*amounts: float) -> dict[str, Any]:
    return booked(payments=[{"payment_id": f"card_{at}", "amount": amount} for at, amount in enumerate(amounts)])


def did(tool: str, result: Any, **arguments: Any) -> dict[str, Any]:
    return {"tool": tool, "arguments": arguments, "outcome": "success", "result": result}


def answered(
    tool: str, arguments: dict[str, Any], error: str, *run: dict[str, Any], reads: bool = False
) -> SuggestionResult:
    about: dict[str, Any] = {"effects": "none"} if reads else {}
    return suggest_repairs(tool, arguments, error, schema=TOOLS.get(tool), tools=TOOLS, run=run, **about)


def is_a(kind: str) -> str:
    return f"1 validation error\n  Input should be a valid {kind}"


@pytest.mark.parametrize(
    ("tool", "call", "error", "right"),
    [
        ("book", booked(cabin="Basic_Economy"), "cabin: invalid value", booked(cabin="basic_economy")),
        ("book", booked(bags="2"), is_a("integer"), BOOKED),
        ("get_order_details", {"order_id": ["#Q1"]}, is_a("string"), {"order_id": "#Q1"}),
        ("book", booked(trip="one-way"), "trip: Input should be 'one_way' or 'round_trip'", BOOKED),
        ("book", booked(trip="OneWay "), "trip: Input should be 'one_way' or 'round_trip'", BOOKED),
        (
            "book",
            booked(passengers=[{"firstName": "Noor", "dateOfBirth": "1990-01-02"}]),
            "2 validation errors for Book\npassengers.0.first_name\n  Field required",
            BOOKED,
        ),
        (
            "book",
            booked(passengers='{"first_name": "Noor", "date_of_birth": "1990-01-02"}'),
            is_a("list"),
            BOOKED,
        ),
        ("swap", {**SWAPPED, "item_ids": "['11', '22']"}, is_a("list"), SWAPPED),
        ("get_order_details", {"order_id": {"order_id": "#Q1"}}, "expected str", {"order_id": "#Q1"}),
        (
            "deliver",
            {"order_id": "#Q1", "city": "Rome", "street": "Via 1"},
            "missing 1 required argument: 'place'",
            {"order_id": "#Q1", "place": {"city": "Rome", "street": "Via 1"}},
        ),
        (
            "deliver",
            {"order_id": "#Q1", "place.city": "Rome", "place.street": "Via 1"},
            "unexpected keyword argument 'place.city'",
            {"order_id": "#Q1", "place": {"city": "Rome", "street": "Via 1"}},
        ),
    ],
)
def test_what_the_schema_alone_settles_is_tried(tool, call, error, right):
    first = answered(tool, call, error).suggestions[0]
    assert first.arguments == right
    assert first.automatic, first.reason


@pytest.mark.parametrize("name", ["getOrderDetails", "get-order-details", "functions.get_order_details()"])
def test_a_tool_in_another_way_of_writing_is_called(name):
    first = answered(name, {"order_id": "#Q1"}, f"Tool {name} not found").suggestions[0]
    assert (first.tool, first.automatic) == ("get_order_details", True)


@pytest.mark.parametrize("name", ["get_order", "get_order_details_tool", "mcp__shop__get_order_details"])
def test_a_tool_that_may_be_another_is_offered(name):
    first = answered(name, {"order_id": "#Q1"}, f"Tool {name} not found").suggestions[0]
    assert (first.tool, first.automatic) == ("get_order_details", False)


@pytest.mark.parametrize(
    "error",
    [
        "Total price is $350.00. You have paid $300.00.",
        "Expected payment of 350 but received 300",
        "Amount mismatch: required 350, provided 300",
        "You need to pay 350 for this booking, not 300.",
        "payment total 300.0 does not match the reservation price 350.0",
        '{"error": "payment_mismatch", "total_price": 350, "paid": 300}',
    ],
)
def test_the_total_is_offered_in_place_of_what_was_paid(error):
    offered = answered("book", paying(300.0), error).suggestions
    assert [each.arguments for each in offered] == [paying(350.0)]
    assert not offered[0].automatic


def test_what_is_left_of_a_total_is_offered_for_each_payment():
    error = "Payment amount does not add up, total price is 230, but paid 200"
    offered = answered("book", paying(50, 50, 100), error).suggestions
    assert [each.arguments for each in offered] == [paying(50, 50, 130), paying(50, 80, 100), paying(80, 50, 100)]
    assert not any(each.automatic for each in offered)


@pytest.mark.parametrize(
    ("tool", "call", "error", "run", "right"),
    [
        (
            "swap",
            {**SWAPPED, "method": "card_99"},
            "Error: Payment method card_99 not found",
            did("get_user", {"methods": {"paypal_777": {"source": "paypal"}, "voucher_1": {}}}, user_id="noor"),
            {**SWAPPED, "method": "paypal_777"},
        ),
        (
            "get_reservation",
            {"reservation_id": "XXXXXX"},
            "Error: Reservation XXXXXX not found",
            did("get_user", {"reservations": ["ZK41QP", "QQ12AB"]}, user_id="noor"),
            {"reservation_id": "QQ12AB"},
        ),
        (
            "swap",
            {**SWAPPED, "item_ids": ["8830217", "8834461"]},
            "Error: some item not found",
            did("get_order_details", {"items": ITEMS}, order_id="#Q1"),
            {**SWAPPED, "item_ids": ["8830217", "8834460"]},
        ),
        (
            "get_user",
            {"user_id": "n@x.example"},
            "Error: User n@x.example not found",
            did("find_user", "noor_haddad_2210", email="n@x.example"),
            {"user_id": "noor_haddad_2210"},
        ),
        (
            "get_product",
            {"product_id": "Desk Lamp"},
            "Error: product not found",
            did("list_products", '{"T-Shirt": "6086499", "Desk Lamp": "5554443"}'),
            {"product_id": "5554443"},
        ),
        (
            "buy",
            {"item_id": "kettle", "quantity": 1},
            "Error: item kettle not found",
            did("get_order_details", {"items": ITEMS}, order_id="#Q1"),
            {"item_id": "8834460", "quantity": 1},
        ),
        (
            "get_line",
            {"phone_number": "(555) 0142"},
            "Error: Line (555) 0142 not found",
            did("get_user", {"lines": [{"phone_number": "555-0142"}]}, user_id="noor"),
            {"phone_number": "555-0142"},
        ),
        (
            "get_user",
            {"user_id": "Noor_Haddad_2210"},
            "Error: user not found",
            did("find_user", "noor_haddad_2210", email="n@x.example"),
            {"user_id": "noor_haddad_2210"},
        ),
    ],
)
def test_what_this_run_knows_is_among_three_and_not_tried(tool, call, error, run, right):
    offered = answered(tool, call, error, run, reads=True).suggestions
    assert right in [each.arguments for each in offered[:3]]
    assert not any(each.automatic for each in offered)


@pytest.mark.parametrize(
    ("tool", "call", "error", "right"),
    [
        ("list_bills", {"line_id": "L1", "limit": 50}, "limit: 20 is the maximum; received 50", 20),
        ("refuel", {"line_id": "L1", "gigabytes": 5}, "gigabytes cannot be more than 2", 2),
    ],
)
def test_a_bound_is_offered_where_the_error_may_be_about_something_else(tool, call, error, right):
    (offered,) = answered(tool, call, error).suggestions
    assert list(offered.arguments.values()) == ["L1", right]


@pytest.mark.parametrize(
    ("tool", "call", "error"),
    [
        ("book", booked(payments={"card_7781": 300}), is_a("list")),
        ("book", booked(insured=1), is_a("boolean")),
        ("book", booked(bags="two"), is_a("integer")),
        ("book", booked(passengers=[{"first_name": "Noor", "dob": "1990-01-02"}]), "date_of_birth: Field required"),
        ("swap", {**SWAPPED, "item_ids": "11,22"}, is_a("list")),
        ("get_order_details", {"order_id": ["#Q1", "#Q2"]}, is_a("string")),
        ("book", BOOKED, "The gift card only covers 80 of the 300 requested"),
        ("buy", {"item_id": "11", "quantity": 12}, "quantity 12 exceeds available stock 7"),
        ("book", BOOKED, "Set verified=true and retry"),
        ("book", BOOKED, "A certificate cannot be used for this"),
        ("book", BOOKED, "Cannot exceed 5 passengers"),
        ("book", BOOKED, "amount must equal 9500.0, got 300.0"),
        ("get_order_details", {"order_id": "#Q1"}, "order moved: use order_id #Q9 instead of #Q1"),
    ],
)
def test_what_may_be_meant_otherwise_is_not_tried(tool, call, error):
    assert not any(each.automatic for each in answered(tool, call, error, reads=True).suggestions)


def test_no_text_of_an_error_and_no_amount_of_another_size_is_even_offered():
    assert answered("book", BOOKED, "amount must equal 9500.0, got 300.0").suggestions == ()
    assert answered("get_order_details", {"order_id": "#Q1"}, "use order_id #Q9 instead of #Q1").suggestions == ()
