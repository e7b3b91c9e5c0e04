"""One turn of an agent, the same for every SDK: a tool that succeeds, one that fails, and a model that is limited once.

The SDK under test instruments the client and wraps the functions. Addresses and the session come from the environment.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import openai

MODEL = os.environ["TURN_MODEL"]
PROVIDER_URL = os.environ["TURN_PROVIDER_URL"]
SESSION = os.environ["TURN_SESSION"]
AGENT = "planner"


def build_client(client_class: Callable[..., Any] = openai.OpenAI) -> Any:
    return client_class(base_url=f"{PROVIDER_URL}/v1", api_key="not-a-key", max_retries=0)


def weather(city: str) -> str:
    return f"Rain in {city}."


def book(flight: str) -> str:
    raise TimeoutError(f"The booking of {flight} timed out after 30 s.")


def ask_model(client: Any) -> None:
    client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Plan a trip to Bergen."}])


def play_turn(client: Any, weather: Callable[..., str], book: Callable[..., str]) -> None:
    ask_model(client)
    weather(city="Bergen")
    with contextlib.suppress(TimeoutError):
        book(flight="SK4035")
    try:
        ask_model(client)
    except openai.RateLimitError:
        pass
    else:
        raise AssertionError("The provider did not limit the rate.")
    ask_model(client)
