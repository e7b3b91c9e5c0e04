"""Tools that really fail, over HTTP and in processes: what is made again, what is not, and what the model hears."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from typing import Any

import pytest

import mulligan
from mulligan.testing import Sandbox, ScriptedModel, call

HTML = b"<html><body>502 Bad Gateway</body></html>"


def fetch(address: str, path: str, data: bytes | None = None, timeout: float = 5.0) -> Any:
    try:
        with urllib.request.urlopen(f"{address}/{path}", data=data, timeout=timeout) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as error:
        error.add_note(error.read().decode())
        error.close()
        raise


def reader(service: Any, **options: Any) -> Any:
    return mulligan.tool(name="read", effects="none", **options)(lambda path: fetch(service.address, path))


@pytest.mark.parametrize(
    ("first", "kind", "waits"),
    [
        ((429, {"Retry-After": "3"}, b"{}"), "tool/rate_limit", [3.0]),
        ((503, {}, b"down for maintenance"), "tool/unavailable", [0.5]),
        (
            (200, {"Content-Type": "text/html"}, HTML),
            "tool/invalid_response",
            [0.5],
        ),
    ],
)
def test_what_passes_is_waited_for(played: Sandbox, service: Any, first: Any, kind: str, waits: list[float]) -> None:
    service.answers = lambda path, _: first if len(service.asked) == 1 else (200, {}, b'"rain"')
    assert reader(service)("oslo") == "rain"
    assert played.steps[0].failure is not None
    assert played.steps[0].failure.kind == kind
    assert played.backoffs == waits
    assert [each.outcome_label for each in played.calls] == ["recovered by retry"]


def test_a_page_that_a_tool_answers_with_as_text_is_passed_on(played: Sandbox, service: Any) -> None:
    """Nobody said that it should be JSON: to read pages may be what the tool is for."""
    service.answers = lambda path, _: (200, {"Content-Type": "text/html"}, HTML)

    @mulligan.tool(effects="none")
    def page(path: str) -> str:
        with urllib.request.urlopen(f"{service.address}/{path}", timeout=5.0) as reply:
            return str(reply.read().decode())

    assert page("oslo") == HTML.decode()
    assert [each.outcome_label for each in played.calls] == ["first attempt"]


def test_a_connection_that_is_reset_is_made_again_for_a_tool_without_effects_only(played: Sandbox) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    accepted: list[int] = []

    def resets() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            accepted.append(1)
            connection.recv(1000)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            connection.close()

    threading.Thread(target=resets, daemon=True).start()

    def get() -> bytes:
        with socket.create_connection(listening.getsockname()) as asking:
            asking.sendall(b"GET / HTTP/1.1\r\n\r\n")
            return asking.recv(1000)

    with pytest.raises(ConnectionResetError):
        mulligan.tool(name="pay")(get)()
    assert len(accepted) == 1
    with pytest.raises(ConnectionResetError):
        mulligan.tool(name="get", effects="none", policy=mulligan.Policy(attempts=3))(get)()
    assert len(accepted) == 1 + 3
    listening.close()


def test_a_payment_whose_answer_is_lost_is_not_made_twice(played: Sandbox, service: Any) -> None:
    release = threading.Event()
    service.answers = lambda path, _: (release.wait(60), (200, {}, b"{}"))[1]

    @mulligan.tool
    def pay(invoice: str) -> Any:
        with contextlib.closing(http.client.HTTPConnection(service.address.partition("//")[2], timeout=0.2)) as asking:
            asking.request("POST", f"/{invoice}", b"")
            return asking.getresponse().status

    model = ScriptedModel(call("pay", invoice="INV-1"), "I do not know whether it was paid.")
    done = mulligan.loop(model, [pay], "Pay INV-1.")
    release.set()
    assert service.heard(1) == ["/INV-1"]  # one side effect
    told = json.loads(model.requests[1][-1]["content"])
    assert told["outcome"].startswith("unknown: the call may have executed")
    assert "checked whether it took effect" in told["hint"]  # a smaller payment would be a second one
    assert done.status == "partial"
    assert done.cause is not None
    assert done.cause.kind == "tool/timeout"


def test_a_status_that_proves_that_nothing_was_done_is_repaired(played: Sandbox, service: Any) -> None:
    def answers(path: str, _: Any) -> Any:
        days = int(path.rpartition("=")[2])
        if days > 7:
            return 422, {}, b'{"detail": "days must be 7 or less"}'
        return 200, {}, b'"booked"'

    service.answers = answers

    def book(days: int) -> Any:
        return fetch(service.address, f"book?days={days}", data=b"")

    with pytest.raises(urllib.error.HTTPError):
        mulligan.tool(name="strict", clamp=("days",))(book)(9)
    assert len(service.asked) == 1
    assert played.steps[0].stop is not None
    reason = 'the tool has effects="once", and nothing proves that the call did not execute (raise AgentError before'
    assert played.steps[0].stop.reason.startswith(reason)
    assert mulligan.tool(name="lenient", rejection_statuses={422}, clamp=("days",))(book)(9) == "booked"
    assert [path.rpartition("=")[2] for path in service.asked] == ["9", "9", "7"]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("chunk_size must be 4096 or less, got 9000", "raise AgentError before it does anything"),
        ("chunk_size is too large", "no repair found for the arguments"),  # another declaration would not help
    ],
)
def test_plain_exception_of_a_tool_with_side_effects_says_what_would_allow_a_repair(
    played: Sandbox, message: str, reason: str
) -> None:
    @mulligan.tool(clamp=["chunk_size"])
    def upload(chunk_size: int) -> str:
        raise ValueError(message)

    with pytest.raises(ValueError, match="chunk_size") as raised:
        upload(9000)
    stop = played.steps[0].stop
    assert stop is not None
    assert reason in stop.reason
    assert reason in raised.value.__notes__[0]


@pytest.mark.parametrize("error", [ValueError, mulligan.AgentError])
@pytest.mark.parametrize("schema", [None, {"type": "object", "properties": {"amount": {"maximum": 500}}}])
def test_repair_that_would_change_a_privileged_argument_is_named_as_the_stop_reason(
    played: Sandbox, error: Any, schema: Any
) -> None:
    @mulligan.tool(effects="none", schema=schema)
    def charge(amount: int) -> str:
        raise error("amount must be at most 500")

    with pytest.raises((ValueError, mulligan.AgentError)):
        charge(900)
    assert played.steps[0].stop is not None
    assert played.steps[0].stop.reason == "amount is a privileged argument"


def test_an_async_service_that_hangs_is_cut_off(played: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes the connection, and says nothing

        @mulligan.tool(timeout=0.2)
        async def ask() -> bytes:
            reading, writing = await asyncio.open_connection(*silent.getsockname())
            try:
                writing.write(b"hello\n")
                return await reading.readline()
            finally:
                writing.close()
                await writing.wait_closed()

        with pytest.raises(TimeoutError, match=r"ask did not answer in 0\.2 s"):
            asyncio.run(ask())


def test_a_program_that_ends_badly_is_told_with_what_it_said(played: Sandbox) -> None:
    def run(code: str) -> Any:
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    model = ScriptedModel(call("run", code="raise SystemExit('no such table')"), "It failed.")
    done = mulligan.loop(model, [run], "Run it.")
    assert "no such table" in model.requests[1][-1]["content"]
    assert done.status == "partial"
    assert len([step for step in played.steps if step.type == "tool"]) == 1


def test_an_error_in_the_clothes_of_a_success_is_asked_again(played: Sandbox, service: Any) -> None:
    service.answers = lambda path, _: (
        (200, {}, b'{"error": "service temporarily unavailable, try again later"}')
        if len(service.asked) == 1
        else (200, {}, b'{"weather": "rain"}')
    )
    assert reader(service, category="action")("oslo") == {"weather": "rain"}
    assert [step.outcome for step in played.steps] == ["failure", "success"]
    service.asked.clear()
    assert "error" in reader(service)("oslo")  # the content of what was read
    assert [step.suspected is not None for step in played.steps] == [False, False, True]


def test_a_run_in_which_the_model_fixed_its_own_call_is_recovered(played: Sandbox) -> None:
    def forecast(city: str, days: int) -> str:
        if days > 7:
            raise ValueError("This range is not supported.")
        return "rain"

    model = ScriptedModel(call("forecast", city="Oslo", days=30), call("forecast", city="Oslo", days=7), "Rain.")
    done = mulligan.loop(model, [forecast], "What is the weather?")
    assert done.status == "recovered"
    assert [history.links[0].method for history in played.runs] == ["agent"]
