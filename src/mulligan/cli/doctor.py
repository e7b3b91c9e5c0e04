from __future__ import annotations

import collections
import contextlib
import platform
import shlex
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from mulligan import __version__
from mulligan.cli.options import CommandContext, command, now_ms
from mulligan.cli.server_entries import find_broken_entries
from mulligan.contract.store import DEFAULT_TENANT, RunQuery, Store
from mulligan.core.failure import UPGRADE, StoreError
from mulligan.core.prices import PriceTable
from mulligan.journal import NewerJournalError, find_orphaned, read_frames
from mulligan.record.journal_import import count_dropped, read_hook_errors, recover_journals
from mulligan.recover.target_state import NO_TOKENS
from mulligan.report.tables import escape_hidden, format_age, format_count, render_pairs, to_line, trusted_line
from mulligan.settings import Settings, hook_folder
from mulligan.store import diagnostics, urls
from mulligan.store.diagnostics import Diagnostics
from mulligan.store.remote import ADDRESS_FILE, RemoteStore

MAX_SHOWN_TABLES = 5
"""Number of tables, and of tools without retry tokens, shown as text. The JSON output has all of them."""
MAX_RECENT_RUNS = 500
"""Number of recent runs that are checked for a task description and for used-up retry tokens."""
MIN_CONTEXT_SHARE = 0.5
"""Share of runs with a task description below which the report says how to add one."""


@command("mulligan doctor", "mulligan doctor --store ./failures.db --json", "mulligan doctor --send FOLDER")
@click.option(
    "--send", "folder", metavar="FOLDER", type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="First bring the records that wait in this folder into the store, wherever they were meant to go.",
)  # fmt: skip
def doctor(context: CommandContext, folder: Path | None) -> None:
    """Check the installation and the store, and show where records are stored.

    Of a server, it tests the connection: address, TLS, token, version and clock.

    Exits 1 if there is a problem: a damaged store, an unreachable server, a PostgreSQL role that bypasses row-level
    security, dropped or waiting records, or settings of coding agents and MCP clients that start a mulligan which is
    not there.
    """
    if folder is not None:
        _send_waiting(context.settings, folder)
    facts = _facts(context.settings)
    problems = _problems(facts)
    lines = [*(problems or ["Healthy."]), "", *render_pairs(_rows(facts), context.width)]
    context.print(facts | {"problems": problems}, lines)
    sys.exit(1 if problems else 0)


def _facts(settings: Settings) -> dict[str, Any]:
    url = settings.store_url
    path = urls.local_path(url, settings.folder)
    policy = settings.policy
    facts: dict[str, Any] = {
        "mulligan": __version__,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "store": urls.redact_password(url) if urls.is_networked(url) else str(path),
        "journals": str(urls.journals_of(path)),
        "retry_tokens": policy.retry_tokens,
        "down_after": policy.down_after,
        "max_run_retries": policy.max_run_retries,
    }
    count, last_error, at = read_hook_errors(hook_folder())
    facts |= _journal_facts(urls.journals_of(path)) | {"hook_faults": count}
    if urls.is_remote(url):
        facts["orphaned_records"] = 0  # they are among those that wait: no query imports them
    own_folder = None if urls.is_remote(url) else urls.journals_of(path)
    facts["waiting"] = _find_waiting(settings.folder, own_folder)
    facts |= {"hook_fault": last_error, "hook_fault_at": at} if count else {}
    facts["broken_entries"] = [escape_hidden(entry) for entry in find_broken_entries()]
    if urls.is_remote(url):
        return facts | _server_facts(settings)
    if not urls.may_have_records(url):
        if obstacle := _find_obstacle(path.parent):
            return facts | {"healthy": False, "detail": obstacle}
        return facts | {"healthy": None, "detail": "no records yet"}
    try:
        if urls.is_postgres(url):
            from mulligan.store.postgres.postgres_diagnostics import diagnose_postgres  # needs the postgres extra

            facts |= _diagnostic_facts(diagnose_postgres(url, now_ms()))
        with contextlib.closing(urls.open_store(url)) as opened_store:
            facts |= _store_facts(opened_store)
        if not urls.is_postgres(url):  # after opening, which migrates the schema
            facts |= _diagnostic_facts(diagnostics.diagnose_sqlite(path))
    except StoreError as error:
        facts |= {"healthy": False, "detail": str(error)}
    return facts


