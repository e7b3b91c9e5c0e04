"""The stage a program is played on: with all that was learned, with an empty memory, or without mulligan.

A program wraps its tools, opens runs and asks in turns by this object only, so that the same lines are played in all
three modes. The stage notes what the program sees: each call, what it was given, what was executed for it, and each
sentence that it was told. It asks mulligan through its public functions; the clock alone is put in from behind.
"""

from __future__ import annotations

import contextlib
import contextvars
import hashlib
import inspect
import itertools
import json
import random
import threading
import time
import typing
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from learning.advice import LEAST_CONFIDENCE, Claim, Sentence, list_claims, read_sentence
from learning.truth import Arguments, Cure, Truth, is_same
from mulligan import ToolOutcome
from mulligan import settings as settings_file
from mulligan.api import Mulligan
from mulligan.build import Components

Mode = Literal["full", "empty", "off"]
MODES: tuple[Mode, ...] = ("full", "empty", "off")
START = 1_767_225_600.0
"""The first moment of the simulated weeks, in seconds: any will do, on the first second of a day."""
DAY = 86_400.0
EXECUTION_SECONDS = 0.2
"""How long each call of a tool takes, by the simulated clock."""
MAX_QUESTIONS = 4
"""Failures of one run about which `suggest` is asked, as a person would."""
KNOWN_FIELDS = {"error", "code", "message", "hint", "recoverable", "outcome"}
"""Parts of an answer that say what went wrong. All others are advice."""
_NOWHERE = Path("/nonexistent/mulligan/learning")


class Clock:
    """A clock that stands still but for a tenth of a millisecond at each look, and moves when somebody waits."""

    def __init__(self) -> None:
        self._moment = START
        self._looks = itertools.count(1)

    def time(self) -> float:
        return self._moment + next(self._looks) / 10_000

    def move_to(self, moment: float) -> None:
        self._moment = max(moment, self.time())
        self._looks = itertools.count(1)

    def sleep(self, seconds: float) -> None:
        self._moment += max(0.0, seconds)

    async def sleep_async(self, seconds: float) -> None:
        self.sleep(seconds)

    @contextlib.contextmanager
    def replace_time(self) -> Iterator[None]:
        """Make it the clock of this process: stores ask `time` itself what the time is.

        That is simple and complete: what waits for a thread or a lock asks the monotonic clock, which stays real.
        """
        before = time.time, time.time_ns
        time.time, time.time_ns = self.time, lambda: int(self.time() * 1e9)
        try:
            yield
        finally:
            time.time, time.time_ns = before


@dataclass
class Execution:
    """One time that a tool itself was reached."""

    tool: str
    arguments: Arguments
    result: Any = None
    has_failed: bool = False


@dataclass
class Entry:
    """One call as the program made it, and all that came of it."""

    tool: str
    arguments: Arguments
    number: int
    """Which call with these arguments it is, in this play."""
    is_answered: bool = False
    """Whether it was made for a model, in a turn."""
    executions: list[Execution] = field(default_factory=list)
    result: Any = None
    error: BaseException | None = None
    has_failed: bool = False
    is_over: bool = False
    is_settled: bool = False
    """Whether a call that failed was done all the same, by a later one."""
    cure: Cure | None = None
    sentences: list[Sentence] = field(default_factory=list)
    run: RunEntry | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        return self.tool, json.dumps(self.arguments, sort_keys=True, default=repr), self.number

    @property
    def own_executions(self) -> list[Execution]:
        return [execution for execution in self.executions if execution.tool == self.tool]

    @property
    def final_arguments(self) -> Arguments:
        """Give the arguments of the execution whose result was returned."""
        executions = [execution for execution in self.own_executions if not execution.has_failed]
        return executions[-1].arguments if executions else self.arguments

    @property
    def has_struggled(self) -> bool:
        """Say whether something went wrong, however it ended: a call that was made otherwise was refused at first."""
        has_failed = self.has_failed or any(execution.has_failed for execution in self.own_executions)
        return has_failed or not is_same_call(self.arguments, self.final_arguments)

    @property
    def is_repaired(self) -> bool:
        return self.has_struggled and not self.has_failed


@dataclass
class RunEntry:
    """One run as the program opened it."""

    agent: str
    entries: list[Entry] = field(default_factory=list)
    status: str = ""
    has_raised: bool = False


