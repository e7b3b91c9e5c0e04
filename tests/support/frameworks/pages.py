"""The frameworks without an adapter: their pages in docs/frameworks have the code that a user copies."""

from __future__ import annotations

import inspect
import linecache
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import mulligan

DOCS = Path(__file__).parents[3] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = {
    "crewai": "crewai",
    "smolagents": "smolagents",
    "agno": "agno",
    "llama_index": "llama_index.core",
    "dspy": "dspy",
    "claude_agent_sdk": "claude_agent_sdk",
}
"""Each page, and the package that it needs."""


def read_blocks(name: str) -> list[str]:
    """Return the Python blocks of a page, in order. They are one program."""
    return BLOCK.findall((DOCS / "frameworks" / f"{name}.md").read_text())


def execute_blocks(name: str, *indexes: int, **names: Any) -> dict[str, Any]:
    """Execute blocks of a page, all without an index, and return what they define. `names` are defined before."""
    blocks = read_blocks(name)
    for index in indexes or range(len(blocks)):
        file = f"<block {index} of docs/frameworks/{name}.md>"
        # For inspect.getsource: smolagents reads the code of a tool.
        linecache.cache[file] = (len(blocks[index]), None, blocks[index].splitlines(keepends=True), file)
        exec(compile(blocks[index], file, "exec"), names)
    return names


def annotate(functions: Sequence[Callable[..., Any]]) -> list[Callable[..., Any]]:
    """Return the functions with types instead of texts in their signature, as a program has them."""
    for function in functions:
        function.__signature__ = inspect.signature(inspect.unwrap(function), eval_str=True)  # type: ignore[attr-defined]
    return list(functions)


def decorate(functions: Sequence[Callable[..., Any]], options: Mapping[str, Any]) -> list[Callable[..., Any]]:
    """Return the functions with `@mulligan.tool` and its options."""
    settings = options.get("tools", {}).get("*", {})
    return [mulligan.tool(**settings)(function) for function in annotate(functions)]


class PageDriver:
    """Plays the program of a page, whose blocks use `model`."""

    name = ""

    def make_model(self, script: Sequence[Any]) -> Any:
        raise NotImplementedError

    def run_page(self, script: Sequence[Any], *blocks: int) -> tuple[Any, str]:
        """Run these blocks of the page, or all. Return their last run, and what the model has read last."""
        model = self.make_model(script)
        names = execute_blocks(self.name, *blocks, model=model)
        return names["run"], str(model.sent[-1])

    def cancel(self, functions: Sequence[Callable[..., Any]], script: Sequence[Any], started: Any) -> None:
        raise NotImplementedError  # `limits` says why

    def interrupt_and_resume(self, played: Any) -> str:
        raise NotImplementedError  # `limits` says why
