"""mulligan doctor."""

from __future__ import annotations

import contextlib
import platform
import sqlite3
import sys
from pathlib import Path
from typing import Any

import click

from mulligan import __version__
from mulligan.failure import StoreError
from mulligan.remember import checkup
from mulligan.remember.checkup import Checkup
from mulligan.remember.recording.journal import NewerJournal, frames, orphans
from mulligan.remember.recording.losses import dropped, hook_faults
from mulligan.remember.store import LOCAL, RunQuery, Store
from mulligan.remember.urls import (
    is_begun,
    is_postgres,
    is_remote,
    journals_of,
    open_store,
    place_of,
    shown,
    sqlite_path,
)
from mulligan.report import terminal
from mulligan.report.tables import ago, count, pairs
from mulligan.serve.cli.options import as_json, now, print_json, print_lines, settings_with, store_option, width
from mulligan.settings import Settings, hook_folder

LARGEST = 5
"""Number of tables shown as text. The JSON output has all of them."""
RECENT = 500
"""Number of recent runs that are checked for a task description."""


@click.command(epilog="Examples:\n\n  mulligan doctor\n\n  mulligan doctor --store ./failures.db --json")
@store_option
@as_json
def doctor(store: str | None, as_json: bool) -> None:
    """Where things are kept, and whether they are well.

    Exits 1 when something is not: a store that is not sound, records that were dropped, journals that wait.
    """
    facts = _facts(settings_with(store))
    ills = _ills(facts)
    if as_json:
        print_json(facts | {"ills": ills})
    else:
        click.echo("All is well." if not ills else "\n".join(ills))
        click.echo("")
        print_lines(pairs(_rows(facts), width()))
    sys.exit(1 if ills else 0)


def _facts(settings: Settings) -> dict[str, Any]:
    url = settings.store_url
    path = sqlite_path(url) if is_remote(url) else place_of(url, settings.folder)  # raises for a server
    facts: dict[str, Any] = {
        "mulligan": __version__,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "store": shown(url) if is_postgres(url) else str(path),
        "journals": str(journals_of(path)),
    }
    facts |= _waiting(journals_of(path))
    facts |= _hooks()
    if not is_begun(url):
        return facts | {"sound": None, "note": "nothing has been kept yet"}
    try:
        if is_postgres(url):
            from mulligan.remember.postgres.checkup import of_postgres  # needs the postgres extra

            facts |= _checked(of_postgres(url, now()))
        with contextlib.closing(open_store(url)) as kept:
            facts |= _kept(kept)
        if not is_postgres(url):  # after opening, which migrates the schema
            facts |= _checked(checkup.of_sqlite(path))
    except StoreError as error:
        facts |= {"sound": False, "note": str(error)}
    return facts


def _kept(kept: Store) -> dict[str, Any]:
    health = kept.health(LOCAL)
    recent = kept.runs(LOCAL, RunQuery(limit=RECENT))
    told = sum(history.run.context is not None for history in recent)
    return {
        "sound": health.sound,
        "note": health.note,
        "runs": health.runs,
        "steps": health.steps,
        "dropped": dropped(kept, LOCAL),
        "with_context": round(told / len(recent), 3) if recent else None,
    }


def _checked(found: Checkup) -> dict[str, Any]:
    tables = [{"name": each.name, "bytes": each.bytes, "rows": each.rows} for each in found.tables]
    facts = {"engine": found.engine, "schema": found.schema, "newest": found.newest, "bytes": found.bytes}
    return {**facts, "tables": tables, **found.facts, "engine_ills": list(found.ills)}


def _waiting(folder: Path) -> dict[str, int]:
    """Count the records in orphaned journals. A running process locks its own journal."""
    left = newer = 0
    for orphan in orphans(folder) if folder.is_dir() else ():
        try:
            left += sum(1 for _ in frames(orphan.path))
        except NewerJournal:
            newer += 1
    return {"waiting": left, "newer_journals": newer}


