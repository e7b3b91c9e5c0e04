"""Programs of other shapes: names that begin alike, files of one name, like letters, chains over items, defaults."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

from learning.player import register_program
from learning.programs.specs import write_mistake
from learning.stage import Stage
from learning.truth import Cure

LETTER = (
    "Dear {name}, your subscription {number} ends at the end of this month. Please renew it in time, or write to us "
    "if you have questions about it. Kind regards, the office"
)
FILES = ("pkg/sub/__init__.py", "pkg/sub/core.py", "pkg/core.py", "pkg/__init__.py", "__init__.py", "core.py")


# What looks like the same thing in another form


@register_program
def names_that_begin_alike(stage: Stage) -> None:
    """Products of which one name is the beginning of another; the error quotes the name that is not known."""

    @stage.tool(effects="none")
    def find_product(name: str, shop: str) -> str:
        if stage.draw_number("unknown", name) < 0.3:
            raise LookupError(f"No product is called '{name}'.")
        return name

    with stage.run("shop"):
        for name in (
            "espresso machine pro",
            "espresso machine",
            "desk lamp led",
            "desk lamp",
            "mug set red",
            "mug set",
        ):
            with suppress(LookupError):
                find_product(name, shop="north")


@register_program
def files_of_one_name(stage: Stage) -> None:
    """A build that goes through folders from below: files of one name are different files."""

    @stage.tool(effects="none")
    def compile_file(path: str) -> str:
        if stage.draw_number("broken", path) < 0.3:
            raise RuntimeError("The file cannot be compiled.")
        return path

    with stage.run("build"):
        for path in FILES:
            with suppress(RuntimeError):
                compile_file(path)


@register_program
def whole_then_by_region(stage: Stage) -> None:
    """A report of the whole first, then by region. The error speaks of regions, and does not ask for one."""

    @stage.tool(effects="none")
    def report(month: str, **filters: Any) -> str:
        if not filters and stage.draw_number("locked") < 0.5:
            raise RuntimeError("The report is locked until every region has closed.")
        return month

    with stage.run("finance"):
        month = f"2025-{stage.number % 12 + 1:02}"
        with suppress(RuntimeError):
            report(month)
        for region in ("north", "south")[: 1 + stage.number % 2]:
            report(month, region=region)


@register_program
def word_as_title_or_author(stage: Stage) -> None:
    """The same word is looked for as a title, then as an author: two questions."""

    @stage.tool(effects="none")
    def search_books(*, title: str | None = None, author: str | None = None) -> str:
        if stage.draw_number("unknown", title, author) < 0.4:
            raise LookupError("No such book.")
        return "found"

    with stage.run("library"):
        word = ("Martin", "Grace", "King")[stage.number % 3]
        for arguments in ({"title": word}, {"author": word}):
            with suppress(LookupError):
                search_books(**arguments)


# Texts


@register_program
def letters_to_three_people(stage: Stage) -> None:
    """Letters from one template; one that cannot be printed is not corrected by the next."""

    @stage.tool()
    def send_letter(body: str, subject: str = "Reminder") -> str:
        if "archive" not in body and stage.draw_number("refused", body) < 0.3:
            raise ValueError("The letter could not be printed.")
        return "sent"

    with stage.run("office"):
        send_letter(LETTER.format(name="the archive", number=stage.number))
        for number, name in enumerate(("Ann Lee", "Bob Ray", "Cy Fox")):
            with suppress(ValueError):
                send_letter(LETTER.format(name=name, number=f"{number}{stage.number}"))


@register_program
def model_writes_sections(stage: Stage) -> None:
    """A section a turn, each of other words, into one document. One that is refused is left out."""

    @stage.tool()
    def write_section(document: str, text: str) -> str:
        if stage.draw_number("refused", text) < 0.3:
            raise RuntimeError("The section was refused by the reviewer.")
        return "written"

    with stage.run("writer"):
        for number, turn in zip(range(5), stage.turns(6), strict=False):
            letters = random.Random(f"{stage.number} {number}")
            words = ["".join(letters.choices("abcdefghijklmnop", k=6)) for _ in range(30)]
            stage.call(turn, "write_section", document="annual report", text=" ".join(words))


# Chains


@register_program
def handler_goes_on_and_retries(stage: Stage) -> None:
    """A handler goes on with the next order, which is tried twice. The order before it stays undone."""
    tries: dict[int, int] = {}

    @stage.tool()
    def pack(order: int) -> str:
        tries[order] = tries.get(order, 0) + 1
        if stage.draw_number("missing", order) < 0.3 or (stage.draw_number("slow", order) < 0.5 and tries[order] < 2):
            raise RuntimeError("The shelf did not answer.")
        return "packed"

    def work(orders: list[int]) -> None:
        if not orders:
            return
        try:
            try:
                pack(orders[0])
            except RuntimeError:
                pack(orders[0])
        except RuntimeError:
            work(orders[1:])
            return
        work(orders[1:])

    with stage.run("warehouse"):
        work(list(range(10 * stage.number, 10 * stage.number + 5)))


@register_program
def batch_that_is_split(stage: Stage) -> None:
    """A batch with a bad row is split in the handler until the row is alone, and lost."""

    @stage.tool()
    def upload(rows: list[int]) -> str:
        if any(stage.draw_number("bad", row) < 0.2 for row in rows):
            raise ValueError("A row was refused.")
        return "ok"

    def put(rows: list[int]) -> None:
        try:
            upload(rows)
        except ValueError:
            if len(rows) > 1:
                put(rows[: len(rows) // 2])
                put(rows[len(rows) // 2 :])

    with stage.run("upload"):
        put(list(range(10 * stage.number, 10 * stage.number + 2 + stage.number % 4)))


@register_program
def three_codecs_in_handlers(stage: Stage) -> None:
    """One handler inside another: the third codec is right, for the first failure and for the second."""

    @stage.tool(effects="none", truth=lambda call: Cure(name="codec", changes={"codec": "wav"}))
    def play(track: str, codec: str) -> str:
        if codec != "wav":
            raise RuntimeError("This cannot be decoded.")
        return track

    with stage.run("player"):
        track = f"track {stage.number}"
        try:
            play(track, "opus")
        except RuntimeError:
            try:
                play(track, "flac")
            except RuntimeError:
                play(track, "wav")


@register_program
def tool_inside_a_tool(stage: Stage) -> None:
    """A tool that calls another fails with it, and both are corrected by one call in the handler."""

    @stage.tool(effects="none", truth=lambda call: Cure(name="block", changes={"source": "tape"}))
    def read_block(volume: int, source: str) -> str:
        if source == "disk":
            raise OSError("bad sector")
        return "block"

    @stage.tool(effects="none", truth=lambda call: Cure(name="volume", changes={"source": "tape"}))
    def restore(volume: int, source: str) -> str:
        return str(read_block(volume, source))

    with stage.run("backup"):
        try:
            restore(stage.number, "disk")
        except OSError:
            restore(stage.number, "tape")


@register_program
def corrections_made_later(stage: Stage) -> None:
    """Errors are gathered, and what failed is done otherwise in a second pass: outside handlers, so partial."""
    cure = Cure(name="engine", changes={"engine": "slow"}, rule="outside a handler")

    @stage.tool(effects="none", truth=lambda call: cure)
    def convert(document: str, engine: str) -> str:
        if engine == "fast" and stage.draw_number("crash", document) < 0.5:
            raise RuntimeError("The engine crashed.")
        return document

    with stage.run("converter"):
        failed = []
        for number in range(4):
            try:
                convert(f"{stage.number}-{number}", "fast")
            except RuntimeError as error:
                failed.append((number, error))
        for number, _ in failed:
            convert(f"{stage.number}-{number}", "slow")


# Settings


write_mistake(
    "argument_declared_privileged",
    "An argument that the tool's author declared to be privileged is told to nobody, in a handler or elsewhere.",
    tool="ship",
    parameters={"box": str, "lane": str},
    call=lambda stage: {"box": f"box {stage.number}", "lane": "fast"},
    cure=lambda stage, call: Cure(name="lane", changes={"lane": "slow"}, rule="privileged"),
    error=lambda call: RuntimeError("This lane is closed."),
    privileged=("lane",),
)
write_mistake(
    "model_and_a_declared_argument",
    "The same for a model.",
    tool="ship",
    parameters={"box": str, "lane": str},
    call=lambda stage: {"box": f"box {stage.number}", "lane": "fast"},
    cure=lambda stage, call: Cure(name="lane", changes={"lane": "slow"}, rule="privileged"),
    error=lambda call: RuntimeError("This lane is closed."),
    turns=lambda stage: 3,
    privileged=("lane",),
)
write_mistake(
    "model_and_a_destructive_tool",
    "No argument of a tool that is marked as destructive is told.",
    tool="purge",
    parameters={"table": str, "method": str},
    call=lambda stage: {"table": f"table {stage.number}", "method": "hard"},
    cure=lambda stage, call: Cure(name="method", changes={"method": "soft"}, rule="privileged"),
    error=lambda call: RuntimeError("This method is closed."),
    turns=lambda stage: 3,
    effects="once",
    destructive=True,
)
write_mistake(
    "default_that_never_works",
    "One shop a run, another in each; the default of an argument is what is wrong.",
    tool="sync_shop",
    parameters={"shop": int, "depth": (str, "delta")},
    call=lambda stage: {"shop": stage.number},
    cure=lambda stage, call: Cure(name="depth", changes={"depth": "full"}),
    error=lambda call: RuntimeError("There is no earlier state."),
)
write_mistake(
    "format_with_a_number",
    "The right value is the name of an encoding that ends in a number. It is no id.",
    tool="import_list",
    parameters={"name": str, "encoding": str},
    call=lambda stage: {"name": f"list {stage.number}", "encoding": "ascii"},
    cure=lambda stage, call: Cure(name="encoding", changes={"encoding": "cp1252"}),
    error=lambda call: UnicodeDecodeError("ascii", b"\x80", 0, 1, "ordinal not in range(128)"),
)


@register_program
def dead_letters(stage: Stage) -> None:
    """What the consumer refuses goes to another queue. The usual queue works most of the time: nothing is told."""

    @stage.tool()
    def deliver(message: int, queue: str = "main") -> str:
        if queue == "main" and stage.draw_number("refused", message) < 0.4:
            raise RuntimeError("The consumer refused it.")
        return queue

    with stage.run("queue"):
        deliver(-1, queue="heartbeat")
        for number in range(3):
            try:
                deliver(10 * stage.number + number)
            except RuntimeError:
                deliver(10 * stage.number + number, queue="dead")


@register_program
def strict_in_a_loop(stage: Stage) -> None:
    """Two documents a run, each parsed again without a flag that is on by default."""

    @stage.tool(effects="none", truth=lambda call: Cure(name="strict", changes={"strict": False}))
    def parse(document: str, *, strict: bool = True) -> str:
        if strict:
            raise ValueError("A tag is not closed.")
        return document

    with stage.run("parser"):
        for number in range(2):
            try:
                parse(f"{stage.number}-{number}")
            except ValueError:
                parse(f"{stage.number}-{number}", strict=False)


@register_program
async def tasks_that_correct(stage: Stage) -> None:
    """A task group in which each task corrects its own call, to the same setting."""

    @stage.tool(effects="none", truth=lambda call: Cure(name="protocol", changes={"protocol": "h2"}))
    async def get_page(page: str, protocol: str) -> str:
        await asyncio.sleep(0)
        if protocol == "h3":
            raise RuntimeError("The handshake failed.")
        return page

    async def work(page: str) -> None:
        try:
            await get_page(page, protocol="h3")
        except RuntimeError:
            await get_page(page, protocol="h2")

    with stage.run("crawler"):
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(work(f"{stage.number}-{number}"))


# Models


@register_program
def model_corrects_in_parallel(stage: Stage) -> None:
    """Two calls of one turn fail, and both are corrected in the next."""

    @stage.tool(effects="none", truth=lambda call: Cure(name="days", changes={"days": 7}))
    def forecast(city: str, days: int) -> str:
        if days > 7:
            raise ValueError("This range is not available.")
        return city

    with stage.run("weather"):
        for days, turn in zip((30, 7), stage.turns(2), strict=False):
            for city in ("a", "b"):
                stage.call(turn, "forecast", city=f"{city}{stage.number}", days=days)


@register_program
def model_waits_in_its_own_way(stage: Stage) -> None:
    """A tool that fails at random. Whatever the model does before the same call works is not why it works."""
    calls: list[int] = []

    @stage.tool()
    def fetch(order: int) -> str:
        calls.append(order)
        if stage.draw_number("hiccup", len(calls)) < 0.5:
            raise RuntimeError("The backend hiccuped.")
        return "ok"

    @stage.tool(effects="none")
    def get_weather(city: str) -> str:
        return "rain"

    with stage.run("orders"):
        turns = stage.turns(8)
        for number in range(2):
            order = 10 * stage.number + number
            if stage.call(next(turns), "fetch", order=order).has_failed:
                if stage.draw_number("chat", number) < 0.5:
                    stage.call(next(turns), "get_weather", city="Oslo")
                stage.call(next(turns), "fetch", order=order)