@dataclass
class Play:
    """One program, played once."""

    number: int
    day: float
    runs: list[RunEntry] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    error: str = ""
    """What left the program, if anything did."""


def is_same_call(one: Arguments, other: Arguments) -> bool:
    return one.keys() == other.keys() and all(is_same(one[name], other[name]) for name in one)


class Tool:
    """A tool of a program: its function, what the program calls, and what is true of its failures."""

    def __init__(
        self, stage: Stage, function: Callable[..., Any], truth: Truth | None, options: dict[str, Any]
    ) -> None:
        self.stage, self.truth = stage, truth
        self.name: str = options.get("name") or function.__name__
        self.signature = inspect.signature(function)
        self.is_async = inspect.iscoroutinefunction(function)
        self.function = function
        self.mirror = self._make_mirror(options.pop("module", ""))
        self.callee: Callable[..., Any] = self.mirror if stage.mulligan is None else stage.wrap(self.mirror, options)

    def _make_mirror(self, module: str) -> Callable[..., Any]:
        """Make a function with the same signature that notes each execution.

        A wrapper that takes any arguments would hide from mulligan that a call did not fit the signature.
        """
        scope: dict[str, Any] = {"note": self._note_async if self.is_async else self._note}
        parameters, values, has_star = [], [], False
        for name, parameter in self.signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                parameters.append(f"**{name}")
                values.append(f"**{name}")
                continue
            if parameter.kind is parameter.KEYWORD_ONLY and not has_star:
                has_star = True
                parameters.append("*")
            scope[f"default_{name}"] = parameter.default
            parameters.append(name if parameter.default is parameter.empty else f"{name}=default_{name}")
            values.append(f"{name}={name}")
        name, call = self.function.__name__, ", ".join(values)
        keyword, answer = ("async def", "await note") if self.is_async else ("def", "note")
        exec(f"{keyword} {name}({', '.join(parameters)}):\n    return {answer}({call})", scope)
        mirror: Callable[..., Any] = scope[name]
        mirror.__annotations__ = typing.get_type_hints(self.function, include_extras=True)
        mirror.__doc__, mirror.__module__ = self.function.__doc__, module or self.function.__module__
        mirror.__qualname__ = name
        return mirror

    def _note(self, **arguments: Any) -> Any:
        with self._noting(arguments) as execution:
            execution.result = self.function(**arguments)
        return execution.result

    async def _note_async(self, **arguments: Any) -> Any:
        with self._noting(arguments) as execution:
            execution.result = await self.function(**arguments)
        return execution.result

    @contextlib.contextmanager
    def _noting(self, arguments: dict[str, Any]) -> Iterator[Execution]:
        execution = Execution(self.name, arguments)
        self.stage.sleep(EXECUTION_SECONDS)
        entry = _entry.get()
        if entry is not None:
            entry.executions.append(execution)
        try:
            yield execution
        except BaseException:
            execution.has_failed = True
            if entry is not None and entry.cure is None and entry.tool == self.name:
                entry.cure = self.find_cure(entry.arguments)  # now: the call itself may change what is true
            raise

    def find_cure(self, arguments: Arguments) -> Cure | None:
        """Give what helps a failed call; what it would change must not be right already."""
        cure = None if self.truth is None else self.truth(arguments)
        return None if cure is not None and not cure.first and cure.accepts(arguments, arguments) else cure

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
        """Name what a call was given, defaults included where it fits the signature."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError:
            names = [name for name, kind in self._kinds() if kind is not inspect.Parameter.VAR_KEYWORD]
            return {**dict(zip(names, args, strict=False)), **kwargs}
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        for name, kind in self._kinds():
            if kind is inspect.Parameter.VAR_KEYWORD:
                arguments.update(arguments.pop(name, {}))
        return arguments

    def _kinds(self) -> list[tuple[str, Any]]:
        return [(name, parameter.kind) for name, parameter in self.signature.parameters.items()]

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call it as the program does."""
        entry = self.stage.begin_call(self, self.bind(args, kwargs))
        with self.stage.note_call(self, entry):
            entry.result = self.callee(*args, **kwargs)
        return entry.result

    async def acall(self, *args: Any, **kwargs: Any) -> Any:
        entry = self.stage.begin_call(self, self.bind(args, kwargs))
        with self.stage.note_call(self, entry):
            entry.result = await self.callee(*args, **kwargs)
        return entry.result


