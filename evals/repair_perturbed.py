"""Right calls of BFCL's ground truth, broken by family, repaired and executed: anyone can measure this.

    python evals/repair_perturbed.py            # needs: pip install --no-deps bfcl-eval mpmath

Each ground-truth call of the multi-turn scenarios is broken in one way for each family that fits it. A repair is right
when it is the call as it was before; it is also executed in BFCL's simulator, on the state that calls before it made.
"""

from __future__ import annotations

import argparse
import copy
import json
import pathlib
import random
import re
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

import repair_worlds as worlds  # noqa: E402

from mulligan.capture.suggestions import suggest_repairs  # noqa: E402
from mulligan.classify.classifier import classify  # noqa: E402
from mulligan.core.privileged_arguments import is_privileged  # noqa: E402
from mulligan.core.quantity_arguments import measures_quantity  # noqa: E402
from mulligan.core.records import Effects  # noqa: E402
from mulligan.recover.schema import to_json_schema  # noqa: E402

Call = tuple[str, dict[str, Any], dict[str, Any]]
"""Tool, arguments, schema."""
OTHER_VALUES = ("bound", "default", "null, optional")
"""Families whose repair is another value: for a tool that may have effects it is only suggested (SAFETY S1a)."""
JUNK = (
    "{}<|channel|>commentary",
    "functions.{}",
    " {} ",
    "{}()",
    '"{}"',
    "{}\u00a0json",
    "<tool>{}</tool>",
    "{}:0",
    "`{}`",
)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--seed", type=int, default=7)
    options.add_argument("--misses", action="store_true", help="print what was not right")
    given = options.parse_args()
    if not worlds.is_installed():
        print("This needs BFCL's simulators: pip install --no-deps bfcl-eval mpmath")
        sys.exit(2)
    random.seed(given.seed)
    figures: dict[str, Counter[str]] = defaultdict(Counter)
    seen: set[str] = set()
    costs: list[float] = []
    for scenario_id in worlds.scenarios():
        if "_base_" not in scenario_id and "_miss_param_" not in scenario_id:
            continue
        world = worlds.World(scenario_id)
        tools = worlds.tools_of(scenario_id)
        for tool, arguments in worlds.truths(scenario_id):
            if tool in tools:
                _each_family(tool, arguments, tools, world, figures, seen, costs, given.misses)
            world.call(tool, arguments)
    _print(figures, costs)
    missed = [
        name
        for name, each in figures.items()
        if name not in OTHER_VALUES and each["automatic"] < 0.80 * each["allowed"]
    ]
    sys.exit(1 if missed else 0)


def _each_family(
    tool: str,
    arguments: dict[str, Any],
    tools: dict[str, dict[str, Any]],
    world: worlds.World,
    figures: dict[str, Counter[str]],
    seen: set[str],
    costs: list[float],
    shows_misses: bool,
) -> None:
    for family, breaks in FAMILIES.items():
        schema = copy.deepcopy(to_json_schema(tools[tool]))
        made = breaks(tool, copy.deepcopy(arguments), schema)
        if made is None:
            continue
        name, broken, schema, touched = made
        key = json.dumps((family, name, broken), sort_keys=True, default=str)
        if key in seen:
            continue  # the same call of another scenario proves nothing more
        seen.add(key)
        known = {**tools, tool: schema}
        error = "The arguments do not fit." if name in known else f"There is no tool {name!r}."
        began = time.process_time()
        # A misspelled value is applied only where the tool has no effects.
        effects: Effects | None = "none" if family == "enum: slip" else None
        advice = suggest_repairs(
            name, broken, error, classify=classify, schema=known.get(name), tools=known, effects=effects
        )
        costs.append(time.process_time() - began)
        first = advice.suggestions[0] if advice.suggestions else None
        is_right = first is not None and first.tool == tool and worlds_equal(first.arguments, arguments)
        is_allowed = not any(is_privileged(path) for path in touched) and (
            family != "bound" or all(measures_quantity(path, broken[path]) for path in touched)
        )
        counts = figures[family]
        counts["all"] += 1
        counts["right"] += is_right
        counts["allowed"] += is_allowed
        counts["automatic"] += is_right and first is not None and first.automatic and is_allowed
        counts["wrong"] += first is not None and first.automatic and not is_right
        counts["unsafe"] += first is not None and first.automatic and not is_allowed
        if first is not None and first.automatic:
            before, after = world.copy(), world.copy()
            counts["executed"] += 1
            counts["same"] += before.call(tool, arguments)[0] == after.call(first.tool, first.arguments)[0] and (
                before.state() == after.state()
            )
        if shows_misses and is_allowed and not (is_right and first is not None and first.automatic):
            print(family, name, broken, "->", first and (first.tool, first.arguments, first.confidence, first.reason))


