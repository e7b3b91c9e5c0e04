"""Recorded calls as the evaluations of repair and memory read them, and when a repair of one is right."""

from __future__ import annotations

import gzip
import json
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
sys.path.insert(0, str(ROOT / "src"))

import repair_worlds as worlds  # noqa: E402

from mulligan.recover.policy import Suggestion  # noqa: E402
from mulligan.recover.value_coercion import is_empty  # noqa: E402

Row = dict[str, Any]


def need(data: pathlib.Path) -> None:
    """Ends with a word on what is missing, where something is."""
    if not (data / "calls-dev.jsonl.gz").exists():
        print(f"There is no {data.name} folder beside the checkout, so there is nothing to measure.")
        sys.exit(0)
    if not worlds.is_installed():
        print("This needs BFCL's simulators: pip install --no-deps bfcl-eval mpmath")
        sys.exit(2)


def history_of(rows: list[Row], at: int) -> list[Row]:
    """The calls of a run before one, as `suggest` takes them."""
    return [
        {
            "tool": each["tool"],
            "arguments": each["parameters"],
            "outcome": each["outcome"],
            "result": each["result_excerpt"],
            "error": each["error"],
        }
        for each in rows[max(0, at - 200) : at]
    ]


def lines(path: pathlib.Path) -> Iterator[Row]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        yield from map(json.loads, file)


def counts_once(row: Row, label: Row | None, unique: set[str]) -> bool:
    """Whether a failure is the first of its like."""
    if label is not None:
        return bool(label["first"])
    key = json.dumps([row.get(name) for name in ("dataset", "task_id", "model", "tool", "parameters", "error")])
    if key in unique:
        return False
    unique.add(key)
    return True


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner)
    else:
        yield value


def oracles_of(row: Row, rows: list[Row], is_bfcl: bool) -> Iterator[tuple[str, Row]]:
    """The agent's own later correction, and the ground truth of the turn for the same tool."""
    if row.get("repaired_by_seq") is not None:
        for each in rows:
            if each["seq"] == row["repaired_by_seq"] and isinstance(each["parameters"], dict):
                yield each["tool"], each["parameters"]
    if is_bfcl:
        bare = re.match(r"[A-Za-z_]+", row["tool"])
        for tool, arguments in worlds.truths(row["task_id"], row.get("turn")):
            if bare is not None and tool == bare.group():
                yield tool, arguments


def is_repaired(
    tool: str,
    arguments: Row,
    row: Row,
    rows: list[Row],
    at: int,
    oracles: list[tuple[str, Row]],
    world: worlds.World | None,
) -> bool:
    done = [
        (each["tool"], each["parameters"])
        for each in rows[at:]
        if each["outcome"] == "success" and isinstance(each["parameters"], dict)
    ]
    if any(is_equal(tool, arguments, *oracle, world) for oracle in (*oracles, *done)):
        return True
    if world is None or oracles:
        return False
    given = row["parameters"] if isinstance(row["parameters"], dict) else {}
    kept = json.dumps(arguments)
    if any(json.dumps(value).strip('"') not in kept for value in leaves(given) if not is_empty(value)):
        return False
    tried = world.copy()
    state = tried.state()
    worked, _ = tried.call(tool, arguments)
    return worked and tried.state() == state


def is_name_alone(first: Suggestion, arguments: Row) -> bool:
    """Whether only junk around the tool's name was taken away: class A by hand, whatever the agent did later."""
    return first.strategy.startswith("tool ") and first.arguments == arguments


def is_equal(tool: str, arguments: Row, other: str, wanted: Row, world: worlds.World | None = None) -> bool:
    if tool != other:
        return False
    if world is not None:
        arguments, wanted = world.bound(tool, arguments), world.bound(tool, wanted)
    return json.dumps(_plain(arguments), sort_keys=True) == json.dumps(_plain(wanted), sort_keys=True)


def _plain(value: Any) -> Any:
    """The same with 1 for 1.0."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
