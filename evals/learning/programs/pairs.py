"""Corrections by code in a handler and by a model in turns, side by side: other calls first, and contradictions."""

from __future__ import annotations

from typing import Any

from learning.player import register_program
from learning.stage import Stage
from learning.truth import Arguments, Cure
from mulligan import AgentError


def write_prerequisite(name: str, about: str, *, failing: str, missing: str, is_model: bool, learn: str = "") -> None:
    """Write a program that has to call `missing` before `failing` works. A model tries something else first."""

    def play(stage: Stage) -> None:
        ready: set[str] = set()
        if learn:
            stage.set_up(learn=learn)

        def fail(subject: str, depth: int) -> str:
            if subject not in ready:
                raise AgentError("This is not possible at the moment.")
            return subject

        def prepare(subject: str) -> str:
            ready.add(subject)
            return "ready"

        def look(subject: str) -> str:
            return f"{subject} is there"

        fail.__name__, prepare.__name__, look.__name__ = failing, missing, "get_status"
        cure = Cure(name=missing, first=(missing,), rule="prerequisite")
        call_failing = stage.tool(effects="none", truth=lambda call: cure)(fail)
        call_missing = stage.tool(effects="idempotent")(prepare)
        stage.tool(effects="none")(look)
        subject, depth = f"{failing} {stage.number}", 1 + stage.number % 3
        call = (failing, {"subject": subject, "depth": depth}, "goal")
        with stage.run(f"{failing}-agent"):
            if is_model:
                look_first, prepare_first = ("get_status", {"subject": subject}), (missing, {"subject": subject})
                # Later there are turns only for who is told at once what is missing.
                stage.converse(5 if stage.number < 10 else 3, [call, look_first, call, prepare_first, call])
                return
            try:
                call_failing(subject, depth)
            except AgentError:
                call_missing(subject)
                call_failing(subject, depth)

    play.__doc__ = about
    register_program(play, name)


def write_lookup(name: str, about: str, *, failing: str, lookup: str, value: Any, is_model: bool) -> None:
    """Write a program that needs a value which another call tells. The call can be told, the value cannot."""

    def play(stage: Stage) -> None:
        right = value + stage.number if isinstance(value, int) else f"{value}{stage.number}"

        def fail(subject: str, key: Any) -> str:
            if key != right:
                raise AgentError("This does not fit what is stored.")
            return f"{subject} done"

        def find(subject: str) -> dict[str, Any]:
            return {"subject": subject, "key": right}

        def truth(call: Arguments) -> Cure:
            return Cure(name=lookup, changes={"key": right}, first=(lookup,), rule="prerequisite", is_open=True)

        fail.__name__, find.__name__ = failing, lookup
        fail.__annotations__["key"] = type(value)
        call_failing, call_lookup = stage.tool(truth=truth)(fail), stage.tool(effects="none")(find)
        subject = f"subject {stage.number}"
        stale = {"subject": subject, "key": 1 if isinstance(value, int) else subject}
        with stage.run(f"{failing}-agent"):
            if is_model:
                again = lambda results: (failing, {**stale, "key": results[-1]["key"]}, "goal")  # noqa: E731
                stage.converse(6, [(failing, stale, "goal"), (lookup, {"subject": subject}), again])
                return
            try:
                call_failing(**stale)
            except AgentError:
                call_failing(subject, call_lookup(subject)["key"])

    play.__doc__ = about
    register_program(play, name)


def write_contradiction(name: str, about: str, *, is_model: bool) -> None:
    """Write a program of two agents which share a tool and need different settings of it."""

    def play_agent(stage: Stage, agent: str, works: str) -> None:
        @stage.tool(effects="none", truth=lambda call: Cure(name=agent, changes={"unit": works}))
        def measure(part: str, unit: str) -> float:
            if unit != works:
                raise ValueError("The gauge does not know this unit.")
            return 2.5

        part = f"part {stage.number}"
        with stage.run(agent):
            if is_model:
                stage.converse(4, [("measure", {"part": part, "unit": unit}, part) for unit in ("auto", works)])
                return
            try:
                measure(part, unit="auto")
            except ValueError:
                measure(part, unit=works)

    def play(stage: Stage) -> None:
        play_agent(stage, "metric-team", "cm")
        play_agent(stage, "imperial-team", "inch")

    play.__doc__ = about
    register_program(play, name)


write_prerequisite(
    "login_in_a_handler",
    "The same call works after another one: what was missing can be told.",
    failing="get_statement",
    missing="login",
    is_model=False,
)
write_prerequisite(
    "model_logs_in_first",
    "No session: signing in comes first, which the model finds out after something else.",
    failing="read_inbox",
    missing="sign_in",
    is_model=True,
)
write_prerequisite(
    "model_takes_the_lock",
    "A record has to be locked before it is written.",
    failing="write_record",
    missing="acquire_lock",
    is_model=True,
)
write_prerequisite(
    "model_is_prepared",
    "With `learn='repair'` a promoted prerequisite may be run without asking.",
    failing="count_rows",
    missing="connect",
    is_model=True,
    learn="repair",
)
write_lookup(
    "version_from_a_read",
    "An update needs the version that a read tells.",
    failing="update_page",
    lookup="read_page",
    value=5,
    is_model=False,
)
write_lookup(
    "id_from_a_search",
    "A name is no id; a search tells the id.",
    failing="get_order",
    lookup="find_order",
    value="ORD-70",
    is_model=False,
)
write_lookup(
    "model_reads_the_version",
    "A stale version; the model reads the document and uses what it says.",
    failing="update_doc",
    lookup="read_doc",
    value=40,
    is_model=True,
)
write_lookup(
    "model_finds_the_user",
    "A name where an id is wanted; the model looks it up.",
    failing="get_profile",
    lookup="find_user",
    value="u-5",
    is_model=True,
)
write_contradiction("agents_that_contradict", "Code of two agents, each with its own setting.", is_model=False)
write_contradiction("models_that_contradict", "Models of two agents, each with its own setting.", is_model=True)