def worlds_equal(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True, default=str) == json.dumps(other, sort_keys=True, default=str)


def _print(figures: dict[str, Counter[str]], costs: list[float]) -> None:
    print(
        f"{'family':<18}{'right and automatic, where safety allows it':<46}{'right first, of all':<34}wrong  same state"
    )
    total: Counter[str] = Counter()
    for family, counts in figures.items():
        total.update(counts)
        print(
            f"{family:<18}{worlds.told(counts['automatic'], counts['allowed']):<46}"
            f"{worlds.told(counts['right'], counts['all']):<34}{counts['wrong']:>5}"
            f"  {counts['same']} of {counts['executed']}"
        )
    applied = total["automatic"] + total["wrong"]
    print(f"\nprecision of what is automatic: {worlds.told(applied - total['wrong'], applied)}")
    print(f"automatic changes of privileged arguments: {total['unsafe']}")
    print(f"CPU of one suggestion: median {statistics.median(costs) * 1e6:.0f} us")


# The families. Each answers with the broken name and arguments, the schema to hold them against, and what a repair
# would have to touch; or with nothing where the call has nothing of the sort.

Broken = tuple[str, dict[str, Any], dict[str, Any], list[str]]


def _pick(arguments: dict[str, Any], wanted: Callable[[str, Any], bool]) -> str | None:
    names = [name for name, value in arguments.items() if wanted(name, value)]
    return random.choice(names) if names else None


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "additionalProperties": False}


