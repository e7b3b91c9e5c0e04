"""Real corrections made by code: in a handler, by a rule of mulligan's own, or after another call told what to do."""

from __future__ import annotations

import contextvars
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Literal

from learning.player import register_program
from learning.programs.specs import write_mistake
from learning.stage import Stage
from learning.truth import Arguments, Cure
from mulligan import AgentError

write_mistake(
    "encoding_in_a_handler",
    "Old exports that are never UTF-8; the handler reads them as what they are.",
    tool="read_export",
    parameters={"name": str, "encoding": str},
    call=lambda stage: {"name": f"export {stage.number}", "encoding": "utf-8"},
    cure=lambda stage, call: Cure(name="encoding", changes={"encoding": "latin-1"}),
    error=lambda call: UnicodeDecodeError("utf-8", b"\xe9", 0, 1, "invalid continuation byte"),
)
write_mistake(
    "range_that_nobody_states",
    "An error that states no bound; the program knows what works, and says it in the handler.",
    tool="get_forecast",
    parameters={"city": str, "days": int},
    call=lambda stage: {"city": f"city {stage.number % 11}", "days": (30, 21, 14)[stage.number % 3]},
    cure=lambda stage, call: Cure(name="days", changes={"days": 7}),
    error=lambda call: ValueError("This range is not available."),
)
write_mistake(
    "setting_that_changes",
    "A setting that is right in the first week is wrong in the second. What is told has to follow.",
    tool="open_stream",
    parameters={"channel": str, "resolution": str},
    call=lambda stage: {"channel": f"channel {stage.number}", "resolution": "4k"},
    cure=lambda stage, call: (
        Cure(name="hd", changes={"resolution": "hd"})
        if stage.day < 7
        else Cure(name="sd", changes={"resolution": "sd"}, occurrence=4)
    ),
    error=lambda call: RuntimeError("The stream cannot be opened."),
)
write_mistake(
    "same_call_in_every_run",
    "Every run is the same to the letter: one vote, however often it is cast.",
    tool="start_report",
    parameters={"report": str, "queue": str},
    call=lambda stage: {"report": "daily", "queue": "fast"},
    cure=lambda stage, call: Cure(name="queue", changes={"queue": "slow"}, rule="one vote only"),
    error=lambda call: RuntimeError("The queue is not for reports."),
)
write_mistake(
    "cast_of_a_number",
    "A number that comes as a text from a form.",
    tool="quote_stay",
    parameters={"hotel": str, "nights": int},
    call=lambda stage: {"hotel": f"hotel {stage.number}", "nights": str(1 + stage.number % 9)},
    cure=lambda stage, call: Cure(name="nights", changes={"nights": int(call["nights"])}, rule="form"),
    error=lambda call: TypeError("nights must be int, not str"),
)
write_mistake(
    "code_with_blanks",
    "Codes typed with blanks around them, which the handler removes.",
    tool="get_voucher",
    parameters={"voucher": str},
    call=lambda stage: {"voucher": f" V{stage.number} "},
    cure=lambda stage, call: Cure(name="trim", changes={"voucher": call["voucher"].strip()}, rule="form"),
    error=lambda call: LookupError("There is no voucher with this code."),
)
write_mistake(
    "case_of_an_enum",
    "A state in capitals, where the signature lists them in lower case.",
    tool="list_issues",
    parameters={"state": Literal["open", "closed"], "label": str},
    call=lambda stage: {"state": ("Open", "CLOSED")[stage.number % 2], "label": f"label {stage.number}"},
    cure=lambda stage, call: Cure(name="case", changes={"state": call["state"].lower()}, rule="form"),
    error=lambda call: ValueError(f"Invalid state: {call['state']}"),
)
write_mistake(
    "single_value_as_a_list",
    "One tag where a list of tags is wanted.",
    tool="tag_photo",
    parameters={"photo": int, "tags": list[str]},
    call=lambda stage: {"photo": stage.number, "tags": ("beach", "forest", "city")[stage.number % 3]},
    cure=lambda stage, call: Cure(name="tags", changes={"tags": _as_list(call["tags"])}, rule="form"),
    error=lambda call: TypeError("tags must be a list"),
    effects="idempotent",
)
write_mistake(
    "text_of_json",
    "A payload that is still a text.",
    tool="publish",
    parameters={"topic": str, "payload": dict[str, int]},
    call=lambda stage: {"topic": "orders", "payload": json.dumps({"number": stage.number})},
    cure=lambda stage, call: Cure(name="payload", changes={"payload": {"number": stage.number}}, rule="form"),
    error=lambda call: TypeError("payload must be an object, not str"),
    effects="idempotent",
)
write_mistake(
    "phrase_that_needs_quotes",
    "A search that takes several words only in quotes; the handler adds them.",
    tool="find_phrase",
    parameters={"phrase": str},
    call=lambda stage: {"phrase": f"red shoes {stage.number}"},
    cure=lambda stage, call: Cure(name="quotes", changes={"phrase": f'"red shoes {stage.number}"'}, rule="form"),
    error=lambda call: ValueError("The words of the search could not be combined."),
)
write_mistake(
    "argument_that_is_missing",
    "The error says what is missing, and the handler adds it.",
    tool="format_price",
    parameters={"value": float, "locale": (str, "")},
    call=lambda stage: {"value": stage.number + 0.5},
    cure=lambda stage, call: Cure(name="locale", changes={"locale": "en"}, rule="missing argument"),
    error=lambda call: AgentError("locale is required."),
)
write_mistake(
    "new_limit_in_week_two",
    "What worked in the first week is too much in the second, and the error says how much is allowed.",
    tool="fetch_batch",
    parameters={"topic": str, "size": int},
    call=lambda stage: {"topic": f"topic {stage.number}", "size": 500},
    cure=lambda stage, call: Cure(
        name="size", changes={"size": 500 if stage.day < 7 else min(call["size"], 100)}, rule="bound"
    ),
    error=lambda call: AgentError(f"size must be at most 100, got {call['size']}."),
)
write_mistake(
    "longer_path_in_a_handler",
    "The same file, one folder further down. It is the same thing, and no path is told to another run.",
    tool="load_config",
    parameters={"path": str},
    call=lambda stage: {"path": f"app{stage.number}.toml"},
    cure=lambda stage, call: Cure(name="path", changes={"path": f"config/app{stage.number}.toml"}, rule="privileged"),
    error=lambda call: FileNotFoundError(2, "No such file or directory", call["path"]),
)
write_mistake(
    "user_in_a_handler",
    "A user by an old number, then by the new one. Whose data are read is told to nobody else.",
    tool="get_balance",
    parameters={"user_id": str, "currency": (str, "EUR")},
    call=lambda stage: {"user_id": str(4000 + stage.number % 5)},
    cure=lambda stage, call: Cure(name="user", changes={"user_id": f"u-{stage.number % 5}"}, rule="privileged"),
    error=lambda call: LookupError("This user does not exist."),
)
write_mistake(
    "url_in_a_handler",
    "A plain address is refused, and the handler takes the secure one.",
    tool="check_link",
    parameters={"url": str},
    call=lambda stage: {"url": f"http://site{stage.number % 7}.example/"},
    cure=lambda stage, call: Cure(
        name="https", changes={"url": call["url"].replace("http:", "https:")}, rule="privileged"
    ),
    error=lambda call: RuntimeError("The server closed the plain connection."),
)
write_mistake(
    "amount_in_a_handler",
    "A refund that is larger than the payment; the handler takes what is left. Money is told to nobody else.",
    tool="refund",
    parameters={"payment": str, "amount": float},
    call=lambda stage: {"payment": f"P{stage.number}", "amount": 90.0},
    cure=lambda stage, call: Cure(name="amount", changes={"amount": 60.0}, rule="privileged"),
    error=lambda call: RuntimeError("There is not so much left of this payment."),
)
write_mistake(
    "date_in_a_handler",
    "The nearest day that is free. A date belongs to its run.",
    tool="reserve",
    parameters={"room": str, "date": str},
    call=lambda stage: {"room": "blue", "date": f"2026-02-{1 + stage.number % 28:02}"},
    cure=lambda stage, call: Cure(
        name="date", changes={"date": f"2026-03-{1 + stage.number % 28:02}"}, rule="value of a run"
    ),
    error=lambda call: RuntimeError("The room is taken on this day."),
    effects="once",
)
write_mistake(
    "long_text_without_one_sign",
    "A long message with one sign that is refused; the rest of it is unchanged.",
    tool="post_message",
    parameters={"channel": str, "body": str},
    call=lambda stage: {"channel": "shipping", "body": _message(stage) + "\u2603"},
    cure=lambda stage, call: Cure(name="sign", changes={"body": _message(stage)}, rule="value of a run"),
    error=lambda call: ValueError("The message contains an unsupported character."),
    effects="once",
)


