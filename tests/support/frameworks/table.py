"""The tables of docs/frameworks.md: what each framework allows, as its driver says.

The drivers are read, not imported: no environment has all frameworks.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any, NamedTuple

from frameworks.pages import DOCS, PAGES
from frameworks.scenarios import SCENARIOS

PAGE = DOCS / "frameworks.md"
MEANINGS = {
    "bad argument": "A value is out of bounds, and the tool only reads. It is repaired, and a note tells the model.",
    "unknown argument": "`topk` in place of `top_k`. The call is repaired, and a note tells the model.",
    "unknown tool": "The model reads the nearest name, and calls that tool.",
    "wrong type": "`seven` in place of a number. The tool is not called. The model reads what is wrong.",
    "timeout of a tool with effects": "The tool is not called again. The model reads that it may have been executed.",
    "rate limit": "A tool without effects is called again after a backoff.",
    "hostile exception text": "The model reads the text inside marks that say that it is data.",
    "response that is an error": "The tool returns an error as a normal result. It is recorded as a failure.",
    "conversation that is too long": "The conversation is compressed, and the model is called again.",
    "third identical failure": "The tool is called. The model reads how often the same call has failed the same way.",
    "cancellation": "A cancelled task passes through. The run is abandoned.",
    "interrupt": "A tool pauses for a person, and the resumed run is the same run.",
}
SECTION = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end of table -->)", re.DOTALL)


class Framework(NamedTuple):
    """What a driver says about its framework."""

    name: str
    title: str
    limits: dict[str, str]

    @property
    def is_page(self) -> bool:
        return self.name in PAGES


def read_frameworks() -> list[Framework]:
    """Return the frameworks with a driver: those with an adapter first."""
    frameworks = [read_driver(path) for path in sorted(Path(__file__).parent.glob("*_driver.py"))]
    return sorted(frameworks, key=lambda framework: (framework.is_page, framework.title.lower()))


def read_driver(path: Path) -> Framework:
    """Return the name, the title and the limits in the class of a driver."""
    for node in ast.walk(ast.parse(path.read_text())):
        fields = _read_literals(node) if isinstance(node, ast.ClassDef) else {}
        if "limits" in fields:
            return Framework(fields["name"], fields["title"], fields["limits"])
    raise ValueError(f"{path.name} has no class with name, title and limits as literals.")


def _read_literals(node: ast.ClassDef) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for statement in node.body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        value = getattr(statement, "value", None)
        if isinstance(target, ast.Name) and target.id in ("name", "title", "limits") and value is not None:
            fields[target.id] = ast.literal_eval(value)
    return fields


def render_scenarios() -> str:
    """Return what happens in each scenario, as a table."""
    names = [*(scenario.name for scenario in SCENARIOS), "cancellation", "interrupt"]
    rows = [f"| {name} | {MEANINGS[name]} |" for name in names]
    return "\n".join(["| scenario | what happens |", "| --- | --- |", *rows]) + "\n"


def render_table() -> str:
    """Return the table of the frameworks: a row for each."""
    lines = ["| framework | use | works | what the framework does not allow |", "| --- | --- | --- | --- |"]
    for framework in read_frameworks():
        use = "code to copy" if framework.is_page else "adapter"
        limits = framework.limits
        count = f"{len(MEANINGS) - len(limits)} of {len(MEANINGS)}" if limits else f"all {len(MEANINGS)}"
        lines.append(f"| {_link(framework)} | {use} | {count} | {_explain(limits)} |")
    return "\n".join(lines) + "\n"


def _explain(limits: dict[str, str]) -> str:
    names_by_reason: dict[str, list[str]] = {}
    for name in sorted(limits, key=list(MEANINGS).index):
        names_by_reason.setdefault(limits[name], []).append(name)
    return " ".join(f"**{', '.join(names)}:** {reason}" for reason, names in names_by_reason.items())


def _link(framework: Framework) -> str:
    page = DOCS / "frameworks" / f"{framework.name}.md"
    return f"[{framework.title}](frameworks/{page.name})" if page.exists() else framework.title


def update_page() -> None:
    """Write the tables into the page."""
    section = f"\n{render_table()}\n{render_scenarios()}\n"
    PAGE.write_text(SECTION.sub(lambda match: section, PAGE.read_text(), count=1))
