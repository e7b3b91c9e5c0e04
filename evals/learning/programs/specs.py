"""Two compact ways to write a program: a loop over items, and a mistake with its correction."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from learning.player import register_program
from learning.stage import Stage
from learning.truth import Arguments, Cure

Parameters = Mapping[str, Any]
"""By name a type, or a type and a default."""


def make_function(title: str, parameters: Parameters, body: Callable[[Arguments], Any]) -> Callable[..., Any]:
    """Make a function with these parameters, which answers with what `body` makes of them."""

    def function(**arguments: Any) -> Any:
        return body(arguments)

    types = {name: kind[0] if isinstance(kind, tuple) else kind for name, kind in parameters.items()}
    defaults = {name: kind[1] for name, kind in parameters.items() if isinstance(kind, tuple)}
    function.__name__ = title
    function.__annotations__ = types
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(key, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=defaults.get(key, inspect._empty))
            for key in types
        ]
    )
    return function


def write_loop(
    name: str,
    about: str,
    *,
    tool: str,
    parameters: Parameters,
    items: Callable[[Stage], Sequence[Arguments]],
    error: Callable[[Arguments], Exception],
    is_bad: Callable[[Stage, Arguments], bool] = lambda stage, item: stage.draw_number("bad", item) < 0.2,
    effects: str = "none",
    item_names: tuple[str, ...] = (),
) -> None:
    """Write a program that calls a tool for one item after another, and goes on where one fails.

    `item_names` are the arguments that the tool itself says are items.
    """

    def play(stage: Stage) -> None:
        def body(item: Arguments) -> str:
            if is_bad(stage, item):
                raise error(item)
            return f"{tool} {item}"

        options: dict[str, Any] = {"items": item_names} if item_names else {}
        call_tool = stage.tool(effects=effects, **options)(make_function(tool, parameters, body))
        with stage.run(f"{tool}-agent"):
            for item in items(stage):
                with suppress(Exception):
                    call_tool(**item)

    play.__doc__ = about
    register_program(play, name)


def write_mistake(
    name: str,
    about: str,
    *,
    tool: str,
    parameters: Parameters,
    call: Callable[[Stage], Arguments],
    cure: Callable[[Stage, Arguments], Cure],
    error: Callable[[Arguments], Exception],
    tries: Sequence[Arguments] = (),
    turns: Callable[[Stage], int] | None = None,
    effects: str = "none",
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> None:
    """Write a program that makes a mistake and corrects it: in a handler, or with `turns` as a model.

    The tool fails until it is called as the cure says. `tries` are further wrong values, tried before the right one.
    """

    def play(stage: Stage) -> None:
        def truth(arguments: Arguments) -> Cure:
            return cure(stage, arguments)

        def body(arguments: Arguments) -> str:
            if stage.tools[tool].find_cure(arguments) is not None:
                raise error(arguments)
            return f"{tool} {arguments}"

        if settings:
            stage.set_up(**settings)
        call_tool = stage.tool(effects=effects, truth=truth, **options)(make_function(tool, parameters, body))
        first = call(stage)
        right = apply_cure(cure(stage, first), first)
        with stage.run(f"{tool}-agent"):
            if turns is not None:
                script = [first, *({**first, **changes} for changes in tries), right]
                stage.converse(turns(stage), [(tool, arguments, "goal") for arguments in script])
                return
            try:
                call_tool(**first)
            except Exception:  # noqa: BLE001 - whatever it is, this program knows what to do
                call_tool(**right)

    play.__doc__ = about
    register_program(play, name)


def apply_cure(cure: Cure, arguments: Arguments) -> Arguments:
    """Give the call that is right in the place of a failed one."""
    rest = {cure.renames.get(name, name): value for name, value in arguments.items() if name not in cure.drops}
    return {**rest, **{name: value for name, value in cure.changes.items() if not callable(value)}}
