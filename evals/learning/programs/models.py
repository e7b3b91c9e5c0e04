"""Models in turns: they make a call, read the answer, follow advice where they are told some, and else know better."""

from __future__ import annotations

import asyncio
from typing import Literal

from learning.player import register_program
from learning.programs.specs import write_mistake
from learning.stage import Stage
from learning.truth import Arguments, Cure
from mulligan import AgentError

CITIES = ("Oslo", "Lima", "Cairo", "Quito", "Perth", "Turin", "Minsk", "Dakar", "Hanoi")


def choose_city(stage: Stage) -> str:
    return CITIES[stage.number % len(CITIES)]


write_mistake(
    "model_tries_fewer_days",
    "The second example of the README: three turns at first, and later two, which are enough for who is told.",
    tool="forecast",
    parameters={"city": str, "days": int},
    call=lambda stage: {"city": choose_city(stage), "days": 30},
    tries=[{"days": 14}],
    cure=lambda stage, call: Cure(name="days", changes={"days": 7}),
    error=lambda call: ValueError("This range is not available."),
    turns=lambda stage: 3 if stage.number < 10 else 2,
)
write_mistake(
    "model_finds_the_unit",
    "A word that an interface does not know. The third try is right, and later there are only two turns.",
    tool="preheat",
    parameters={"dish": str, "unit": str},
    call=lambda stage: {"dish": f"dish {stage.number}", "unit": "Fahrenheit"},
    tries=[{"unit": "degF"}],
    cure=lambda stage, call: Cure(name="unit", changes={"unit": "F"}),
    error=lambda call: ValueError("The unit was not understood."),
    turns=lambda stage: 3 if stage.number < 10 else 2,
)
write_mistake(
    "model_setting_that_changes",
    "A setting that a model is told in the first week is refused in the second.",
    tool="get_tides",
    parameters={"harbor": str, "hours": int},
    call=lambda stage: {"harbor": choose_city(stage), "hours": 96},
    tries=[{"hours": 72}],
    cure=lambda stage, call: (
        Cure(name="48 hours", changes={"hours": 48})
        if stage.day < 7
        else Cure(name="24 hours", changes={"hours": 24}, occurrence=4)
    ),
    error=lambda call: ValueError("So many hours are not available."),
    turns=lambda stage: 6,
)
write_mistake(
    "model_with_learning_off",
    'With `learn="off"` nothing that was learned is used, although it would be right.',
    tool="crawl",
    parameters={"site": str, "depth": int},
    call=lambda stage: {"site": f"site {stage.number}", "depth": 9},
    cure=lambda stage, call: Cure(name="depth", changes={"depth": 3}, rule="learning is off"),
    error=lambda call: ValueError("The crawler refuses."),
    turns=lambda stage: 3,
    settings={"learn": "off"},
)
write_mistake(
    "model_knows_another_id",
    "The model corrects a user id by itself, in the next turn. It is never told to another run.",
    tool="get_vacation",
    parameters={"user_id": str, "year": int},
    call=lambda stage: {"user_id": "me", "year": 2026},
    cure=lambda stage, call: Cure(name="user", changes={"user_id": f"emp-{stage.number}"}, rule="privileged"),
    error=lambda call: LookupError("Unknown employee."),
    turns=lambda stage: 3,
)
write_mistake(
    "model_fixes_a_command",
    "A shell command with a wrong option, then the right one. Commands are never told.",
    tool="run_command",
    parameters={"command": str, "description": (str, "Unpack the build")},
    call=lambda stage: {"command": f"tar -yxf build{stage.number}.tgz"},
    cure=lambda stage, call: Cure(
        name="command", changes={"command": f"tar -xzf build{stage.number}.tgz"}, rule="privileged"
    ),
    error=lambda call: RuntimeError(f"exit status 2: tar: invalid option in {call['command']!r}"),
    turns=lambda stage: 3,
    effects="once",
)
write_mistake(
    "model_edits_a_file",
    "An edit whose old text is not in the file; the next one quotes it right. Its text belongs to this run.",
    tool="edit_file",
    parameters={"path": str, "old_text": str, "new_text": str},
    call=lambda stage: {"path": f"src/m{stage.number}.py", "old_text": make_lines(stage, 9), "new_text": "pass"},
    cure=lambda stage, call: Cure(name="old_text", changes={"old_text": make_lines(stage, 10)}, rule="value of a run"),
    error=lambda call: AgentError("old_text was not found in the file."),
    turns=lambda stage: 3,
    effects="once",
)
write_mistake(
    "model_names_it_wrongly",
    "An argument under a name that the tool does not have; the next call has the right one.",
    tool="sample",
    parameters={"table": str, "limit": int},
    call=lambda stage: {"table": f"table_{stage.number}", "amount_of_rows": 5},
    cure=lambda stage, call: Cure(name="rename", renames={"amount_of_rows": "limit"}, rule="form"),
    error=lambda call: TypeError("amount_of_rows is unknown"),
    turns=lambda stage: 3,
)
write_mistake(
    "model_writes_numbers_as_texts",
    "A number as a text and an order in capitals, both of which the schema knows better.",
    tool="list_books",
    parameters={"shelf": str, "count": int, "order": Literal["title", "year"]},
    call=lambda stage: {"shelf": f"shelf {stage.number}", "count": "7", "order": "Title"},
    cure=lambda stage, call: Cure(name="form", changes={"count": 7, "order": "title"}, rule="form"),
    error=lambda call: TypeError("count must be a number and order one of title, year"),
    turns=lambda stage: 3,
)
write_mistake(
    "model_bound_in_the_error",
    "A bound that the error states: repaired at once, and announced in the answer.",
    tool="list_users",
    parameters={"team": str, "per_page": int},
    call=lambda stage: {"team": f"team {stage.number}", "per_page": 500},
    cure=lambda stage, call: Cure(name="per_page", changes={"per_page": 100}, rule="bound"),
    error=lambda call: AgentError(f"per_page must be at most 100, got {call['per_page']}."),
    turns=lambda stage: 3,
)
write_mistake(
    "model_changes_two_values",
    "Two values change at once, and neither comes from a result: too little is known of what helped.",
    tool="print_file",
    parameters={"name": str, "paper": str, "is_duplex": bool},
    call=lambda stage: {"name": f"letter {stage.number}", "paper": "A5", "is_duplex": True},
    cure=lambda stage, call: Cure(name="paper", changes={"paper": "A4", "is_duplex": False}, rule="two values changed"),
    error=lambda call: RuntimeError("The printer cannot do this."),
    turns=lambda stage: 3,
    effects="idempotent",
)


