"""Wraps provider clients (OpenAI, Anthropic, LiteLLM) so that their model calls are recovered.

Clients are recognized by their methods and not imported. The original stays unchanged: the result is a copy of the same
class with its retries switched off, so that only one layer retries.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from mulligan.capture.tokens import Opening
from mulligan.conversation import field
from mulligan.failure import SettingsError

METHODS = tuple(
    f"{holder}.{name}"
    for holder in ("chat.completions", "responses", "messages", "beta.messages", "beta.chat.completions")
    for name in ("create", "parse")
)
"""Client methods that call a model. Others, such as OpenAI's `stream`, use these internally."""
STREAMS = ("messages.stream", "beta.messages.stream")
"""Methods that return a context manager, which opens the stream on entry."""
FUNCTIONS = ("completion", "acompletion", "responses", "aresponses")
"""LiteLLM's functions that call a model. Its client is the module."""

COPIES = ("with_options", "copy")
"""Methods that return a copy with other options. The copy is wrapped too."""

Wrapping = Callable[[Any], Any]


def wrap_client(client: Any, wrap: Wrapping, again: Wrapping) -> Any:
    """Return a copy of the client whose model methods are wrapped by `wrap`, and further copies by `rewrap`."""
    if inspect.ismodule(client) or callable(field(client, "acompletion")):
        return Functions(client, wrap)
    places = [place for place in METHODS if callable(_at(client, place))]
    if not places:
        raise SettingsError(
            f"{type(client).__name__} has none of {', '.join(METHODS[::2])}. Wrap the function that calls it instead: "
            "@mulligan.model."
        )
    own = _without_retries(client)
    for place in (*places, *(place for place in STREAMS if callable(_at(client, place)))):
        holder, _, name = place.rpartition(".")
        target = _at(own, holder)
        method = getattr(target, name)
        if hasattr(method, "__mulligan__"):
            raise SettingsError("this client is wrapped already.")
        endpoint = str(field(own, "base_url") or "")
        if place in STREAMS:
            setattr(target, name, _opening(wrap(_named(_entered(method), place, endpoint))))
        else:
            setattr(target, name, wrap(_named(_plain(method), place, endpoint)))
    for name in COPIES:
        if _takes_options(copying := field(own, name)):
            setattr(own, name, _copied(copying, again))
    return own


def _takes_options(copying: Any) -> bool:
    try:
        return callable(copying) and "max_retries" in inspect.signature(copying).parameters
    except (TypeError, ValueError):
        return False


def _copied(copying: Any, again: Wrapping) -> Any:
    @functools.wraps(copying)
    def copy(*args: Any, **kwargs: Any) -> Any:
        made = copying(*args, **kwargs)
        if any(hasattr(_at(made, place), "__mulligan__") for place in METHODS):
            return made  # it shares the wrapped methods
        for name in COPIES:
            if hasattr(getattr(made, "__dict__", {}).get(name), "__mulligan__"):
                delattr(made, name)  # the copy inherited this attribute too
        return again(made)

    copy.__mulligan__ = copying  # type: ignore[attr-defined]
    return copy


def refreshing(refresh: Callable[..., Any], client: Any) -> Callable[..., Any]:
    """Adapt a function that refreshes credentials: a text that it returns becomes the client's new key."""

    def taken(answer: Any) -> Any:
        if isinstance(answer, str) and answer:
            client().api_key = answer
            return True
        return answer

    takes = bool(inspect.signature(refresh).parameters)
    if inspect.iscoroutinefunction(refresh):

        async def aask(failure: Any) -> Any:
            return taken(await (refresh(failure) if takes else refresh()))

        return aask

    def ask(failure: Any) -> Any:
        return taken(refresh(failure) if takes else refresh())

    return ask


def _at(thing: Any, place: str) -> Any:
    for name in place.split("."):
        thing = field(thing, name)
        if thing is None:
            return None
    return thing


def _without_retries(client: Any) -> Any:
    copying = field(client, "with_options") or field(client, "copy")
    if callable(copying):
        try:
            return copying(max_retries=0)
        except TypeError:
            pass  # a client with a similar interface
    import copy  # lazy: only for unknown clients

    return copy.copy(client)


def _is_async(method: Any) -> bool:
    return inspect.iscoroutinefunction(inspect.unwrap(method)) or type(method.__self__).__name__.startswith("Async")


def _entered(method: Any) -> Any:
    """Return a function for the context manager, which is entered as part of the attempt."""
    if not _is_async(method):
        return _plain(method)

    @functools.wraps(method)
    async def stream(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return stream


def _opening(recovering: Any) -> Any:
    """Return a method that returns a stream context manager, like the client's own."""

    @functools.wraps(recovering)
    def stream(*args: Any, **kwargs: Any) -> Opening:
        return Opening(recovering.__mulligan__, args, kwargs)

    return stream


def _plain(method: Any) -> Any:
    """Wrap a method in a plain function that shows whether it is async: client methods hide it behind a decorator."""
    if _is_async(method):

        @functools.wraps(method)
        async def acreate(*args: Any, **kwargs: Any) -> Any:
            return await method(*args, **kwargs)

        return acreate

    @functools.wraps(method)
    def create(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return create


def _named(function: Any, name: str, endpoint: str) -> Any:
    """Set the full name, because every client has a method `create`, and the endpoint of its calls."""
    function.__name__ = name
    function.endpoint = endpoint
    return function


class Functions:
    """LiteLLM's functions with recovery. All other attributes come from its module."""

    def __init__(self, module: Any, wrap: Wrapping) -> None:
        self._module = module
        known = [name for name in FUNCTIONS if callable(field(module, name))]
        if not known:
            raise SettingsError(f"{getattr(module, '__name__', module)} has none of {', '.join(FUNCTIONS)}.")
        for name in known:
            setattr(self, name, wrap(_once(getattr(module, name), name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _once(function: Any, name: str) -> Any:
    """Disable the retries of a LiteLLM function, unless the caller sets them."""
    if name.startswith("a"):

        @functools.wraps(function)
        async def acall(*args: Any, **kwargs: Any) -> Any:
            return await function(*args, **{"num_retries": 0, "max_retries": 0, **kwargs})

        return acall

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **{"num_retries": 0, "max_retries": 0, **kwargs})

    return call
