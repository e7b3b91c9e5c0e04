"""Tokens and costs: what model calls cost, what recovery cost, and what it saved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mulligan
from mulligan.contract.counters import StatsQuery
from mulligan.contract.store import DEFAULT_TENANT
from mulligan.store.urls import open_store
from mulligan.testing import Sandbox, sandbox

PRICES = {"small-1": {"input": 1.0, "output": 2.0, "cached_input": 0.25}}
PROGRAM = """
import mulligan


@mulligan.model
def ask(messages, model="small-1"):
    if model == "small-1" and not asked:
        asked.append(1)
        raise ConnectionError("overloaded")
    return {"text": "call it", "usage": {"prompt_tokens": 1000, "completion_tokens": 100}}


@mulligan.tool(clamp=["top_k"])
def search(query: str, top_k: int = 5) -> list:
    if top_k > 10:
        raise mulligan.AgentError(f"top_k must be 10 or less, got {top_k}.")
    return ["found"]


asked = []
with mulligan.run("support-agent"):
    ask([{"role": "user", "content": "find it"}])
    search("refunds", top_k=50)
    ask([{"role": "user", "content": "find it"}], model="unknown-model")
"""


def test_costs_of_a_program_are_in_stats_and_in_the_run(user: Any) -> None:
    (user.folder / "mulligan.toml").write_text("[prices.small-1]\ninput = 1.0\noutput = 2.0\ncached_input = 0.25\n")
    user.runs_program(PROGRAM)
    total = user.sees("stats")["total"]
    assert total["tokens"] == 2200
    assert total["cost_usd"] == pytest.approx(0.0012)
    assert total["recovery_tokens"] == 1100
    assert total["recovery_cost_usd"] == pytest.approx(0.0012)
    assert total["unpriced_attempts"] == 1
    assert (total["avoided_turns"], total["avoided_tokens"]) == (1, 1000)
    assert total["avoided_cost_usd"] == pytest.approx(0.00025)

    by_model = {part["model"]: part for part in user.sees("stats", "--by", "model")["parts"]}
    assert by_model["small-1"]["cost_usd"] == pytest.approx(0.0012)
    assert by_model["unknown-model"]["cost_usd"] is None
    assert user.sees("stats", "--by", "time")["parts"][0]["cost_usd"] == pytest.approx(0.0012)

    page = user.types("stats").stdout
    assert "cost of model calls  $0.0012, unknown for 1 of 2 attempts (2,200 tokens)" in page
    assert "1,100 of 2,200 tokens, $0.0012" in page
    assert "cost avoided         1 model turn, 1,000 input tokens, at least $0.00025" in page
    table = user.types("stats", "--by", "model").stdout
    assert "unknown" in next(line for line in table.splitlines() if "unknown-model" in line).split("unknown-model")[1]

    (run,) = user.sees("runs")
    assert (run["tokens"], run["recovery_tokens"], run["unpriced_attempts"]) == (2200, 1100, 1)
    assert (run["cost_usd"], run["avoided_cost_usd"]) == (pytest.approx(0.0012), pytest.approx(0.00025))

    shown = user.types("show", "last").stdout
    assert "cost              $0.0012, unknown for 1 of 2 attempts" in shown
    assert "cost avoided      1 model turn, 1,000 input tokens, at least $0.00025" in shown


def test_a_later_price_does_not_change_the_costs_of_earlier_calls(user: Any) -> None:
    settings = user.folder / "mulligan.toml"
    settings.write_text("[prices.small-1]\ninput = 1.0\noutput = 2.0\n")
    user.runs_program(PROGRAM)
    settings.write_text("[prices.small-1]\ninput = 1000.0\noutput = 2000.0\n")
    assert user.sees("stats")["total"]["cost_usd"] == pytest.approx(0.0012)


def test_a_wrong_price_is_refused_with_its_model(user: Any) -> None:
    (user.folder / "mulligan.toml").write_text("[prices.small-1]\ninput = 1.0\n")
    result = user.runs_program("import mulligan\nmulligan.configure()\n")
    assert result.returncode != 0
    assert 'Invalid prices."small-1"' in result.stderr


def answer(input_tokens: int = 1000) -> dict[str, Any]:
    return {"text": "hello", "usage": {"prompt_tokens": input_tokens, "completion_tokens": 100}}


@pytest.fixture
def played() -> Any:
    with sandbox(prices=PRICES) as played:
        yield played


def avoided(played: Sandbox) -> list[int]:
    return [step.avoided.input_tokens for step in played.steps if step.avoided is not None]


def test_calls_of_one_turn_avoid_one_turn_at_most(played: Sandbox) -> None:
    ask = mulligan.model(lambda messages, model="small-1": answer(), name="ask")

    @mulligan.tool(effects="none", clamp=["top_k"])
    def search(top_k: int) -> str:
        if top_k > 10:
            raise mulligan.AgentError(f"top_k must be 10 or less, got {top_k}.")
        return "found"

    with mulligan.run("agent"):
        search(11)
        ask(["hello"])
        search(12)
        search(13)
        search(1)
        ask(["hello"])
        search(14)
    assert avoided(played) == [1000, 1000]


def test_nothing_is_avoided_if_the_model_is_asked_again_anyway(played: Sandbox) -> None:
    ask = mulligan.model(lambda messages, model="small-1": answer(), name="ask")
    fails = [True]

    @mulligan.tool(effects="none")
    def read(path: str) -> str:
        fails[0] = not fails[0]
        if path == "missing":
            raise FileNotFoundError(path)
        if not fails[0]:
            raise ConnectionError("reset")
        return "text"

    with mulligan.run("agent"):
        ask(["hello"])
        with pytest.raises(FileNotFoundError):
            read("missing")
        fails[0] = True
        read("a")
    assert avoided(played) == []


def test_a_model_call_that_recovers_avoids_no_turn(played: Sandbox) -> None:
    calls = []

    @mulligan.model
    def ask(messages: list[str], model: str = "small-1") -> dict[str, Any]:
        calls.append(1)
        if len(calls) == 2:
            raise ConnectionError("reset")
        return answer()

    with mulligan.run("agent"):
        ask(["hello"])
        ask(["hello"])
    assert avoided(played) == []


def test_a_stream_has_the_tokens_that_it_reports(played: Sandbox) -> None:
    @mulligan.model
    def ask(messages: list[str], model: str = "small-1") -> Any:
        yield {"choices": [{"delta": {"content": "hello"}}]}
        yield {"choices": [], "usage": {"prompt_tokens": 1000, "completion_tokens": 100}}

    list(ask(["hello"]))
    (step,) = played.steps
    assert step.tokens == {"input": 1000, "output": 100}
    assert step.cost_nanos == 1_200_000


def test_an_answer_names_the_model_that_a_call_does_not(played: Sandbox) -> None:
    ask = mulligan.model(lambda messages: {**answer(), "model": "small-1"}, name="ask")
    ask(["hello"])
    (step,) = played.steps
    assert step.model == "small-1"
    assert step.cost_nanos == 1_200_000


@pytest.mark.parametrize("answered_by", ["small-1", None])
def test_a_fallback_is_priced_as_the_model_that_answered(played: Sandbox, answered_by: str | None) -> None:
    def other(messages: list[str], model: str) -> dict[str, Any]:
        return {**answer(), "model": answered_by}

    @mulligan.model(fallback_models=[other])
    def ask(messages: list[str], model: str = "gpt-4o") -> dict[str, Any]:
        raise ValueError("Error code: 404 - The model `gpt-4o` does not exist (model_not_found)")

    ask(["hello"], model="gpt-4o")
    step = played.steps[-1]
    assert step.tokens == {"input": 1000, "output": 100}
    assert step.cost_nanos == (1_200_000 if answered_by else None)


def test_a_fallback_answer_does_not_repeat_the_tokens_of_the_failed_attempt(played: Sandbox) -> None:
    @mulligan.model(fallback=lambda failure: "sorry")
    def ask(messages: list[str], model: str = "small-1") -> dict[str, Any]:
        message = {"role": "assistant", "content": ""}
        return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": answer()["usage"]}

    assert ask(["hello"]) == "sorry"
    assert played.steps[-1].tokens is None
    assert all(step.tokens for step in played.steps[:-1])


def test_models_keep_their_name_and_their_cost_in_a_shared_store() -> None:
    with sandbox(prices=PRICES, level="shared") as played:
        ask = mulligan.model(lambda messages, model="small-1": answer(), name="ask")
        ask(["hello"])
        (step,) = played.steps
        assert step.model == "small-1"
        assert step.cost_nanos == 1_200_000


def test_a_call_recorded_by_its_shape_has_the_name_and_the_cost_of_its_model(played: Sandbox) -> None:
    ask = mulligan.model(lambda messages, model: answer(), name="ask", record="shape")
    ask(["hello"], model="small-1")
    (step,) = played.steps
    assert (step.model, step.cost_nanos) == ("small-1", 1_200_000)
    assert "hello" not in repr(step)


# Costs of recovery


def recovery_costs(played: Sandbox) -> list[tuple[str, int | None]]:
    """The attempts that count as cost of recovery, by name and cost."""
    return [(step.name, step.cost_nanos) for step in played.steps if step.serves_recovery and step.tokens]


@pytest.mark.parametrize("wraps", [mulligan.tool(effects="none"), mulligan.model], ids=["tool", "model"])
def test_what_a_later_attempt_pays_to_a_model_is_a_cost_of_recovery(played: Sandbox, wraps: Any) -> None:
    ask = mulligan.model(lambda messages, model="small-1": answer(), name="ask")
    attempts = []

    @wraps
    def research(messages: list[str]) -> str:
        attempts.append(ask(messages))
        if len(attempts) == 1:
            raise ConnectionError("reset")
        return "found"

    with mulligan.run("agent"):
        assert research(["hello"]) == "found"
        ask(["thanks"])

    assert recovery_costs(played) == [("ask", 1_200_000)]


SUMMARIZING_PROGRAM = """
import mulligan