def make_lines(stage: Stage, count: int) -> str:
    """Give ten lines of a file, of which so many are right."""
    return "\n".join(f"line {number} of file {stage.number if number < count else 'x'}" for number in range(10))


@register_program
def model_words_it_differently(stage: Stage) -> None:
    """The same command again with another comment. The comment changes nothing."""
    failures = [True]

    def truth(call: Arguments) -> Cure:
        before = call["description"]
        return Cure(name="comment", changes={"description": lambda text: text != before}, rule="comment argument")

    @stage.tool(truth=truth)
    def run_command(command: str, description: str) -> str:
        if failures and failures.pop():
            raise RuntimeError("exit status 1: the test database is locked")
        return "ok"

    with stage.run("coder"):
        command = f"make test{stage.number}"
        texts = ("Run the tests", "Run the tests once more")
        stage.converse(3, [("run_command", {"command": command, "description": text}, "tests") for text in texts])


@register_program
def model_skips_customers(stage: Stage) -> None:
    """One customer a turn; those that fail are left out. The next customer corrects nothing."""

    @stage.tool(effects="none")
    def get_score(customer_id: int, bureau: str = "north") -> int:
        if stage.draw_number("frozen", customer_id) < 0.3:
            raise PermissionError("The file of this customer is frozen.")
        return 700

    with stage.run("scoring"):
        customers = stage.random.sample(range(100, 999), 6)
        for customer, turn in zip(customers, stage.turns(8), strict=False):
            stage.call(turn, "get_score", customer_id=customer)


@register_program
def model_asks_other_cities(stage: Stage) -> None:
    """A city that the service does not have; the model goes on with the next ones of its list."""

    @stage.tool(effects="none")
    def get_population(city: str, year: int) -> int:
        if stage.draw_number("unknown", city) < 0.3:
            raise LookupError("This city is not in the census.")
        return 100_000

    with stage.run("atlas"):
        cities = stage.random.sample(CITIES, 6)
        for city, turn in zip(cities, stage.turns(6), strict=False):
            stage.call(turn, "get_population", city=city, year=2020 + stage.number % 5)


@register_program
def model_calls_in_parallel(stage: Stage) -> None:
    """Several calls in one turn, of which some fail; the next turn asks for other months."""

    @stage.tool(effects="none")
    def load_visits(month: str, site: str) -> int:
        if stage.draw_number("gap", month) < 0.25:
            raise ValueError("The log of this month is damaged.")
        return 5000

    with stage.run("analytics"):
        for quarter, turn in enumerate(stage.turns(3)):
            for month in range(1, 4):
                stage.call(turn, "load_visits", month=f"2025-{3 * quarter + month:02}", site="shop")