def _as_list(tags: Any) -> list[str]:
    return tags if isinstance(tags, list) else [tags]


def _message(stage: Stage) -> str:
    return " ".join(f"Item {number} of order {stage.number} has left the warehouse." for number in range(12))


@register_program
def bound_of_the_readme(stage: Stage) -> None:
    """The first example of the README: the error states a bound, and the call is repaired at once."""

    @stage.tool(truth=lambda call: Cure(name="top_k", changes={"top_k": 10}, rule="bound"))
    def search(query: str, top_k: int = 5) -> list[str]:
        if top_k > 10:
            raise AgentError(f"top_k must be 10 or less, got {top_k}.", hint="Ask for 10, then page.")
        return [f"{query} {number}" for number in range(top_k)]

    with stage.run("support-agent"):
        with suppress(AgentError):
            search(f"refunds {stage.number}", top_k=20 + stage.number)
        search("hours")


@register_program
def bounds_in_a_loop(stage: Stage) -> None:
    """Rooms with a wish each; what is too warm is set to the bound, whatever the neighbors have."""

    @stage.tool(effects="idempotent", truth=lambda call: Cure(name="degrees", changes={"degrees": 25}, rule="bound"))
    def set_temperature(room: str, degrees: int) -> int:
        if degrees > 25:
            raise AgentError(f"degrees must be 25 or less, got {degrees}.")
        return degrees

    with stage.run("heating"):
        for room in ("kitchen", "hall", "bath", "attic"):
            with suppress(AgentError):
                set_temperature(room, degrees=18 + int(stage.draw_number("wish", room) * 14))