def _find_obstacle(folder: Path) -> str:
    """Return why no file can be created in the folder of a new store; empty if one can. Nothing is left behind."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    try:
        with tempfile.TemporaryDirectory(dir=existing):
            return ""
    except OSError as error:
        return (
            f"No file can be created in {folder} ({error.strerror}). Make it a folder that you may write to, or name "
            "another one with MULLIGAN_HOME or --store."
        )


def _server_facts(settings: Settings) -> dict[str, Any]:
    with contextlib.closing(RemoteStore(settings.store_url, settings.token)) as server:
        try:
            check = server.check_connection()
        except StoreError as error:
            return {"healthy": False, "detail": str(error)}
        facts = {"healthy": True, "detail": "", "server": check._asdict()}
        return facts | (_store_facts(server) if not check.query_denial else {})


def _find_waiting(home: Path, own_folder: Path | None) -> list[dict[str, Any]]:
    """Return the other folders of networked stores in which records of ended processes wait."""
    waiting = []
    for folder in sorted({*home.glob("server-*.journals"), *home.glob("postgres-*.journals")} - {own_folder}):
        if count := _journal_facts(folder)["orphaned_records"]:
            address_file = folder / ADDRESS_FILE
            address = address_file.read_text()[:300] if address_file.is_file() else ""
            waiting.append({"folder": str(folder), "records": count, "server": address})
    return waiting


def _send_waiting(settings: Settings, folder: Path) -> None:
    url = settings.store_url
    with contextlib.closing(urls.open_store(url, settings.fsync, settings.token, folder)) as store:
        count = recover_journals(store, DEFAULT_TENANT, folder, PriceTable(settings.prices).add_costs)
    click.echo(f"Sent {format_count(count, 'record')} to {urls.redact_password(url)}.", err=True)


def _store_facts(store: Store) -> dict[str, Any]:
    health = store.health(DEFAULT_TENANT)
    recent = store.runs(DEFAULT_TENANT, RunQuery(limit=MAX_RECENT_RUNS))
    runs_with_context = sum(history.run.context is not None for history in recent)
    exhausted = collections.Counter(
        step.name
        for history in recent
        for step in history.steps
        if step.stop is not None and step.stop.reason.startswith(NO_TOKENS)
    )
    return {
        "healthy": health.healthy,
        "detail": health.detail,
        "runs": health.runs,
        "steps": health.steps,
        "dropped": count_dropped(store, DEFAULT_TENANT),
        "with_context": round(runs_with_context / len(recent), 3) if recent else None,
        "retry_tokens_exhausted": [{"tool": tool, "calls": count} for tool, count in exhausted.most_common()],
    }


def _diagnostic_facts(report: Diagnostics) -> dict[str, Any]:
    tables = [{"name": table.name, "bytes": table.bytes, "rows": table.rows} for table in report.tables]
    facts = {"engine": report.engine, "schema": report.schema, "newest": report.newest, "bytes": report.bytes}
    return {**facts, "tables": tables, **report.facts, "engine_problems": list(report.problems)}


def _journal_facts(folder: Path) -> dict[str, int]:
    """Count the records in orphaned journals. A running process locks its own journal."""
    orphaned_records = newer = 0
    for orphan in find_orphaned(folder) if folder.is_dir() else ():
        try:
            orphaned_records += sum(1 for _ in read_frames(orphan.path))
        except NewerJournalError:
            newer += 1
    return {"orphaned_records": orphaned_records, "newer_journals": newer}


def _problems(facts: dict[str, Any]) -> list[str]:
    problems = []
    if facts.get("healthy") is False:
        problems.append(f"The store cannot be used: {facts['detail']}")
    server = facts.get("server")
    if server is not None and server["send_denial"]:
        problems.append(f"No records can be sent: {server['send_denial']}")
    if server is not None and abs(server["clock_difference"]) > 30:
        problems.append(f"{_describe_clock(server['clock_difference'])} Times of runs are wrong: set the clocks.")
    for waiting in facts["waiting"]:
        purpose = f" for {trusted_line(waiting['server'])}" if waiting["server"] else ""
        problems.append(
            f"{format_count(waiting['records'], 'record')}{purpose} not sent yet. Send to {facts['store']}: "
            f"mulligan doctor --send {shlex.quote(waiting['folder'])}"
        )
    if facts["orphaned_records"]:
        problems.append(
            f"{format_count(facts['orphaned_records'], 'record')} in orphaned journals of killed "
            "processes. Run `mulligan runs` to import them."
        )
    if facts["newer_journals"]:
        problems.append(f"A journal was written by a newer version of mulligan. {UPGRADE}")
    if facts["hook_faults"]:
        last = format_age(facts["hook_fault_at"], now_ms())
        problems.append(
            f"{format_count(facts['hook_faults'], 'hook error')}: events of coding agents "
            f"were not stored, the last one {last} ({to_line(facts['hook_fault'])}). After "
            f"fixing the cause, reset the count: rm '{hook_folder()}/faults'*"
        )
    problems += [*facts["broken_entries"], *facts.get("engine_problems", ())]
    if facts.get("dropped"):
        problems.append(f"{format_count(facts['dropped'], 'record')} could not be stored and were dropped.")
    return problems


def _describe_clock(difference: int) -> str:
    if abs(difference) <= 1:
        return "The server's clock agrees with this one."
    return f"The server's clock is {abs(difference):,} s {'ahead of' if difference > 0 else 'behind'} this one."


def _server_rows(server: dict[str, Any]) -> dict[str, str]:
    query = server["query_denial"].partition("denied access: ")[2]
    return {
        "server": f"mulligan {server['version']} answers. {_describe_clock(server['clock_difference'])}",
        "send": "no" if server["send_denial"] else "yes",
        "query": f"no: {query}" if query else "yes",
    }


def _rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of the text output, without empty ones."""
    share = facts.get("with_context")
    rows = {
        "mulligan": f"{facts['mulligan']} on Python {facts['python']}, SQLite {facts['sqlite']}",
        "store": facts["store"],
        **(_server_rows(facts["server"]) if "server" in facts else {}),
        "journals": facts["journals"],
        "stored": _describe_records(facts),
        "schema": f"{facts['schema']} (current version {facts['newest']})" if "schema" in facts else "",
        "tables": ", ".join(
            f"{table['name']} {_format_size(table['bytes'])}" for table in facts.get("tables", ())[:MAX_SHOWN_TABLES]
        ),
        **(_postgres_rows(facts) if "pool" in facts else {}),
        "dropped": format_count(facts.get("dropped", 0), "record") if "dropped" in facts else "",
        "retries": f"{format_count(facts['retry_tokens'], 'token')} per target, which is down after "
        f"{format_count(facts['down_after'], 'failure')} in a row; {format_count(facts['max_run_retries'], 'repair')} "
        "per run",
        "used up by": ", ".join(
            f"{row['tool']} {format_count(row['calls'], 'call')}"
            for row in facts.get("retry_tokens_exhausted", ())[:MAX_SHOWN_TABLES]
        ),
        "context": _describe_context(share),
        "detail": facts.get("detail", "") if facts["healthy"] is not False else "",  # shown in the first line instead
    }
    # Addresses of the store and its workers contain no password and are shown unchanged. All else may be untrusted.
    return [(name, text if name in ("store", "workers") and text.isprintable() else to_line(text, 300))
            for name, text in rows.items() if text]  # fmt: skip


