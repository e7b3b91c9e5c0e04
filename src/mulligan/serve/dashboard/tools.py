"""Tool, model and agent pages: success, latency, corrected arguments and recommendations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from mulligan.calls import TOOL
from mulligan.figures import Cell, percentile
from mulligan.records import LAST_PART, OPEN, Fix
from mulligan.remember.store import FixQuery, Store
from mulligan.report import stats as questions
from mulligan.report.tables import count
from mulligan.serve.dashboard import figures, lessons, runs, shown
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
"""Messages that report a failure without naming its cause."""
SHORT = 12
"""Shorter messages can hardly name a remedy."""
TAKES = {
    "cast": ("Say which type `{path}` has.", "`{path}` is of type {value}."),
    "rename": ("Give the exact name of the argument that is often called `{path}`.",
               "The argument is called `{value}`, not `{path}`."),
    "drop": ("There is no argument `{path}`.", "There is no argument `{path}`."),
    "clamp": ("Say the least and the most that `{path}` may be.",
              "`{path}` has bounds; {value} is the nearest that was accepted."),
    "enum": ("List the words that `{path}` takes, as they are written.",
             "`{path}` takes words exactly as they are listed, such as `{value}`."),
    "trim": ("`{path}` takes the bare value, with nothing around it.",
             "`{path}` takes the bare value, with nothing around it."),
    "parse": ("`{path}` is a structure, not JSON inside a text.", "`{path}` is a structure, not JSON inside a text."),
    "wrap": ("`{path}` is a list, also of one.", "`{path}` is a list, also of one."),
    "default": ("`{path}` is required.", "`{path}` is required, for example {value}."),
}  # fmt: skip
"""Sentences about an argument by change operation: without and with the value that succeeded."""
SENTENCES = 4
LEANING = 8
"""Tools with the most recovered calls whose arguments are examined."""
LESSONS = 10
FIXES = 50


def tools(store: Store, tenant: str, asked: Asked) -> dict[str, Any]:
    found = store.stats(tenant, asked.stats(by="tool"))
    models = store.stats(tenant, asked.stats(by="model", type="model"))
    rows = figures.rows(found.parts.items())
    return {
        "empty": emptiness(store, tenant, asked) if not rows and not models.parts else None,
        "rows": rows,
        "wrong": list(_most_often_wrong(store, tenant, asked, rows)),
        "models": figures.rows(models.parts.items()),
    }


def _most_often_wrong(store: Store, tenant: str, asked: Asked, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the most frequently corrected arguments of all tools, with a sentence for the tool's description."""
    leaning = sorted((each for each in rows if each["recovered"]), key=lambda each: -each["recovered"])[:LEANING]
    found: list[dict[str, Any]] = []
    for name in (each["name"] for each in leaning):
        cell = store.stats(tenant, asked._replace(filters={**asked.filters, "tool": name}).stats()).total
        if not cell.wrong:
            continue
        worked = _worked(store.fixes(tenant, FixQuery(tool=name, now=asked.now, limit=FIXES)))
        found += [
            {
                "tool": name,
                "argument": "(its name)" if path == TOOL else path,
                "how": questions.WRONG.get(how, how),
                "calls": calls,
                "sentence": shown.text(_sentence(name, path, how, worked), 400),
            }
            for path, how, calls in questions.wrong_arguments(cell)[:WRONG]
        ]
    return sorted(found, key=lambda each: (-each["calls"], each["tool"], each["argument"]))[:WRONG]


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
    known_of = lessons.of_tool(store, tenant, name, asked.now, LESSONS)
    is_known = cell.calls or met or known_of  # A lesson can exist for a tool that was never called here.
    if not is_known and not store.runs(tenant, narrowed.runs(limit=1, since=None, until=None)):
        return None
    agents = store.stats(tenant, narrowed.stats(by="agent", detail=True))
    before = store.stats(tenant, narrowed.before()).total
    wrong = [
        {"argument": path, "how": questions.WRONG.get(how, how), "calls": calls, "is_name": path == TOOL}
        for path, how, calls in questions.wrong_arguments(cell)[:WRONG]
    ]
    known = FixQuery(tool=name, now=asked.now, limit=FIXES)
    return {
        "name": name,
        "cell": cell,
        "cards": figures.cards(narrowed, cell, before),
        "chart": figures.outcomes(narrowed, series),
        "latency": figures.latency(narrowed, series),
        "kinds": figures.kinds(cell),
        "failures": sum(kind.failures for kind in cell.kinds.values()),
        "patterns": [row(store, tenant, asked, pattern) for pattern in met],
        "agents": figures.rows(agents.parts.items()),
        "wrong": wrong,
        "lessons": known_of,
        "sentence": shown.text(" ".join(sentence(name, cell, store.fixes(tenant, known))), 2000) if wrong else None,
        "vague": [pattern for pattern in met if is_vague(pattern.message)],
        "timeouts": list(_timeouts(cell)),
        "advice": [shown.text(each) for each in questions.advice(Cell(), {name: cell}, {})],
        "attempts": questions.by_attempt(cell),
        "means": figures.means(cell),
        "narrowed": narrowed,
    }


def sentence(name: str, cell: Cell, known: Sequence[Fix] = ()) -> Iterator[str]:
    """Yield sentences for the tool's description that would prevent frequent mistakes.

    They contain only shareable values that succeeded: bounds, names, types, enum members (`Fix.changes`).
    """
    worked = _worked(known)
    told = 0
    for path, how, _ in questions.wrong_arguments(cell):
        said = _sentence(name, path, how, worked)
        if said and (path == TOOL or told < SENTENCES):
            told += path != TOOL
            yield said


def _worked(known: Sequence[Fix]) -> dict[tuple[str, str], Any]:
    """Map argument and change operation to the value that succeeded."""
    return {
        (change.path, change.how): change.after
        for fix in sorted(known, key=lambda fix: fix.worked)
        for change in fix.changes
        if change.after not in (None, OPEN, LAST_PART)
    }


def _sentence(tool: str, path: str, how: str, worked: dict[tuple[str, str], Any]) -> str:
    """Return a sentence about one argument, or an empty string where no description can help."""
    if path == TOOL:
        return f"The tool's name is exactly `{tool}`."
    if how not in TAKES:
        return ""
    value = worked.get((path, how))
    plain, exact = TAKES[how]
    return exact.format(path=path, value=value) if value is not None else plain.format(path=path)


def is_vague(message: str) -> bool:
    """Return whether an error message contains nothing that a model could act on."""
    said = " ".join(message.split())
    return not said or VAGUE.fullmatch(said) is not None or len(said) < SHORT


def _timeouts(cell: Cell) -> Iterator[dict[str, Any]]:
    """Yield the durations of timed-out attempts beside those of successful ones."""
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
    """Return the version from a label of the form `agent version`."""
    return label.removeprefix(f"{agent} ") if agent else label.strip()