class Run:
    """The run that a program sees, with what mulligan may not have yet."""

    def __init__(self, entry: RunEntry, run: Any) -> None:
        self.entry, self._run = entry, run

    def item(self, key: Any) -> contextlib.AbstractContextManager[Any]:
        """Say that what is done inside is about this item, where mulligan can be told."""
        item = getattr(self._run, "item", None)
        return item(key) if item is not None else contextlib.nullcontext()


_entry: contextvars.ContextVar[Entry | None] = contextvars.ContextVar("learning_entry", default=None)
_run: contextvars.ContextVar[RunEntry | None] = contextvars.ContextVar("learning_run", default=None)
_correction_of: contextvars.ContextVar[Entry | None] = contextvars.ContextVar("learning_corrected", default=None)


class Stage:
    """One play of one program in one mode."""

    def __init__(self, name: str, mode: Mode, number: int, day: float, clock: Clock, seed: int, store: str) -> None:
        self.mode, self.number, self.day, self.clock = mode, number, day, clock
        self.play = Play(number, day)
        self.tools: dict[str, Tool] = {}
        self._name, self._seed, self._store = name, seed, store
        self.random = random.Random(f"{seed} {name} {number}")
        self._counts: Counter[tuple[str, str]] = Counter()
        self._questions = 0
        self._turns: list[Any] = []
        self._lock = threading.Lock()
        self.mulligan: Mulligan | None = None if mode == "off" else Mulligan()
        self.set_up()

    def set_up(self, **settings: Any) -> None:
        """Begin with these settings; of those that mulligan does not have, without them."""
        if self.mulligan is None:
            return
        options = {name: value for name, value in settings.items() if name in settings_file.SETTING_NAMES}
        read = settings_file.load_settings(
            {"store": self._store, **options}, environment={}, folder=_NOWHERE, user_file=_NOWHERE
        )
        if self.mulligan._components is not None:
            self.mulligan._components.recorder.close()
        self.mulligan._components = Components(
            read,
            find_tool=self.mulligan._find_tool,
            clock=self.clock.time,
            timer=self.clock.time,
            sleep=self.clock.sleep,
            async_sleep=self.clock.sleep_async,
            random=lambda: 0.5,
        )

    def close(self) -> None:
        if self.mulligan is not None:
            self.mulligan.flush(30)
            self.mulligan.close()

    # What programs use

    def draw_number(self, *key: Any) -> float:
        """Give a number from 0 to 1 that is the same for the same key, whatever was called before."""
        data = repr((self._seed, self._name, self.number, key)).encode()
        return int.from_bytes(hashlib.blake2b(data, digest_size=6).digest(), "big") / 2**48

    def sleep(self, seconds: float) -> None:
        self.clock.sleep(seconds)

    def tool(self, *, truth: Truth | None = None, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Wrap a tool of the program. `truth` says what cures a failed call; `module` where it is defined."""

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            tool = Tool(self, function, truth, dict(options))
            self.tools[tool.name] = tool
            return tool.acall if tool.is_async else tool.call

        return decorate

    def wrap(self, mirror: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
        assert self.mulligan is not None
        names = inspect.signature(typing.get_overloads(Mulligan.tool)[-1]).parameters
        wrap: Any = self.mulligan.tool
        callee: Callable[..., Any] = wrap(**{name: value for name, value in options.items() if name in names})(mirror)
        return callee

    @contextlib.contextmanager
    def run(self, agent: str = "agent", **options: Any) -> Iterator[Run]:
        """Open a run. What leaves it is noted, and leaves."""
        entry = RunEntry(agent)
        self.play.runs.append(entry)
        token = _run.set(entry)
        run: Any = None
        try:
            if self.mulligan is None:
                yield Run(entry, None)
                return
            names = inspect.signature(Mulligan.run).parameters
            open_run: Any = self.mulligan.run
            with open_run(agent, **{name: value for name, value in options.items() if name in names}) as run:
                yield Run(entry, run)
                for turns in self._turns:  # not left to the garbage collector, which may come at a bad moment
                    turns.close()
        except BaseException:
            entry.has_raised = True
            raise
        finally:
            _run.reset(token)
            if run is not None:
                entry.status = run.status

    @contextlib.contextmanager
    def correcting(self, error: BaseException) -> Iterator[None]:
        """Say that what is called inside corrects this failure, where mulligan can be told."""
        entry = next((entry for entry in reversed(self.play.entries) if entry.error is error), None)
        token = _correction_of.set(entry)
        correcting = getattr(self.mulligan, "correcting", None)
        try:
            with correcting(error) if correcting is not None else contextlib.nullcontext():
                yield
        finally:
            _correction_of.reset(token)

    def turns(self, limit: int = 10) -> Iterator[Any]:
        """Count the turns of a model's loop."""
        if self.mulligan is None:
            return iter(range(1, limit + 1))
        turns: Any = iter(self.mulligan.turns(limit))
        self._turns.append(turns)
        return turns  # type: ignore[no-any-return]

    def call(self, turn: Any, name: str, /, **arguments: Any) -> Entry:
        """Make a call that a model asked for in this turn; what it reads is in the entry."""
        tool = self.tools[name]
        entry = self.begin_call(tool, tool.bind((), arguments), is_answered=True)
        if self.mulligan is None:
            with contextlib.suppress(Exception), self.note_call(tool, entry):
                entry.result = tool.callee(**arguments)
            return entry
        with self.note_call(tool, entry):
            self._read_outcome(tool, entry, turn.call(self._callables(), name, arguments))
        return entry

    async def acall(self, turn: Any, name: str, /, **arguments: Any) -> Entry:
        """Make the same call of an async tool."""
        tool = self.tools[name]
        entry = self.begin_call(tool, tool.bind((), arguments), is_answered=True)
        if self.mulligan is None:
            with contextlib.suppress(Exception), self.note_call(tool, entry):
                entry.result = await tool.callee(**arguments)
            return entry
        with self.note_call(tool, entry):
            self._read_outcome(tool, entry, await turn.acall(self._callables(), name, arguments))
        return entry

    def _callables(self) -> dict[str, Callable[..., Any]]:
        return {name: tool.callee for name, tool in self.tools.items()}

    def _read_outcome(self, tool: Tool, entry: Entry, outcome: ToolOutcome) -> None:
        entry.has_failed = not outcome.ok
        if outcome.answer is not None:
            self.read_texts(tool, entry, _list_advice(outcome.answer))
        else:
            entry.result = outcome.value

    def converse(self, limit: int, script: Sequence[Any]) -> list[Any]:
        """Play a model that works off a script, and follows advice where it is told some; list the results.

        A line is a tool and its arguments, or a function of the results so far that gives them. After a failure comes
        what the advice says, then the next line. After a success comes the next line that is no second try of it: a
        line may be marked with a third part, the goal it serves.
        """
        results: list[Any] = []
        lines, goals = list(script), set()
        turns = self.turns(limit)
        while lines:
            line = lines.pop(0)
            name, arguments, *rest = line(results) if callable(line) else line
            if rest and rest[0] in goals:
                continue
            attempts: list[Arguments] = []
            while (turn := next(turns, None)) is not None:
                entry = self.call(turn, name, **arguments)
                attempts.append(arguments)
                if not entry.has_failed:
                    results.append(entry.result)
                    goals.update(rest)
                    break
                claims = [
                    claim for one in entry.sentences if one.confidence >= LEAST_CONFIDENCE for claim in one.claims
                ]
                next_arguments = follow_advice(claims, arguments)
                if next_arguments is not None and next_arguments not in attempts:
                    arguments = next_arguments
                    continue
                places = [place for place, line in enumerate(lines) if _is_asked_for(line, claims)]
                if places:  # what has to come first is in the script, further down
                    lines = lines[places[0] :]
                break
            else:
                break
        return results

    # What the stage notes

    def begin_call(self, tool: Tool, arguments: Arguments, *, is_answered: bool = False) -> Entry:
        entry = Entry(tool.name, arguments, 0, is_answered, run=_run.get())
        with self._lock:
            place = entry.key[:2]
            entry.number = self._counts[place]
            self._counts[place] += 1
            self.play.entries.append(entry)
            if entry.run is not None:
                entry.run.entries.append(entry)
        return entry

    @contextlib.contextmanager
    def note_call(self, tool: Tool, entry: Entry) -> Iterator[None]:
        """Note how a call ends, and what was said about it."""
        token = _entry.set(entry)
        try:
            yield
        except BaseException as error:
            entry.has_failed, entry.error = True, error
            raise
        finally:
            _entry.reset(token)
            if entry.has_struggled and entry.cure is None:
                entry.cure = tool.find_cure(entry.arguments)
            if self.mulligan is not None:
                self._listen(tool, entry)
            entry.is_over = True
            if not entry.has_failed:
                self._settle(entry)

    def _listen(self, tool: Tool, entry: Entry) -> None:
        assert self.mulligan is not None
        notes = [line for note in getattr(entry.error, "__notes__", ()) for line in str(note).splitlines()]
        self.read_texts(tool, entry, [*notes, *self.mulligan.drain_notes()])
        if entry.error is not None and self.mode == "full" and not entry.is_answered:
            self._ask(tool, entry)

    def read_texts(self, tool: Tool, entry: Entry, texts: Sequence[str]) -> None:
        """Read what was said about a call."""
        for text in texts:
            entry.sentences.append(read_sentence(text, tool.name, list(tool.signature.parameters), list(self.tools)))

    def _ask(self, tool: Tool, entry: Entry) -> None:
        """Ask what would repair the call, as a person would, with the calls of the run so far."""
        assert self.mulligan is not None
        self._questions += 1
        if self._questions > MAX_QUESTIONS or not isinstance(entry.error, Exception):
            return
        entries = entry.run.entries if entry.run is not None else []
        earlier_calls = [_make_record(one) for one in entries if one.is_over and one is not entry]
        for one in self.mulligan.suggest(tool.callee, entry.arguments, entry.error, run=earlier_calls).suggestions:
            claims = list_claims(one.changes, one.prerequisites, one.arguments)
            text = f"suggest: {one.source}, {[(claim.kind, claim.path, claim.value) for claim in claims]}"
            entry.sentences.append(Sentence(text, tuple(claims), True, one.source == "memory", one.confidence))

    def _settle(self, success: Entry) -> None:
        """Note which failed calls of the run a success has done: the same call, its cure, or what it says to be."""
        failure = _correction_of.get()
        with self._lock:  # another thread may settle the same call between the check and the assignment
            if failure is not None:
                failure.is_settled = True
            for entry in success.run.entries if success.run is not None else ():
                if entry.has_failed and not entry.is_settled and entry.tool == success.tool:
                    entry.is_settled = is_same_call(entry.arguments, success.final_arguments) or (
                        entry.cure is not None and entry.cure.accepts(entry.arguments, success.final_arguments)
                    )


def follow_advice(claims: Sequence[Claim], arguments: Arguments) -> Arguments | None:
    """Give the call that a model makes which believes this advice; None where it says nothing to do at once."""
    call = dict(arguments)
    for claim in claims:
        if claim.kind == "value" and claim.path in call:
            before = call[claim.path]
            value = claim.value.strip("'\"") if isinstance(claim.value, str) else claim.value
            if isinstance(value, str) and isinstance(before, bool):
                value = value == "True"
            elif isinstance(value, str) and isinstance(before, int | float):
                with contextlib.suppress(ValueError):
                    value = type(before)(float(value))
            call[claim.path] = value
        elif claim.kind == "rename" and claim.path in call:
            call[str(claim.value)] = call.pop(claim.path)
        elif claim.kind == "drop":
            call.pop(claim.path, None)
    return None if is_same_call(call, arguments) else call


def _is_asked_for(line: Any, claims: Sequence[Claim]) -> bool:
    return not callable(line) and any(claim.kind == "first" and claim.path == line[0] for claim in claims)


def _make_record(entry: Entry) -> dict[str, Any]:
    """Write down a call as `suggest` takes it."""
    record = {"tool": entry.tool, "arguments": entry.arguments, "outcome": "failure" if entry.has_failed else "success"}
    return {**record, "error": str(entry.error)} if entry.has_failed else {**record, "result": entry.result}


def _list_advice(block: Mapping[str, Any]) -> list[str]:
    texts: list[str] = []
    for name, value in block.items():
        if name not in KNOWN_FIELDS:
            texts += [str(text) for text in value] if isinstance(value, list | tuple) else [str(value)]
    return texts
