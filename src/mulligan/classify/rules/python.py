"""Rules for exception classes, HTTP statuses and error codes. Each maps to the kinds it allows, likeliest first."""

from __future__ import annotations

from mulligan.classify.rules import read_kinds, read_rules
from mulligan.classify.rules.numbers import find_number
from mulligan.core.failure import Kind

# Keyed by class name without module: one class is exported by several modules, most of which are not imported here.
# `ValueError` and `RuntimeError` are raised for problems of any kind, so they are absent: the text decides. `TypeError`
# is either a bug in the tool or a check of its arguments.
CLASSES = read_kinds("tables", "exceptions")

CANCELLATIONS = frozenset(("CancelledError", "KeyboardInterrupt", "Cancelled", "TaskCancelledError"))
QUERY_PACKAGES = frozenset(
    "cssselect elementpath graphql jmespath jsonpath_ng luqum soupsieve sqlglot sqlparse".split()
)
"""Packages that only parse and evaluate queries, so each of their errors is about the query."""

BINDING_ERROR_PATTERN = (
    r"([\w<>]{1,80})\(\) (?:missing \d{1,9} required|got an unexpected keyword|got multiple values for|"
    r"takes (?:no|\d|from|at (?:least|most)|exactly)|got some positional-only)"
)
TYPE_ERROR_PATTERN = (
    r"unsupported operand|bad operand type|"
    r"object (?:is not|does not support|has no|cannot be interpreted|can't be used|doesn't)|^unhashable type|"
    r"^can only (?:concatenate|join)|indices must be|cannot unpack non-iterable|"
    r"is not (?:iterable|JSON serializable)|^sequence item \d|not all arguments converted|"
    r"format(?: requires|: an? )|^exceptions must derive|is not a (?:function|constructor)|cannot read propert"
)
"""Messages of the interpreter for a `TypeError`: about a call, and about anything else."""
_UNREADABLE_FILE = r"[^\n]{1,200} \((?!<)[^()\n]{1,200}, line \d{1,9}\)\Z"
INTERPRETER_MESSAGES = {
    "SyntaxError": _UNREADABLE_FILE,
    "IndentationError": _UNREADABLE_FILE,
    "TabError": _UNREADABLE_FILE,
    "ValueError": r"(?:not enough|too many) values to unpack \(expected ",
    "IndexError": r"[\w ]{0,40}index out of range\Z|pop from (?:an )?empty ",
    "RecursionError": r"maximum recursion depth exceeded",
    "RuntimeError": r"[\w ]{0,40}(?:changed size|keys changed|mutated) during iteration",
}
"""Messages of the interpreter for other classes, which code also raises with messages of its own.

A division by zero is absent: a call with other values may succeed.
"""

# Words in the names of exception classes that are not in the table, such as `OrderNotFoundError`.
CLASS_NAMES = read_rules("classes", "names of classes")

# Codes of errno, gRPC, AWS and common APIs, in lower case.
CODES = read_kinds("tables", "codes")

# What people write as the code of an `AgentError`, without the words of `CODE_PREFIXES` and `CODE_ENDINGS`.
DECLARED_CODES = read_kinds("tables", "declared codes")
CODE_PREFIXES = frozenset("tool agent error err e code api http request server service mcp".split())
CODE_ENDINGS = frozenset("error errors err failed failure exception exceeded".split())
CODE_FAMILIES = read_kinds("tables", "families of codes")
"""Codes by their end, such as `order_not_found`."""

_CODES_WITHOUT_SEPARATORS = {
    name.replace("_", "").removesuffix("exception").removesuffix("error"): kind for name, kind in CODES.items()
}
"""The same codes without separators, for spellings such as `AlreadyExists` and `NotFound`."""


def kind_for_code(code: str) -> Kind | None:
    """Return the kind of an errno, gRPC, AWS or SQLSTATE code."""
    lower = code.lower()
    allowed = CODES.get(lower) or _CODES_WITHOUT_SEPARATORS.get(lower.removesuffix("exception").removesuffix("error"))
    stated = None if allowed else find_number("", (code,))
    return (allowed or (stated.kinds if stated else (None,)))[0]
