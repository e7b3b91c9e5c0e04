"""Wraps a function in a recovering function: makes the first attempt, and passes a failed one to the player."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mulligan.capture.context import CaptureContext, CaptureSource
from mulligan.capture.first_attempt import FirstAttempt, begin_attempt
from mulligan.capture.framework_classes import find_framework_page, is_framework_tool
from mulligan.capture.player import aexecute_plan, execute_plan
from mulligan.capture.run import ActiveRun, current_run
from mulligan.capture.wrapped_function import ToolOptions, WrappedFunction
from mulligan.core import fork_safety
from mulligan.core.failure import SettingsError

if TYPE_CHECKING:
    from mulligan.capture.call_execution import CallExecution


def wrap(function: Any, get_capture: CaptureSource, options: ToolOptions) -> Any:
    """Return the recovering form of a function, static method or class method."""
    if isinstance(function, staticmethod | classmethod):
        return type(function)(wrap(function.__func__, get_capture, options))
    if isinstance(function, type):
        raise SettingsError(f"{function.__name__} is a class. Wrap one of its methods instead.{_hint(function)}")
    if isinstance(function, str):
        raise SettingsError(f"Pass the name as a keyword: @mulligan.tool(name={function!r}).")
    if not callable(function) or is_framework_tool(type(function)):
        name = type(function).__name__
        raise SettingsError(f"Cannot wrap an object of type {name}. Pass a function.{_hint(type(function))}")
    wrapped = WrappedFunction(function, get_capture, options)
    if options.model is not None:
        from mulligan.capture.model_calls import add_model_recovery  # lazy: needed only for models

        add_model_recovery(wrapped)
    return build_wrapper(wrapped)


def _hint(cls: type) -> str:
    page = find_framework_page(cls)
    return f" For tools, models and agents of this framework, see {page}." if page else ""


def build_wrapper(wrapped: WrappedFunction) -> Callable[..., Any]:
    """Build the recovering function that replaces the wrapped one."""
    wrapper: Callable[..., Any]
    if wrapped.is_async_stream or wrapped.is_stream:
        from mulligan.capture.stream import astreaming, streaming  # lazy: few tools are generators

        wrapper = astreaming(wrapped) if wrapped.is_async_stream else streaming(wrapped)
    else:
        wrapper = build_async_wrapper(wrapped) if wrapped.is_async else build_sync_wrapper(wrapped)
        if wrapped.options.model is not None:
            wrapper = (_with_async_streams if wrapped.is_async else _with_streams)(wrapped, wrapper)
    wrapper.__name__ = wrapper.__qualname__ = wrapped.name  # for callables without a name
    functools.update_wrapper(wrapper, wrapped.function)
    setattr(wrapper, "__mulligan__", wrapped)  # noqa: B010 - functions have no such attribute for type checkers
    return wrapper


def build_sync_wrapper(wrapped: WrappedFunction) -> Callable[..., Any]:
    function, get_capture = wrapped.function, wrapped.get_capture

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        capture = get_capture()
        if capture is None:
            return function(*args, **kwargs)
        first = begin_call(wrapped, capture, args, kwargs)
        if first is not None:
            token, timer = capture.current_scope.set(first.call), capture.timer
            start_time = timer()
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                if not first.keep_failure(error, start_time, token):
                    raise
                # recovered below, outside this handler, so that later errors do not get this one as context
            else:
                if first.record_success(result, start_time, token):
                    return result
        call = continue_call(first, wrapped, capture, args, kwargs)
        with call.run_scope():
            return execute_plan(call)

    return wrapper


def build_async_wrapper(wrapped: WrappedFunction) -> Callable[..., Any]:
    function, get_capture = wrapped.function, wrapped.get_capture

    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        capture = get_capture()
        if capture is None:
            return await function(*args, **kwargs)
        first = begin_call(wrapped, capture, args, kwargs)
        if first is not None:
            token, timer = capture.current_scope.set(first.call), capture.timer
            start_time = timer()
            try:
                result = await function(*args, **kwargs)
            except BaseException as error:
                if not first.keep_failure(error, start_time, token):
                    raise
                # recovered below, outside this handler, so that later errors do not get this one as context
            else:
                if first.record_success(result, start_time, token):
                    return result
        call = continue_call(first, wrapped, capture, args, kwargs)
        with call.run_scope():
            return await aexecute_plan(call)

    return wrapper


def _with_streams(wrapped: WrappedFunction, call_directly: Callable[..., Any]) -> Callable[..., Any]:
    """Build the wrapper for a model that may return a stream or a complete answer."""
    from mulligan.capture.stream import open_model_stream  # lazy: needed for models only

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("stream") is True:
            return open_model_stream(wrapped, args, kwargs)
        return call_directly(*args, **kwargs)

    return wrapper


def _with_async_streams(wrapped: WrappedFunction, call_directly: Callable[..., Any]) -> Callable[..., Any]:
    from mulligan.capture.stream import aopen_model_stream  # lazy: needed for models only

    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("stream") is True:
            return await aopen_model_stream(wrapped, args, kwargs)
        return await call_directly(*args, **kwargs)

    return wrapper


def begin_call(
    wrapped: WrappedFunction, capture: CaptureContext, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> FirstAttempt | None:
    """Begin a call. The caller makes its first attempt; if the call needs a check first (None), the player does."""
    try:
        return begin_attempt(wrapped, capture, args, kwargs)
    except Exception as error:  # noqa: BLE001 - inlined guard: the player makes the call
        capture.log_internal_error("Starting a call", error)
    return None


def continue_call(
    first: FirstAttempt | None,
    wrapped: WrappedFunction,
    capture: CaptureContext,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> CallExecution:
    """Build the execution of a call: the rest of one whose first attempt has failed, or all of it."""
    with fork_safety.import_lock:
        from mulligan.capture.call import prepare_call, recover_call  # lazy: most calls succeed at once
    if first is not None:
        return recover_call(first)
    run = current_run(capture)
    is_standalone = run is None
    if run is None:
        run = ActiveRun(capture, options=wrapped.rules(capture, None).run_options)
        run.is_implicit = True
    return prepare_call(wrapped, capture, run, args, kwargs, is_standalone=is_standalone)