@register_program
async def model_calls_concurrently(stage: Stage) -> None:
    """The same with tasks: the calls of a turn are in flight together."""

    @stage.tool(effects="none")
    async def load_clicks(week: int, site: str) -> int:
        await asyncio.sleep(0)
        if stage.draw_number("gap", week) < 0.25:
            raise ValueError("The log of this week is damaged.")
        return 5000

    with stage.run("analytics"):
        for first, turn in zip((1, 5, 9), stage.turns(3), strict=False):
            await asyncio.gather(*(stage.acall(turn, "load_clicks", week=first + n, site="blog") for n in range(4)))


@register_program
def model_repeats_itself(stage: Stage) -> None:
    """The same call five times, which cannot work. To be refused at last costs nothing."""

    @stage.tool(effects="none")
    def open_door(door: str) -> str:
        raise RuntimeError("The door is jammed.")

    with stage.run("robot"):
        stage.converse(5, [("open_door", {"door": f"door {stage.number}"}) for _ in range(5)])


@register_program
def model_corrects_it_later(stage: Stage) -> None:
    """Something else comes first, and the correction two turns later: by the rules, not known to be one."""

    @stage.tool(effects="none", truth=lambda call: Cure(name="zoom", changes={"zoom": 12}, rule="not in the next turn"))
    def draw_map(place: str, zoom: int) -> str:
        if zoom > 12:
            raise ValueError("There are no tiles at this zoom.")
        return place

    @stage.tool(effects="none")
    def get_weather(place: str) -> str:
        return "rain"

    with stage.run("guide"):
        maps = [("draw_map", {"place": choose_city(stage), "zoom": zoom}, "map") for zoom in (15, 12)]
        stage.converse(4, [maps[0], ("get_weather", {"place": choose_city(stage)}), maps[1]])


CODES = {"EURO": "EUR", "YEN": "JPY", "POUND": "GBP"}
COUNTRIES = {"Paris": "FR", "Leeds": "GB", "Lyon": "FR", "Nice": "FR", "Brest": "FR", "Salem": "US"}
write_mistake(
    "model_names_the_currency",
    "Names where codes are wanted, most often the same name. The code of one is not the code of another.",
    tool="convert",
    parameters={"value": float, "unit": str},
    call=lambda stage: {
        "value": 10.0 + stage.number,
        "unit": list(CODES)[0 if stage.number % 5 else 1 + stage.number % 2],
    },
    cure=lambda stage, call: Cure(name=call["unit"], changes={"unit": CODES.get(call["unit"], call["unit"])}),
    error=lambda call: ValueError("The currency is not known."),
    turns=lambda stage: 3,
)
write_mistake(
    "model_names_the_country",
    "Cities in several countries; the error asks for the country, which depends on the city.",
    tool="geocode",
    parameters={"city": str, "country": (str, "")},
    call=lambda stage: {"city": list(COUNTRIES)[stage.number % 6], "country": ""},
    cure=lambda stage, call: Cure(
        name=call["city"], changes={"country": COUNTRIES[call["city"]]}, rule="depends on another value"
    ),
    error=lambda call: AgentError("The city is ambiguous: country is required."),
    turns=lambda stage: 3,
)


@register_program
def model_asks_for_less(stage: Stage) -> None:
    """A service that wakes up; the model asks for less, which is not why it is answered."""
    calls: list[int] = []

    def truth(call: Arguments) -> Cure:
        return Cure(name="less", changes={"rows": lambda rows: rows < call["rows"]}, rule="value of a run")

    @stage.tool(truth=truth)
    def export_table(table: str, rows: int) -> str:
        calls.append(rows)
        if len(calls) == 1:
            raise RuntimeError("503 Service Unavailable: the index is loading")
        return table

    with stage.run("export"):
        table = f"table_{stage.number}"
        stage.converse(3, [("export_table", {"table": table, "rows": rows}, "goal") for rows in (500, 100)])


@register_program
def model_polls_a_job(stage: Stage) -> None:
    """A model looks again and again for a result that is not ready yet, and does nothing else meanwhile."""
    looks: list[str] = []

    @stage.tool(effects="none", truth=lambda call: Cure(name="wait", rule="only time helps"))
    def get_report(report: str) -> str:
        looks.append(report)
        if len(looks) < 2 + stage.number % 4:
            raise AgentError("The report is not ready yet.")
        return "sales"

    with stage.run("reports"):
        stage.converse(6, [("get_report", {"report": f"r{stage.number}"}, "goal")] * 6)