def _describe_records(facts: dict[str, Any]) -> str:
    """Return how much is stored, and which other tenants have runs: all else is about the default tenant."""
    others = [tenant for tenant in facts.get("tenants", ()) if tenant["name"] != DEFAULT_TENANT]
    amounts = [format_count(facts[f"{noun}s"], noun) for noun in ("run", "step") if f"{noun}s" in facts]
    if others and amounts:
        amounts = [f"{' and '.join(amounts)} of tenant {DEFAULT_TENANT}"]
    text = ", ".join([*amounts, *([_format_size(facts["bytes"])] if "bytes" in facts else [])])
    if "workers" in facts and "tenants" not in facts:
        return f"{text}; other tenants are not counted while a worker does not answer"
    if not others:
        return text
    # Number of other tenants that are named as text. The JSON output has all of them.
    names = [tenant["name"] for tenant in others[:10]]
    names += [f"{len(others) - len(names):,} more"] if len(others) > len(names) else []
    runs = format_count(sum(tenant["runs"] for tenant in others), "run")
    return f"{text}; {runs} of {format_count(len(others), 'other tenant')}: {', '.join(names)}"


def _describe_context(share: float | None) -> str:
    """Return how many runs say what they are about, and how a run can."""
    if share is None:
        return ""
    advice = '; add one: mulligan.run("agent", context="what the run is about")' if share < MIN_CONTEXT_SHARE else ""
    return f"{100 * share:.0f} % of recent runs have a task description{advice}"


def _postgres_rows(facts: dict[str, Any]) -> dict[str, str]:
    archived = f"; log last archived {format_age(facts['archived'], now_ms())}" if facts["archived"] else ""
    lags = [f"{replica['name'] or 'unnamed'} {replica['lag_seconds']:.1f} s behind" for replica in facts["replicas"]]
    return {
        "database": f"{facts['engine']}, {facts['connections']} of {facts['max_connections']} connections in "
        f"use, read pool of {facts['pool']} per process",
        "pooler": "transaction pooling assumed, session features off; with session pooling, ?pooler=session is faster"
        if facts["pooler"]
        else "",
        "partitions": f"{format_count(facts['parts'], 'daily partition')}, {facts['parts_ahead']} created ahead"
        + (f"; {facts['steps_without_part']:,} steps without a partition" if facts["steps_without_part"] else "")
        if "parts" in facts
        else "",
        "extensions": _format_pairs(facts["extensions"]),
        "tenants": f"row-level security {facts['row_security']} (role {facts['role']})" if "role" in facts else "",
        "timeouts": _format_pairs(facts["timeouts"]),
        "durable": _format_pairs(facts["durable"]),
        "workers": ", ".join(
            f"{worker['name']} {format_count(worker['shards'], 'shard')} {_format_size(worker['shard_bytes'])} "
            f"(largest {_format_size(worker['largest_shard_bytes'])})"
            if worker["reachable"]
            else f"{worker['name']} does not answer"
            for worker in facts.get("workers", ())
        ),
        "replicas": ", ".join(lags) or ("this database is a replica" if facts["is_replica"] else "none"),
        "backup": f"last backup unknown to PostgreSQL{archived}",
    }


def _format_pairs(facts: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def _format_size(bytes: int) -> str:
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if bytes >= unit:
            return f"{bytes / unit:,.1f} {name}"
    return f"{bytes} bytes"
