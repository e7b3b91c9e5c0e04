"""A second chance for every failed agent call, and a memory so that it is needed less often.

The public names, and nothing else. Each is imported when it is first used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take it for typing's own, whose import would be most of the cost of ours
if TYPE_CHECKING:
    from mulligan.assembly import Mulligan as Mulligan
    from mulligan.assembly import default as _default
    from mulligan.events import Event as Event
    from mulligan.failure import AgentError as AgentError
    from mulligan.failure import Failure as Failure
    from mulligan.failure import InfraError as InfraError
    from mulligan.failure import Kind as Kind
    from mulligan.failure import Remedy as Remedy
    from mulligan.recover.model import Fallback as Fallback
    from mulligan.recover.policy import Policy as Policy
    from mulligan.remember.store import Store as Store

    configure = _default.configure
    correcting = _default.correcting
    explain = _default.explain
    flush = _default.flush
    listen = _default.listen
    loop = _default.loop
    model = _default.model
    notes = _default.notes
    pitfalls = _default.pitfalls
    run = _default.run
    session = _default.session
    suggest = _default.suggest
    tool = _default.tool
    turns = _default.turns
    wrap_client = _default.wrap_client

__version__ = "0.1.0.dev0"

_KNOW = {
    "AgentError": "failure",
    "Event": "events",
    "Failure": "failure",
    "Fallback": "recover.model",
    "InfraError": "failure",
    "Kind": "failure",
    "Mulligan": "assembly",
    "Policy": "recover.policy",
    "Remedy": "failure",
    "Store": "remember.store",
}
_DO = (
    "configure",
    "correcting",
    "explain",
    "flush",
    "listen",
    "loop",
    "model",
    "notes",
    "pitfalls",
    "run",
    "session",
    "suggest",
    "tool",
    "turns",
    "wrap_client",
)

__all__ = [
    "AgentError",
    "Event",
    "Failure",
    "Fallback",
    "InfraError",
    "Kind",
    "Mulligan",
    "Policy",
    "Remedy",
    "Store",
    "configure",
    "correcting",
    "explain",
    "flush",
    "listen",
    "loop",
    "model",
    "notes",
    "pitfalls",
    "run",
    "session",
    "suggest",
    "tool",
    "turns",
    "wrap_client",
]


if not TYPE_CHECKING:  # a checker that saw it would take every misspelt name for one of ours

    def __getattr__(name):
        import importlib  # already loaded by the import system

        if name in _KNOW:
            value = getattr(importlib.import_module(f"mulligan.{_KNOW[name]}"), name)
        elif name in _DO:
            value = getattr(importlib.import_module("mulligan.assembly").default, name)
        else:
            raise AttributeError(f"module 'mulligan' has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
