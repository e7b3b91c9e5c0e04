"""Retries by others: finds the retry library or client, above or below a failed call, that retries it too.

Only one layer should retry: three attempts inside three attempts are nine calls. Nothing is patched. After a failure,
the frames of its traceback show what is below the call, and the frames of the stack show what is above it.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType, TracebackType
from typing import Any

from mulligan.recover.plan import RetryLayer

LIBRARY_NAMES = {
    "tenacity": "tenacity",
    "stamina": "stamina",
    "backoff": "backoff",
    "urllib3": "urllib3",
    "httpcore": "the httpx transport",
    "httpcore2": "the httpx transport",
    "botocore": "botocore",
    "langchain.agents.middleware.tool_retry": "ToolRetryMiddleware",
    "langchain.agents.middleware.model_retry": "ModelRetryMiddleware",
}
"""Packages and modules that retry, with their names in notes."""
LAYER_ATTRIBUTE = "__mulligan_retry_layer__"
MAX_CHAINED_EXCEPTIONS = 10

_GENERATOR_FLAGS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR

Locals = Mapping[str, Any]


# Below: the traceback


def find_layer_below(error: BaseException) -> RetryLayer | None:
    """Return the layer inside the call that made several attempts and then raised this exception, or None."""
    if isinstance(layer := getattr(error, LAYER_ATTRIBUTE, None), RetryLayer):
        return layer
    attempts = {"": 1}
    for exception in _chained_exceptions(error):
        for package, count in (*_read_response(exception), *_read_traceback(exception.__traceback__)):
            attempts[package] = max(attempts.get(package, 0), count)
    if "stamina" in attempts and "tenacity" in attempts:  # stamina is built on tenacity
        attempts["stamina"] = attempts.pop("tenacity")
    package = max(attempts, key=attempts.__getitem__)
    return RetryLayer(_name_of(package), attempts[package]) if package else None


def set_layer(error: BaseException, layer: RetryLayer) -> None:
    """Note which layer retries the call after this exception, or has done so, where no frame shows that."""
    with contextlib.suppress(Exception):  # an exception may refuse attributes
        setattr(error, LAYER_ATTRIBUTE, layer)


def find_decorator_below(function: object) -> RetryLayer | None:
    """Return the decorator of a function that retries by its result, if it may have done so."""
    for _ in range(10):  # never without an end
        module = getattr(function, "__globals__", {}).get("__name__", "")
        if module.startswith("tenacity"):
            count = getattr(function, "statistics", {}).get("attempt_number", 0)
            return RetryLayer("tenacity", count) if count > 1 else None
        code = getattr(function, "__code__", None)
        if module.startswith("backoff.") and code is not None and code.co_qualname.startswith("retry_predicate."):
            return RetryLayer("backoff")
        function = getattr(function, "__wrapped__", None)
    return None


def _chained_exceptions(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, those it was raised from and the members of groups, except one handled around the call."""
    handled, pending = sys.exception(), [error]
    for _ in range(MAX_CHAINED_EXCEPTIONS):
        if not pending:
            return
        current = pending.pop(0)
        yield current
        earlier = current.__cause__ or current.__context__
        if earlier is not None and earlier is not handled:
            pending.append(earlier)
        if isinstance(current, BaseExceptionGroup):
            pending += current.exceptions[:MAX_CHAINED_EXCEPTIONS]


def _read_traceback(traceback: TracebackType | None) -> list[tuple[str, int]]:
    """Return the packages that retry among the frames of a traceback, with their attempts.

    An exception object that was raised before has the frames of that time below its new ones. These do not count.
    """
    counts: list[tuple[str, int]] = []
    caller: FrameType | None = None
    for _ in range(200):  # never without an end
        if traceback is None:
            break
        frame = traceback.tb_frame
        # An exception that was thrown into a generator, as by `with`, continues with frames of other callers.
        is_called = caller is None or caller.f_code.co_flags & _GENERATOR_FLAGS or _is_called_by(frame, caller)
        if not is_called and frame is not caller:
            break
        if package := _package_of(frame):
            counts.append((package, _ATTEMPT_READERS.get(package, _read_client)(frame.f_locals)))
        caller, traceback = frame, traceback.tb_next
    return counts


