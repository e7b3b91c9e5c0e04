"""Wraps provider clients (OpenAI, Anthropic, LiteLLM) so that their model calls are recovered.

Clients are recognized by their methods and not imported. The original stays unchanged: the result is a copy of the same
class with its retries switched off, so that only one layer retries.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from mulligan.capture.model_stream import Opening
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
        endpoint = str(get_field(client_copy, "base_url") or "")
        if path in STREAM_METHODS:
            setattr(
                target,
                name,
                _make_stream_opener(wrap(_set_name_and_endpoint(_as_stream_function(method), path, endpoint))),
            )
        else:
            setattr(target, name, wrap(_set_name_and_endpoint(_as_plain_function(method), path, endpoint)))
    for name in COPY_METHODS:
        if _takes_options(copy_method := get_field(client_copy, name)):
            setattr(client_copy, name, _wrap_copy_method(copy_method, rewrap))
    return client_copy


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

    takes = bool(inspect.signature(refresh).parameters)
    if inspect.iscoroutinefunction(refresh):

        async def aask(failure: Any) -> Any:
            return apply_key(await (refresh(failure) if takes else refresh()))

        return aask

    def ask(failure: Any) -> Any:
        return apply_key(refresh(failure) if takes else refresh())

    return ask


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


def _as_stream_function(method: Any) -> Any:
    """Return a function for the context manager, which is entered as part of the attempt."""
    if not _is_async(method):
        return _as_plain_function(method)

    @functools.wraps(method)
    async def stream(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return stream


def _make_stream_opener(recovering: Any) -> Any:
    """Return a method that returns a stream context manager, like the client's own."""

    @functools.wraps(recovering)
    def stream(*args: Any, **kwargs: Any) -> Opening:
        return Opening(recovering.__mulligan__, args, kwargs)

    return stream


def _as_plain_function(method: Any) -> Any:
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


def _set_name_and_endpoint(function: Any, name: str, endpoint: str) -> Any:
    """Set the full name, because every client has a method `create`, and the endpoint of its calls."""
    function.__name__ = name
    function.endpoint = endpoint
    return function


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
            setattr(self, name, wrap(_disable_retries(getattr(module, name), name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _disable_retries(function: Any, name: str) -> Any:
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