class TooLongError(Exception):
    status_code = 400
    code = "context_length_exceeded"


TooLongError.__module__ = "openai"


@mulligan.model(compress="model")
def chat(messages, model="small-1"):
    if len(str(messages)) > 30_000:
        raise TooLongError("The maximum context length is 5000 tokens. Your messages resulted in 13000 tokens.")
    message = {"role": "assistant", "content": "short"}
    usage = {"prompt_tokens": 1000, "completion_tokens": 100}
    return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}


messages = [{"role": "user", "content": "Read them."}]
for number in range(6):
    call = {"id": f"c{number}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
    messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": f"page {number} " * 1200})
with mulligan.run("reader"):
    chat([*messages, {"role": "user", "content": "Sum it up."}])
    chat([{"role": "user", "content": "Thanks."}])
"""


def test_summaries_by_the_model_are_a_cost_of_recovery_in_stats_and_show(user: Any) -> None:
    (user.folder / "mulligan.toml").write_text("[prices.small-1]\ninput = 1.0\noutput = 2.0\n")
    assert user.runs_program(SUMMARIZING_PROGRAM).returncode == 0
    (run,) = user.sees("runs")
    steps = user.sees("show", run["id"])["steps"]
    summaries = [step for step in steps if step["name"] == "chat summary"]
    assert summaries
    attempts = len(summaries) + 1  # and the compressed conversation
    for total in (user.sees("stats")["total"], user.sees("stats", "--by", "model")["parts"][0]):
        assert total["recovery_tokens"] == attempts * 1100
        assert total["recovery_cost_usd"] == pytest.approx(attempts * 0.0012)
        assert total["cost_usd"] == pytest.approx((attempts + 1) * 0.0012)
    assert f"${attempts * 0.0012:.4f}" in user.types("show", "last").stdout


def test_a_fallback_function_is_the_model_of_the_avoided_turn(played: Sandbox) -> None:
    def other(messages: list[str], model: str) -> dict[str, Any]:
        return {**answer(), "model": "small-1"}

    @mulligan.model(fallback_models=[other])
    def ask(messages: list[str], model: str) -> dict[str, Any]:
        raise ValueError("Error code: 404 - The model `large-1` does not exist (model_not_found)")

    @mulligan.tool(effects="none", clamp=["top_k"])
    def search(top_k: int) -> str:
        if top_k > 10:
            raise mulligan.AgentError(f"top_k must be 10 or less, got {top_k}.")
        return "found"

    with mulligan.run("agent"):
        ask(["hello"], model="large-1")
        search(50)
    assert [step.avoided.model for step in played.steps if step.avoided is not None] == ["small-1"]


# Conversations and costs in every store


@pytest.fixture(params=["sqlite", "remote", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The URL of a store, and the token for it."""
    if request.param == "remote":
        from servers import served

        from mulligan.server.access import AccessRules

        with served(tmp_path, AccessRules(is_local=False)) as running:
            _, token = running.server.tokens.create("admin", 0, tenant=DEFAULT_TENANT)
            running.server.tokens.refresh()
            yield f"http://127.0.0.1:{running.port}", token
    elif request.param == "postgres":
        import postgres

        postgres.had()
        yield postgres.emptied(), ""
    else:
        yield str(tmp_path / "mulligan.db"), ""


def test_a_store_has_the_conversation_and_the_cost_of_a_call(store: tuple[str, str], tmp_path: Path) -> None:
    url, token = store
    program = mulligan.Mulligan(store=url, token=token, home=str(tmp_path / "home"), prices=PRICES)
    failures = [ConnectionError("overloaded")]

    @program.model(record="full")
    def ask(messages: list[Any], model: str) -> dict[str, Any]:
        if failures:
            raise failures.pop()
        message = {"role": "assistant", "content": "On Friday."}
        return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": answer()["usage"]}

    with program.run("support") as run:
        ask([{"role": "user", "content": "When does it arrive?"}], model="small-1")
    assert program.flush(30)

    opened = open_store(url, token=token, spool=tmp_path)
    history = opened.run(DEFAULT_TENANT, run.id)
    total = opened.stats(DEFAULT_TENANT, StatsQuery(now=history.run.started_at + 1000)).total
    opened.close()
    program.close()
    failed, answered = history.steps
    assert [part.text for message in history.messages for part in message.parts] == [
        "When does it arrive?",
        "On Friday.",
    ]
    assert (failed.messages, failed.answer, failed.cost_nanos) == (((1, 1),), None, None)
    assert (answered.messages, answered.answer) == (((1, 1),), 2)
    assert (answered.model, answered.tokens, answered.cost_nanos) == (
        "small-1",
        {"input": 1000, "output": 100},
        1_200_000,
    )
    assert (total.cost_nanos, total.recovery_cost_nanos, total.recovery_tokens) == (1_200_000, 1_200_000, 1100)
