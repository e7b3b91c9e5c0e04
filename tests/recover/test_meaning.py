"""What is executed without asking means what was asked (SAFETY S1a): the table, and programs that meet each row."""

from __future__ import annotations

from typing import Any, Literal, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mulligan
from mulligan import AgentError
from mulligan.core.records import Change, ChangeOperation, Effects
from mulligan.recover.meaning import RequestedCall, find_objection, is_position, keeps_value
from mulligan.recover.schema import compile_schema
from mulligan.recover.word_meaning import (
    are_opposites,
    is_same_code,
    is_same_name,
    is_same_word,
)
from mulligan.testing import Sandbox, sandbox

HAS_EFFECTS = "may have effects"
NO_READER = "a program made the call"
ALL_EFFECTS: tuple[Effects, ...] = get_args(Effects)


def change(operation: ChangeOperation, path: str, before: Any, after: Any = None, source: Any = "schema") -> Change:
    return Change(path=path, operation=operation, before=before, after=after, source=source)


def objection(
    edit: Change, tool: str = "search", effects: Effects = "none", has_reader: bool = True, **options: Any
) -> str:
    """Return why the change needs asking. The call has the changed argument alone, unless `arguments` says more."""
    call: dict[str, Any] = {"arguments": {edit.path: edit.before}, **options}
    return find_objection(edit, RequestedCall(tool, effects, has_reader=has_reader, **call))


# Row 1: the same value in another form is the same call, for every tool and every caller

FORMS = {
    "cast a text": change("cast", "days", "3", 3),
    "cast a number": change("cast", "code", 3, "3"),
    "cast a decimal without loss": change("cast", "days", 3.0, 3),
    "cast a boolean": change("cast", "draft", "True", True),
    "trim spaces": change("trim", "name", " Ann ", "Ann"),
    "trim quotes": change("trim", "name", '"Ann"', "Ann"),
    "parse a list": change("parse", "tags", '["a", "b"]', ["a", "b"]),
    "parse an object": change("parse", "filter", '{"days": "3"}', {"days": 3}),
    "wrap a value": change("wrap", "tags", "a", ["a"]),
    "wrap a parsed value": change("wrap", "ids", "7", [7]),
    "unwrap a list": change("cast", "sku", [7], 7),
    "unwrap an object": change("cast", "days", {"value": 3}, 3),
    "unwrap an object of the same name": change("cast", "days", {"days": "3"}, 3),
    "another spelling of a name": change("rename", "topK", None, "top_k"),
    "a typing error in a name": change("rename", "qeury", None, "query"),
    "a plural": change("rename", "tag", None, "tags"),
    "case of a word": change("enum", "priority", "High", "high"),
    "separators of words": change("enum", "state", "In Progress", "in_progress"),
    "quotes around a member": change("enum", "unit", '"mW"', "mW"),
    "an unknown argument that is null": change("drop", "note", None),
    "an unknown argument that is empty": change("drop", "note", ""),
    "an identifier of this run without its sign": change("substitute", "order_id", "w123", "#W123", "run"),
}


@pytest.mark.parametrize("has_reader", [True, False])
@pytest.mark.parametrize("effects", ALL_EFFECTS)
@pytest.mark.parametrize("edit", FORMS.values(), ids=FORMS.keys())
def test_other_form_of_the_same_value_is_never_objected_to(edit: Change, effects: Effects, has_reader: bool) -> None:
    assert objection(edit, "set_limits", effects, has_reader) == ""


NO_FORMS = {
    "a cast with loss": change("cast", "days", 3.7, 3),
    "a truth that was a number": change("cast", "draft", 1, True),
    "a trim that leaves out words": change("trim", "file", "a/b.txt", "b.txt"),
    "one of two list items": change("cast", "sku", [7, 8], 7),
    "a list with another item": change("parse", "tags", '["a"]', ["a", "b"]),
    "the value of a key with a meaning": change("cast", "days", {"gte": 3}, 3),
    "another identifier of the run": change("substitute", "order_id", "#W124", "#W123", "run"),
    "null as an empty text": change("cast", "name", None, ""),
    "a bound": change("clamp", "top_k", 50, 10),
    "a default": change("default", "priority", None, "low"),
    "a misspelled member": change("enum", "priority", "hihg", "high"),
    "a unit in another case": change("enum", "unit", "MW", "mW"),
    "a dropped value": change("drop", "note", "urgent"),
    "another name": change("rename", "query", None, "text"),
}


