"""An agent loop: failures come back to the model as answers, with what worked before. Run it twice."""

import re
from typing import Any

import mulligan


@mulligan.tool(effects="none")
def forecast(city: str, days: int) -> str:
    if days > 7:
        raise ValueError("This range is not available.")
    return f"{days} days of rain in {city}"


def model(answers: list[Any]) -> dict[str, Any]:
    """Stands in for an LLM: it asks for too much, then follows a suggestion, or guesses."""
    if not answers:
        return {"city": "Oslo", "days": 30}
    told = re.search(r"days=(\d+)", " ".join(answers[-1].get("suggestions", [])))
    return {"city": "Oslo", "days": int(told[1]) if told else 30 - 8 * len(answers)}


answers: list[Any] = []
with mulligan.run("planner", context="plan the week in Oslo") as run:
    for turn in mulligan.turns(limit=10):
        wanted = model(answers)
        answer = turn.call([forecast], "forecast", wanted)
        print(f"turn {turn.number}: {wanted} -> {answer}")
        if isinstance(answer, str):
            break
        answers.append(answer)

print(f"{turn.number} turns, run {run.id} is {run.status}")
