"""Tools, models and agents: how their calls come out, and what would make them come out better."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from mulligan.calls import TOOL
from mulligan.figures import Cell, percentile
from mulligan.remember.store import Store
from mulligan.report import stats as questions
from mulligan.report.tables import count
from mulligan.serve.dashboard import figures, runs, shown
from mulligan.serve.dashboard.asked import Asked
from mulligan.serve.dashboard.overview import emptiness, row

PATTERNS = 10
RUNS = 10
WRONG = 8
VAGUE = re.compile(
    r"(?:an? )?(?:unknown|unexpected|internal|generic|general|invalid|bad)? ?"
    r"(?:server )?(?:error|failure|exception|request|input|argument|parameter|value|operation)s?"
    r"(?: (?:occurred|failed|happened|encountered))?[.!]*"
    r"|(?:something|it) (?:went wrong|failed)[.!]*|failed[.!]*|false|null|none|-?[0-9]+",
    re.IGNORECASE,
)
"""What says that something failed, and nothing about what, which or how."""
SHORT = 12
"""Characters of a message that can hardly say what to do."""
TAKES = {
    "cast": "takes another type than models give it: say which (number, text, true or false)",
    "rename": "is often called by another name: give the exact name",
    "drop": "does not exist: say which arguments there are",
    "clamp": "has bounds: say the least and the most",
    "enum": "takes one of a few words: list them as they are written",
    "trim": "takes the bare value: say that nothing may stand around it",
    "parse": "takes a structure, not JSON inside a text: say so",
    "wrap": "takes a list, also of one: say so",
    "default": "is required: say so, with an example",
}


def tools(store: Store, tenant: str, asked: Asked) -> dict[str, Any]:
    found = store.stats(tenant, asked.stats(by="tool"))
    models = store.stats(tenant, asked.stats(by="model", type="model"))
    rows = figures.rows(found.parts.items())
    return {
        "empty": emptiness(store, tenant, asked) if not rows and not models.parts else None,
        "rows": rows,
        "models": figures.rows(models.parts.items()),
    }


def agents(store: Store, tenant: str, asked: Asked) -> dict[str, Any]:
    found = store.stats(tenant, asked.stats(by="agent"))
    rows = figures.rows(found.parts.items())
    return {
        "empty": emptiness(store, tenant, asked) if not rows else None,
        "rows": [each | {"statuses": each["cell"].runs} for each in rows],
        "leaning": list(questions.advice(Cell(), {}, found.parts)),
    }


def tool(store: Store, tenant: str, asked: Asked, name: str) -> dict[str, Any] | None:
    narrowed = asked._replace(filters={**asked.filters, "tool": name})
    series = store.stats(tenant, narrowed.stats(by="time"))
    cell = series.total
    met = store.patterns(tenant, narrowed.patterns(order="given_up", limit=PATTERNS))
    if not cell.calls and not met and not store.runs(tenant, narrowed.runs(limit=1, since=None, until=None)):
        return None
    agents = store.stats(tenant, narrowed.stats(by="agent", detail=True))
    before = store.stats(tenant, narrowed.before()).total
    wrong = [
        {"argument": path, "how": questions.WRONG.get(how, how), "calls": calls, "is_name": path == TOOL}
        for path, how, calls in questions.wrong_arguments(cell)[:WRONG]
    ]
    return {
        "name": name,
        "cell": cell,
        "cards": figures.cards(narrowed, cell, before),
        "chart": figures.outcomes(narrowed, series),
        "latency": figures.latency(narrowed, series),
        "kinds": figures.kinds(cell),
        "failures": sum(known.failures for known in cell.kinds.values()),
        "patterns": [row(store, tenant, asked, pattern) for pattern in met],
        "agents": figures.rows(agents.parts.items()),
        "wrong": wrong,
        "sentence": shown.text(" ".join(sentence(name, cell))) if wrong else None,
        "vague": [pattern for pattern in met if is_vague(pattern.message)],
        "timeouts": list(_timeouts(cell)),
        "advice": [shown.text(each) for each in questions.advice(Cell(), {name: cell}, {})],
        "attempts": questions.by_attempt(cell),
        "means": figures.means(cell),
        "narrowed": narrowed,
    }


def sentence(name: str, cell: Cell) -> Iterator[str]:
    """What its description could say, so that models make these mistakes less often."""
    told: dict[str, list[str]] = {}
    for path, how, _ in questions.wrong_arguments(cell):
        if path != TOOL and how in TAKES and len(told) < 3:
            told.setdefault(path, []).append(TAKES[how])
    for path, takes in told.items():
        yield f"`{path}` {'; it '.join(dict.fromkeys(takes))}."
    if not told and any(path == TOOL for path, _, _ in questions.wrong_arguments(cell)):
        yield f"Models misspell the name: it is exactly `{name}`."


def is_vague(message: str) -> bool:
    """Whether an error's words say nothing that a model could act on."""
    said = " ".join(message.split())
    return not said or VAGUE.fullmatch(said) is not None or len(said) < SHORT


def _timeouts(cell: Cell) -> Iterator[dict[str, Any]]:
    """How long attempts took before they timed out, beside how long those take that work."""
    for kind, known in questions.by_failures(cell):
        if kind.endswith("/timeout"):
            yield {
                "kind": kind,
                "failures": known.failures,
                "before": percentile(known.seconds, 0.5) or (known.micros / known.failures / 1e6),
                "p50": percentile(cell.seconds, 0.5),
                "p95": percentile(cell.seconds, 0.95),
            }


def agent(store: Store, tenant: str, asked: Asked, name: str) -> dict[str, Any] | None:
    shown_as = name or "(no name)"
    narrowed = asked._replace(filters={**asked.filters, "agent": shown_as})
    series = store.stats(tenant, narrowed.stats(by="time"))
    cell = series.total
    recent = store.runs(tenant, narrowed.runs(limit=RUNS))
    if not recent and not cell.calls and not store.runs(tenant, narrowed.runs(limit=1, since=None, until=None)):
        return None
    before = store.stats(tenant, narrowed.before()).total
    used = store.stats(tenant, narrowed.stats(by="tool", detail=True))
    versions = store.stats(tenant, narrowed.stats(by="version"))
    return {
        "name": shown_as,
        "cell": cell,
        "cards": figures.cards(narrowed, cell, before),
        "chart": figures.outcomes(narrowed, series),
        "latency": figures.latency(narrowed, series),
        "kinds": figures.kinds(cell),
        "failures": sum(known.failures for known in cell.kinds.values()),
        "patterns": [
            row(store, tenant, asked, pattern)
            for pattern in store.patterns(tenant, narrowed.patterns(order="given_up", limit=PATTERNS))
        ],
        "tools": figures.rows(used.parts.items()),
        "versions": [each | {"version": _version(name, each["name"])} for each in figures.rows(versions.parts.items())],
        "means": figures.means(cell),
        "costs": figures.costs(cell),
        "recent": [runs.row(history) for history in recent],
        "advice": [shown.text(each) for each in questions.advice(Cell(), used.parts, {name: cell})],
        "leans": f"{shown.percent(cell.repaired, cell.first_try + cell.recovered)} of "
        f"{count(cell.first_try + cell.recovered, 'call')} that worked",
        "narrowed": narrowed,
    }


def _version(agent: str, label: str) -> str:
    """A version is counted under its agent's name."""
    return label.removeprefix(f"{agent} ") if agent else label.strip()
