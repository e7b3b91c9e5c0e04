"""Run an agent loop: failures return to the model as answers. From the third run on, they name the known fix."""

import re
from typing import Any

import mulligan


@mulligan.tool(effects="none")
def forecast(city: str, days: int) -> str:
    if days > 7:
        raise ValueError("This range is not supported.")
    return f"{days} days of rain in {city}"


def model(city: str, messages: list[str]) -> dict[str, Any]:
    """Fake LLM: requests too many days, then follows a suggestion or guesses."""
    if not messages:
        return {"city": city, "days": 30}
    suggestion = re.search(r"days=(\d+)", messages[-1])
    return {"city": city, "days": int(suggestion[1]) if suggestion else 30 - 8 * len(messages)}


for city in ("Oslo", "Bergen", "Trondheim"):
    messages: list[str] = []
    with mulligan.run("planner", context=f"plan the week in {city}") as run:
        for turn in mulligan.turns(limit=10):
            arguments = model(city, messages)
            outcome = turn.call([forecast], "forecast", arguments)
            messages.append(outcome.to_message())
            print(f"turn {turn.number}: {arguments} -> {messages[-1]}")
            if outcome.ok:
                break
    print(f"{city}: {turn.number} turns, run {run.id} is {run.status}")
    mulligan.flush()