@pytest.mark.parametrize("edit", NO_FORMS.values(), ids=NO_FORMS.keys())
def test_other_value_is_no_form_and_a_program_is_asked(edit: Change) -> None:
    assert not keeps_value(edit, RequestedCall("search", "none", {edit.path: edit.before}))
    for effects in ALL_EFFECTS:
        assert objection(edit, effects=effects, has_reader=False)


# Row 2: another value, only for a tool that only reads, and only where a model reads the note

OTHER_VALUES = {
    "bound": change("clamp", "top_k", 50, 10),
    "bound in an error": change("clamp", "limit", 50, 10, "error"),
    "misspelled member": change("enum", "priority", "hihg", "high"),
}


@pytest.mark.parametrize("edit", OTHER_VALUES.values(), ids=OTHER_VALUES.keys())
def test_other_value_needs_a_tool_that_only_reads_and_a_reader(edit: Change) -> None:
    assert objection(edit, effects="none", has_reader=True) == ""
    assert NO_READER in objection(edit, effects="none", has_reader=False)
    for effects in ("once", "idempotent"):
        for has_reader in (True, False):
            assert HAS_EFFECTS in objection(edit, effects=effects, has_reader=has_reader)


@pytest.mark.parametrize("effects", ALL_EFFECTS)
@pytest.mark.parametrize("has_reader", [True, False])
@pytest.mark.parametrize(
    ("path", "clamp"), [("top_k", "top_k"), ("page.size", "size"), ("page.size", "page.size"), ("days", "days")]
)
def test_author_of_a_tool_allows_a_bound_by_name(effects: Effects, has_reader: bool, path: str, clamp: str) -> None:
    edit = change("clamp", path, 50, 10)
    assert objection(edit, "set_limits", effects, has_reader, clamp=frozenset({clamp})) == ""
    assert objection(edit, "set_limits", effects, has_reader, clamp=frozenset({"other"}))


def test_allowed_bound_allows_no_other_change_of_the_argument() -> None:
    for edit in (
        change("drop", "top_k", 50),
        change("rename", "top_k", None, "n"),
        change("default", "top_k", None, 5),
    ):
        assert objection(edit, has_reader=False, clamp=frozenset({"top_k"}))


def test_reason_for_a_bound_says_how_to_allow_it() -> None:
    for has_reader, effects in ((False, "none"), (True, "once")):
        reason = objection(change("clamp", "top_k", 50, 10), effects=effects, has_reader=has_reader)  # type: ignore[arg-type]
        assert reason.endswith('; @mulligan.tool(clamp=["top_k"]) allows it')


# What a call is about is never changed without asking, also where a model reads the note about a tool that only reads

ABOUT = [
    ("search", change("clamp", "page", 9, 3), {}, "may identify an object"),
    ("search", change("clamp", "note_id", 0, 1), {}, "may identify an object"),
    ("search", change("clamp", "skip", 900.0, 100.0), {}, "the place where the results begin"),
    ("search", change("clamp", "limit", 500, 100), {"offset": 0}, "reads page by page (offset)"),
    ("search", change("clamp", "page_size", 500, 100), {"page": 3}, "reads page by page (page)"),
    ("search", change("clamp", "per_page", 500, 100), {"startPage": 3}, "reads page by page (startPage)"),
    ("search", change("clamp", "limit", 500, 100), {"cursor": "abc"}, "reads page by page (cursor)"),
    ("search", change("clamp", "limit", 500, 100), {"page_token": "abc"}, "reads page by page (page_token)"),
    ("search", change("clamp", "limit", 500, 100), {"after": 7}, "reads page by page (after)"),
    ("set_alert", change("clamp", "limit", 500, 100), {}, "limit is a setting"),
    ("configureBackup", change("clamp", "size", 500, 100), {}, "size is a setting"),
    ("shop.update_profile", change("enum", "theme", "drak", "dark"), {}, "theme is a setting"),
    ("backup_retention", change("clamp", "limit", 500, 100), {}, "a setting"),
    ("search", change("clamp", "quota", 500, 100), {}, "a setting"),
    ("search", change("clamp", "max_retention", 500, 100), {}, "a setting"),
    ("search", change("enum", "unit", "metrc", "metric"), {}, "unit is a unit"),
    ("search", change("enum", "currency", "eurro", "euro"), {}, "currency is a currency"),
    ("search", change("enum", "timezone", "Lisbonn", "Lisbon"), {}, "timezone is a time zone"),
    ("search", change("enum", "start_date", "tomorow", "tomorrow"), {}, "start_date is a date"),
    ("search", change("enum", "sort_order", "ascendng", "ascending"), {}, "a direction"),
    ("search", change("enum", "visibility", "pubic", "public"), {}, "a permission"),
    ("search", change("substitute", "draft", False, True, "memory"), {}, "draft is a decision"),
    ("search", change("clamp", "days", 30, 7), {}, "would answer another question"),
    ("search", change("clamp", "min_score", 0.99, 0.5), {}, "would answer another question"),
    ("search", change("clamp", "limit", 1, 10), {}, "would answer another question"),
    ("search", change("drop", "tag", "red"), {}, "the default of tag"),
    ("search", change("default", "tag", None, "red"), {}, "the default of tag"),
    ("search", change("rename", "query", None, "text"), {}, "may be two arguments"),
]