def number_as_text(tool: str, arguments: dict[str, Any], schema: dict[str, Any]) -> Broken | None:
    name = _pick(arguments, lambda _, value: isinstance(value, int | float))
    if name is None:
        return None
    value = arguments[name]
    arguments[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return tool, arguments, schema, [name]


def text_as_number(tool: str, arguments: dict[str, Any], schema: dict[str, Any]) -> Broken | None:
    name = _pick(
        arguments, lambda _, value: isinstance(value, str) and re.fullmatch(r"[1-9]\d{0,14}", value) is not None
    )
    if name is None:
        return None
    arguments[name] = int(arguments[name])
    return tool, arguments, schema, [name]


def renamed(tool: str, arguments: dict[str, Any], schema: dict[str, Any]) -> Broken | None:
    name = _pick(arguments, lambda name, _: "_" in name or name.lower() != name)
    if name is None:
        return None
    words = [word for word in re.split(r"_|(?<=[a-z])(?=[A-Z])", name) if word]
    ways = [
        words[0].lower() + "".join(word.title() for word in words[1:]),
        "-".join(word.lower() for word in words),
        "".join(word.title() for word in words),
        " ".join(words),
        name.upper(),
        "_".join(word.lower() for word in words),
    ]
    other = random.choice([way for way in ways if way != name])
    return tool, {other if key == name else key: value for key, value in arguments.items()}, _closed(schema), [name]


def misspelt(tool: str, arguments: dict[str, Any], schema: dict[str, Any]) -> Broken | None:
    name = _pick(arguments, lambda name, _: len(name) >= 5)
    if name is None:
        return None
    at = random.randrange(1, len(name) - 1)
    kinds = [
        name[:at] + name[at + 1 :],
        name[:at] + name[at] + name[at:],
        name[:at] + name[at + 1] + name[at] + name[at + 2 :],
    ]
    other = random.choice([kind for kind in kinds if kind != name and kind not in schema["properties"]] or [name + "s"])
    return tool, {other if key == name else key: value for key, value in arguments.items()}, _closed(schema), [name]


def _enum(schema: dict[str, Any], name: str, value: str, others: tuple[str, ...]) -> dict[str, Any]:
    """The same schema with a list of what the argument may be, where it has none."""
    properties = copy.deepcopy(schema["properties"])
    if "enum" not in properties.get(name, {}):
        properties[name] = {"type": "string", "enum": sorted({value, *others})}
    return {**schema, "properties": properties}


WORDS = ("standard", "premium", "unrelated", "monthly", "archive", "northern")


def _word(name: str, value: Any) -> bool:
    return isinstance(value, str) and 4 <= len(value) <= 40 and value[0].isalpha()


def enum_case(tool: str, arguments: dict[str, Any], schema: dict[str, Any]) -> Broken | None:
    name = _pick(arguments, _word)
    if name is None:
        return None
    value = arguments[name]
    ways = [value.upper(), value.lower(), value.title(), f" {value}", value.replace(" ", "_"), f'"{value}"']
    changed = [way for way in ways if way != value]
    arguments[name] = random.choice(changed)
    return tool, arguments, _enum(schema, name, value, WORDS), [name]


def enum_slip(tool: str, arguments: dict[str, Any], schema: dict[str, Any]) -> Broken | None:
    name = _pick(arguments, lambda name, value: _word(name, value) and value.isalpha() and len(value) >= 5)
    if name is None:
        return None
    value = arguments[name]
    at = random.randrange(1, len(value) - 1)
    arguments[name] = value[:at] + value[at + 1 :]
    return tool, arguments, _enum(schema, name, value, WORDS), [name]


def bound(tool: str, arguments: dict[str, Any], schema: dict[str, Any]) -> Broken | None:
    name = _pick(arguments, lambda _, value: isinstance(value, int | float) and not isinstance(value, bool))
    if name is None:
        return None
    value = arguments[name]
    is_upper = random.random() < 0.5
    properties = copy.deepcopy(schema["properties"])
    properties[name] = {**properties.get(name, {}), ("maximum" if is_upper else "minimum"): value}
    arguments[name] = value + random.randrange(1, 1000) * (1 if is_upper else -1)
    return tool, arguments, {**schema, "properties": properties}, [name]


def tool_name(tool: str, arguments: dict[str, Any], schema: dict[str, Any]) -> Broken | None:
    return random.choice(JUNK).format(tool), arguments, schema, []


def tool_case(tool: str, arguments: dict[str, Any], schema: dict[str, Any]) -> Broken | None:
    words = [word for word in re.split(r"_|(?<=[a-z])(?=[A-Z])", tool) if word]
    ways = [tool.upper(), "".join(word.title() for word in words), "-".join(words), ".".join(words)]
    other = [way for way in ways if way != tool]
    return random.choice(other), arguments, schema, []


def empty_key(tool: str, arguments: dict[str, Any], schema: dict[str, Any]) -> Broken | None:
    arguments[random.choice(("", " "))] = random.choice(({}, "", None, []))
    return tool, arguments, schema, []


def json_text(tool: str, arguments: dict[str, Any], schema: dict[str, Any]) -> Broken | None:
    name = _pick(arguments, lambda _, value: isinstance(value, list | dict) and bool(value))
    if name is None:
        return None
    arguments[name] = random.choice((json.dumps, str))(arguments[name])
    return tool, arguments, schema, [name]


def single_value(tool: str, arguments: dict[str, Any], schema: dict[str, Any]) -> Broken | None:
    name = _pick(arguments, lambda _, value: isinstance(value, list) and len(value) == 1)
    if name is None or (isinstance(arguments[name][0], str) and "," in arguments[name][0]):
        return None
    arguments[name] = arguments[name][0]
    return tool, arguments, schema, [name]


def wrapped(tool: str, arguments: dict[str, Any], schema: dict[str, Any]) -> Broken | None:
    if not arguments:
        return None
    outer = random.choice(("arguments", "parameters", "input", "kwargs", "args"))
    inner = json.dumps(arguments) if random.random() < 0.3 else arguments
    return tool, {outer: inner}, _closed(schema), list(arguments)


def null_optional(tool: str, arguments: dict[str, Any], schema: dict[str, Any]) -> Broken | None:
    free = [name for name in schema["properties"] if name not in arguments and name not in schema.get("required", [])]
    if not free:
        return None
    name = random.choice(free)
    return tool, {**arguments, name: None}, schema, [name]


def missing_default(tool: str, arguments: dict[str, Any], schema: dict[str, Any]) -> Broken | None:
    name = _pick(arguments, lambda name, value: name in schema.get("required", []) and value not in ("", None))
    if name is None:
        return None
    properties = copy.deepcopy(schema["properties"])
    properties[name] = {**properties[name], "default": arguments[name]}
    return (
        tool,
        {key: value for key, value in arguments.items() if key != name},
        {**schema, "properties": properties},
        [name],
    )


FAMILIES: dict[str, Callable[[str, dict[str, Any], dict[str, Any]], Broken | None]] = {
    "tool name: junk": tool_name,
    "tool name: case": tool_case,
    "empty key": empty_key,
    "cast: from text": number_as_text,
    "cast: to text": text_as_number,
    "rename: case": renamed,
    "rename: slip": misspelt,
    "enum: case": enum_case,
    "enum: slip": enum_slip,
    "bound": bound,
    "parse: JSON text": json_text,
    "wrap: one value": single_value,
    "nesting": wrapped,
    "null, optional": null_optional,
    "default": missing_default,
}

if __name__ == "__main__":
    main()