@register_program
def bound_of_an_amount(stage: Stage) -> None:
    """A bound for an amount of money. Less money is not the same, and nobody may pay it unasked."""

    @stage.tool(truth=lambda call: Cure(name="amount", changes={"amount": 500}, rule="privileged"))
    def withdraw(account: str, amount: int) -> str:
        if amount > 500:
            raise AgentError(f"amount must be 500 or less, got {amount}.")
        return f"{amount} paid out"

    with stage.run("teller"):
        for number in range(3):
            with suppress(AgentError):
                withdraw(f"K{number}", amount=200 + int(stage.draw_number("wish", number) * 600))


@register_program
def argument_renamed_in_week_two(stage: Stage) -> None:
    """A client library is updated, and an argument has another name from then on."""
    if stage.day < 7:

        @stage.tool(effects="none")
        def list_orders(shop: str, count: int = 10) -> list[int]:
            return list(range(count))
    else:

        @stage.tool(effects="none", truth=lambda call: Cure(name="limit", renames={"count": "limit"}, rule="form"))
        def list_orders(shop: str, limit: int = 10) -> list[int]:
            return list(range(limit))

    with stage.run("orders"):
        count = 3 + stage.number % 4
        try:
            list_orders(f"shop {stage.number}", count=count)
        except TypeError:
            list_orders(f"shop {stage.number}", limit=count)


