"""Loops over items. An item that fails is lost, whatever is done for its neighbor: no other call is the same thing."""

from __future__ import annotations

import asyncio
import contextvars
import datetime
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Literal

from learning.player import program
from learning.stage import Stage
from learning.truth import Cure

MONTHS = [f"2025-{month:02}" for month in range(1, 13)]


class HttpError(Exception):
    """What many clients raise."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text}")
        self.status_code = status


@program
def months_with_random_gaps(stage: Stage) -> None:
    """A yearly report; some months have no figures, other ones in each run."""
    missing = set(stage.random.sample(MONTHS, stage.random.randint(0, 2)))

    @stage.tool(effects="none")
    def load_sales(month: str) -> float:
        if month in missing:
            raise ValueError(f"No sales recorded for {month}.")
        return float(month[-2:]) * 1000

    with stage.run("yearly-report"):
        for month in MONTHS:
            with suppress(ValueError):
                load_sales(month)


@program
def customers_by_id(stage: Stage) -> None:
    """Invoices for customers by number; blocked ones are skipped and logged."""
    customers = stage.random.sample(range(1000, 9999), 9)
    skipped = []

    @stage.tool()
    def create_invoice(customer_id: int, period: str) -> str:
        if stage.chance("blocked", customer_id) < 0.15:
            raise PermissionError(f"Account {customer_id} is blocked.")
        return f"INV-{customer_id}-{period}"

    with stage.run("billing"):
        for customer in customers:
            try:
                create_invoice(customer_id=customer, period=f"2026-{1 + stage.number % 12:02}")
            except PermissionError:
                skipped.append(customer)


@program
def people_by_name(stage: Stage) -> None:
    """Badges for guests; a name that the printer cannot print is left out."""
    guests = ["Ada Obi", "Bo Lindqvist", "Chiara Neri", "Dmitri Volkov", "Eun-ji Park", "Farid Aziz", "Greta Holm"]
    unprintable = guests[stage.number % len(guests)]

    @stage.tool(effects="repeatable")
    def print_badge(name: str) -> str:
        if name == unprintable:
            raise UnicodeError(f"No glyph for a letter in {name!r}")
        return f"badge of {name}"

    with stage.run("front-desk"):
        for guest in guests:
            with suppress(UnicodeError):
                print_badge(guest)


@program
def newsletter_by_email(stage: Stage) -> None:
    """Mails to subscribers; some bounce, and the next address is another person."""
    names = ["nora", "olu", "pia", "quentin", "rosa", "sami", "tove", "uma"]

    @stage.tool()
    def send_mail(to: str, subject: str) -> str:
        if stage.chance("bounce", to) < 0.2:
            raise RuntimeError(f"550 mailbox unavailable: {to}")
        return "queued"

    with stage.run("newsletter"):
        for name in names:
            with suppress(RuntimeError):
                send_mail(to=f"{name}@example.org", subject=f"Issue {stage.number}")


@program
def sensor_numbers(stage: Stage) -> None:
    """Calibration of readings; a broken one is dropped."""
    readings = [round(stage.random.uniform(-40, 60), 1) for _ in range(10)]

    @stage.tool(effects="none")
    def calibrate(reading: float, sensor: int = 7) -> float:
        if stage.chance("broken", reading) < 0.2:
            raise ArithmeticError("The calibration does not converge.")
        return reading * 1.02

    with stage.run("lab"):
        for reading in readings:
            with suppress(ArithmeticError):
                calibrate(reading)


@program
def exchange_rates_by_date(stage: Stage) -> None:
    """Rates day by day; on holidays there is none."""
    first = datetime.date(2025, 12, 20) + datetime.timedelta(days=stage.number % 6)
    holidays = {"2025-12-25", "2025-12-26", "2026-01-01"}

    @stage.tool(effects="none")
    def get_rate(day: str, base: str = "EUR") -> float:
        if day in holidays:
            raise LookupError(f"No rate on {day}")
        return 1.08

    with stage.run("treasury"):
        for offset in range(9):
            with suppress(LookupError):
                get_rate(str(first + datetime.timedelta(days=offset)))


@program
def files_by_path(stage: Stage) -> None:
    """Word counts of a folder; a file that is gone or damaged is skipped."""
    paths = [f"notes/{name}.txt" for name in ("april", "budget", "calls", "drafts", "errands", "flights")]
    gone, damaged = stage.random.sample(paths, 2)

    @stage.tool(effects="none")
    def count_words(path: str) -> int:
        if path == gone:
            raise FileNotFoundError(2, "No such file or directory", path)
        if path == damaged and stage.number % 2:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
        return len(path)

    with stage.run("archivist"):
        for path in paths:
            with suppress(OSError, UnicodeError):
                count_words(path)


@program
def pages_by_url(stage: Stage) -> None:
    """A crawler; pages that are gone are no reason to stop."""
    urls = [f"https://shop.example/{name}" for name in ("tables", "chairs", "lamps", "rugs", "beds", "desks", "sofas")]

    @stage.tool(effects="none")
    def fetch_page(url: str) -> str:
        if stage.chance("gone", url) < 0.2:
            raise HttpError(404, f"Not Found for url: {url}")
        return f"<h1>{url}</h1>"

    with stage.run("crawler"):
        for url in urls:
            with suppress(HttpError):
                fetch_page(url)


@program
def statements_of_sql(stage: Stage) -> None:
    """A nightly check made of queries; one asks for a table that was dropped."""
    tables = ["orders", "order_lines", "customers", "returns", "stock"]

    @stage.tool(effects="none")
    def run_query(sql: str) -> int:
        if "returns" in sql:
            raise RuntimeError("no such table: returns")
        return 42

    with stage.run("nightly-check"):
        for table in tables:
            with suppress(RuntimeError):
                run_query(f"SELECT count(*) FROM {table} WHERE day >= '2026-01-{1 + stage.number % 28:02}'")


@program
def regions_of_a_sum(stage: Stage) -> None:
    """A sum over regions; one of them is down, and no other stands for it."""
    down = stage.random.choice(["us", "eu", "ap", "sa"])

    @stage.tool(effects="none")
    def count_instances(region: Literal["us", "eu", "ap", "sa"], state: str = "running") -> int:
        if region == down and stage.number % 3:
            raise RuntimeError("The regional endpoint returned an invalid document.")
        return 12

    with stage.run("inventory"):
        for region in ("us", "eu", "ap", "sa"):
            with suppress(RuntimeError):
                count_instances(region)


@program
def kinds_of_report(stage: Stage) -> None:
    """All kinds of a report, of which one is not allowed for this team."""

    @stage.tool(effects="none")
    def build_report(kind: Literal["sales", "stock", "staff", "tax"], week: int) -> str:
        if kind == "staff":
            raise PermissionError("This team may not see staff reports.")
        return f"{kind} of week {week}"

    with stage.run("reports"):
        for kind in ("sales", "stock", "staff", "tax"):
            with suppress(PermissionError):
                build_report(kind, week=1 + stage.number % 52)


@program
def coordinates_as_tuples(stage: Stage) -> None:
    """Elevations along a route; points in the sea have none."""
    points = [(round(stage.random.uniform(50, 60), 2), round(stage.random.uniform(0, 12), 2)) for _ in range(8)]

    @stage.tool(effects="none")
    def get_elevation(point: tuple[float, float]) -> int:
        if stage.chance("sea", point) < 0.25:
            raise ValueError("No elevation data at this location.")
        return 120

    with stage.run("route-planner"):
        for point in points:
            with suppress(ValueError):
                get_elevation(point)


@program
def rows_as_dictionaries(stage: Stage) -> None:
    """An import of rows; some are refused, and the others go in."""

    @stage.tool()
    def insert_row(row: dict[str, Any], table: str = "contacts") -> int:
        if stage.chance("duplicate", row["key"]) < 0.2:
            raise RuntimeError(f"duplicate key value violates unique constraint: {row['key']}")
        return len(row)

    with stage.run("importer"):
        for key in range(8):
            with suppress(RuntimeError):
                insert_row({"key": 100 * stage.number + key, "city": "Turin" if key % 2 else "Porto"})


@program
def shops_and_months_nested(stage: Stage) -> None:
    """Two loops, one inside the other; single cells are missing."""

    @stage.tool(effects="none")
    def get_turnover(shop: str, month: str) -> int:
        if stage.chance("cell", shop, month) < 0.12:
            raise LookupError(f"no turnover of {shop} in {month}")
        return 900

    with stage.run("controlling"):
        for shop in ("north", "south", "harbor"):
            for month in MONTHS[:4]:
                with suppress(LookupError):
                    get_turnover(shop, month)


@program
def pages_of_a_list(stage: Stage) -> None:
    """A list read page by page; a page that cannot be read is left out."""
    broken = 2 + stage.number % 4

    @stage.tool(effects="none")
    def list_tickets(page: int, per_page: int = 50) -> list[int]:
        if page == broken:
            raise RuntimeError("Internal error while rendering the list.")
        return list(range(per_page * page, per_page * page + 3))

    with stage.run("helpdesk"):
        for page in range(1, 8):
            with suppress(RuntimeError):
                list_tickets(page)


@program
def cursors_of_a_feed(stage: Stage) -> None:
    """A feed read by cursors that only the feed understands; one is stale, and the reader begins elsewhere."""
    cursors = [f"c{stage.number:02}{letter}9f" for letter in "kmpqx"]

    @stage.tool(effects="none")
    def read_feed(cursor: str, limit: int = 20) -> str:
        if cursor == cursors[2]:
            raise ValueError("The cursor has expired.")
        return f"entries from {cursor}"

    with stage.run("feed-reader"):
        for cursor in cursors:
            with suppress(ValueError):
                read_feed(cursor)


@program
def two_keys_together(stage: Stage) -> None:
    """Stock by article and warehouse, both different in each call."""
    pairs = [(f"A-{number}", f"W{number % 3}") for number in stage.random.sample(range(10, 90), 8)]

    @stage.tool(effects="none")
    def get_stock(article: str, warehouse: str) -> int:
        if stage.chance("recount", article) < 0.2:
            raise RuntimeError(f"{article} is being recounted in {warehouse}")
        return 5

    with stage.run("warehouse"):
        for article, warehouse in pairs:
            with suppress(RuntimeError):
                get_stock(article, warehouse)


@program
def sweep_of_a_parameter(stage: Stage) -> None:
    """Training with several rates; some diverge, and that is a result too."""

    @stage.tool(effects="none")
    def train(rate: float, steps: int = 100) -> float:
        if rate > 0.3:
            raise FloatingPointError("loss is not finite")
        return 1 / rate

    with stage.run("tuning"):
        for rate in (0.5, 0.4, 0.3, 0.1, 0.05, round(0.01 + stage.number / 1000, 3)):
            with suppress(FloatingPointError):
                train(rate)


@program
def one_article_always_bad(stage: Stage) -> None:
    """The same article is broken in every run for two weeks."""

    @stage.tool(effects="repeatable")
    def reprice(article: str, factor: float) -> float:
        if article == "sofa-bed":
            raise RuntimeError("The article has no purchase price.")
        return 100 * factor

    with stage.run("repricing"):
        for article in ("armchair", "bench", "sofa-bed", "stool", "table"):
            with suppress(RuntimeError):
                reprice(article, factor=1.01 + stage.number / 100)


@program
def items_that_fail_once(stage: Stage) -> None:
    """Hosts that are busy at the first attempt. The same call again is the same thing."""
    asked: set[str] = set()

    @stage.tool(effects="none")
    def ping(name: str) -> str:
        if name not in asked and stage.chance("busy", name) < 0.3:
            asked.add(name)
            raise ConnectionError(f"connection to {name} was reset")
        return "pong"

    with stage.run("monitoring"):
        for name in ("apollo", "brahms", "corot", "dali", "elgar", "fauve"):
            with suppress(ConnectionError):
                ping(name)


@program
def items_retried_at_the_end(stage: Stage) -> None:
    """What failed is done again in a second round, where most of it works."""
    asked: set[str] = set()
    left = []

    @stage.tool()
    def upload(name: str) -> str:
        is_first = name not in asked
        asked.add(name)
        if stage.chance("flaky", name) < 0.3 and (is_first or stage.chance("dead", name) < 0.3):
            raise OSError("The upload was interrupted.")
        return f"stored {name}"

    with stage.run("backup"):
        for name in ("a.tar", "b.tar", "c.tar", "d.tar", "e.tar", "f.tar"):
            try:
                upload(name)
            except OSError:
                left.append(name)
        for name in left:
            with suppress(OSError):
                upload(name)


@program
def chunks_then_singles(stage: Stage) -> None:
    """A list is refused because of one member; its members are then sent alone, and one of them is lost."""
    numbers = stage.random.sample(range(100, 999), 4)

    @stage.tool(effects="repeatable")
    def tag(numbers: list[int], label: str) -> int:
        if numbers[-1] == bad:
            raise ValueError("One of the tickets cannot be tagged.")
        return len(numbers)

    bad = numbers[-1]
    with stage.run("triage"):
        try:
            tag(numbers, "urgent")
        except ValueError:
            left = numbers
        for number in left:
            with suppress(ValueError):
                tag([number], "urgent")


@program
def items_named_by_the_run(stage: Stage) -> None:
    """A loop that says what its items are, with `run.item`; inside an item a call is corrected."""

    def truth(given: Any) -> Cure | None:
        return Cure(name="carrier", changes={"carrier": "post"}) if given["carrier"] == "drone" else None

    @stage.tool(effects="none", truth=truth)
    def quote_delivery(order: str, carrier: str) -> float:
        if carrier == "drone":
            raise ValueError("This carrier does not deliver there.")
        if stage.chance("lost", order) < 0.15:
            raise LookupError("This order has no address.")
        return 4.5

    with stage.run("shipping") as run:
        for number in range(5):
            with run.item(f"order {number}"):
                order = f"S{stage.number}-{number}"
                try:
                    quote_delivery(order, carrier="drone")
                except ValueError:
                    with suppress(LookupError):
                        quote_delivery(order, carrier="post")
                except LookupError:
                    pass


@program
def items_named_by_the_tool(stage: Stage) -> None:
    """The same, said once for the tool: `items=("month",)`."""
    closed = stage.random.choice(MONTHS)

    @stage.tool(effects="none", items=("month",))
    def close_month(month: str, ledger: str = "main") -> str:
        if month == closed:
            raise RuntimeError(f"There are open bookings in {month}.")
        return f"{month} closed"

    with stage.run("accounting"):
        for month in MONTHS[:8]:
            with suppress(RuntimeError):
                close_month(month)


@program
def threads_with_contexts(stage: Stage) -> None:
    """A pool of threads, each item in a copy of the context; items fail while others are under way."""
    barrier = threading.Barrier(3)

    @stage.tool(effects="none")
    def resize(picture: str) -> str:
        with suppress(threading.BrokenBarrierError):
            barrier.wait(5)  # the three of a round are in flight together
        if stage.chance("damaged", picture) < 0.2:
            raise ValueError(f"{picture} is damaged")
        return f"{picture} at 50 %"

    with stage.run("gallery"), ThreadPoolExecutor(3) as pool:
        for first in range(0, 9, 3):
            names = [f"p{stage.number}-{number}.png" for number in range(first, first + 3)]
            waiting = [pool.submit(contextvars.copy_context().run, resize, name) for name in names]
            for done in waiting:
                with suppress(ValueError):
                    done.result()


@program
def threads_without_contexts(stage: Stage) -> None:
    """A pool of threads that know nothing of the run: each call stands alone."""

    @stage.tool(effects="none")
    def thumbnail(picture: str) -> str:
        if stage.chance("damaged", picture) < 0.2:
            raise ValueError(f"{picture} is damaged")
        return f"{picture} small"

    with stage.run("gallery"), ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(thumbnail, f"q{stage.number}-{number}.png") for number in range(8)]
        for done in waiting:
            with suppress(ValueError):
                done.result()


@program
async def tasks_gathered(stage: Stage) -> None:
    """`asyncio.gather` over items, with the exceptions among the results."""

    @stage.tool(effects="none")
    async def translate(text: str, language: str) -> str:
        await asyncio.sleep(0)
        if stage.chance("hard", text) < 0.2:
            raise RuntimeError("The text could not be translated.")
        return text.upper()

    with stage.run("translator"):
        texts = [f"sentence {stage.number}.{number}" for number in range(7)]
        await asyncio.gather(*(translate(text, "fr") for text in texts), return_exceptions=True)


@program
async def tasks_in_a_group(stage: Stage) -> None:
    """A task group; each task catches its own failure, and two rounds follow each other."""

    @stage.tool(effects="none")
    async def get_price(ticker: str, market: str = "xetra") -> float:
        await asyncio.sleep(0)
        if stage.chance("halted", ticker) < 0.2:
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
