"""Wraps a function in a recovering function: makes the first attempt, and passes a failed one to the player."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mulligan.capture.call import begin_call
from mulligan.capture.context import CaptureSource
from mulligan.capture.player import aexecute_plan, execute_plan
from mulligan.capture.wrapped_function import ToolOptions, WrappedFunction
from mulligan.core.failure import SettingsError


def wrap(function: Any, get_capture: CaptureSource, options: ToolOptions) -> Any:
    """Return the recovering form of a function, static method or class method."""
    if isinstance(function, staticmethod | classmethod):
        return type(function)(wrap(function.__func__, get_capture, options))
    if isinstance(function, type):
        raise SettingsError(f"{function.__name__} is a class. Wrap one of its methods instead.")
    if isinstance(function, str):
        raise SettingsError(f"Pass the name as a keyword: @mulligan.tool(name={function!r}).")
    if not callable(function):
        raise SettingsError(f"Cannot wrap an object of type {type(function).__name__}. Pass a function.")
    wrapped = WrappedFunction(function, get_capture, options)
    if options.model is not None:
        from mulligan.capture.model_calls import add_model_recovery  # lazy: needed only for models

        add_model_recovery(wrapped)
    return build_wrapper(wrapped)


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
        call = begin_call(wrapped, capture, args, kwargs)
        if call.success_record is not None:  # otherwise the player makes the first attempt too
            token, timer = capture.current_scope.set(call), capture.timer
            start_time = timer()
            try:
                result = function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - any error of the call is classified and recovered
                # recovered below, outside this handler, so that later errors do not get this one as context
                call.keep_failure(error, start_time, token)
            except BaseException as error:
                call.record_cancelled(error, start_time, token)
                raise
            else:
                if call.record_success(result, start_time, token):
                    return result
        with call.run_scope():
            return execute_plan(call)

    return wrapper


def build_async_wrapper(wrapped: WrappedFunction) -> Callable[..., Any]:
    function, get_capture = wrapped.function, wrapped.get_capture

    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        capture = get_capture()
        if capture is None:
            return await function(*args, **kwargs)
        call = begin_call(wrapped, capture, args, kwargs)
        if call.success_record is not None:  # otherwise the player makes the first attempt too
            token, timer = capture.current_scope.set(call), capture.timer
            start_time = timer()
            try:
                result = await function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - any error of the call is classified and recovered
                # recovered below, outside this handler, so that later errors do not get this one as context
                call.keep_failure(error, start_time, token)
            except BaseException as error:
                call.record_cancelled(error, start_time, token)
                raise
            else:
                if call.record_success(result, start_time, token):
                    return result
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
