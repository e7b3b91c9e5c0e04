"""Make every struct of mulligan refuse unknown fields, so that a renamed field fails instead of decoding to a default.

`install` replaces `msgspec.Struct` before the first module of mulligan is imported. Structs that derive from it get
`forbid_unknown_fields`, and their subclasses inherit it. The classes are ordinary msgspec classes otherwise. Processes
that a test starts are not affected: they decode as in production.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec

PACKAGE = "mulligan"
FOREIGN_MODULES = frozenset(
    {
        "mulligan.transcripts.claude_code",  # session logs of other programs
        "mulligan.transcripts.codex",
        "mulligan.transcripts.copilot",
        "mulligan.transcripts.gemini",
        "mulligan.transcripts.pi",
        "mulligan.transcripts.otlp",  # OpenTelemetry exports
        "mulligan.server.opentelemetry",
        "mulligan.proxy.messages",  # MCP messages of any client and server
    }
)
"""Modules whose structs read input that mulligan did not write. They take the few fields they need."""
FOREIGN_CLASSES = frozenset(
    {
        "mulligan.transcripts.recorded_runs:_CallRow",  # recorded calls from any source
        "mulligan.transcripts.recorded_runs:ExportHeader",  # probes the first line of a file of unknown format
    }
)
PARTIAL_VIEWS = {
    "mulligan.learn.profiles:ExemplarArguments": ("mulligan.core.records:Step",),
    "mulligan.store.retention:_SessionActivity": (
        "mulligan.learn.tracker:Tracker",
        "mulligan.hooks.agents:HookState",
    ),
    "mulligan.learn.prerequisites:FixSummary": ("mulligan.learn.fixes:FixRecord",),
}
"""Structs that read a few fields of other records, with these. They derive from `msgspec.Struct` itself, not from
`Record`, whose subclasses are strict. `tests/test_strict_decoding.py` compares the names."""
VIEW_FIELDS = {"mulligan.learn.prerequisites:FixSummary": {"body"}}
"""Fields of a view that are not read from the record."""

_Struct = msgspec.Struct
_StructMeta: Any = type(_Struct)


def is_lenient(module: str, name: str) -> bool:
    """Return whether a struct keeps ignoring unknown fields."""
    path = f"{module}:{name}"
    is_ours = module.partition(".")[0] == PACKAGE
    return not is_ours or module in FOREIGN_MODULES or path in FOREIGN_CLASSES or path in PARTIAL_VIEWS


class _StrictMeta(_StructMeta):  # type: ignore[misc]
    """Metaclass of the replacement only: the classes it returns have msgspec's own metaclass and base."""

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **config: Any) -> Any:
        if "_is_replacement" in namespace:
            return super().__new__(mcls, name, bases, namespace, **config)
        if not is_lenient(namespace["__module__"], name):
            config.setdefault("forbid_unknown_fields", True)
        own_bases = tuple(_Struct if base is StrictStruct else base for base in bases)
        return _StructMeta(name, own_bases, namespace, **config)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Struct)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _Struct)


class StrictStruct(_Struct, metaclass=_StrictMeta):
    """Stand-in for `msgspec.Struct`."""

    _is_replacement = True


def install() -> None:
    """Replace `msgspec.Struct`. Raise if a module of mulligan has been imported: its structs would stay lenient."""
    early = sorted(name for name in sys.modules if name.startswith(f"{PACKAGE}."))
    if early:
        raise RuntimeError(f"Imported before strict decoding was installed: {', '.join(early[:5])}")
    msgspec.Struct = StrictStruct  # type: ignore[misc]


def run_leniently(code: str) -> str:
    """Run statements in a process of its own, which decodes as in production, and return what they print."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