@pytest.mark.parametrize(("tool", "edit", "others", "reason"), ABOUT)
def test_what_a_call_is_about_needs_asking(tool: str, edit: Change, others: dict[str, Any], reason: str) -> None:
    message = objection(edit, tool, arguments={edit.path: edit.before, **others})
    assert message
    assert reason in message


@pytest.mark.parametrize(
    ("edit", "others"),
    [
        (change("clamp", "limit", 500, 100), {"page": None}),  # null is no position
        (change("clamp", "per_page", 500, 100), {}),
        (change("clamp", "max_results", 500, 100), {"query": "x"}),
        (change("clamp", "timeout_seconds", 500, 100), {}),
        (change("clamp", "maxTokens", "500", 100), {}),
        (change("enum", "color", "blu", "blue"), {"page": 3}),
        (change("enum", "region", "EU-WEST-1", "eu-west-1"), {}),
        (change("enum", "timezone", "UTC+1-lisbon", "UTC+1-Lisbon"), {}),  # a code in another case
    ],
)
def test_size_or_word_that_a_call_is_not_about_may_change(edit: Change, others: dict[str, Any]) -> None:
    assert objection(edit, arguments={edit.path: edit.before, **others}) == ""


POSITIONS = "page offset skip start cursor after before marker startPage page_token next_token scroll_id continuation"


@pytest.mark.parametrize("name", POSITIONS.split())
def test_argument_that_says_where_results_begin_is_a_position(name: str) -> None:
    assert is_position(name, 0)
    assert is_position(name, "abc")
    assert not is_position(name, None)


@pytest.mark.parametrize("name", "limit per_page page_size pages query token max_tokens".split())
def test_argument_that_says_how_much_is_no_position(name: str) -> None:
    assert not is_position(name, 50)


# Null for an argument means "omitted" only where its default does nothing, or is a size


@pytest.mark.parametrize(
    ("name", "default", "is_form"),
    [
        ("note", None, True),
        ("draft", False, True),
        ("tags", [], True),
        ("note", "", True),
        ("sort", "none", True),
        ("limit", 20, False),
        ("due", "today", False),
        ("notify", True, False),
        ("days", 30, False),
        ("currency", "USD", False),
        ("tags", ["new"], False),
    ],
)
def test_null_is_a_form_of_omitted_where_the_default_does_not_act(name: str, default: Any, is_form: bool) -> None:
    schema = compile_schema({"type": "object", "properties": {name: {"default": default}}})
    reason = objection(change("drop", name, None), effects="once", has_reader=False, schema=schema)
    assert (reason == "") is is_form


def test_null_for_a_size_is_a_form_of_omitted_where_the_tool_only_reads() -> None:
    schema = compile_schema({"type": "object", "properties": {"limit": {"default": 20}, "timeout": {"default": 30.0}}})
    for name in ("limit", "timeout"):
        assert objection(change("drop", name, None), effects="none", has_reader=False, schema=schema) == ""


