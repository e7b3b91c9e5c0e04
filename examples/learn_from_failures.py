"""Twelve runs of an agent that makes the same mistakes, and what is learned from how they were overcome.

python examples/learn_from_failures.py
mulligan fixes
"""

import mulligan
from mulligan import AgentError


class Car:
    """Its engine starts while the brake is pressed."""

    def __init__(self) -> None:
        self.brake = 0.0

    def press_brake(self, level: float) -> str:
        self.brake = level
        return "pressed"

    def start(self, gear: str) -> str:
        if self.brake < 1.0:
            raise AgentError("The brake pedal must be pressed before the engine starts.", code="precondition")
        return "running"


@mulligan.tool(effects="none")
def search(query: str, per_page: int = 10) -> str:
    if per_page > 25:
        raise AgentError(f"That is too much for one page, {query!r}.", code="too_many")
    return f"{per_page} answers to {query!r}"


def attempt(call, *args, **kwargs):
    """As a model does: a failed call is not the end."""
    try:
        return call(*args, **kwargs)
    except AgentError as error:
        return f"failed: {error}"


for number in range(12):
    car = Car()
    press_brake = mulligan.tool(name="press_brake", effects="repeatable")(car.press_brake)
    start = mulligan.tool(name="start")(car.start)
    with mulligan.run("driver"):
        attempt(start, gear="park")
        press_brake(level=1.0)
        start(gear="park")
    with mulligan.run("librarian"):
        attempt(search, f"shelf {number}", per_page=100)
        attempt(search, f"shelf {number}", per_page=50 if number % 4 == 0 else 25)

mulligan.flush()
print("kept; now ask: mulligan fixes")