def _hooks() -> dict[str, Any]:
    found = hook_faults(hook_folder())
    if not found.number:
        return {"hook_faults": 0}
    return {"hook_faults": found.number, "hook_fault": found.last, "hook_fault_at": found.at}


def _ills(facts: dict[str, Any]) -> list[str]:
    ills = []
    if facts.get("sound") is False:
        ills.append(f"The store is not sound: {facts['note']}")
    if facts["waiting"]:
        ills.append(
            f"{terminal.count(facts['waiting'], 'record')} of processes that were killed wait in journals; "
            "the next process to record, or `mulligan runs`, brings them in."
        )
    if facts["newer_journals"]:
        ills.append("A journal was written by a newer mulligan. Upgrade: pip install -U mulligan")
    if facts["hook_faults"]:
        last = ago(facts["hook_fault_at"], now())
        ills.append(
            f"{terminal.count(facts['hook_faults'], 'event')} of coding agents could not be kept, the last {last} "
            f"({terminal.line(facts['hook_fault'])}). Once it is mended, forget them: rm '{hook_folder()}/faults'*"
        )
    ills += facts.get("engine_ills", ())
    if facts.get("dropped"):
        ills.append(f"{terminal.count(facts['dropped'], 'record')} could not be kept and were dropped.")
    return ills


def _rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of the text output, without empty ones."""
    share = facts.get("with_context")
    kept = [count(facts[f"{what}s"], what) for what in ("run", "step") if f"{what}s" in facts]
    kept += [_size(facts["bytes"])] if "bytes" in facts else []
    rows = {
        "mulligan": f"{facts['mulligan']} on Python {facts['python']}, SQLite {facts['sqlite']}",
        "store": facts["store"],
        "journals": facts["journals"],
        "kept": ", ".join(kept),
        "schema": f"{facts['schema']}, the newest is {facts['newest']}" if "schema" in facts else "",
        "tables": ", ".join(f"{each['name']} {_size(each['bytes'])}" for each in facts.get("tables", ())[:LARGEST]),
        **(_of_postgres(facts) if "pool" in facts else {}),
        "dropped": count(facts.get("dropped", 0), "record") if "dropped" in facts else "",
        "context": f"{100 * share:.0f} % of recent runs say what they are about" if share is not None else "",
        "note": facts.get("note", "") if facts["sound"] is not False else "",  # shown in the first line instead
    }
    # The store's address contains no password and is shown unchanged. Everything else may be untrusted text.
    return [(name, told if name == "store" and told.isprintable() else terminal.line(told, 300))
            for name, told in rows.items() if told]  # fmt: skip


def _of_postgres(facts: dict[str, Any]) -> dict[str, str]:
    archived = f"; its log was last archived {ago(facts['archived'], now())}" if facts["archived"] else ""
    lags = [f"{each['name'] or 'one'} {each['lag_seconds']:.1f} s behind" for each in facts["replicas"]]
    return {
        "database": f"{facts['engine']}, {facts['connections']} of {facts['max_connections']} connections taken, "
        f"{facts['pool']} at most for each of our processes to read with",
        "pooler": "one stands before it, so nothing is left to sessions; if it gives us any, ?pooler=session is quicker"
        if facts["pooler"]
        else "",
        "parts": f"{count(facts['parts'], 'day')} of steps, {facts['parts_ahead']} of them ahead"
        + (f"; {facts['steps_without_part']:,} steps without one" if facts["steps_without_part"] else "")
        if "parts" in facts
        else "",
        "extensions": _pairs(facts["extensions"]),
        "tenants": f"row-level security is {facts['row_security']} (as {facts['role']})" if "role" in facts else "",
        "timeouts": _pairs(facts["timeouts"]),
        "durable": _pairs(facts["durable"]),
        "replicas": ", ".join(lags) or ("this is one" if facts["is_replica"] else "none"),
        "backup": f"when the last was made is unknown to PostgreSQL{archived}",
    }


def _pairs(facts: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def _size(bytes: int) -> str:
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if bytes >= unit:
            return f"{bytes / unit:,.1f} {name}"
    return f"{bytes} bytes"