def test_unknown_null_may_be_meant_for_an_argument_that_shares_a_word() -> None:
    schema = compile_schema({"type": "object", "properties": {"expires_days": {"default": 30}, "q": {}}})
    dropped = change("drop", "expires_at", None)
    assert objection(dropped, effects="once", schema=schema)
    assert objection(change("drop", "note", None), effects="once", schema=schema) == ""
    given = {"expires_at": None, "expires_days": 3}
    assert objection(dropped, effects="once", schema=schema, arguments=given) == ""


# Names


@pytest.mark.parametrize(
    "pair",
    "topK/top_k top-k/top_k TOP_K/top_k topk/top_k user-name/userName tag/tags categories/category querry/query "
    "qeury/query lmit/limit limt/limit destinaton/destination pedalPPosition/pedalPosition filter.topK/top_k".split(),
)
def test_name_has_other_spellings(pair: str) -> None:
    assert is_same_name(*pair.split("/"))


@pytest.mark.parametrize(
    "pair",
    "include/exclude include_unread/exclude_unread min_price/max_price case_sensitive/case_insensitive "
    "enabled/disabled verify/no_verify created_after/created_before start_date/end_date sender/recipient lat/lng "
    "payer/payee employer/employee from/to width/height from/form date/data cost/cot host/hot user/use quiet/quite "
    "trial/trail count/court radius/radius_m city_a/city_b v1/v2 page1/page2 query/text limit/offset day/date "
    "expires_at/expires_days".split(),
)
def test_other_name_is_no_spelling(pair: str) -> None:
    one, other = pair.split("/")
    assert not is_same_name(one, other)
    assert not is_same_name(other, one)


def test_number_under_a_singular_says_which_one() -> None:
    assert is_same_name("tag", "tags", "red")
    assert not is_same_name("day", "days", 3)


# Words and codes


@pytest.mark.parametrize(
    ("before", "after"),
    [("High", "high"), ("HIGH", "high"), (" high ", "high"), ('"high"', "high"), ("In Progress", "in_progress"),
     ("in-progress", "in_progress"), ("CSV", "csv"), ("'mW'", "mW"), ("europe/lisbon", "Europe/Lisbon")],
)  # fmt: skip
def test_case_and_separators_of_a_word_say_nothing(before: str, after: str) -> None:
    assert is_same_word(before, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [("MW", "mW"), ("1M", "1m"), ("us", "US"), ("GB", "Gb"), ("KWH", "kWh"), ("Min", "min"), ("Bit", "bit"),
     ("v1", "V1"), ("A4", "a4"), ("hgih", "high"), ("c", "C"), (1, "1m")],
)  # fmt: skip
def test_case_of_a_unit_a_code_or_two_letters_is_a_meaning(before: Any, after: str) -> None:
    assert not is_same_word(before, after)
    assert not is_same_code(str(before), after)


@pytest.mark.parametrize("pair", "EU-WEST-1/eu-west-1 GPT-4/gpt-4 UTF-8/utf-8 iso8601/ISO8601".split())
def test_code_with_a_word_in_it_is_known_in_another_case_but_not_a_word(pair: str) -> None:
    before, after = pair.split("/")
    assert is_same_code(before, after)
    assert not is_same_word(before, after)


# Opposites


@pytest.mark.parametrize(
    "pair",
    "include/exclude min/max asc/desc ascending/descending enabled/disabled case_sensitive/case_insensitive "
    "before/after from/to start/end open/closed active/inactive encrypt/decrypt import/export increase/decrease "
    "allow/deny verify/no_verify with_tax/without_tax lender/borrower employer/employee payer/payee inbound/outbound "
    "upload/download prefix/postfix locked/unlocked public/private read/write income/expense visible/invisible "
    "created_after/created_before include_unread/exclude_unread hopeful/hopeless true/false on/off "
    "older/newer gt/lt prepaid/postpaid overdue/underdue minPrice/maxPrice".split(),
)
def test_opposites_are_known_in_both_directions(pair: str) -> None:
    one, other = pair.split("/")
    assert are_opposites(one, other)
    assert are_opposites(other, one)


@pytest.mark.parametrize(
    "pair",
    "high/high high/higher tag/tags query/text city/town color/colour json/yaml medium/large north/northeast "
    "limit/offset name/title cover/recover min_price/minPrice start_date/start_day".split(),
)
def test_other_words_are_no_opposites(pair: str) -> None:
    one, other = pair.split("/")
    assert not are_opposites(one, other)
    assert not are_opposites(other, one)


