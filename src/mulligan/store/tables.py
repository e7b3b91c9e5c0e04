"""Tables and migrations for all databases. Released migrations are never edited: append a new one.

CONTRIBUTING.md, "Change the schema", says what a migration may contain while processes of the version before it run.
"""

from __future__ import annotations

import itertools
import re

from mulligan.core.failure import UPGRADE, NewerStoreError

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # `stored_at` is when a run was stored; `failure_free`, whether every call succeeded at its first attempt.
        # `principal` is the author of the run: what the run teaches is one vote of the author.
        """
        CREATE TABLE runs (
            tenant TEXT NOT NULL, id TEXT NOT NULL, agent TEXT NOT NULL, session TEXT, started_at BIGINT NOT NULL,
            body BLOB NOT NULL, version TEXT, environment TEXT, status TEXT NOT NULL DEFAULT 'success',
            stored_at BIGINT NOT NULL DEFAULT 0, imported INTEGER NOT NULL DEFAULT 0,
            failure_free INTEGER NOT NULL DEFAULT 1, principal TEXT NOT NULL DEFAULT '', PRIMARY KEY (tenant, id))
        """,
        "CREATE INDEX runs_by_start ON runs (tenant, started_at, id)",
        "CREATE INDEX runs_by_agent ON runs (tenant, agent, started_at, id) WHERE agent <> ''",
        "CREATE INDEX runs_by_session ON runs (tenant, session, started_at, id) WHERE session IS NOT NULL",
        "CREATE INDEX runs_by_version ON runs (tenant, version, started_at, id) WHERE version IS NOT NULL",
        "CREATE INDEX runs_by_environment ON runs (tenant, environment, started_at, id) WHERE environment IS NOT NULL",
        "CREATE INDEX runs_by_status ON runs (tenant, status, started_at, id) WHERE status <> 'success'",
        # Runs of which only steps have arrived so far, with the time of the first one.
        """
        CREATE TABLE orphaned_runs (
            tenant TEXT NOT NULL, run TEXT NOT NULL, stored_at BIGINT NOT NULL DEFAULT 0,
            PRIMARY KEY (tenant, run)) WITHOUT ROWID
        """,
        """
        CREATE TABLE steps (
            tenant TEXT NOT NULL, run TEXT NOT NULL, seq INTEGER NOT NULL, call INTEGER NOT NULL,
            name TEXT NOT NULL, outcome TEXT NOT NULL, kind TEXT, fingerprint TEXT, started_at BIGINT NOT NULL,
            body BLOB NOT NULL, PRIMARY KEY (tenant, run, seq))
        """,
        "CREATE INDEX steps_by_fingerprint ON steps (tenant, name, fingerprint, started_at) "
        "WHERE fingerprint IS NOT NULL",
        # Messages of recorded conversations: equal ones of a tenant are one row. The digest is that of the stored
        # content. A message without a row in `run_messages` is deleted with the last one.
        "CREATE TABLE messages (tenant TEXT NOT NULL, digest TEXT NOT NULL, body BLOB NOT NULL, "
        "PRIMARY KEY (tenant, digest))",
        """
        CREATE TABLE run_messages (
            tenant TEXT NOT NULL, run TEXT NOT NULL, number INTEGER NOT NULL, digest TEXT NOT NULL,
            PRIMARY KEY (tenant, run, number)) WITHOUT ROWID
        """,
        "CREATE INDEX run_messages_by_digest ON run_messages (tenant, digest)",
        # Recovery links. Those of an unfinished run may be provisional: they are decided after an idle time.
        """
        CREATE TABLE links (
            tenant TEXT NOT NULL, run TEXT NOT NULL, failed_call INTEGER NOT NULL, name TEXT NOT NULL,
            fingerprint TEXT NOT NULL, body BLOB NOT NULL, recovering_call INTEGER NOT NULL DEFAULT 0,
            PRIMARY KEY (tenant, run, failed_call))
        """,
        "CREATE INDEX links_by_fingerprint ON links (tenant, name, fingerprint)",
        """
        CREATE TABLE provisional_runs (
            tenant TEXT NOT NULL, run TEXT NOT NULL, at BIGINT NOT NULL, PRIMARY KEY (tenant, run)) WITHOUT ROWID
        """,
        """
        CREATE TABLE compactions (
            tenant TEXT NOT NULL, owner_type TEXT NOT NULL, owner TEXT NOT NULL, at BIGINT NOT NULL,
            body BLOB NOT NULL, PRIMARY KEY (tenant, owner_type, owner, at))
        """,
        # How many records of a journal are stored.
        """
        CREATE TABLE journals (
            tenant TEXT NOT NULL, journal TEXT NOT NULL, position BIGINT NOT NULL, PRIMARY KEY (tenant, journal))
        """,
        """
        CREATE TABLE key_values (
            tenant TEXT NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL,
            PRIMARY KEY (tenant, kind, key))
        """,
        # State of the store: number of erasures, time of pruning.
        "CREATE TABLE meta (tenant TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (tenant, key))",
        "CREATE TABLE audit (tenant TEXT NOT NULL, at BIGINT NOT NULL, id TEXT NOT NULL, body BLOB NOT NULL, "
        "PRIMARY KEY (tenant, at, id)) WITHOUT ROWID",
        # Runs by the tools and models they called; `type` is "tool" or "model".
        """
        CREATE TABLE run_callees (
            tenant TEXT NOT NULL, type TEXT NOT NULL, name TEXT NOT NULL, started_at BIGINT NOT NULL,
            run TEXT NOT NULL, PRIMARY KEY (tenant, type, name, started_at, run)) WITHOUT ROWID
        """,
        # Runs by pattern, with counts; '' stands for failures without a fingerprint.
        """
        CREATE TABLE run_failures (
            tenant TEXT NOT NULL, pattern TEXT NOT NULL, started_at BIGINT NOT NULL, run TEXT NOT NULL,
            kind TEXT NOT NULL, occurrences INTEGER NOT NULL,
            PRIMARY KEY (tenant, pattern, started_at, run, kind)) WITHOUT ROWID
        """,
        "CREATE INDEX run_failures_by_kind ON run_failures (tenant, kind, started_at, run)",
        # Patterns: counters, which can be recomputed, and decisions of people, which cannot.
        """
        CREATE TABLE patterns (
            tenant TEXT NOT NULL, id TEXT NOT NULL, tool TEXT NOT NULL, fingerprint TEXT NOT NULL, kind TEXT NOT NULL,
            server TEXT, message TEXT NOT NULL, template TEXT NOT NULL, occurrences INTEGER NOT NULL,
            recovered INTEGER NOT NULL, runs INTEGER NOT NULL, first_seen_at BIGINT NOT NULL, first_run TEXT NOT NULL,
            first_seq INTEGER NOT NULL, last_seen_at BIGINT NOT NULL, PRIMARY KEY (tenant, id))
        """,
        "CREATE INDEX patterns_by_occurrences ON patterns (tenant, occurrences, id)",
        "CREATE INDEX patterns_by_last ON patterns (tenant, last_seen_at, id)",
        "CREATE INDEX patterns_by_first ON patterns (tenant, first_seen_at, id)",
        "CREATE INDEX patterns_by_tool ON patterns (tenant, tool)",
        # The size class of a day's count makes the search for the most frequent patterns fast.
        """
        CREATE TABLE pattern_days (
            tenant TEXT NOT NULL, day BIGINT NOT NULL, id TEXT NOT NULL, occurrences INTEGER NOT NULL,
            recovered INTEGER NOT NULL, size_class INTEGER NOT NULL DEFAULT 0,
            PRIMARY KEY (tenant, day, id)) WITHOUT ROWID
        """,
        "CREATE INDEX pattern_days_by_size ON pattern_days (tenant, day, size_class)",
        """
        CREATE TABLE pattern_agents (
            tenant TEXT NOT NULL, id TEXT NOT NULL, agent TEXT NOT NULL, occurrences INTEGER NOT NULL,
            PRIMARY KEY (tenant, id, agent)) WITHOUT ROWID
        """,
        """
        CREATE TABLE pattern_decisions (
            tenant TEXT NOT NULL, id TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (tenant, id))
        """,
        # Counters per hour and per day: a short summary, and details that are read only if needed.
        """
        CREATE TABLE rollups (
            tenant TEXT NOT NULL, grain TEXT NOT NULL, slice TEXT NOT NULL, bucket BIGINT NOT NULL,
            value TEXT NOT NULL, summary BLOB NOT NULL, details BLOB,
            PRIMARY KEY (tenant, grain, slice, bucket, value)) WITHOUT ROWID
        """,
        # Counters that are not added to the rollups yet, one row per batch.
        "CREATE TABLE rollup_changes (tenant TEXT NOT NULL, id TEXT NOT NULL, body BLOB NOT NULL, "
        "PRIMARY KEY (tenant, id)) WITHOUT ROWID",
        "CREATE TABLE principals (tenant TEXT NOT NULL, principal TEXT NOT NULL, last_seen_at BIGINT NOT NULL, "
        "PRIMARY KEY (tenant, principal)) WITHOUT ROWID",
        # Trials after a failure. The calls are calls or attempts of the run. `day` counts in promotion; it may differ
        # from that of `at`, which the writer sends. The last three columns are hashes of values: they tell equal
        # trials apart, and settings from coincidences.
        """
        CREATE TABLE votes (
            tenant TEXT NOT NULL, run TEXT NOT NULL, tried_call BIGINT NOT NULL, failed_call BIGINT NOT NULL,
            fix TEXT NOT NULL, successful INTEGER NOT NULL, at BIGINT NOT NULL, day BIGINT NOT NULL,
            principal TEXT NOT NULL, agent TEXT NOT NULL, automatic INTEGER NOT NULL, body BLOB,
            content TEXT NOT NULL DEFAULT '', old_value TEXT NOT NULL DEFAULT '', other_values TEXT NOT NULL DEFAULT '',
            PRIMARY KEY (tenant, run, tried_call, failed_call, fix)) WITHOUT ROWID
        """,
        "CREATE INDEX votes_by_fix ON votes (tenant, fix, at, run)",
        # Fixes: vote counts, which can be recomputed, and decisions of operators, which cannot.
        """
        CREATE TABLE fixes (
            tenant TEXT NOT NULL, id TEXT NOT NULL, tool TEXT NOT NULL, pattern TEXT NOT NULL,
            last_tried_at BIGINT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (tenant, id))
        """,
        "CREATE INDEX fixes_by_pattern ON fixes (tenant, pattern, last_tried_at)",
        "CREATE INDEX fixes_by_tool ON fixes (tenant, tool, last_tried_at)",
        "CREATE TABLE fix_decisions (tenant TEXT NOT NULL, id TEXT NOT NULL, body BLOB NOT NULL, "
        "PRIMARY KEY (tenant, id))",
        "CREATE TABLE revocations (tenant TEXT NOT NULL, principal TEXT, tool TEXT, since BIGINT, until BIGINT)",
        "CREATE INDEX revocations_by_tenant ON revocations (tenant)",
        # Sketches of patterns that have a fix, for similarity search. PostgreSQL indexes their text.
        """
        CREATE TABLE pattern_sketches (
            tenant TEXT NOT NULL, tool TEXT NOT NULL, pattern TEXT NOT NULL, sketch BLOB NOT NULL,
            text TEXT NOT NULL DEFAULT '', PRIMARY KEY (tenant, tool, pattern)) WITHOUT ROWID
        """,
        # The sketches of a tool, packed together: a new failure is compared with all of them.
        "CREATE TABLE tool_sketches (tenant TEXT NOT NULL, tool TEXT NOT NULL, stamp BIGINT NOT NULL, "
        "body BLOB NOT NULL, PRIMARY KEY (tenant, tool))",
        # Lessons: texts and decisions of people. Their counts come from fixes and patterns.
        """
        CREATE TABLE lessons (
            tenant TEXT NOT NULL, id TEXT NOT NULL, tool TEXT NOT NULL, pattern TEXT NOT NULL, source TEXT NOT NULL,
            body BLOB NOT NULL, PRIMARY KEY (tenant, id))
        """,
        "CREATE INDEX lessons_by_tool ON lessons (tenant, tool)",
        "CREATE INDEX lessons_by_pattern ON lessons (tenant, pattern)",
        # Patterns with changed fixes, which need consolidation.
        "CREATE TABLE pending_patterns (tenant TEXT NOT NULL, pattern TEXT NOT NULL, PRIMARY KEY (tenant, pattern)) "
        "WITHOUT ROWID",
    ),
    (
        # What decides whether a vote is evidence, as JSON (`TrialDetails`). Empty in votes of 0.1.0.
        "ALTER TABLE votes ADD COLUMN details TEXT NOT NULL DEFAULT ''",
    ),
    (
        # What `runs` filters and sorts by, with the number of stored attempts that it covers (`rows.FactsState`).
        """
        CREATE TABLE run_facts (
            tenant TEXT NOT NULL, started_at BIGINT NOT NULL, run TEXT NOT NULL, steps BIGINT NOT NULL,
            attempts BIGINT NOT NULL, tool_failures BIGINT NOT NULL, tokens BIGINT NOT NULL, cost_nanos BIGINT NOT NULL,
            duration_ms BIGINT NOT NULL, PRIMARY KEY (tenant, started_at, run)) WITHOUT ROWID
        """,
        "ALTER TABLE runs ADD COLUMN facts_state INTEGER NOT NULL DEFAULT 0",
        "CREATE INDEX runs_by_facts_state ON runs (tenant, facts_state) WHERE facts_state <> 1",
    ),
)
"""The statements of each schema version. A later version adds a tuple; one that has been released is never edited."""

