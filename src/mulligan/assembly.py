"""Mulligan: what users call, over one set of parts. It decides nothing."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, overload

from mulligan import forks
from mulligan import settings as settings_file
from mulligan.capture import traces
from mulligan.capture.advice import Advice, advise
from mulligan.capture.answers import Empty, Errors
from mulligan.capture.kit import LEARNS, MODES, NO_LIMITS, RECORDINGS, Kit, Limits, Recording
from mulligan.capture.signature import name_of
from mulligan.capture.tracer import ActiveRun, Correction
from mulligan.capture.turns import Tools, Turns
from mulligan.capture.wrap import ToolOptions, Wrapped, wrap
from mulligan.classify.classifier import classify
from mulligan.events import Listener, Stream, When
from mulligan.failure import Failure, MulliganError, SettingsError, one_of
from mulligan.parts import Parts
from mulligan.prompt import BUDGET
from mulligan.records import Effects, StepType
from mulligan.recover.policy import Policy
from mulligan.recover.tool import Learn, Mode
from mulligan.redaction import Redactor
from mulligan.remember.session import Session

if TYPE_CHECKING:
    from mulligan.capture.loop import Finished, Messages
    from mulligan.recover.model import Fallback

log = logging.getLogger("mulligan")
F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C")


def _name_of(tool: Callable[..., Any]) -> str:
    """What a tool is called here."""
    known = getattr(tool, "__mulligan__", None)
    return known.name if isinstance(known, Wrapped) else name_of(tool)


class Mulligan:
    """All of mulligan, without module-level defaults: `Mulligan(store="memory:")`.

    Files and environment are read, and parts made, on first use. What is given here is looked at here: a misspelt name
    would else be a warning at the first call, after which nothing is recorded.
    """

    def __init__(self, **settings: Any) -> None:
        settings_file.check(settings, "Mulligan")
        self._given = settings
        self._parts: Parts | None = None
        self._is_off = False
        self._unheard: Kit | None = None
        self._lock = threading.Lock()
        self._tools: dict[str, weakref.WeakSet[Wrapped]] = {}
        """Those that were wrapped, by name."""
        _all.add(self)

    def configure(self, **settings: Any) -> None:
        """Changes the defaults, before the first recorded call: later, some calls would follow other rules."""
        with self._lock:
            if self._parts is not None:
                if self._parts.is_rehearsal:
                    return  # the code under test sets itself up, and is rehearsed by the test's settings all the same
                raise SettingsError(
                    "configure must come before the first recorded call, and before run, listen and session. "
                    "Move it to the beginning of your start-up code."
                )
            given = {**self._given, **settings}
            read = settings_file.read(given)
            Parts(read)  # refused here, and not at the first call
            self._given, self._is_off = given, read.off

    def _kit(self) -> Kit | None:
        """What wrapped functions ask on every call. They must work whatever the settings are."""
        parts = self._parts
        if parts is not None:
            return parts.kit
        return None if self._is_off else self._first_use()

    def _first_use(self) -> Kit | None:
        with self._lock:
            if self._parts is None and not self._is_off:
                try:
                    read = settings_file.read(self._given)
                    if not read.off:
                        self._parts = Parts(read, tools=self._tool)
                except Exception as error:  # noqa: BLE001 - a folder that is gone, a file that is locked: never the failure
                    told = str(error) if isinstance(error, MulliganError) else f"{type(error).__name__}: {error}"
                    # Not recorded rather than recorded by other rules: what cannot be read may say what to hide.
                    log.warning("%s Until that is mended, calls pass through unrecorded and unrecovered.", told)
                self._is_off = self._parts is None
            return self._parts.kit if self._parts is not None else None

    def _kit_or_unheard(self) -> Kit:
        """For what works even when everything passes through: runs, steps and turns, of which then nobody hears."""
        kit = self._kit()
        if kit is None:
            with self._lock:
                if self._unheard is None:
                    self._unheard = Kit(
                        publish=lambda event: None,
                        succeed=lambda success: None,
                        classify=classify,
                        mode="observe",
                    )
                kit = self._unheard
        return kit

    @overload
    def tool(self, function: F, /) -> F: ...

    @overload
    def tool(
        self,
        *,
        name: str = "",
        type: StepType = "tool",
        effects: Effects = "once",
        mode: Mode | None = None,
        record: Recording | None = None,
        errors: Errors = "auto",
        empty: Empty = "success",
        schema: Mapping[str, Any] | None = None,
        privileged: Iterable[str] = (),
        released: Iterable[str] = (),
        destructive: bool = False,
        verify: Callable[..., Any] | None = None,
        rejects: Iterable[int] = (),
        timeout: float | None = None,
        policy: Policy | None = None,
        items: Iterable[str] = (),
        learn: Learn | None = None,
        circuit_breaker: bool = False,
    ) -> Callable[[F], F]: ...

    def tool(
        self,
        function: Any = None,
        *,
        name: str = "",
        type: StepType = "tool",
        effects: Effects = "once",
        mode: Mode | None = None,
        record: Recording | None = None,
        errors: Errors = "auto",
        empty: Empty = "success",
        schema: Mapping[str, Any] | None = None,
        privileged: Iterable[str] = (),
        released: Iterable[str] = (),
        destructive: bool = False,
        verify: Callable[..., Any] | None = None,
        rejects: Iterable[int] = (),
        timeout: float | None = None,
        policy: Policy | None = None,
        items: Iterable[str] = (),
        learn: Learn | None = None,
        circuit_breaker: bool = False,
    ) -> Any:
        """Wraps a tool: its calls are recorded, and recovered where that is safe.

        `effects` says whether a call may be made again when it may have happened: "none" and "repeatable" may,
        "once", the default, may not. `schema` is the JSON schema of its arguments, checked before each call; without
        one the signature serves, on failure only. `privileged` names arguments that are never changed automatically,
        beside those that are so by their name; `released` takes some of these back, and `destructive` protects all.

        `verify` is called with the same arguments when it is not known whether a call happened: it answers with the
        result if it did, with False if it did not, with None if it cannot say. `rejects` are HTTP statuses that prove
        that nothing was done. `timeout` is how many seconds a call may take in all: an async one is cut off, of others
        only waits and retries are.

        `items` names arguments that say which item of a loop a call is about: one item's call never corrects another's.
        `learn` is "off", "tell" or "repair": how far memory goes for this tool.
        `circuit_breaker=True` lets an open circuit breaker answer a call at once, without making it: for some seconds
        after many failures of the other side. Else it only stops retries, and calls that answer a model in a loop.

        `mode` is "observe", "suggest" or "repair", `record` is "full", "shape" or "off". `errors="raised"` says that
        no answer of it is a failure; `empty="failure"`, of a tool of type "retrieval", that an empty one is.
        """
        about = ToolOptions(
            name=name,
            type=type,
            effects=effects,
            mode=mode,
            record=record,
            errors=errors,
            empty=empty,
            schema=schema,
            privileged=privileged,
            released=released,
            destructive=destructive,
            verify=verify,
            rejects=rejects,
            timeout=timeout,
            policy=policy,
            items=items,
            learn=learn,
            circuit_breaker=circuit_breaker,
        )
        return self._wrapping(function, about)

    @overload
    def model(self, function: F, /) -> F: ...

    @overload
    def model(
        self,
        *,
        name: str = "",
        mode: Mode | None = None,
        record: Recording | None = None,
        compress: Callable[..., Any] | Literal["model"] | None = None,
        fallback: Callable[..., Any] | None = None,
        fallback_models: Iterable[str | Callable[..., Any] | Fallback] = (),
        refresh_auth: Callable[..., Any] | None = None,
        max_compress_retries: int = 1,
        compress_over: int = 2000,
        timeout: float | None = None,
        policy: Policy | None = None,
        circuit_breaker: bool = False,
    ) -> Callable[[F], F]: ...

    def model(
        self,
        function: Any = None,
        *,
        name: str = "",
        mode: Mode | None = None,
        record: Recording | None = None,
        compress: Callable[..., Any] | Literal["model"] | None = None,
        fallback: Callable[..., Any] | None = None,
        fallback_models: Iterable[str | Callable[..., Any] | Fallback] = (),
        refresh_auth: Callable[..., Any] | None = None,
        max_compress_retries: int = 1,
        compress_over: int = 2000,
        timeout: float | None = None,
        policy: Policy | None = None,
        circuit_breaker: bool = False,
    ) -> Any:
        """Wraps an LLM call: too long, it is compressed; rate limited, waited for; refused, answered gracefully.

        `compress` makes one text shorter, or a whole conversation if its argument is called `messages`; `"model"` lets
        the model itself tell what is left out. `fallback` answers where recovery cannot. `fallback_models` are names or
        functions of models to use instead. `refresh_auth` is called once where the key is refused. Of the conversation
        the sizes are kept, and what the user said last.
        """
        from mulligan.capture.model import ModelOptions  # those who wrap tools alone need not wait for it

        about = ModelOptions(
            compress=compress,
            fallback=fallback,
            fallback_models=fallback_models,
            refresh_auth=refresh_auth,
            max_compress_retries=max_compress_retries,
            compress_over=compress_over,
        )
        options = ToolOptions(
            name=name,
            type="model",
            effects="none",
            mode=mode,
            record=record,
            timeout=timeout,
            policy=policy,
            circuit_breaker=circuit_breaker,
            model=about,
        )
        return self._wrapping(function, options)

    def wrap_client(self, client: C, **options: Any) -> C:
        """A copy of an OpenAI or Anthropic client, or LiteLLM's module, whose calls of models are recovered.

        `options` are those of `model`. The client's own retries are switched off: one layer retries.
        """
        from mulligan.capture import clients  # those who wrap functions need not wait for it

        given = options
        if callable(refresh := options.get("refresh_auth")):
            options = {**given, "refresh_auth": clients.refreshing(refresh, lambda: made)}
        made: C = clients.wrap_client(client, self.model(**options), lambda copy: self.wrap_client(copy, **given))
        return made

    def _wrapping(self, function: Any, options: ToolOptions) -> Any:
        if function is None:
            return lambda function: self._wrapped(function, options)
        return self._wrapped(function, options)

    def _wrapped(self, function: Any, options: ToolOptions) -> Any:
        made = wrap(function, self._kit, options)
        known = getattr(made, "__mulligan__", None)
        if isinstance(known, Wrapped) and not known.signature.is_method:
            self._tools.setdefault(known.name, weakref.WeakSet()).add(known)
        return made

    def _tool(self, name: str) -> Wrapped | None:
        """The tool of this name, where there is exactly one."""
        found = tuple(self._tools.get(name, ()))
        return found[0] if len(found) == 1 else None

    def run(
        self,
        agent: str = "",
        *,
        version: str | None = None,
        environment: str | None = None,
        context: str | None = None,
        session: Session | str | None = None,
        metadata: dict[str, Any] | None = None,
        mode: Mode | None = None,
        record: Recording | None = None,
        learn: Learn | None = None,
        traceparent: str | traces.Headers | None = None,
    ) -> ActiveRun:
        """Traces a piece of work: `with mulligan.run("support-agent") as run:`. `context` is what it is about.

        `mode`, `record` and `learn` hold for every call in it; where a tool has its own, the stricter of the two does.
        `traceparent` is what another program sent of its trace: the header, or all headers of the request. What is to
        be sent on stands in `run.headers`.
        """
        for name, value, choices in (
            ("mode", mode, MODES),
            ("record", record, RECORDINGS[::-1]),
            ("learn", learn, LEARNS),
        ):
            if value is not None:
                one_of(name, value, choices)
        if session is not None and not isinstance(session, str | Session):
            raise SettingsError(f"session is a mulligan.session(), or the id of one, got {session!r}.")
        kit = self._kit_or_unheard()
        about: dict[str, Any] = {"version": version, "context": context, "metadata": metadata}
        if environment is not None:
            about["environment"] = environment
        if session is not None:
            about["session"] = self._stream().nameable(session) if isinstance(session, str) else session.id
        if traceparent is not None:
            came = traces.above(traceparent)
            about["traceparent"] = came.traceparent
            if came.parent is not None:
                about["parent"] = came.parent
        return ActiveRun(
            kit, agent, limits=Limits(mode, record, learn) if mode or record or learn else NO_LIMITS, **about
        )

    def turns(self, limit: int = 10) -> Turns:
        """Bounds an agent loop: `for turn in mulligan.turns(limit=10):`."""
        return Turns(self._kit_or_unheard, limit)

    @overload
    def loop(
        self,
        model: Callable[..., Awaitable[Any]],
        tools: Tools,
        messages: Messages,
        limit: int = 10,
        *,
        style: Literal["openai", "anthropic"] | None = None,
        teach: bool | int = False,
    ) -> Awaitable[Finished]: ...

    @overload
    def loop(
        self,
        model: Callable[..., Any],
        tools: Tools,
        messages: Messages,
        limit: int = 10,
        *,
        style: Literal["openai", "anthropic"] | None = None,
        teach: bool | int = False,
    ) -> Finished: ...

    def loop(
        self,
        model: Callable[..., Any],
        tools: Tools,
        messages: Messages,
        limit: int = 10,
        *,
        style: Literal["openai", "anthropic"] | None = None,
        teach: bool | int = False,
    ) -> Any:
        """A whole agent loop: asks the model, makes its calls and answers them, until it is done or `limit` is reached.

        `model` takes the messages, and `tools` if it has a parameter of that name, and answers with a text, an OpenAI
        completion or message, or an Anthropic message. If it is async, the loop is awaited. An `InfraError` of a tool,
        and an error of the model that recovery cannot help, leave. With `teach` the conversation begins with what is
        known of these tools (`pitfalls`): True, or at most how many tokens.
        """
        from mulligan.capture.loop import started  # few have no loop of their own

        if not isinstance(teach, int) or teach < 0:
            raise SettingsError(f"teach is True, or how many tokens may be told of the tools, got {teach!r}.")
        budget = BUDGET if teach is True else int(teach)
        return started(self._kit_or_unheard(), model, tools, messages, limit, style, budget)

    def correcting(self, error: BaseException) -> Correction:
        """Link the next successful call to the one that raised `error`: `with mulligan.correcting(error):`.

        Use it where a program corrects a call outside the handler of its exception, or by another tool.
        """
        return Correction(error)

    def session(self, id: str | None = None) -> Session:
        """Remembers failures across a compaction: `with mulligan.session() as session:`.

        Runs take part that were started with `mulligan.run(..., session=session)`. With the `id` of an earlier one it
        goes on where that one was, also in another process.
        """
        if id is not None and not isinstance(id, str):
            raise SettingsError(f"the id of a session is a text, got {id!r}.")
        stream = self._stream()
        shelf = self._parts.shelf if self._parts is not None else None
        return Session(stream, None if id is None else stream.nameable(id), shelf, self._kit_or_unheard().prompt)

    def _stream(self) -> Stream:
        self._kit()
        return self._parts.stream if self._parts is not None else Stream(Redactor())

    def notes(self) -> list[str]:
        """What was repaired in the current run since this was last asked, in words for the model."""
        kit = self._kit()
        run = kit.current() if kit is not None else None
        return run.notes() if run is not None else []

    def explain(self, error: object = None, **evidence: Any) -> Failure:
        """An error in, a `Failure` out: any exception, response, result or text. Never raises."""
        self._kit()
        return (self._parts.classify if self._parts is not None else classify)(error, **evidence)

    def suggest(
        self,
        tool: str | Callable[..., Any],
        arguments: Mapping[str, Any],
        error: object,
        *,
        schema: Mapping[str, Any] | None = None,
        tools: Mapping[str, Mapping[str, Any] | None] | None = None,
        run: Iterable[Any] = (),
        privileged: Iterable[str] = (),
        released: Iterable[str] = (),
        effects: Effects | None = None,
        destructive: bool = False,
        mode: Mode = "repair",
        memory: bool = True,
    ) -> Advice:
        """What would repair this call: its `suggestions`, the likeliest first, and `why` there are no better ones.

        `tool` is a name or a wrapped function, which brings its own schema and rules. `run` are the earlier calls of
        the same run, as dictionaries with tool, arguments, outcome, and result or error. `memory` says whether what
        worked before is asked for too. Nothing is called.
        """
        self._kit()
        parts = self._parts
        known = getattr(tool, "__mulligan__", None)
        if isinstance(known, Wrapped):
            schema = known.schema() if schema is None else schema
            privileged = (*privileged, *known.options.privileged)
            released = (*released, *known.options.released)
            effects = effects or known.options.effects
            destructive = destructive or known.options.destructive
        name = tool if isinstance(tool, str) else _name_of(tool)
        key = known.key if isinstance(known, Wrapped) else ""
        return advise(
            name,
            arguments,
            error,
            classify=self.explain,
            schema=schema,
            tools=tools,
            run=run,
            privileged=privileged,
            released=released,
            effects=effects,
            destructive=destructive,
            mode=mode,
            policy=parts.settings.policy if parts is not None else None,
            recall=parts.recall.advice if parts is not None and memory else None,
            match=parts.recall.match if parts is not None and memory else None,
            key=key,
        )

    def pitfalls(
        self,
        tools: str | Callable[..., Any] | Iterable[str | Callable[..., Any]] = (),
        *,
        budget_tokens: int = BUDGET,
        proposals: bool = False,
    ) -> str:
        """What a model should know of these tools before it calls them, for a system prompt: never more than that.

        `tools` are names or functions; without any, all tools that something is known of. It opens with what mulligan
        does, what its notes mean and when to ask it. What is proven or approved comes first, then what came with
        mulligan, said to be so; `proposals` adds what nobody has proven or approved yet, marked as data.
        """
        if isinstance(budget_tokens, bool) or not isinstance(budget_tokens, int) or budget_tokens < 1:
            raise SettingsError(f"budget_tokens is a whole number of tokens, 1 or more, got {budget_tokens!r}.")
        given = [tools] if isinstance(tools, str) or callable(tools) else tools
        names = [each if isinstance(each, str) else _name_of(each) for each in given]
        self._kit()
        if self._parts is None:
            return ""
        return self._parts.pitfalls(names, budget_tokens, proposals=proposals)

    def listen(self, listener: Listener, when: When = "recorder") -> Callable[[], None]:
        """Calls `listener` with every event, on the recorder's thread or at once; answers with a way to end it."""
        if not callable(listener):
            raise SettingsError(f"a listener is a function that takes an event, got {listener!r}.")
        if when not in get_args(When):
            raise SettingsError(f"when is recorder or caller, got {when!r}.")
        return self._stream().listen(listener, when)

    def flush(self, timeout: float = 2.0) -> bool:
        """Waits until everything recorded so far is in the store; whether it is."""
        return self._parts is None or self._parts.recorder.flush(timeout)

    def close(self) -> None:
        """Keeps what is left and lets go of the store."""
        if self._parts is not None:
            self._parts.recorder.close()


_all: weakref.WeakSet[Mulligan] = weakref.WeakSet()


def _renew() -> None:
    for each in tuple(_all):
        each._lock = threading.Lock()


# A thread that is making the parts, and importing for it, would leave the child waiting for both for ever.
forks.hold(lambda: [each._lock for each in tuple(_all)])
forks.renew(_renew)

default: Mulligan = Mulligan()
"""What the functions of `import mulligan` belong to."""