def _is_called_by(frame: FrameType, caller: FrameType) -> bool:
    """Return whether a frame was called by another one, perhaps through frames that hide from tracebacks."""
    parent = frame.f_back
    # Frames between two of a traceback that removed themselves from it, as tracers do.
    for _ in range(2):
        if parent is None or parent is caller:
            break
        parent = parent.f_back
    return frame.f_back is None or parent is caller


def _read_response(error: BaseException) -> list[tuple[str, int]]:
    """Return how many requests the client made before it raised an error with this response."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        metadata = response.get("ResponseMetadata")
        retries = metadata.get("RetryAttempts") if isinstance(metadata, dict) else None
        return [("botocore", retries + 1)] if isinstance(retries, int) else []
    history = getattr(getattr(getattr(response, "raw", None), "retries", None), "history", None)  # requests
    return [("urllib3", _count_requests(history) + 1)] if isinstance(history, tuple) else []


def _read_tenacity(values: Locals) -> int:
    return int(getattr(values.get("retry_state"), "attempt_number", 0))


def _read_urllib3(values: Locals) -> int:
    return _count_requests(values.get("history", ()))


def _count_requests(history: tuple[Any, ...]) -> int:
    """Count the failed requests of urllib3. Redirects are no retries."""
    return sum(not getattr(request, "redirect_location", None) for request in history)


def _read_transport(values: Locals) -> int:
    remaining = values.get("retries_left")
    return 0 if remaining is None else int(values["self"]._retries - remaining + 1)


def _read_client(values: Locals) -> int:
    return int(values.get("retries_taken", -1)) + 1


_ATTEMPT_READERS: dict[str, Callable[[Locals], int]] = {
    "tenacity": _read_tenacity,
    "stamina": lambda values: 0,
    "backoff": lambda values: int(values.get("tries", 0)),
    "urllib3": _read_urllib3,
    "httpcore": _read_transport,
    "httpcore2": _read_transport,
    "botocore": lambda values: int(values.get("attempts", 0)),
    "langchain.agents.middleware.tool_retry": lambda values: int(values.get("attempts_made", 0)),
    "langchain.agents.middleware.model_retry": lambda values: int(values.get("attempts_made", 0)),
}
"""Read how many attempts a package has made, from the local variables of one of its frames."""


# Above: the stack


def find_layer_above(error: BaseException | None) -> RetryLayer | None:
    """Return the layer among the callers of this call that retries it after this exception, or None.

    `error` is None if the call returned a result that is a failure. What a layer retries is read from the types of
    exceptions that it names. A function of the program that decides is not called: it counts as a yes.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _module_of(frame).startswith("mulligan."):
        frame = frame.f_back
    # Frames above a call that are searched. Code further up rarely sees the call's exception.
    for _ in range(12):
        if frame is None or _module_of(frame) == "mulligan.capture.loop":
            return None  # a loop answers the model: no caller of it gets the exception
        if (layer := _read_caller(frame, error)) is not None:
            return layer
        frame = frame.f_back
    return None


def _read_caller(frame: FrameType, error: BaseException | None) -> RetryLayer | None:
    package = _package_of(frame)
    if not package and not _may_loop_over_attempts(frame):
        return None
    values = frame.f_locals
    if package == "backoff":
        return _read_backoff_caller(values, error)
    if package == "tenacity":
        return _read_tenacity_caller("tenacity", values.get("retry_state"), error)
    if package.startswith("langchain."):
        return _read_middleware_caller(package, values, error)
    if package and package not in LIBRARY_NAMES:
        limit, count = values.get("max_retries"), _read_client(values)
        if not count or not isinstance(limit, int) or limit < 1 or not _can_client_retry(frame, error):
            return None
        return RetryLayer(_name_of(package), count, limit=limit + 1, is_above=True)
    for value in list(values.values()):  # a loop over attempts in the caller's own code, or in stamina's
        match type(value).__module__, type(value).__name__:
            case "tenacity", "AttemptManager":
                layer = _read_tenacity_caller("tenacity", value.retry_state, error)
            case "stamina._core", "Attempt":
                layer = _read_tenacity_caller("stamina", value._t_attempt.retry_state, error)
            case _:
                continue
        if layer is not None:
            return layer
    return None