TABLE_NAMES = tuple(re.findall(r"CREATE TABLE (\w+)", "\n".join(itertools.chain(*MIGRATIONS))))
"""All tables, which both databases have. Each has a column `tenant`."""

APPLICATION = 0x6D6C6731
"""Marks an SQLite file as a mulligan store ("mlg1"), so that databases of other programs are never changed."""

HALF = 0x6D6C6768
"""Marks the file of an unfinished copy ("mlgh"), which only `mulligan copy` opens."""

PRE_RELEASE = (0x6D756C67, 0x6D756C68)
"""Marks of files written before schema 1 ("mulg", "mulh"). They are refused."""

ORDERED = ("links", "runs")
"""Tables whose row order matters."""


def check_version(version: int, where: object) -> int:
    """Return the schema version of a store. Raise NewerStoreError if this program does not know it."""
    if version > len(MIGRATIONS):
        raise NewerStoreError(
            f"{where} was written by a newer mulligan (schema {version}; this version supports {len(MIGRATIONS)}). "
            f"It was not changed. {UPGRADE}"
        )
    return version


OTHER_TABLES = (
    "{where} has other tables than this mulligan expects ({text}). A newer one may have migrated it. "
    f"Records wait in the journal. {UPGRADE}"
)
"""Message for a statement that fails because a table or column is missing: a newer version migrated an open store."""
