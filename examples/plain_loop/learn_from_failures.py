"""Learn fixes from twelve runs of an agent that makes and corrects the same mistakes.

python examples/plain_loop/learn_from_failures.py
mulligan fixes
"""

from typing import Any

import mulligan
from mulligan import AgentError


class Car:
    """Car whose engine starts only while the brake is pressed."""

    def __init__(self) -> None:
        self.brake = 0.0

    def press_brake(self, level: float) -> str:
        self.brake = level
        return "pressed"

    def start(self, gear: str) -> str:
        if self.brake < 1.0:
            raise AgentError("The brake pedal must be pressed before the engine starts.", code="precondition")
        return "running"


def search(query: str, per_page: int = 10) -> str:
    if per_page > 25:
        raise AgentError(f"That is too much for one page, {query!r}.", code="too_many")
    return f"{per_page} answers to {query!r}"


def play(agent: str, tools: list[Any], *script: tuple[str, dict[str, Any]]) -> None:
    """Play a scripted model: one call per turn. A failed call returns as an answer."""
    with mulligan.run(agent):
        for turn, (name, arguments) in zip(mulligan.turns(limit=len(script)), script, strict=True):
            turn.call(tools, name, arguments)


for number in range(12):
    car = Car()
    tools = [mulligan.tool(effects="idempotent")(car.press_brake), car.start]
    start = "start", {"gear": f"gear {number}"}
    play("driver", tools, start, ("press_brake", {"level": 1.0}), start)
    query = f"shelf {number}"
    correction = 50 if number % 4 == 0 else 25
    play("librarian", [search], *(("search", {"query": query, "per_page": size}) for size in (100, correction)))

mulligan.flush()
print("Stored. Now run: mulligan fixes")