# The same through tools: a model's call in a turn, and a program's own


def ask(tool: Any, arguments: dict[str, Any]) -> Any:
    """Return the outcome of a model's call."""
    return next(iter(mulligan.turns(limit=1))).call([tool], tool.__name__, arguments)


def build_search(executed: list[Any], **options: Any) -> Any:
    @mulligan.tool(**options)
    def search(query: str, top_k: int = 5, sort: Literal["newest", "relevance"] = "newest") -> str:
        executed.append((query, top_k, sort))
        if top_k > 10:
            raise AgentError(f"top_k must be 10 or less, got {top_k}.")
        return f"{top_k} by {sort}"

    return search


CALLERS = ("model", "program")
TOO_MANY = {"query": "x", "top_k": 50}
READER_TABLE = [
    # effects, clamp, model or program, the call, what is executed at last (None: nothing else than was asked)
    *[(effects, (), who, {"query": "x", "topK": "7"}, "7 by newest") for effects in ALL_EFFECTS for who in CALLERS],
    ("none", (), "model", TOO_MANY, "10 by newest"),
    ("none", (), "program", TOO_MANY, None),
    ("idempotent", (), "model", TOO_MANY, None),
    ("once", (), "model", TOO_MANY, None),
    ("once", (), "program", TOO_MANY, None),
    *[(effects, ("top_k",), who, TOO_MANY, "10 by newest") for effects in ALL_EFFECTS for who in CALLERS],
]  # fmt: skip


@pytest.mark.parametrize(("effects", "clamp", "who", "arguments", "result"), READER_TABLE)
def test_who_reads_the_note_decides_what_is_executed(
    played: Sandbox, effects: Effects, clamp: Any, who: str, arguments: dict[str, Any], result: str | None
) -> None:
    executed: list[Any] = []
    schema = {
        "type": "object",
        "properties": {"query": {"type": "string"}, "top_k": {"type": "integer"}},
        "additionalProperties": False,
    }
    search = build_search(executed, effects=effects, clamp=clamp, schema=schema)
    if who == "model":
        outcome = ask(search, arguments)
        assert outcome.value == result
        assert outcome.ok is (result is not None)
        if result is None:
            assert "Use 10 for top_k instead of 50, if that serves the request" in outcome.to_message()
    elif result is not None:
        assert search(**arguments) == result
    else:
        with pytest.raises(AgentError) as caught:
            search(**arguments)
        note = "\n".join(caught.value.__notes__)
        assert "Use 10 for top_k instead of 50, if that serves the request." in note
        assert '@mulligan.tool(clamp=["top_k"]) allows it' in note
    if result is None:
        assert executed == [("x", 50, "newest")]


def test_call_that_a_tool_makes_has_no_reader(played: Sandbox) -> None:
    executed: list[Any] = []
    search = build_search(executed, effects="none")

    @mulligan.tool(effects="none")
    def answer(query: str) -> str:
        return str(search(query, top_k=50))

    assert not ask(answer, {"query": "x"}).ok
    assert {top_k for _, top_k, _ in executed} == {50}


def test_misspelled_member_is_used_for_a_model_that_reads_the_note(played: Sandbox) -> None:
    for effects, is_ok in (("none", True), ("once", False)):
        executed: list[Any] = []
        outcome = ask(build_search(executed, effects=effects), {"query": "x", "sort": "newst"})
        # What sorts is what the call is about: a direction.
        assert not outcome.ok
        assert executed == []

        @mulligan.tool(effects=effects)  # type: ignore[call-overload]
        def paint(color: Literal["green", "violet"]) -> str:
            return color

        assert ask(paint, {"color": "voilet"}).ok is is_ok


def test_released_argument_is_not_clamped(played: Sandbox) -> None:
    """`unprivileged` says that an argument may be repaired, `clamp` that its author prefers the bound."""
    executed: list[Any] = []
    search = build_search(executed, unprivileged=["top_k"])
    assert not ask(search, {"query": "x", "top_k": 50}).ok
    with pytest.raises(AgentError):
        search("x", top_k=50)


