"""Search in the rows of runs: the words of a run for an index, and runs that contain a text.

An index proposes runs that have all words of a search. Runs that it does not cover yet are proposed too, so that the
newest are found. `contract/search.py` decides on what is stored whether a proposed run matches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from mulligan.contract.search_terms import SearchTerm
from mulligan.core.records import History, Run
from mulligan.redaction.regex import LazyRegex
from mulligan.store.connection import Connection
from mulligan.store.rows import decompress, history_of, messages_of, read_meta, write_meta

MAX_TEXT_CHARS = 1_000_000
"""Characters of one run that are searched."""
MIN_PAGE_RUNS = 50
"""Proposed runs that are read at a time."""
MAX_MISSED_RUNS = 1000
"""Runs that a search reads although the index excluded all others."""
BROAD_SEARCH = (
    "{:,} runs were read that may have these words, but too few have them as the search asks. "
    "Add a word, or a period with since and until."
)
MAX_TEXT_ROWS = 5000
"""Attempts, and messages, of one run that are searched."""
_STEPS_OF_RUN = "SELECT name, body FROM steps WHERE tenant = ?2 AND run = ?1 ORDER BY seq LIMIT ?3"
_MESSAGES_OF_RUN = (
    "SELECT m.body FROM run_messages r JOIN messages m ON m.tenant = r.tenant AND m.digest = r.digest "
    "WHERE r.tenant = ?2 AND r.run = ?1 ORDER BY r.number LIMIT ?3"
)
ERASURES_KEY = "erasures"
"""Entry of `meta`: how often records of a tenant were deleted or changed. An index beside the store notices it."""
INDEX_BATCH_RUNS = 100
"""Runs that are indexed in one transaction."""
SETTLE_MILLISECONDS = 60_000
"""A run is indexed so long after it was stored: until then another process may commit an earlier row."""
IDLE_MILLISECONDS = 24 * 3600 * 1000
"""An unfinished run is indexed when it was stored so long ago."""
_ESCAPE = LazyRegex(r"\\(?:u[0-9a-fA-F]{4}|.)")
_UNSEARCHED = LazyRegex(
    r'"(?<=[{,]")(?:(?:started_at|ended_at)":\d{13}(?=[,}])|duration_seconds":\d+(?:\.\d{4,}|\.\d*e-\d+|e-\d+)|[^",]*":)'
)
"""Times that mulligan recorded, and keys of values, in JSON without escapes. Searches name a key only together with a
word of its value. Where the text could be another value, it stays.
"""


def is_complete(body: bytes, stored_at: int, now: int) -> bool:
    """Return whether a run is indexed now: it has ended, or nothing is expected any more."""
    return b'"end_reason"' in decompress(body) or stored_at < now - IDLE_MILLISECONDS


def read_texts(connection: Connection, tenant: str, bodies: Mapping[str, bytes]) -> dict[str, str]:
    """Return all stored values of runs, by id, as texts without escapes. `bodies` are those of their rows."""
    parts = {run: [decompress(body).decode()] for run, body in bodies.items()}
    limits = (tenant, MAX_TEXT_ROWS)
    for run, name, body in connection.execute_by_key(_STEPS_OF_RUN, list(bodies), limits):
        parts[run] += (name, decompress(body).decode())
    for run, body in connection.execute_by_key(_MESSAGES_OF_RUN, list(bodies), limits):
        parts[run].append(decompress(body).decode())
    texts = ((run, "\n".join(part)[:MAX_TEXT_CHARS]) for run, part in parts.items())
    return {run: _ESCAPE.sub(" ", text) if "\\" in text else text for run, text in texts}


def remove_unsearched(text: str) -> str:
    """Return a text of `read_texts` without what no search finds, for an index."""
    return _UNSEARCHED.sub(" ", text)


def may_match(text: str, terms: Sequence[SearchTerm]) -> bool:
    """Return whether a run with this text may contain the terms. This is cheaper than to decode the run."""
    return all(
        term.pattern.search(text) or (term.value_hash and term.value_hash in text)
        for term in terms
        if not term.is_excluded and not set(term.text) & {'"', "\\"}
    )


def read_history(connection: Connection, tenant: str, run: Run) -> History:
    """Return a run with its attempts and its recorded messages."""
    return replace(history_of(connection, tenant, run), messages=messages_of(connection, tenant, run.id))


def read_erasures(connection: Connection, tenant: str) -> int:
    return int(read_meta(connection, tenant, ERASURES_KEY) or 0)


def count_erasure(writer: Connection, tenant: str, previous: int | None = None) -> None:
    """Note that records of a tenant were deleted or changed. `previous` is the count before, if it was deleted, too."""
    count = read_erasures(writer, tenant) if previous is None else previous
    write_meta(writer, tenant, ERASURES_KEY, str(count + 1))
    writer.execute("DELETE FROM meta WHERE tenant = ? AND key >= 'late_run:' AND key < 'late_run;'", (tenant,))
