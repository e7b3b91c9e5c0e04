"""Loops over items. An item that fails is lost, whatever is done for its neighbor: no other call is the same thing."""

from __future__ import annotations

import asyncio
import contextvars
import datetime
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Literal

from learning.player import register_program
from learning.programs.specs import write_loop
from learning.stage import Stage
from learning.truth import Arguments, Cure
from mulligan import AgentError

MONTHS = [f"2025-{month:02}" for month in range(1, 13)]


class HttpError(Exception):
    """What many clients raise."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text}")
        self.status_code = status


write_loop(
    "months_with_random_gaps",
    "A yearly report; some months have no figures, other ones in each run.",
    tool="load_sales",
    parameters={"month": str},
    items=lambda stage: [{"month": month} for month in MONTHS],
    is_bad=lambda stage, item: stage.draw_number(item) < 0.1,
    error=lambda item: ValueError(f"No sales recorded for {item['month']}."),
)
write_loop(
    "customers_by_id",
    "Invoices for customers by number; blocked ones are left out.",
    tool="create_invoice",
    parameters={"customer_id": int, "period": str},
    items=lambda stage: [
        {"customer_id": customer, "period": f"2026-{1 + stage.number % 12:02}"}
        for customer in stage.random.sample(range(1000, 9999), 9)
    ],
    error=lambda item: PermissionError(f"Account {item['customer_id']} is blocked."),
    effects="once",
)
write_loop(
    "guests_by_name",
    "Badges for guests; a name that the printer cannot print is left out.",
    tool="print_badge",
    parameters={"name": str},
    items=lambda stage: [
        {"name": name} for name in ("Ada Obi", "Bo Lind", "Chiara Neri", "Dmitri Volkov", "Eun-ji Park")
    ],
    is_bad=lambda stage, item: len(item["name"]) % 5 == stage.number % 5,
    error=lambda item: UnicodeError(f"No glyph for a letter in {item['name']!r}"),
    effects="idempotent",
)
write_loop(
    "newsletter_by_email",
    "Mails to subscribers; some bounce, and the next address is another person.",
    tool="send_mail",
    parameters={"to": str, "subject": str},
    items=lambda stage: [
        {"to": f"{name}@example.org", "subject": f"Issue {stage.number}"}
        for name in ("nora", "olu", "pia", "quentin", "rosa", "sami", "tove", "uma")
    ],
    error=lambda item: RuntimeError(f"550 mailbox unavailable: {item['to']}"),
    effects="once",
)
write_loop(
    "readings_by_number",
    "Calibration of readings; a broken one is dropped.",
    tool="calibrate",
    parameters={"reading": float, "sensor": (int, 7)},
    items=lambda stage: [{"reading": round(stage.random.uniform(-40, 60), 1)} for _ in range(10)],
    error=lambda item: ArithmeticError("The calibration does not converge."),
)
write_loop(
    "rates_by_date",
    "Rates day by day; on holidays there is none.",
    tool="get_rate",
    parameters={"day": str, "base": (str, "EUR")},
    items=lambda stage: [
        {"day": str(datetime.date(2025, 12, 20) + datetime.timedelta(days=stage.number % 6 + offset))}
        for offset in range(9)
    ],
    is_bad=lambda stage, item: item["day"] in ("2025-12-25", "2025-12-26", "2026-01-01"),
    error=lambda item: LookupError(f"No rate on {item['day']}"),
)
write_loop(
    "files_by_path",
    "Word counts of a folder; a file that is gone is skipped.",
    tool="count_words",
    parameters={"path": str},
    items=lambda stage: [
        {"path": f"notes/{name}.txt"} for name in ("april", "budget", "calls", "drafts", "errands", "flights")
    ],
    error=lambda item: FileNotFoundError(2, "No such file or directory", item["path"]),
)
write_loop(
    "pages_by_url",
    "A crawler; pages that are gone are no reason to stop.",
    tool="fetch_page",
    parameters={"url": str},
    items=lambda stage: [
        {"url": f"https://shop.example/{name}"} for name in ("tables", "chairs", "lamps", "rugs", "beds", "desks")
    ],
    error=lambda item: HttpError(404, f"Not Found for url: {item['url']}"),
)
write_loop(
    "statements_of_sql",
    "A nightly check made of queries; one asks for a table that was dropped.",
    tool="run_query",
    parameters={"sql": str},
    items=lambda stage: [
        {"sql": f"SELECT count(*) FROM {table} WHERE day >= '2026-01-{1 + stage.number % 28:02}'"}
        for table in ("orders", "order_lines", "customers", "returns", "stock")
    ],
    is_bad=lambda stage, item: "returns" in item["sql"],
    error=lambda item: RuntimeError("no such table: returns"),
)
write_loop(
    "regions_of_a_sum",
    "A sum over regions; one of them is down, and no other stands for it.",
    tool="count_instances",
    parameters={"region": Literal["us", "eu", "ap", "sa"], "state": (str, "running")},
    items=lambda stage: [{"region": region} for region in ("us", "eu", "ap", "sa")],
    error=lambda item: RuntimeError("The regional endpoint returned an invalid document."),
)
write_loop(
    "kinds_of_report",
    "All kinds of a report, of which one is not allowed for this team.",
    tool="build_report",
    parameters={"kind": Literal["sales", "stock", "staff", "tax"], "week": int},
    items=lambda stage: [{"kind": kind, "week": 1 + stage.number} for kind in ("sales", "stock", "staff", "tax")],
    is_bad=lambda stage, item: item["kind"] == "staff",
    error=lambda item: PermissionError("This team may not see staff reports."),
)
write_loop(
    "coordinates_as_tuples",
    "Elevations along a route; points in the sea have none.",
    tool="get_elevation",
    parameters={"point": tuple[float, float]},
    items=lambda stage: [
        {"point": (round(stage.random.uniform(50, 60), 2), round(stage.random.uniform(0, 12), 2))} for _ in range(8)
    ],
    error=lambda item: ValueError("No elevation data at this location."),
)
write_loop(
    "shops_and_months_nested",
    "Two loops, one inside the other; single cells are missing.",
    tool="get_turnover",
    parameters={"shop": str, "month": str},
    items=lambda stage: [
        {"shop": shop, "month": month} for shop in ("north", "south", "harbor") for month in MONTHS[:4]
    ],
    error=lambda item: LookupError(f"no turnover of {item['shop']} in {item['month']}"),
)
write_loop(
    "pages_of_a_list",
    "A list read page by page; a page that cannot be read is left out.",
    tool="list_tickets",
    parameters={"page": int, "per_page": (int, 50)},
    items=lambda stage: [{"page": page} for page in range(1, 8)],
    is_bad=lambda stage, item: item["page"] == 2 + stage.number % 4,
    error=lambda item: RuntimeError("Internal error while rendering the list."),
)
write_loop(
    "one_article_always_bad",
    "The same article is broken in every run for two weeks.",
    tool="reprice",
    parameters={"article": str, "factor": float},
    items=lambda stage: [
        {"article": article, "factor": 1 + stage.number / 100} for article in ("bench", "sofa", "stool", "table")
    ],
    is_bad=lambda stage, item: item["article"] == "sofa",
    error=lambda item: RuntimeError("The article has no purchase price."),
    effects="idempotent",
)
write_loop(
    "one_good_item",
    "Nearly all fail: the only success is no correction of those before it.",
    tool="open_valve",
    parameters={"valve": int, "speed": (str, "slow")},
    items=lambda stage: [{"valve": 10 * stage.number + number} for number in range(5)],
    is_bad=lambda stage, item: item["valve"] % 10 != 3,
    error=lambda item: RuntimeError("The valve is stuck."),
)
write_loop(
    "everything_fails",
    "A run in which no call works at all.",
    tool="read_meter",
    parameters={"meter": int},
    items=lambda stage: [{"meter": 10 * stage.number + number} for number in range(6)],
    is_bad=lambda stage, item: True,
    error=lambda item: RuntimeError("The meter does not answer the protocol."),
)
write_loop(
    "swallow_and_use_a_default",
    "A failed look-up is replaced by a default, and the program goes on with other look-ups.",
    tool="get_setting",
    parameters={"name": str, "scope": (str, "user")},
    items=lambda stage: [{"name": name} for name in ("font", "theme", "keymap", "margin")],
    is_bad=lambda stage, item: item["name"] == "theme" and stage.number % 3 > 0,
    error=lambda item: KeyError(item["name"]),
)
write_loop(
    "items_named_by_the_tool",
    'The tool says what its items are: `items=("month",)`.',
    tool="close_month",
    parameters={"month": str, "ledger": (str, "main")},
    items=lambda stage: [{"month": month} for month in MONTHS[:8]],
    error=lambda item: RuntimeError(f"There are open bookings in {item['month']}."),
    item_names=("month",),
)
write_loop(
    "payments_with_unknown_outcome",
    "Payments whose answers are lost. None is made twice, and the next payment is another one.",
    tool="pay",
    parameters={"invoice": str, "amount": float},
    items=lambda stage: [{"invoice": f"R{stage.number}-{number}", "amount": 10.0 + number} for number in range(4)],
    error=lambda item: TimeoutError("The bank did not answer in 30 s."),
    effects="once",
)


@register_program
def items_that_fail_once(stage: Stage) -> None:
    """Hosts that are busy at the first attempt. The same call again is the same thing."""
    busy_names: set[str] = set()

    @stage.tool(effects="none")
    def ping(name: str) -> str:
        if name not in busy_names and stage.draw_number("busy", name) < 0.3:
            busy_names.add(name)
            raise ConnectionError(f"connection to {name} was reset")
        return "pong"

    with stage.run("monitoring"):
        for name in ("apollo", "brahms", "corot", "dali", "elgar", "fauve"):
            with suppress(ConnectionError):
                ping(name)


@register_program
def items_retried_at_the_end(stage: Stage) -> None:
    """What failed is done again in a second round, where most of it works."""
    names: set[str] = set()
    failures = []

    @stage.tool()
    def upload(name: str) -> str:
        is_first = name not in names
        names.add(name)
        if stage.draw_number("flaky", name) < 0.3 and (is_first or stage.draw_number("dead", name) < 0.3):
            raise OSError("The upload was interrupted.")
        return f"stored {name}"

    with stage.run("backup"):
        for name in ("a.tar", "b.tar", "c.tar", "d.tar", "e.tar", "f.tar"):
            try:
                upload(name)
            except OSError:
                failures.append(name)
        for name in failures:
            with suppress(OSError):
                upload(name)


@register_program
def items_named_by_the_run(stage: Stage) -> None:
    """A loop that says what its items are, with `run.item`; inside an item a call is corrected."""

    def truth(call: Arguments) -> Cure | None:
        return Cure(name="carrier", changes={"carrier": "post"}) if call["carrier"] == "drone" else None

    @stage.tool(effects="none", truth=truth)
    def quote_delivery(order: str, carrier: str) -> float:
        if carrier == "drone":
            raise ValueError("This carrier does not deliver there.")
        if stage.draw_number("lost", order) < 0.15:
            raise LookupError("This order has no address.")
        return 4.5

    with stage.run("shipping") as run:
        for number in range(4):
            with run.item(f"order {number}"), suppress(LookupError):
                order = f"S{stage.number}-{number}"
                try:
                    quote_delivery(order, carrier="drone")
                except ValueError:
                    quote_delivery(order, carrier="post")


def write_threads(name: str, about: str, *, has_contexts: bool) -> None:
    """Write a program that works on items in threads, three at a time."""

    def play(stage: Stage) -> None:
        barrier = threading.Barrier(3)

        @stage.tool(effects="none")
        def resize(picture: str) -> str:
            with suppress(threading.BrokenBarrierError):
                barrier.wait(5)  # the three of a round are in flight together
            if stage.draw_number("damaged", picture) < 0.2:
                raise ValueError(f"{picture} is damaged")
            return f"{picture} at 50 %"

        with stage.run("gallery"), ThreadPoolExecutor(3) as pool:
            for first in range(0, 9, 3):
                futures = []
                for picture in (f"p{stage.number}-{number}.png" for number in range(first, first + 3)):
                    run = contextvars.copy_context().run if has_contexts else lambda work, *items: work(*items)
                    futures.append(pool.submit(run, resize, picture))
                for future in futures:
                    with suppress(ValueError):
                        future.result()

    play.__doc__ = about
    register_program(play, name)


write_threads("threads_with_contexts", "Items in threads that know the run, under way together.", has_contexts=True)
write_threads("threads_without_contexts", "Threads that know nothing of the run: calls alone.", has_contexts=False)


@register_program
async def tasks_gathered(stage: Stage) -> None:
    """`asyncio.gather` over items, with the exceptions among the results."""

    @stage.tool(effects="none")
    async def translate(text: str, language: str) -> str:
        await asyncio.sleep(0)
        if stage.draw_number("hard", text) < 0.2:
            raise RuntimeError("The text could not be translated.")
        return text.upper()

    with stage.run("translator"):
        texts = [f"sentence {stage.number}.{number}" for number in range(7)]
        await asyncio.gather(*(translate(text, "fr") for text in texts), return_exceptions=True)


@register_program
async def tasks_in_a_group(stage: Stage) -> None:
    """A task group; each task catches its own failure, and two rounds follow each other."""

    @stage.tool(effects="none")
    async def get_price(ticker: str, market: str = "xetra") -> float:
        await asyncio.sleep(0)
        if stage.draw_number("halted", ticker) < 0.2:
            raise LookupError(f"{ticker} is halted")
        return 10.0

    async def try_price(ticker: str) -> None:
        with suppress(LookupError):
            await get_price(ticker)

    with stage.run("ticker"):
        for tickers in (("ABC", "BCD", "CDE"), ("DEF", "EFG", "FGH")):
            async with asyncio.TaskGroup() as group:
                for ticker in tickers:
                    group.create_task(try_price(ticker))


@register_program
def rows_of_a_batch(stage: Stage) -> None:
    """A batch with unknown rows; the handler sends the others. Those that it leaves out are not done."""
    rows = [100 * stage.number + row for row in range(6)]
    bad = stage.random.sample(rows, stage.number % 3)

    @stage.tool()
    def tag_rows(rows: list[int], tag: str) -> int:
        if unknown := [row for row in rows if row in bad]:
            raise ValueError(f"unknown rows: {unknown}")
        return len(rows)

    with stage.run("tagger"):
        try:
            tag_rows(rows=rows, tag="late")
        except ValueError:
            tag_rows(rows=[row for row in rows if row not in bad], tag="late")


@register_program
def records_by_offset(stage: Stage) -> None:
    """Records by offset, so many at a time. In week two that is too many: fewer at each offset would leave gaps."""
    limit = 20 if stage.day < 7 else 10

    def truth(call: Arguments) -> Cure:
        # As with what is privileged, the caller may decide so, and nobody else.
        return Cure(name="limit", changes={"limit_per_call": limit}, rule="privileged")

    @stage.tool(effects="none", truth=truth)
    def list_records(offset: int, limit_per_call: int) -> list[int]:
        if limit_per_call > limit:
            raise AgentError(f"limit_per_call must be at most {limit}, got {limit_per_call}.")
        return list(range(offset, offset + limit_per_call))

    with stage.run("sync"):
        for offset in range(0, 60, 20):
            with suppress(AgentError):
                list_records(offset=offset, limit_per_call=20)