def test_required_argument_is_not_filled_with_its_default(played: Sandbox) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 3}},
        "required": ["city", "days"],
    }
    executed: list[Any] = []

    @mulligan.tool(schema=schema)
    def forecast(city: str, days: int) -> str:
        executed.append(days)
        return city

    outcome = ask(forecast, {"city": "Oslo"})
    assert not outcome.ok
    assert executed == []


# Programs that were executed with another meaning before


def nine_calls(executed: list[str]) -> list[tuple[Any, dict[str, Any]]]:
    @mulligan.tool
    def configure_backup(retention_limit: int) -> None:
        if retention_limit > 7:
            raise AgentError("retention_limit must be 7 or less on this plan.")
        executed.append(f"backups older than {retention_limit} days are deleted")

    @mulligan.tool
    def resize_disk(size_gb: int) -> None:
        if size_gb > 100:
            raise AgentError(f"size_gb must be 100 or less, got {size_gb}.")
        executed.append(f"disk has {size_gb} GB")

    @mulligan.tool
    def set_spending_limit(limit: int) -> None:
        if limit > 100:
            raise AgentError(f"limit must be 100 or less, got {limit}.")
        executed.append(f"limit {limit}")

    @mulligan.tool
    def set_power(value: int, unit: Literal["mW", "W", "kW"]) -> None:
        executed.append(f"{value} {unit}")

    @mulligan.tool
    def get_candles(symbol: str, interval: Literal["1m", "5m", "1h", "1d"]) -> None:
        executed.append(f"candles of {interval}")

    @mulligan.tool
    def replace_all(text: str, case_insensitive: bool = False) -> None:
        executed.append(f"case_insensitive={case_insensitive}")

    @mulligan.tool
    def schedule(task: str, due: str = "today") -> None:
        executed.append(f"due {due}")

    @mulligan.tool
    def archive(q: str, exclude_unread: bool = False) -> None:
        executed.append(f"exclude_unread={exclude_unread}")

    @mulligan.tool
    def list_users(q: str, disabled: bool = False) -> None:
        executed.append(f"disabled={disabled}")

    return [
        (configure_backup, {"retention_limit": 365}),
        (resize_disk, {"size_gb": 500}),
        (set_spending_limit, {"limit": 900}),
        (set_power, {"value": 5, "unit": "MW"}),
        (get_candles, {"symbol": "BTC", "interval": "1M"}),
        (replace_all, {"text": "a", "case_sensitive": True}),
        (schedule, {"task": "x", "due": None}),
        (archive, {"q": "a", "include_unread": True}),
        (list_users, {"q": "a", "enabled": True}),
    ]


@pytest.mark.parametrize("index", range(9))
def test_call_is_not_executed_with_another_meaning(played: Sandbox, index: int) -> None:
    executed: list[str] = []
    tool, arguments = nine_calls(executed)[index]
    outcome = ask(tool, arguments)
    assert not outcome.ok
    assert executed == []
    offered = str(outcome.answer.get("suggestions", "")) + outcome.to_message().partition("Change ")[2]
    for opposite in ("case_insensitive", "exclude_unread", "disabled", "mW", "1m"):
        assert opposite not in offered


def build_export(**options: Any) -> Any:
    @mulligan.tool(effects="none", **options)
    def fetch_orders(after: int = 0, limit: int = 100) -> list[int]:
        if limit > 100:
            raise ValueError(f"limit must be at most 100, got {limit}")
        return list(range(after + 1, 1001))[:limit]

    return fetch_orders


def test_export_that_pages_by_cursor_fails_instead_of_ending_early(played: Sandbox) -> None:
    fetch_orders = build_export()
    with pytest.raises(ValueError, match="limit must be at most 100") as caught:
        fetch_orders(after=0, limit=500)
    note = "\n".join(caught.value.__notes__)
    assert "Use 100 for limit instead of 500, if that serves the request." in note
    assert '@mulligan.tool(clamp=["limit"])' in note
    outcome = ask(fetch_orders, {"after": 0, "limit": 500})
    assert not outcome.ok
    assert "Use 100 for limit instead of 500, if that serves the request" in outcome.to_message()


def test_export_that_agreed_to_a_bound_gets_it(played: Sandbox) -> None:
    assert build_export(clamp=("limit",))(after=0, limit=500) == list(range(1, 101))


