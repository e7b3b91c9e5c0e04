"""Rehearsals, for users' tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mulligan
from mulligan import api
from mulligan.core.failure import SettingsError
from mulligan.testing import Sandbox, assert_sanitized, sandbox

script: list[Exception] = []


class RateLimited(Exception):
    status_code = 429
    headers = {"retry-after": "20"}  # noqa: RUF012 - as HTTP clients have it


@mulligan.tool(effects="none")
def weather(city: str) -> str:
    """Decorated when this module was imported, long before any rehearsal."""
    if script:
        raise script.pop(0)
    return f"rain in {city}"


@mulligan.tool(effects="none")
async def async_weather(city: str) -> str:
    return weather.__wrapped__(city)  # type: ignore[attr-defined,no-any-return]


@pytest.fixture(autouse=True)
def a_default_nobody_has_used(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(api.default, "_components", None)
    monkeypatch.setattr(api.default, "_is_off", False)
    script.clear()
    yield
    api.default.close()


def test_a_wait_is_recorded_and_takes_no_time() -> None:
    script.append(RateLimited())
    with sandbox() as played:
        assert weather("Oslo") == "rain in Oslo"
    assert played.backoffs == [20.0]


def test_an_async_wait_is_recorded_and_takes_no_time() -> None:
    script.append(RateLimited())
    with sandbox() as played:
        assert asyncio.run(async_weather("Oslo")) == "rain in Oslo"
    assert played.backoffs == [20.0]


def test_every_event_step_call_and_run_can_be_looked_at() -> None:
    script.append(RateLimited())
    with sandbox() as played, mulligan.run("agent"):
        weather("Oslo")
    assert [event.name for event in played.events] == [
        "run.started",
        "step.started",
        "step.ended",
        "recovery.planned",
        "step.started",
        "step.ended",
        "run.ended",
    ]
    assert [step.outcome for step in played.steps] == ["failure", "success"]
    assert [call.outcome_label for call in played.calls] == ["recovered by retry"]
    assert [history.run.agent for history in played.runs] == ["agent"]


def test_runs_can_be_looked_at_in_the_middle_and_come_in_order() -> None:
    with sandbox() as played:
        for n in range(3):
            with mulligan.run(f"agent-{n}"):
                weather("Oslo")
            assert [history.run.agent for history in played.runs] == [f"agent-{each}" for each in range(n + 1)]


def test_nothing_of_the_machine_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mulligan.toml").write_text("this is not toml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MULLIGAN", "off")
    monkeypatch.setenv("MULLIGAN_ATTEMPTS", "1")
    script.append(RateLimited())
    with sandbox() as played:
        assert weather("Oslo") == "rain in Oslo"
    assert len(played.steps) == 2


def test_settings_are_those_that_are_given() -> None:
    script.append(RateLimited())
    with sandbox(attempts=1, agent="mine") as played, pytest.raises(RateLimited):
        weather("Oslo")
    assert played.runs[0].run.agent == "mine"
    with pytest.raises(SettingsError):
        Sandbox(attmepts=1)


def test_being_off_can_be_rehearsed() -> None:
    with sandbox(enabled=False) as played:
        assert weather("Oslo") == "rain in Oslo"
    assert played.events == []


def test_the_default_is_as_it_was_afterwards_even_after_an_error() -> None:
    before = api.default._components, api.default._is_off
    with sandbox():
        weather("Oslo")
    assert (api.default._components, api.default._is_off) == before
    with pytest.raises(KeyError), sandbox():
        raise KeyError
    assert (api.default._components, api.default._is_off) == before


def test_rehearsals_can_be_nested_and_do_not_hear_each_other() -> None:
    with sandbox() as outer:
        weather("Oslo")
        with sandbox() as inner:
            weather("Rome")
        weather("Bonn")
    assert [step.arguments["city"] for step in outer.steps] == ["Oslo", "Bonn"]
    assert [step.arguments["city"] for step in inner.steps] == ["Rome"]


def test_a_rehearsal_has_a_mulligan_of_its_own() -> None:
    played = Sandbox()
    assert played.mulligan.tool(lambda: 1)() == 1
    assert len(played.steps) == 1
    assert api.default._components is None


def test_code_that_configures_itself_can_be_rehearsed() -> None:
    with sandbox() as played:
        mulligan.configure(store="/somewhere/in/production.db")
        weather("Oslo")
    assert len(played.runs) == 1
    mulligan.configure(store="memory:")  # and afterwards it is as if it had not been


@pytest.mark.parametrize("text", ["\x1b[31mred", "a\x00b", "\u202egnp.exe"])
def test_text_that_may_not_be_shown_to_a_model_is_named(text: Any) -> None:
    assert_sanitized("Ask for 10, then page with offset.")
    with pytest.raises(AssertionError, match="unsafe text"):
        assert_sanitized(text)
