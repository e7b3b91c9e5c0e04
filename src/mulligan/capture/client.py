"""Wraps provider clients (OpenAI, Anthropic, LiteLLM) so that their model calls are recovered.

Clients are recognized by their methods and not imported. The original stays unchanged: the result is a copy of the same
class with its retries switched off, so that only one layer retries.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from mulligan.capture.model_calls import make_refresher
from mulligan.capture.stream import StreamOpener
from mulligan.core.conversation import get_field
from mulligan.core.failure import SettingsError

MODEL_METHODS = tuple(
    f"{holder}.{name}"
    for holder in ("chat.completions", "responses", "messages", "beta.messages", "beta.chat.completions")
    for name in ("create", "parse")
)
"""Client methods that call a model. Others, such as OpenAI's `stream`, use these internally."""
STREAM_METHODS = ("messages.stream", "beta.messages.stream")
"""Methods that return a context manager, which opens the stream on entry."""
LITELLM_FUNCTIONS = ("completion", "acompletion", "responses", "aresponses")
"""LiteLLM's functions that call a model. Its client is the module."""

COPY_METHODS = ("with_options", "copy")
"""Methods that return a copy with other options. The copy is wrapped too."""

Wrapper = Callable[[Any], Any]


def wrap_client(client: Any, wrap: Wrapper, rewrap: Wrapper) -> Any:
    """Return a copy of the client whose model methods are wrapped by `wrap`, and further copies by `rewrap`."""
    if inspect.ismodule(client) or callable(get_field(client, "acompletion")):
        return LiteLLMFunctions(client, wrap)
    method_paths = [path for path in MODEL_METHODS if callable(_get_path(client, path))]
    if not method_paths:
        raise SettingsError(
            f"{type(client).__name__} has none of the methods {', '.join(MODEL_METHODS[::2])}. "
            "Wrap the function that calls it instead: @mulligan.model."
        )
    client_copy = _without_retries(client)
    for path in (
        *method_paths,
        *(stream_path for stream_path in STREAM_METHODS if callable(_get_path(client, stream_path))),
    ):
        holder, _, name = path.rpartition(".")
        target = _get_path(client_copy, holder)
        method = getattr(target, name)
        if hasattr(method, "__mulligan__"):
            raise SettingsError("This client is already wrapped. Use the wrapped client that wrap_client returned.")
        is_stream = path in STREAM_METHODS
        function = _as_function(method, _is_async(method), is_awaited=not is_stream)
        function.__name__ = path  # every client has a method `create`
        function.endpoint = str(get_field(client_copy, "base_url") or "")
        function.key_hash = functools.partial(_hash_key, client_copy)
        function.client_retries = _count_retries(client)
        function.returns_manager = is_stream
        recovering = wrap(function)
        setattr(target, name, _make_stream_opener(recovering) if is_stream else recovering)
    for name in COPY_METHODS:
        if _takes_options(copy_method := get_field(client_copy, name)):
            setattr(client_copy, name, _wrap_copy_method(copy_method, rewrap))
    return client_copy


def _hash_key(client: Any) -> int:
    """Return a hash of the client's key, which may change: an outage of one account is none of another."""
    return hash(str(get_field(client, "api_key") or ""))


def _count_retries(client: Any) -> int:
    """Return how often the client would retry a request by itself."""
    retries = get_field(client, "max_retries")
    return retries if type(retries) is int and retries > 0 else 0


def _takes_options(copy_method: Any) -> bool:
    try:
        return callable(copy_method) and "max_retries" in inspect.signature(copy_method).parameters
    except (TypeError, ValueError):
        return False


def _wrap_copy_method(copy_method: Any, rewrap: Wrapper) -> Any:
    @functools.wraps(copy_method)
    def copy(*args: Any, **kwargs: Any) -> Any:
        client_copy = copy_method(*args, **kwargs)
        if any(hasattr(_get_path(client_copy, path), "__mulligan__") for path in MODEL_METHODS):
            return client_copy  # it shares the wrapped methods
        for name in COPY_METHODS:
            if hasattr(getattr(client_copy, "__dict__", {}).get(name), "__mulligan__"):
                delattr(client_copy, name)  # the copy inherited this attribute too
        return rewrap(client_copy)

    copy.__mulligan__ = copy_method  # type: ignore[attr-defined]
    return copy


def make_key_refresher(refresh: Callable[..., Any], client: Any) -> Callable[..., Any]:
    """Adapt a function that refreshes credentials: a text that it returns becomes the client's new key."""

    def apply_key(answer: Any) -> Any:
        if isinstance(answer, str) and answer:
            client().api_key = answer
            return True
        return answer

    return make_refresher(refresh, apply_key)


def _get_path(thing: Any, path: str) -> Any:
    for name in path.split("."):
        thing = get_field(thing, name)
        if thing is None:
            return None
    return thing


def _without_retries(client: Any) -> Any:
    copy_method = get_field(client, "with_options") or get_field(client, "copy")
    if callable(copy_method):
        try:
            return copy_method(max_retries=0)
        except TypeError:
            pass  # a client with a similar interface
    import copy  # lazy: only for unknown clients

    return copy.copy(client)


def _is_async(method: Any) -> bool:
    return inspect.iscoroutinefunction(inspect.unwrap(method)) or type(method.__self__).__name__.startswith("Async")


def _as_function(method: Any, is_async: bool, *, is_awaited: bool = True, **defaults: Any) -> Any:
    """Wrap a method in a plain function that shows whether it is async: client methods hide it behind a decorator.

    `is_awaited` is False if an async client's method itself is not async. `defaults` are arguments to add.
    """
    if is_async:

        @functools.wraps(method)
        async def acall(*args: Any, **kwargs: Any) -> Any:
            answer = method(*args, **(defaults | kwargs))
            return await answer if is_awaited else answer

        return acall

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **(defaults | kwargs))

    return call


def _make_stream_opener(recovering: Any) -> Any:
    """Return a method that returns a stream context manager, like the client's own."""

    @functools.wraps(recovering)
    def stream(*args: Any, **kwargs: Any) -> StreamOpener:
        return StreamOpener(recovering.__mulligan__, args, kwargs)

    return stream


class LiteLLMFunctions:
    """LiteLLM's functions with recovery. All other attributes come from its module."""

    def __init__(self, module: Any, wrap: Wrapper) -> None:
        self._module = module
        function_names = [name for name in LITELLM_FUNCTIONS if callable(get_field(module, name))]
        if not function_names:
            raise SettingsError(
                f"{getattr(module, '__name__', module)} has none of the functions {', '.join(LITELLM_FUNCTIONS)}. "
                "Pass the litellm module."
            )
        for name in function_names:
            function = getattr(module, name)
            # Its own retries are off, unless the caller sets them.
            setattr(self, name, wrap(_as_function(function, name.startswith("a"), num_retries=0, max_retries=0)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)