@register_program
def option_that_is_unknown(stage: Stage) -> None:
    """The error names an option that is not known, and the handler leaves it out."""

    @stage.tool(effects="none", truth=lambda call: Cure(name="verbose", drops=("verbose",), rule="form"))
    def lint(module: str, **options: Any) -> int:
        if "verbose" in options:
            raise ValueError("Unknown option: verbose")
        return 0

    with stage.run("linting"):
        try:
            lint(f"module_{stage.number}", verbose=True)
        except ValueError:
            lint(f"module_{stage.number}")


@register_program
def modules_with_one_name(stage: Stage) -> None:
    """Two modules have a function `search` each, and they need different settings."""

    def make(module: str, works: str) -> Any:
        @stage.tool(effects="none", module=module, truth=lambda call: Cure(name=module, changes={"match": works}))
        def search(text: str, match: str) -> str:
            if match != works:
                raise ValueError("This kind of match is not supported.")
            return text

        return search

    with stage.run("portal"):
        for module, works in (("portal.catalog", "prefix"), ("portal.manuals", "fuzzy")):
            search = make(module, works)
            try:
                search(f"{module} {stage.number}", match="exact")
            except ValueError:
                search(f"{module} {stage.number}", match=works)


@register_program
def chained_in_a_handler(stage: Stage) -> None:
    """The error is wrapped by a layer of the program, and corrected where the wrapper is handled."""

    @stage.tool(effects="none", truth=lambda call: Cure(name="tier", changes={"tier": "archive"}))
    def fetch_blob(name: str, tier: str) -> bytes:
        if tier == "hot":
            raise KeyError(name)
        return b"blob"

    def load(name: str) -> None:
        try:
            fetch_blob(name, tier="hot")
        except KeyError as error:
            raise ImportError(name) from error

    with stage.run("restore"):
        try:
            load(f"blob-{stage.number}")
        except ImportError:
            fetch_blob(f"blob-{stage.number}", tier="archive")


@register_program
def region_of_each_customer(stage: Stage) -> None:
    """Customers live in regions; the handler asks the other one. The region is an item, and is nobody else's."""

    def find_home(call: Arguments) -> str:
        return "eu" if stage.draw_number("home", call["customer"]) < 0.5 else "us"

    @stage.tool(
        effects="none",
        truth=lambda call: Cure(name="region", changes={"region": find_home(call)}, rule="item test"),
    )
    def load_profile(customer: int, region: Literal["us", "eu"]) -> str:
        if find_home({"customer": customer}) != region:
            raise LookupError("No profile in this region.")
        return f"profile {customer}"

    with stage.run("crm"):
        for customer in range(40 * stage.number, 40 * stage.number + 4):
            try:
                load_profile(customer, region="us")
            except LookupError:
                load_profile(customer, region="eu")


@register_program
def threads_that_correct(stage: Stage) -> None:
    """Items in threads; each is corrected in the handler of its own thread, to the same setting."""

    @stage.tool(effects="none", truth=lambda call: Cure(name="quality", changes={"quality": 90}))
    def compress(picture: str, quality: int) -> str:
        if quality == 100:
            raise ValueError("This quality is not supported by the encoder.")
        return picture

    def work(picture: str) -> None:
        try:
            compress(picture, quality=100)
        except ValueError:
            compress(picture, quality=90)

    with stage.run("encoder"), ThreadPoolExecutor(2) as pool:
        pictures = [f"{stage.number}-{number}" for number in range(4)]
        futures = [pool.submit(contextvars.copy_context().run, work, picture) for picture in pictures]
        for future in futures:
            future.result()
