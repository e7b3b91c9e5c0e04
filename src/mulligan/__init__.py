"""Failure recovery and failure memory for LLM agents.

This module exports the public names only. Each name is imported on first use, so `import mulligan` stays fast.
"""

from __future__ import annotations

# Type checkers treat this as `typing.TYPE_CHECKING`. Importing `typing` would be most of the import time.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from mulligan.api import Mulligan as Mulligan
    from mulligan.api import default as _default
    from mulligan.capture.reflector import Reflector as Reflector
    from mulligan.capture.tool_outcome import ToolOutcome as ToolOutcome
    from mulligan.classify.declared_errors import AgentError as AgentError
    from mulligan.classify.declared_errors import InfraError as InfraError
    from mulligan.contract.store import Store as Store
    from mulligan.core.events import Event as Event
    from mulligan.core.failure import Failure as Failure
    from mulligan.core.failure import Kind as Kind
    from mulligan.core.failure import Remedy as Remedy
    from mulligan.recover.model import Fallback as Fallback
    from mulligan.recover.policy import Policy as Policy

    carry_run = _default.carry_run
    configure = _default.configure
    correcting = _default.correcting
    classify_error = _default.classify_error
    flush = _default.flush
    idempotency_key = _default.idempotency_key
    add_listener = _default.add_listener
    loop = _default.loop
    model = _default.model
    drain_notes = _default.drain_notes
    render_lessons = _default.render_lessons
    run = _default.run
    session = _default.session
    settle = _default.settle
    suggest = _default.suggest
    tool = _default.tool
    turns = _default.turns
    wrap_client = _default.wrap_client

__version__ = "0.1.0"

_MODULES_OF_CLASSES = {
    "AgentError": "classify.declared_errors",
    "Event": "core.events",
    "Failure": "core.failure",
    "Fallback": "recover.model",
    "InfraError": "classify.declared_errors",
    "Kind": "core.failure",
    "Mulligan": "api",
    "Policy": "recover.policy",
    "Reflector": "capture.reflector",
    "Remedy": "core.failure",
    "Store": "contract.store",
    "ToolOutcome": "capture.tool_outcome",
}
__all__ = [
    "AgentError",
    "Event",
    "Failure",
    "Fallback",
    "InfraError",
    "Kind",
    "Mulligan",
    "Policy",
    "Reflector",
    "Remedy",
    "Store",
    "ToolOutcome",
    "add_listener",
    "carry_run",
    "classify_error",
    "configure",
    "correcting",
    "drain_notes",
    "flush",
    "idempotency_key",
    "loop",
    "model",
    "render_lessons",
    "run",
    "session",
    "settle",
    "suggest",
    "tool",
    "turns",
    "wrap_client",
]


if not TYPE_CHECKING:  # Hidden from type checkers: with `__getattr__`, they would accept every misspelled name.

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module 'mulligan' has no attribute {name!r}")
        import importlib  # the import system has loaded it already

        module = importlib.import_module(f"mulligan.{_MODULES_OF_CLASSES.get(name, 'api')}")
        value = getattr(module if name in _MODULES_OF_CLASSES else module.default, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
