"""Run an agent loop: failures return to the model as answers. From the third run on, they name the known fix."""

import re
from typing import Any

import mulligan


@mulligan.tool(effects="none")
def forecast(city: str, days: int) -> str:
    if days > 7:
        raise ValueError("This range is not available.")
    return f"{days} days of rain in {city}"


def model(city: str, answers: list[Any]) -> dict[str, Any]:
    """Fake LLM: requests too many days, then follows a suggestion or guesses."""
    if not answers:
        return {"city": city, "days": 30}
    suggestion = re.search(r"days=(\d+)", " ".join(answers[-1].get("suggestions", [])))
    return {"city": city, "days": int(suggestion[1]) if suggestion else 30 - 8 * len(answers)}


for city in ("Oslo", "Bergen", "Trondheim"):
    answers: list[Any] = []
    with mulligan.run("planner", context=f"plan the week in {city}") as run:
        for turn in mulligan.turns(limit=10):
            arguments = model(city, answers)
            answer = turn.call([forecast], "forecast", arguments)
            print(f"turn {turn.number}: {arguments} -> {answer}")
            if isinstance(answer, str):
                break
            answers.append(answer)
    print(f"{city}: {turn.number} turns, run {run.id} is {run.status}")
    mulligan.flush()
