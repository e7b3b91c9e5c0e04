"""JSON with the slips of models: how often it is read right, wrong or not at all, by us and by json-repair.

python evals/written.py [values]         # json-repair is compared with where it is installed
"""

from __future__ import annotations

import json
import pathlib
import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

from mulligan.recover.model_output import repair_json  # noqa: E402 - found where the source is

WORDS = "Oslo rain it's 7 o'clock true, null {a} [b] say \\ tab\tend: 12 caf\u00e9".split(" ")


def value(chance: random.Random, depth: int = 0) -> Any:
    sort = chance.randrange(7 if depth < 3 else 5)
    if sort < 2:
        return " ".join(chance.choices(WORDS, k=chance.randrange(1, 5)))
    if sort < 5:
        return (chance.randrange(1000), chance.random() < 0.5, None)[sort - 2]
    if sort == 5:
        return [value(chance, depth + 1) for _ in range(chance.randrange(1, 4))]
    return thing(chance, depth + 1)


def thing(chance: random.Random, depth: int = 0) -> dict[str, Any]:
    names = chance.sample(["city", "days", "unit", "notes", "items", "is_new"], chance.randrange(1, 5))
    return {name: value(chance, depth + 1) for name in names}


def python(data: Any) -> str:
    return repr(data)


SLIPS: dict[str, Callable[[Any, random.Random], str]] = {
    "a fence around it": lambda data, chance: f"```json\n{json.dumps(data)}\n```",
    "words around it": lambda data, chance: f"Here it is:\n{json.dumps(data)}\nAnything else?",
    "a trailing comma": lambda data, chance: json.dumps(data, indent=1).replace("\n}", ",\n}"),
    "as Python writes it": lambda data, chance: python(data),
    "twice in quotes": lambda data, chance: json.dumps(json.dumps(data)),
    "cut off": lambda data, chance: (text := json.dumps(data))[: chance.randrange(1, max(len(text) - 1, 2))],
    "two of them": lambda data, chance: f"{json.dumps(data)}\nor\n{json.dumps({**data, 'city': 'Bergen'})}",
}
NOBODYS = ("cut off", "two of them")
"""Slips after which nobody can know what was meant: to read them at all is to guess."""


def ours(text: str) -> Any:
    found = repair_json(text, is_object=True)
    return None if found is None else json.loads(found)


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    readers: dict[str, Callable[[str], Any]] = {"mulligan": ours}
    try:
        import json_repair

        readers["json-repair"] = json_repair.loads
    except ImportError:
        print("json-repair is not installed, and so not beside it", file=sys.stderr)
    wrong_of_ours = 0
    print(f"{'slip':22}" + "".join(f"{name:>14}: right wrong  none" for name in readers))
    for slip, write in SLIPS.items():
        line = f"{slip:22}"
        for name, read in readers.items():
            chance = random.Random(7)
            seen: Counter[str] = Counter()
            for _ in range(count):
                data = thing(chance)
                text = write(data, chance)
                try:
                    found = read(text)
                except Exception:  # noqa: BLE001 - a reader that gives up in its own way
                    found = None
                is_right = found == data and slip not in NOBODYS
                seen["none" if found in (None, "", [], {}) else "right" if is_right else "wrong"] += 1
            wrong_of_ours += seen["wrong"] if name == "mulligan" else 0
            line += f"{'':>15} {seen['right']:>5} {seen['wrong']:>5} {seen['none']:>5}"
        print(line)
    return 1 if wrong_of_ours else 0


if __name__ == "__main__":
    sys.exit(main())
