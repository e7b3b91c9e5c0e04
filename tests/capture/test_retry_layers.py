"""Only one layer retries: with a retry library above, below or inside a wrapped call, at most `attempts` calls happen.

The clients of providers, which need a server, are in `tests/providers/test_client_retries.py`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any

import backoff
import pytest
import stamina
import tenacity

import mulligan
from mulligan.capture.retry_layers import set_layer
from mulligan.recover.plan import RetryLayer
from mulligan.testing import sandbox

LIMIT = 3
"""Attempts of every library, and of mulligan by default."""
Function = Callable[[], Any]


# The libraries, as decorators and as loops in a function's body. Each takes a function and returns one that retries it.


def tenacity_decorator(function: Function) -> Function:
    return tenacity.retry(stop=tenacity.stop_after_attempt(LIMIT))(function)


def tenacity_reraising(function: Function) -> Function:
    return tenacity.retry(stop=tenacity.stop_after_attempt(LIMIT), reraise=True)(function)


def tenacity_object(function: Function) -> Function:
    """Call the function through a `Retrying` object."""
    if inspect.iscoroutinefunction(function):

        async def acall() -> Any:
            return await tenacity.AsyncRetrying(stop=tenacity.stop_after_attempt(LIMIT), reraise=True)(function)

        return acall
    return lambda: tenacity.Retrying(stop=tenacity.stop_after_attempt(LIMIT), reraise=True)(function)


def tenacity_loop(function: Function) -> Function:
    if inspect.iscoroutinefunction(function):

        async def acall() -> Any:
            async for attempt in tenacity.AsyncRetrying(stop=tenacity.stop_after_attempt(LIMIT), reraise=True):
                with attempt:
                    await function()

        return acall

    def call() -> Any:
        for attempt in tenacity.Retrying(stop=tenacity.stop_after_attempt(LIMIT)):
            with attempt:
                function()

    return call


def stamina_decorator(function: Function) -> Function:
    return stamina.retry(on=ConnectionError, attempts=LIMIT, wait_initial=0, wait_max=0, wait_jitter=0)(function)


def stamina_loop(function: Function) -> Function:
    def retry_context() -> Any:
        return stamina.retry_context(
            on=lambda error: isinstance(error, OSError), attempts=LIMIT, wait_initial=0, wait_max=0, wait_jitter=0
        )

    if inspect.iscoroutinefunction(function):

        async def acall() -> Any:
            async for attempt in retry_context():
                with attempt:
                    await function()

        return acall

    def call() -> Any:
        for attempt in retry_context():
            with attempt:
                function()

    return call


def backoff_decorator(function: Function) -> Function:
    decorate = backoff.on_exception(backoff.constant, OSError, max_tries=LIMIT, interval=0, jitter=None)
    return decorate(function)  # type: ignore[no-any-return]


LAYERS = [
    tenacity_decorator, tenacity_reraising, tenacity_object, tenacity_loop, stamina_decorator, stamina_loop,
    backoff_decorator,
]  # fmt: skip
BY_TOOL_OR_MODEL: dict[str, Callable[[Function], Function]] = {
    "tool": mulligan.tool(effects="none"),
    "model": mulligan.model,
}
"""What wraps the function: with mulligan alone, both make three calls."""


def above(layer: Callable[[Function], Function], wrap: Callable[[Function], Function], function: Function) -> Function:
    return layer(wrap(function))


def above_through_a_function(
    layer: Callable[[Function], Function], wrap: Callable[[Function], Function], function: Function
) -> Function:
    """The library retries a function of the program that calls the wrapped one."""
    wrapped = wrap(function)
    if inspect.iscoroutinefunction(function):

        async def acall() -> Any:
            return await wrapped()

        return layer(acall)
    return layer(lambda: wrapped())


def below(layer: Callable[[Function], Function], wrap: Callable[[Function], Function], function: Function) -> Function:
    return wrap(layer(function))


def inside(layer: Callable[[Function], Function], wrap: Callable[[Function], Function], function: Function) -> Function:
    """The body of the wrapped function uses the library."""
    retried = layer(function)
    if inspect.iscoroutinefunction(function):

        async def acall() -> Any:
            return await retried()

        return wrap(acall)
    return wrap(lambda: retried())


def between(
    layer: Callable[[Function], Function], wrap: Callable[[Function], Function], function: Function
) -> Function:
    """A wrapped call that calls another one through the library."""
    return wrap(layer(wrap(function)))


def failing(is_async: bool, calls: list[int], error: Callable[[], Exception] = ConnectionError) -> Function:
    def fetch() -> Any:
        calls.append(1)
        raise error()

    async def afetch() -> Any:
        fetch()

    return afetch if is_async else fetch


def call_until_it_fails(function: Function) -> Exception:
    async def await_it() -> Any:
        return await function()

    with pytest.raises(Exception) as caught:  # noqa: PT011 - the library's own or the function's, as the program sees it
        asyncio.run(await_it()) if inspect.iscoroutinefunction(function) else function()
    return caught.value


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("wrap", BY_TOOL_OR_MODEL.values(), ids=BY_TOOL_OR_MODEL)
@pytest.mark.parametrize("position", [above, above_through_a_function, below, inside, between])
@pytest.mark.parametrize("layer", LAYERS)
def test_nested_retries_make_at_most_as_many_calls_as_one_layer(layer, position, wrap, is_async) -> None:
    calls: list[int] = []
    with sandbox(attempts=LIMIT):
        call_until_it_fails(position(layer, wrap, failing(is_async, calls)))

    assert len(calls) == LIMIT


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("wrap", BY_TOOL_OR_MODEL.values(), ids=BY_TOOL_OR_MODEL)
def test_without_another_layer_mulligan_makes_all_attempts(wrap, is_async) -> None:
    calls: list[int] = []
    with sandbox(attempts=LIMIT):
        call_until_it_fails(wrap(failing(is_async, calls)))

    assert len(calls) == LIMIT


@pytest.mark.parametrize("position", [above, below, inside])
@pytest.mark.parametrize("attempts", [2, 5])
def test_a_library_with_another_limit_makes_its_own_number_of_calls(position, attempts) -> None:
    calls: list[int] = []
    with sandbox(attempts=attempts):
        call_until_it_fails(position(tenacity_decorator, BY_TOOL_OR_MODEL["tool"], failing(False, calls)))

    assert len(calls) == LIMIT


def test_retries_in_tasks_of_a_wrapped_call_are_a_layer() -> None:
    calls: list[int] = []
    fetch = tenacity_reraising(failing(True, calls))

    async def fetch_all() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fetch())

    with sandbox(attempts=LIMIT):
        error = call_until_it_fails(BY_TOOL_OR_MODEL["tool"](fetch_all))

    assert isinstance(error, ExceptionGroup)
    assert len(calls) == LIMIT


# What does not retry a failure is no layer: mulligan makes its attempts


def retrying_other_errors(function: Function) -> Function:
    retried = tenacity.retry_if_exception_type(ValueError) | tenacity.retry_if_not_exception_type(OSError)
    return tenacity.retry(stop=tenacity.stop_after_attempt(LIMIT), retry=retried, reraise=True)(function)


def retrying_never(function: Function) -> Function:
    return tenacity.retry(stop=tenacity.stop_after_attempt(1) | tenacity.stop_after_delay(9), reraise=True)(function)


def switched_off(function: Function) -> Function:
    return tenacity.retry(stop=tenacity.stop_after_attempt(LIMIT), enabled=False)(function)


def switched_off_loop(function: Function) -> Function:
    if inspect.iscoroutinefunction(function):
        return switched_off(function)

    def call() -> Any:
        for attempt in tenacity.Retrying(stop=tenacity.stop_after_attempt(LIMIT), enabled=False):
            with attempt:
                function()

    return call


def backoff_for_other_errors(function: Function) -> Function:
    decorate = backoff.on_exception(backoff.constant, ValueError, max_tries=LIMIT, interval=0, jitter=None)
    return decorate(function)  # type: ignore[no-any-return]


def backoff_by_result(function: Function) -> Function:
    decorate = backoff.on_predicate(backoff.constant, max_tries=LIMIT, interval=0, jitter=None)
    return decorate(function)  # type: ignore[no-any-return]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("position", [above, below, inside])
@pytest.mark.parametrize(
    "layer",
    [
        retrying_other_errors,
        retrying_never,
        switched_off,
        switched_off_loop,
        backoff_for_other_errors,
        backoff_by_result,
    ],
)
def test_a_library_that_does_not_retry_this_failure_leaves_it_to_mulligan(layer, position, is_async) -> None:
    if layer in (switched_off, switched_off_loop) and "enabled" not in inspect.signature(tenacity.Retrying).parameters:
        pytest.skip("this tenacity cannot be switched off; google-genai of make test-providers needs an older one")
    calls: list[int] = []
    with sandbox(attempts=LIMIT):
        call_until_it_fails(position(layer, BY_TOOL_OR_MODEL["tool"], failing(is_async, calls)))

    assert len(calls) == LIMIT


def never(*values: Any) -> bool:
    raise AssertionError("mulligan has called a function of the program")


def tenacity_by_a_function(function: Function) -> Function:
    condition = tenacity.retry_if_exception(lambda error: not never())
    return tenacity.retry(stop=tenacity.stop_after_attempt(LIMIT), retry=condition)(function)


def backoff_by_a_function(function: Function) -> Function:
    decorate = backoff.on_exception(backoff.constant, OSError, max_tries=LIMIT, interval=0, jitter=None, giveup=never)
    return decorate(function)  # type: ignore[no-any-return]


def stamina_by_a_function(function: Function) -> Function:
    return stamina.retry(on=lambda error: not never(), attempts=LIMIT)(function)


@pytest.mark.parametrize("layer", [tenacity_by_a_function, backoff_by_a_function, stamina_by_a_function])
def test_a_function_of_the_program_that_decides_about_retries_counts_as_a_yes(layer) -> None:
    """mulligan does not call it: only the library does, which passes on what it raises."""
    calls: list[int] = []
    with sandbox(attempts=LIMIT):
        error = call_until_it_fails(layer(BY_TOOL_OR_MODEL["tool"](failing(False, calls))))

    assert isinstance(error, AssertionError)
    assert len(calls) == 1


def test_an_exception_that_the_program_catches_below_a_library_is_left_to_that_library() -> None:
    calls: list[int] = []
    fetch = BY_TOOL_OR_MODEL["tool"](failing(False, calls))

    @tenacity_reraising
    def agent() -> str:
        try:
            return str(fetch())
        except ConnectionError as error:
            return "\n".join(error.__notes__)

    with sandbox(attempts=LIMIT):
        assert "tenacity retries this call, so mulligan does not" in agent()

    assert len(calls) == 1


def test_a_loop_that_has_ended_before_the_call_is_no_layer() -> None:
    calls: list[int] = []
    for attempt in tenacity.Retrying(stop=tenacity.stop_after_attempt(LIMIT)):
        with attempt:
            pass
    with sandbox(attempts=LIMIT), pytest.raises(ConnectionError):
        mulligan.tool(effects="none")(failing(False, calls))()

    assert attempt.retry_state.attempt_number == 1
    assert len(calls) == LIMIT


def test_retries_that_failed_before_the_call_are_no_layer() -> None:
    calls: list[int] = []
    fetch = mulligan.tool(effects="none")(failing(False, calls))
    with sandbox(attempts=LIMIT):
        try:
            tenacity_decorator(failing(False, []))()
        except tenacity.RetryError:
            with pytest.raises(ConnectionError) as caught:
                fetch()  # in the handler: the first error is the context of the second

    assert isinstance(caught.value.__context__, tenacity.RetryError)
    assert len(calls) == LIMIT


def test_an_exception_object_that_went_through_a_library_before_is_no_layer() -> None:
    error = ConnectionError("the same object each time")
    calls: list[int] = []
    call_until_it_fails(tenacity_reraising(failing(False, [], lambda: error)))
    with sandbox(attempts=LIMIT):
        call_until_it_fails(mulligan.tool(effects="none")(failing(False, calls, lambda: error)))

    assert len(calls) == LIMIT


def test_an_exception_object_of_an_earlier_call_in_the_same_task_is_no_layer() -> None:
    error = ConnectionError("the same object each time")
    calls: list[int] = []
    fetch = mulligan.tool(effects="none")(failing(True, calls, lambda: error))

    async def work() -> None:
        with pytest.raises(ConnectionError):
            await tenacity_reraising(fetch)()
        calls.clear()
        await fetch()

    with sandbox(attempts=LIMIT, down_after=0):
        call_until_it_fails(work)

    assert len(calls) == LIMIT


@pytest.mark.parametrize("name", ["fetch", "observed"])
def test_a_call_that_answers_a_model_is_retried_under_a_library(name) -> None:
    """The model gets the failure, so the library has nothing to retry."""
    calls: list[int] = []

    @mulligan.tool(effects="none")
    def fetch() -> str:
        calls.append(1)
        raise ConnectionError

    @mulligan.tool(mode="observe")
    def observed() -> str:
        return fetch()

    @tenacity.retry(stop=tenacity.stop_after_attempt(LIMIT))
    def work() -> Any:
        turn = next(iter(mulligan.turns(limit=1)))
        return turn.call([fetch, observed], name)

    with sandbox(attempts=LIMIT):
        assert work().failure.kind == "tool/connection_error"

    assert len(calls) == LIMIT


# Results that are failures

DOWN = {"error": "503 Service Unavailable"}


def tenacity_by_result(function: Function) -> Function:
    return tenacity.retry(
        stop=tenacity.stop_after_attempt(LIMIT),
        retry=tenacity.retry_if_result(lambda result: result == DOWN),
        retry_error_callback=lambda state: state.outcome and state.outcome.result(),
    )(function)


def backoff_by_failed_result(function: Function) -> Function:
    decorate = backoff.on_predicate(
        backoff.constant, lambda result: result == DOWN, max_tries=LIMIT, interval=0, jitter=None
    )
    return decorate(function)  # type: ignore[no-any-return]


@pytest.mark.parametrize("position", [above, below])
@pytest.mark.parametrize("layer", [tenacity_by_result, backoff_by_failed_result])
def test_a_result_that_is_a_failure_is_retried_by_one_layer(layer, position) -> None:
    calls: list[int] = []

    def fetch() -> Any:
        calls.append(1)
        return DOWN

    with sandbox(attempts=LIMIT):
        assert position(layer, BY_TOOL_OR_MODEL["tool"], fetch)() == DOWN

    assert len(calls) == LIMIT


@pytest.mark.parametrize("layer", [tenacity_by_result, backoff_by_failed_result])
def test_a_result_that_reaches_a_library_through_a_function_is_left_to_it(layer) -> None:
    calls: list[int] = []

    def fetch() -> Any:
        calls.append(1)
        return DOWN

    with sandbox(attempts=LIMIT):
        assert above_through_a_function(layer, BY_TOOL_OR_MODEL["tool"], fetch)() == DOWN

    assert len(calls) == LIMIT


# What no library can do


def test_a_rejected_call_under_a_library_is_repaired_at_once() -> None:
    calls: list[int] = []

    @tenacity_reraising
    def find() -> int:
        return search(top_k=50)

    @mulligan.tool(clamp=["top_k"])
    def search(top_k: int) -> int:
        calls.append(top_k)
        if top_k > 10:
            raise mulligan.AgentError(f"top_k must be 10 or less, got {top_k}.")
        return top_k

    with sandbox(attempts=LIMIT):
        assert find() == 10

    assert calls == [50, 10]


def test_a_rejected_call_is_repaired_above_a_library_that_does_not_retry_it() -> None:
    calls: list[int] = []

    @mulligan.tool(clamp=["top_k"])
    @stamina.retry(on=ConnectionError, attempts=LIMIT)
    def search(top_k: int) -> int:
        calls.append(top_k)
        if top_k > 10:
            raise mulligan.AgentError(f"top_k must be 10 or less, got {top_k}.")
        return top_k

    with sandbox(attempts=LIMIT):
        assert search(50) == 10

    assert calls == [50, 10]


def test_a_fallback_model_answers_after_the_last_attempt_of_a_library() -> None:
    calls: list[str] = []

    def ask(prompt: str, model: str = "large") -> str:
        calls.append(model)
        if model == "large":
            raise ConnectionError
        return "Rain."

    with sandbox(attempts=LIMIT, down_after=0):
        assert tenacity_decorator_of(mulligan.model(fallback_models=["small"])(ask))("Weather?") == "Rain."
        assert calls == ["large", "large", "large", "small"]
        calls.clear()
        assert mulligan.model(fallback_models=["small"])(tenacity_decorator_of(ask))("Weather?") == "Rain."
        assert calls == ["large", "large", "large", "small"]
        calls.clear()
        assert tenacity_decorator_of(mulligan.model(fallback=lambda failure: "Sorry.")(ask))("Weather?") == "Sorry."
        assert calls == ["large", "large", "large"]


def tenacity_decorator_of(function: Callable[..., str]) -> Callable[..., str]:
    return tenacity.retry(stop=tenacity.stop_after_attempt(LIMIT))(function)


# Who retries is said


@pytest.mark.parametrize(
    ("layer", "position", "reason"),
    [
        (tenacity_reraising, above, "tenacity retries this call, so mulligan does not"),
        (tenacity_loop, above, "tenacity retries this call, so mulligan does not"),
        (stamina_decorator, above, "stamina retries this call, so mulligan does not"),
        (backoff_decorator, above, "backoff retries this call, so mulligan does not"),
        (tenacity_decorator, below, "tenacity inside this call made 3 attempts, so mulligan makes no more"),
        (tenacity_reraising, below, "tenacity inside this call made 3 attempts, so mulligan makes no more"),
        (stamina_loop, inside, "stamina inside this call made 3 attempts, so mulligan makes no more"),
        (backoff_decorator, below, "backoff inside this call made 3 attempts, so mulligan makes no more"),
    ],
)
def test_the_log_and_the_record_say_which_layer_retries(layer, position, reason, caplog) -> None:
    fetch = position(layer, mulligan.tool(name="fetch", effects="none"), failing(False, []))
    with sandbox(attempts=LIMIT, down_after=0) as played, caplog.at_level(logging.WARNING, "mulligan"):
        call_until_it_fails(fetch)
        call_until_it_fails(fetch)

    assert {step.stop and step.stop.reason for step in played.steps} == {reason}
    assert [record.message for record in caplog.records if record.name.startswith("mulligan.")] == [
        f"fetch: {reason}. To let mulligan retry, turn those retries off. This message appears once per tool."
    ]


def test_the_exception_says_which_layer_retries() -> None:
    with sandbox(attempts=LIMIT):
        error = call_until_it_fails(below(backoff_decorator, mulligan.tool(effects="none"), failing(False, [])))

    assert "Not retried: backoff inside this call made 3 attempts, so mulligan makes no more." in error.__notes__[0]


def test_a_search_for_layers_that_fails_costs_nothing(monkeypatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr("mulligan.capture.retry_layers.find_layer_below", lambda error: 1 / 0)
    with sandbox(attempts=LIMIT):
        call_until_it_fails(mulligan.tool(effects="none")(failing(False, calls)))

    assert len(calls) == LIMIT


# Layers of frameworks


def test_a_layer_that_an_adapter_notes_on_an_exception_is_the_one_that_retries() -> None:
    calls = []

    @mulligan.tool(effects="none")
    def fetch() -> str:
        calls.append(1)
        error = ConnectionError("connection reset")
        set_layer(error, RetryLayer("a middleware", LIMIT))
        raise error

    with sandbox(attempts=LIMIT), pytest.raises(ConnectionError) as raised:
        fetch()
    assert len(calls) == 1
    assert "a middleware inside this call made 3 attempts" in "".join(raised.value.__notes__)
