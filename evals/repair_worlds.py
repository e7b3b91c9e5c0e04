"""BFCL's simulators as a world to make calls in: scenarios, what their functions take, and what calls change.

Needs `pip install --no-deps bfcl-eval mpmath`; `python evals/repair.py` and `evals/repair_perturbed.py` use it.
"""

from __future__ import annotations

import ast
import copy
import functools
import importlib
import inspect
import json
import math
from pathlib import Path
from typing import Any

try:
    import bfcl_eval
    from bfcl_eval.constants.executable_backend_config import (
        CLASS_FILE_PATH_MAPPING,
        MULTI_TURN_FUNC_DOC_FILE_MAPPING,
        STATELESS_CLASSES,
    )
except ImportError:
    bfcl_eval = None

_NOT_STATE = frozenset(("parent", "_parent", "_last_modified"))
"""What is the same from another side, and the time."""
CATEGORIES = ("base", "miss_func", "miss_param", "long_context")


def is_installed() -> bool:
    return bfcl_eval is not None


def _data() -> Path:
    return Path(bfcl_eval.__file__).parent / "data"


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


@functools.cache
def scenarios() -> dict[str, dict[str, Any]]:
    """Every multi-turn scenario by its id, with its ground truth."""
    found = {}
    for category in CATEGORIES:
        name = f"BFCL_v4_multi_turn_{category}.json"
        truth = {row["id"]: row["ground_truth"] for row in _rows(_data() / "possible_answer" / name)}
        for row in _rows(_data() / name):
            found[row["id"]] = {**row, "ground_truth": truth.get(row["id"], [])}
    return found


@functools.cache
def documents(class_name: str) -> dict[str, dict[str, Any]]:
    """The schemas of a class's functions, by name."""
    rows = _rows(_data() / "multi_turn_func_doc" / MULTI_TURN_FUNC_DOC_FILE_MAPPING[class_name])
    return {row["name"]: row["parameters"] for row in rows}


@functools.cache
def tools_of(scenario_id: str) -> dict[str, dict[str, Any]]:
    tools: dict[str, dict[str, Any]] = {}
    for class_name in scenarios()[scenario_id]["involved_classes"]:
        tools.update(documents(class_name))
    return tools


class World:
    """The objects of one scenario, as they are before the first call."""

    def __init__(self, scenario_id: str) -> None:
        scenario = scenarios()[scenario_id]
        self.instances: dict[str, Any] = {}
        self.methods: dict[str, Any] = {}
        for class_name in scenario["involved_classes"]:
            made = getattr(importlib.import_module(CLASS_FILE_PATH_MAPPING[class_name]), class_name)()
            if class_name not in STATELESS_CLASSES:
                config = copy.deepcopy(scenario.get("initial_config", {}).get(class_name, {}))
                made._load_scenario(config, long_context="long_context" in scenario_id)
            self.instances[class_name] = made
        self._find_methods()

    def _find_methods(self) -> None:
        self.methods = {
            name: method
            for made in self.instances.values()
            for name, method in inspect.getmembers(made, predicate=inspect.ismethod)
            if not name.startswith("_")
        }

    def copy(self) -> World:
        other = World.__new__(World)
        other.instances = copy.deepcopy(self.instances)
        other._find_methods()
        return other

    def call(self, tool: str, arguments: dict[str, Any]) -> tuple[bool, Any]:
        """Whether it worked, and what it answered."""
        method = self.methods.get(tool)
        if method is None:
            return False, f"no function {tool}"
        try:
            answer = method(**copy.deepcopy(arguments))
        except Exception as error:  # noqa: BLE001 - a simulator may raise anything
            return False, f"Error during execution: {error}"
        if isinstance(answer, dict) and answer.get("error"):
            return False, json.dumps(answer, default=str)
        return True, answer

    def bound(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The same arguments with those that are left to their defaults; as they are where they do not fit."""
        method = self.methods.get(tool)
        try:
            found = inspect.signature(method).bind(**arguments) if method is not None else None
        except TypeError:
            return arguments
        if found is None:
            return arguments
        found.apply_defaults()
        return dict(found.arguments)

    def state(self) -> str:
        """Everything public that a call could have changed, as text."""
        public = {
            name: {key: value for key, value in vars(made).items() if not key.startswith("_")}
            for name, made in self.instances.items()
        }
        return repr(_plain(public))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(inner) for inner in value]
    if hasattr(value, "__dict__") and not isinstance(value, type):
        return {key: _plain(inner) for key, inner in vars(value).items() if key not in _NOT_STATE}
    return value


def parsed(call: str, scenario_id: str) -> tuple[str, dict[str, Any]] | None:
    """A ground-truth call as a name and named arguments."""
    try:
        node = ast.parse(call, mode="eval").body
    except SyntaxError:
        return None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return None
    schema = tools_of(scenario_id).get(node.func.id, {})
    names = list(schema.get("properties", {}))
    try:
        arguments = {name: ast.literal_eval(value) for name, value in zip(names, node.args, strict=False)} | {
            keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords if keyword.arg
        }
    except ValueError:
        return None
    return node.func.id, arguments


def truths(scenario_id: str, turn: int | None = None) -> list[tuple[str, dict[str, Any]]]:
    turns = scenarios()[scenario_id]["ground_truth"]
    chosen = turns if turn is None else turns[turn : turn + 1]
    return [found for calls in chosen for call in calls if (found := parsed(call, scenario_id)) is not None]


def wilson(hits: int, total: int, z: float = 1.96) -> tuple[float, float]:
    if not total:
        return 0.0, 1.0
    share = hits / total
    middle = share + z * z / (2 * total)
    spread = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return (middle - spread) / (1 + z * z / total), (middle + spread) / (1 + z * z / total)


def told(hits: int, total: int) -> str:
    low, high = wilson(hits, total)
    share = f"{hits / total:.3f}" if total else "  -  "
    return f"{hits:>5} of {total:<5} {share}  [{low:.3f}, {high:.3f}]"
