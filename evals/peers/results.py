"""What a play is judged by, and the tables."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from scripted_model import DONE
from service import EFFECTS, Goal, Service, complete, to_text
from worlds import World

Results = Mapping[str, Mapping[str, "Result"]]
"""By world and contender."""


@dataclass
class Result:
    """What one contender achieved in one world, summed over conversations and seeds."""

    tasks: int = 0
    done: int = 0
    """Tasks whose effects took place once, with the right arguments, and whose last text says so."""
    repeated: int = 0
    """Executions of a tool that must not run twice, beyond those that the task needs."""
    wrong: int = 0
    """Effects with arguments that are not right, and tasks reported as done that are not."""
    turns: int = 0
    tokens: int = 0
    requests: int = 0
    waited: float = 0.0
    texts: list[str | None] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __add__(self, added: Result) -> Result:
        return Result(*(getattr(self, name) + getattr(added, name) for name in Result.__dataclass_fields__))

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "waited": round(self.waited, 1)}

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """The order in which a user would choose: no harm, the task done, few turns, little waiting (whole seconds)."""
        return self.repeated + self.wrong, -self.done, self.turns, round(self.waited)


def judge(world: World, result: Result, service: Service) -> None:
    """Count what is done, repeated and wrong after the conversations of a world."""
    executed = Counter(service.executions)
    needed = count_needed(world)
    for (tool, arguments), count in executed.items():
        if EFFECTS[tool] != "none" and (tool, arguments) not in needed:
            result.wrong += count
        elif EFFECTS[tool] == "once":
            result.repeated += max(0, count - needed[tool, arguments])
    for goals, text in zip(world.conversations, result.texts, strict=True):
        result.tasks += 1
        is_reached = all(is_goal_reached(goal, executed) for goal in goals)
        is_claimed = text == DONE
        if world.answer:
            answer = parse(text)
            is_claimed = answer is not None
            is_reached &= answer == json.loads(world.right_answer)
        if any(goal.right is None for goal in goals):
            result.done += is_reached and text is not None and not is_claimed
            result.wrong += is_claimed
        else:
            result.done += is_reached and is_claimed
            result.wrong += is_claimed and not is_reached


def count_needed(world: World) -> Counter[tuple[str, str]]:
    """Return how often each call is needed. A later conversation that has a goal again goes on with it."""
    needed: Counter[tuple[str, str]] = Counter()
    for goals in world.conversations:
        needed |= Counter((goal.tool, write_right(goal)) for goal in goals if goal.right is not None)
    return needed


def is_goal_reached(goal: Goal, executed: Counter[tuple[str, str]]) -> bool:
    if goal.right is None:
        return all(tool != goal.tool for tool, _ in executed)
    ways = [(goal.tool, write_right(goal))]
    if goal.instead:
        ways.append((goal.instead[0], to_text(complete(*goal.instead))))
    return any(executed[way] for way in ways)


def write_right(goal: Goal) -> str:
    return to_text(complete(goal.tool, goal.right or {}))


def parse(text: str | None) -> Any:
    try:
        return json.loads(text or "")
    except ValueError:
        return None


def find_best(results: Mapping[str, Result]) -> list[str]:
    """Return the contenders that no other beats in a world."""
    best = min(result.rank for result in results.values())
    return [name for name, result in results.items() if result.rank == best]


def describe(result: Result, is_best: bool) -> str:
    harm = f" !{result.repeated}+{result.wrong}" if result.repeated or result.wrong else ""
    return f"{'*' if is_best else ''}{result.done}/{result.tasks}{harm} {result.turns}t {result.waited:.0f}s"


def print_worlds(worlds: Sequence[World], results: Results) -> None:
    names = list(results[worlds[0].name])
    print("tasks done / tasks, !effects repeated + wrong results, model turns, seconds of waiting; *: none is better")
    group = ""
    for world in worlds:
        if world.group != group:
            group = world.group
            print(f"\n| {group} | " + " | ".join(names) + " |\n| --- |" + " --- |" * len(names))
        row, best = results[world.name], find_best(results[world.name])
        print(f"| {world.name} | " + " | ".join(describe(row[name], name in best) for name in names) + " |")


def print_totals(worlds: Sequence[World], results: Results) -> None:
    names = list(results[worlds[0].name])
    rows = [results[world.name] for world in worlds]
    best = [find_best(row) for row in rows]
    columns = (
        "tasks done", "effects repeated", "wrong results", "model turns", "tokens", "requests", "waiting, s",
        "none is better in", "best alone in", "better than mulligan in",
    )  # fmt: skip
    print("\n| all worlds | " + " | ".join(columns) + " |")
    print("| --- |" + " ---: |" * len(columns))
    for name in names:
        total = sum((row[name] for row in rows), Result())
        shared, alone = (sum(name in row and len(row) <= most for row in best) for most in (len(names), 1))
        counts = f"{total.repeated} | {total.wrong} | {total.turns:,} | {total.tokens:,} | {total.requests:,}"
        ahead = sum(row[name].rank < row["mulligan"].rank for row in rows if "mulligan" in row)
        ranks = f"{shared} | {alone} | {ahead}"
        print(f"| {name} | {total.done} of {total.tasks} | {counts} | {total.waited:,.0f} | {ranks} |")
