"""What a program adds to a step or run of its own: metadata, arguments, results, token usage."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from mulligan.capture.context import CaptureContext
from mulligan.capture.value_recording import copy_arguments, shapes
from mulligan.core import fork_safety
from mulligan.core.failure import SettingsError
from mulligan.core.records import TOKEN_PARTS
from mulligan.core.value_snapshots import restore_value, snapshot_value

if TYPE_CHECKING:
    from mulligan.core.token_usage import TokenUsage

F = TypeVar("F", bound=Callable[..., Any])
TOKEN_NAMES = frozenset({"input", "output", *TOKEN_PARTS})
STATUS_NOTE = "A status is derived from the steps and cannot be set. Call record_failure(type, code, message) instead."


class DecoratedStep(Protocol):
    def __enter__(self) -> Any: ...

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any: ...

    def set_result(self, result: Any) -> None: ...


def merge_metadata(target: dict[str, Any], values: Mapping[str, Any] | None, more: Mapping[str, Any]) -> None:
    """Add values to metadata. Values without text names are added by the text of their name."""
    target.update({str(name): value for name, value in {**(values or {}), **more}.items()})


def record_arguments(arguments: Mapping[str, Any] | None, *, is_shape: bool) -> dict[str, Any] | None:
    if arguments is None:
        return None
    return shapes(arguments) if is_shape else copy_arguments(arguments)


def record_result(result: Any, *, is_shape: bool) -> Any:
    """Return a copy of a result as recorded: nothing of it in shape."""
    return None if is_shape else restore_value(snapshot_value(result))


def parse_usage(usage: Any) -> TokenUsage | None:
    """Return the token usage of an answer, of its usage alone, or of counts with our own names."""
    with fork_safety.import_lock:
        from mulligan.core.token_usage import MAX_TOKEN_COUNT, TokenUsage, read_usage  # lazy: for models only
    if isinstance(usage, Mapping) and usage.keys() <= TOKEN_NAMES:
        tokens = {
            name: count
            for name, count in usage.items()
            if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= MAX_TOKEN_COUNT
        }
        return TokenUsage(tokens) if tokens else None
    return read_usage(usage) or read_usage({"usage": usage})


def decorate(function: F, start: Callable[[Mapping[str, Any] | None], DecoratedStep]) -> F:
    """Return a function of which each call is a step. `start` builds the step for a call with these arguments."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise SettingsError("A step cannot decorate a generator. Use `with run.step(...)` inside it.")
    try:
        signature: inspect.Signature | None = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions have none
        signature = None

    def bind(args: tuple[Any, ...], keywords: dict[str, Any]) -> Mapping[str, Any] | None:
        try:
            return signature.bind(*args, **keywords).arguments if signature is not None else None
        except TypeError:
            return None  # the call raises it too, inside the step

    if inspect.iscoroutinefunction(function):
        coroutine_function = cast("Callable[..., Awaitable[Any]]", function)

        @functools.wraps(function)
        async def call_async(*args: Any, **keywords: Any) -> Any:
            with start(bind(args, keywords)) as step:
                result = await coroutine_function(*args, **keywords)
                step.set_result(result)
                return result

        return cast("F", call_async)

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        with start(bind(args, keywords)) as step:
            result = function(*args, **keywords)
            step.set_result(result)
            return result

    return cast("F", call)


class RunMetadata:
    """The metadata of a run, which a program may change until the run ends."""

    capture: CaptureContext
    _metadata: dict[str, Any]

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the run. What you change until the run ends is stored with its end."""
        return self._metadata

    @metadata.setter
    def metadata(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = {}
        merge_metadata(self._metadata, metadata, {})

    def add_metadata(self, values: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Add to the metadata of the run: `run.add_metadata(order=7)`."""
        merge_metadata(self._metadata, values, more)

    @property
    def tags(self) -> list[str]:
        """The tags of the run, in its metadata."""
        tags = self._metadata.get("tags")
        return list(tags) if isinstance(tags, list | tuple) else []

    @tags.setter
    def tags(self, tags: Iterable[str]) -> None:
        self._metadata["tags"] = [tags] if isinstance(tags, str) else [str(tag) for tag in tags]

    @property
    def user(self) -> str | None:
        """The user whom the run serves, in its metadata."""
        user = self._metadata.get("user")
        return None if user is None else str(user)

    @user.setter
    def user(self, user: str | None) -> None:
        self._metadata["user"] = None if user is None else str(user)

    def _stored_metadata(self) -> dict[str, Any] | None:
        metadata = {name: value for name, value in self._metadata.items() if value is not None}
        return (shapes(metadata) if self.capture.record == "shape" else metadata) or None