def test_form_of_other_values_is_not_given_to_a_value(played: Sandbox) -> None:
    executed: list[str] = []

    @mulligan.tool(effects="none")
    def clock(zone: str) -> str:
        executed.append(zone)
        if zone != "UTC":
            raise AgentError(f"Unknown zone {zone!r}.", code="not_found")
        return "12:00"

    with mulligan.run("agent"):
        assert ask(clock, {"zone": "UTC"}).ok
        outcome = ask(clock, {"zone": "Lisbon"})
    assert not outcome.ok
    assert executed[-1] == "Lisbon"
    assert "LISBON" not in outcome.to_message()


# Whatever the error says

ERRORS = st.builds(
    "{} {} {}{}".format,
    st.sampled_from(["top_k", "limit", "unit", "it", "days"]),
    st.sampled_from(["must be at most", "must be at least", "must be one of", "is not valid, use", "maximum is"]),
    st.integers(-5, 500) | st.sampled_from(["metric", "high", "10, got 50"]),
    st.sampled_from(["", ".", " instead of 50", "; did you mean limit?"]),
) | st.text(max_size=40)  # fmt: skip
VALUES = st.integers(-100, 1000) | st.sampled_from(["5", " 5 ", "High", "hihg", "metrc", "", None, ["5"], True, 2.5])


def list_forms(value: Any) -> set[str]:
    """Return the texts of a value, of the only item in it, and in lower case."""
    inner = value[0] if isinstance(value, list) and len(value) == 1 else value
    return {str(inner).strip().lower()}


@settings(deadline=None)
@given(
    ERRORS,
    st.sampled_from(ALL_EFFECTS),
    st.dictionaries(st.sampled_from(["top_k", "topK", "limit", "unit", "level", "days"]), VALUES, max_size=4),
    st.sampled_from([AgentError, ValueError]),
)
def test_program_gets_only_other_forms_of_its_own_values(
    error: str, effects: Effects, arguments: dict[str, Any], exception: type[Exception]
) -> None:
    executed: list[dict[str, Any]] = []
    schema = {
        "type": "object",
        "properties": {
            "top_k": {"type": "integer", "maximum": 20},
            "limit": {"type": "integer", "minimum": 1, "default": 7},
            "unit": {"enum": ["metric", "imperial"], "default": "metric"},
            "level": {"enum": ["high", "low"]},
            "days": {"type": "integer", "default": 3},
        },
        "additionalProperties": False,
    }

    with sandbox():

        @mulligan.tool(effects=effects, schema=schema)
        def work(**values: Any) -> None:
            executed.append(values)
            raise exception(error)

        with pytest.raises(Exception):  # noqa: B017, PT011 - whatever the schema or the tool says
            work(**arguments)
    own_forms = set().union(*map(list_forms, arguments.values())) if arguments else set()
    for values in executed:
        assert {str(value).strip().lower() for value in values.values()} <= own_forms


# What a model is not told to do


@pytest.mark.parametrize(
    ("name", "value"), [("dry_run", True), ("soft_delete", True), ("expires_on", "2026-05-31"), ("limit", 1)]
)
def test_argument_of_a_tool_with_effects_is_never_suggested_away(played: Sandbox, name: str, value: object) -> None:
    @mulligan.tool
    def purge(older_than: str) -> str:
        return "purged"

    for turn in mulligan.turns(limit=1):
        outcome = turn.call([purge], "purge", {"older_than": "2020-01-01", name: value})
    assert not outcome.ok
    assert outcome.notes == ()


def test_number_is_not_moved_to_a_name_in_another_unit(played: Sandbox) -> None:
    @mulligan.tool(effects="none")
    def notice(contract: str, weeks: int) -> str:
        return f"{weeks} weeks"

    for turn in mulligan.turns(limit=1):
        outcome = turn.call([notice], "notice", {"contract": "C-77", "months": 3})
    assert not outcome.ok
    assert not any("weeks" in note for note in outcome.notes)


def test_unit_is_not_guessed_from_letters_that_it_shares(played: Sandbox) -> None:
    @mulligan.tool
    def record_dose(dose: int, unit: Literal["g", "mg", "mcg"]) -> str:
        return f"{dose} {unit}"

    for turn in mulligan.turns(limit=1):
        outcome = turn.call([record_dose], "record_dose", {"dose": 50, "unit": "\N{MICRO SIGN}g"})
    assert not outcome.ok
    assert outcome.notes == ()