def _may_loop_over_attempts(frame: FrameType) -> bool:
    """Return whether a name in the code of a frame suggests a loop over attempts, such as `Retrying`.

    The local variables of other frames are not read: before Python 3.13, that would keep their objects alive.
    """
    code = frame.f_code
    return "tenacity" in sys.modules and any(
        "retr" in name.lower() for name in (*code.co_names, *code.co_varnames, *code.co_freevars)
    )


def _read_tenacity_caller(library: str, state: Any, error: BaseException | None) -> RetryLayer | None:
    if state is None or state.outcome is not None:  # an attempt that has ended: a variable left over from its loop
        return None
    retrying = state.retry_object
    limit = _find_limit(retrying.stop)
    if not getattr(retrying, "enabled", True) or limit == 1 or not _can_retry(retrying.retry, error):
        return None
    return RetryLayer(library, state.attempt_number, limit=limit, is_above=True)


def _find_limit(stop: Any) -> int | None:
    """Return the attempts that tenacity allows at most, or None without a limit."""
    if type(stop).__name__ == "stop_any":
        limits = [limit for part in stop.stops if (limit := _find_limit(part)) is not None]
        return min(limits, default=None)
    return getattr(stop, "max_attempt_number", None)


def _can_retry(condition: Any, error: BaseException | None) -> bool:
    """Return whether tenacity may retry after this exception, or after a result (None)."""
    types = getattr(condition, "exception_types", ())
    match type(condition).__name__:
        case "retry_any":
            return any(_can_retry(part, error) for part in condition.retries)
        case "retry_all":
            return all(_can_retry(part, error) for part in condition.retries)
        case "retry_if_result" | "retry_if_not_result":
            return error is None
        case "retry_if_exception_type":
            return isinstance(error, types)
        case "retry_if_not_exception_type":
            return error is not None and not isinstance(error, types)
        case "retry_if_exception" | "retry_if_exception_message" | "retry_if_not_exception_message":
            return error is not None
    return True


def _can_client_retry(frame: FrameType, error: BaseException | None) -> bool:
    """Return whether a client retries after an exception of its transport: any, or those of httpx only (OpenAI 3)."""
    is_selective = "request_exceptions" in frame.f_globals
    is_transport_error = any(
        base.__name__ == "RequestError" and base.__module__.startswith("httpx") for base in type(error).__mro__
    )
    return error is not None and (is_transport_error or not is_selective)


def _read_backoff_caller(values: Locals, error: BaseException | None) -> RetryLayer | None:
    limit = values.get("max_tries_value")
    is_retrying = "predicate" in values if error is None else isinstance(error, values.get("exception", ()))
    return RetryLayer("backoff", values["tries"], limit=limit, is_above=True) if is_retrying and limit != 1 else None


def _read_middleware_caller(module: str, values: Locals, error: BaseException | None) -> RetryLayer | None:
    """Read a retry middleware of LangChain. It retries after exceptions only."""
    middleware, attempt = values.get("self"), values.get("attempt")
    limit = getattr(middleware, "max_retries", 0)
    retry_on: Any = getattr(middleware, "retry_on", ())
    if error is None or attempt is None or limit < 1:
        return None
    if isinstance(retry_on, tuple | type) and not isinstance(error, retry_on):
        return None
    return RetryLayer(_name_of(module), attempt + 1, limit=limit + 1, is_above=True)


# Frames


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _package_of(frame: FrameType) -> str:
    """Return the package of a frame if it retries, or an empty string."""
    module = _module_of(frame)
    package = module if module in LIBRARY_NAMES else module.partition(".")[0]
    # End of the name of the module that retries requests in the OpenAI and Anthropic clients, and in others made
    # with the same generator
    return package if package in LIBRARY_NAMES or module.endswith("._base_client") else ""


def _name_of(package: str) -> str:
    return LIBRARY_NAMES.get(package) or f"the {package} client"
