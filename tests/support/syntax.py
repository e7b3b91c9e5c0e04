"""The syntax of the package, which several tests read: parsed once."""

from __future__ import annotations

import ast
import functools


@functools.cache
def parse_source(source: str) -> ast.Module:
    return ast.parse(source)


@functools.cache
def list_nodes(source: str) -> list[ast.AST]:
    """Return all nodes of a source, as `ast.walk` does."""
    return list(ast.walk(parse_source(source)))


def name_called(call: ast.Call) -> str:
    """The name of a called function, without what stands before the last dot."""
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))
