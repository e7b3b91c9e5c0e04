"""Ways to call a tool with mulligan, each in a sandbox: from a program, in an agent loop, in two agent frameworks.

The proxy is in `proxy_door.py`.
"""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import inspect
import json
import sys
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from judge import Execution, Play
from mistakes import Arguments, Mistake

import mulligan
from mulligan.testing import sandbox

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "support"))
FRAMEWORKS = ("langchain", "pydantic_ai")
Tool = Callable[..., Any]


class MissingFrameworkError(Exception):
    """A framework that is not installed. The message has the command that installs it."""


def load_mistakes(path: Path, *, for_pydantic: bool = False) -> list[Mistake]:
    """Load the mistakes of a batch. Before Python 3.12, pydantic accepts only the TypedDict of typing_extensions."""
    typed_dict: Any = typing.TypedDict
    name = path.stem
    if for_pydantic:
        from typing_extensions import TypedDict as typed_dict  # noqa: N813

        name = f"{path.stem}_for_pydantic"
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None
    assert specification.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(specification)
    with mock.patch.object(typing, "TypedDict", typed_dict):
        specification.loader.exec_module(module)
    mistakes: list[Mistake] = module.batch.mistakes
    return mistakes


def record_executions(function: Tool, executions: list[Execution]) -> Tool:
    """Return a function with the same signature that also records its executions.

    `*args, **kwargs` would not do: Python must reject a call of it as it rejects one of the original, at the call.
    """
    signature = inspect.signature(function)

    def execute(values: dict[str, Any]) -> Any:
        arguments = copy.deepcopy(values)
        bound: Any = inspect.BoundArguments(signature, values)  # type: ignore[arg-type, unused-ignore]
        try:
            result = function(*bound.args, **bound.kwargs)
        except Exception as error:
            executions.append(Execution(arguments, type(error).__name__))
            raise
        executions.append(Execution(arguments))
        return result

    empty = inspect.Parameter.empty
    parameters = [
        parameter.replace(annotation=empty, default=empty if parameter.default is empty else None)
        for parameter in signature.parameters.values()
    ]
    values = ", ".join(f"{name!r}: {name}" for name in signature.parameters)
    header = f"def tool{inspect.Signature(parameters)}"
    namespace: dict[str, Any] = {}
    exec(f"def build(__execute):\n {header}:\n  return __execute({{{values}}})\n return tool", namespace)
    tool = namespace["build"](execute)
    recording: Any = types.FunctionType(
        tool.__code__, function.__globals__, function.__name__, function.__defaults__, tool.__closure__
    )
    functools.update_wrapper(recording, function)
    del recording.__wrapped__
    recording.__kwdefaults__ = function.__kwdefaults__
    recording.__doc__ = function.__doc__ or f"{function.__name__}."  # LangChain demands one
    return recording  # type: ignore[no-any-return]


def play_in_sandbox(path: Path, door: str) -> Iterator[Play]:
    """Make the calls of a batch through one of the doors of this module."""
    make_call = {"program": call_from_program, "turn": call_in_turn}.get(door) or load_framework(door)
    for mistake in load_mistakes(path, for_pydantic=door in FRAMEWORKS):
        play = Play(path.stem, door, mistake)
        tool = record_executions(mistake.function, play.executions)
        with sandbox() as played:
            make_call(play, tool, [*mistake.earlier, mistake.asked])
            stops = [step.stop for step in played.steps if step.stop is not None]
        play.stop_reason = stops[-1].reason if stops else ""
        yield play


def call_from_program(play: Play, tool: Tool, calls: list[Arguments]) -> None:
    wrapped = mulligan.tool(effects=play.mistake.effects)(tool)
    with mulligan.run("program"):
        try:
            for arguments in calls:
                play.answer = str(wrapped(**arguments))
        except Exception as error:  # noqa: BLE001 - the answer, whatever its class
            # Of the notes that mulligan adds, the first says what was tried. Others suggest something.
            notes = "\n".join(getattr(error, "__notes__", ())).splitlines()
            play.answer = "\n".join([f"{type(error).__name__}: {error}", *notes])
            play.suggestions = [note for note in notes[1:] if note.startswith("mulligan: ")]
        play.note = " ".join(mulligan.drain_notes())


def call_in_turn(play: Play, tool: Tool, calls: list[Arguments]) -> None:
    wrapped = mulligan.tool(effects=play.mistake.effects)(tool)
    for turn in mulligan.turns(limit=len(calls)):
        outcome = turn.call([wrapped], play.mistake.name, calls[turn.number - 1])
    read_message(play, outcome.to_message())


def read_message(play: Play, text: str) -> None:
    """Read the message that a model gets. What mulligan adds to a result is under `mulligan`."""
    try:
        message = json.loads(text)
    except ValueError:  # the tool's own text
        message = None
    block = message.get("mulligan", message) if isinstance(message, dict) else {}
    play.answer, play.note, play.suggestions = text, block.get("note", ""), block.get("suggestions", [])


def load_framework(door: str) -> Callable[[Play, Tool, list[Arguments]], None]:
    try:
        driver = importlib.import_module(f"frameworks.{door}_driver").driver
        from frameworks.scenarios import Request
    except ImportError as error:
        raise MissingFrameworkError(f"{error}. To install it: scripts/environment base dev frameworks") from None

    def call_in_framework(play: Play, tool: Tool, calls: list[Arguments]) -> None:
        name = play.mistake.name
        script = [*([Request(name, dict(arguments))] for arguments in calls), "done"]
        try:
            conversation = driver.play([tool], script, "sync", tools={name: {"effects": play.mistake.effects}})
        except Exception as error:  # noqa: BLE001 - of any class
            play.problem = f"the framework cannot offer it: {error!r}"
            return
        read_message(play, conversation.answers[-1] if conversation.error is None else repr(conversation.error))

    return call_in_framework
