"""The table of docs/frameworks.md: what each framework allows, as its driver says.

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
COLUMNS = [*(scenario.name for scenario in SCENARIOS), "cancellation", "interrupt"]
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


def render_table() -> str:
    """Return the table: a row for each scenario, a column for each framework."""
    frameworks = read_frameworks()
    titles = [_link(framework) for framework in frameworks]
    lines = ["| scenario | " + " | ".join(titles) + " |", "| --- |" + " --- |" * len(frameworks)]
    lines.append("| uses | " + " | ".join("a page" if item.is_page else "an adapter" for item in frameworks) + " |")
    for column in COLUMNS:
        cells = ["no" if column in framework.limits else "yes" for framework in frameworks]
        lines.append(f"| {column} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def render_reasons() -> str:
    """Return why a scenario does not work, as a list."""
    return "\n".join(
        f"- **{framework.title}, {column}.** {framework.limits[column]}"
        for framework in read_frameworks()
        for column in COLUMNS
        if column in framework.limits
    )


def _link(framework: Framework) -> str:
    page = DOCS / "frameworks" / f"{framework.name}.md"
    return f"[{framework.title}](frameworks/{page.name})" if page.exists() else framework.title


def update_page() -> None:
    """Write the table into the page."""
    section = f"\n{render_table()}\n{render_reasons()}\n\n"
    PAGE.write_text(SECTION.sub(lambda match: section, PAGE.read_text(), count=1))
