"""Tables and migrations, written once for all databases. A migration that has landed is never edited."""

from __future__ import annotations

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE runs (
            tenant TEXT NOT NULL, id TEXT NOT NULL, agent TEXT NOT NULL, session TEXT, started BIGINT NOT NULL,
            body BLOB NOT NULL, PRIMARY KEY (tenant, id))
        """,
        "CREATE INDEX runs_by_time ON runs (tenant, started)",
        """
        CREATE TABLE steps (
            tenant TEXT NOT NULL, run TEXT NOT NULL, seq INTEGER NOT NULL, call INTEGER NOT NULL,
            name TEXT NOT NULL, outcome TEXT NOT NULL, kind TEXT, fingerprint TEXT, started BIGINT NOT NULL,
            body BLOB NOT NULL, PRIMARY KEY (tenant, run, seq))
        """,
        "CREATE INDEX steps_by_fingerprint ON steps (tenant, name, fingerprint) WHERE fingerprint IS NOT NULL",
        """
        CREATE TABLE links (
            tenant TEXT NOT NULL, run TEXT NOT NULL, failed INTEGER NOT NULL, name TEXT NOT NULL,
            fingerprint TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (tenant, run, failed))
        """,
        "CREATE INDEX links_by_fingerprint ON links (tenant, name, fingerprint)",
        """
        CREATE TABLE journals (
            tenant TEXT NOT NULL, journal TEXT NOT NULL, upto BIGINT NOT NULL, PRIMARY KEY (tenant, journal))
        """,
        """
        CREATE TABLE shelf (
            tenant TEXT NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL,
            PRIMARY KEY (tenant, kind, key))
        """,
    ),
    (
        # Runs by what people ask for. `kept` is when a run came; what is older than this column came when it began.
        "ALTER TABLE runs ADD COLUMN version TEXT",
        "ALTER TABLE runs ADD COLUMN environment TEXT",
        "ALTER TABLE runs ADD COLUMN status TEXT NOT NULL DEFAULT 'success'",
        "ALTER TABLE runs ADD COLUMN kept BIGINT NOT NULL DEFAULT 0",
        "ALTER TABLE runs ADD COLUMN imported INTEGER NOT NULL DEFAULT 0",
        # Whether every call of it worked at its first attempt.
        "ALTER TABLE runs ADD COLUMN plain INTEGER NOT NULL DEFAULT 1",
        "UPDATE runs SET kept = started",
        "DROP INDEX runs_by_time",
        "CREATE INDEX runs_by_start ON runs (tenant, started, id)",
        "CREATE INDEX runs_by_agent ON runs (tenant, agent, started, id) WHERE agent <> ''",
        "CREATE INDEX runs_by_session ON runs (tenant, session, started, id) WHERE session IS NOT NULL",
        "CREATE INDEX runs_by_version ON runs (tenant, version, started, id) WHERE version IS NOT NULL",
        "CREATE INDEX runs_by_environment ON runs (tenant, environment, started, id) WHERE environment IS NOT NULL",
        "CREATE INDEX runs_by_status ON runs (tenant, status, started, id) WHERE status <> 'success'",
        # Which runs used a tool or a model: `sort` says which of the two the name is of.
        """
        CREATE TABLE used (
            tenant TEXT NOT NULL, sort TEXT NOT NULL, name TEXT NOT NULL, started BIGINT NOT NULL, run TEXT NOT NULL,
            PRIMARY KEY (tenant, sort, name, started, run)) WITHOUT ROWID
        """,
        # Which runs met a pattern, and how often; '' is the pattern of failures that have no fingerprint.
        """
        CREATE TABLE met (
            tenant TEXT NOT NULL, pattern TEXT NOT NULL, started BIGINT NOT NULL, run TEXT NOT NULL,
            kind TEXT NOT NULL, count INTEGER NOT NULL, PRIMARY KEY (tenant, pattern, started, run, kind)) WITHOUT ROWID
        """,
        "CREATE INDEX met_by_kind ON met (tenant, kind, started, run)",
        # Runs of which steps came, and nothing else yet.
        "CREATE TABLE orphans (tenant TEXT NOT NULL, run TEXT NOT NULL, PRIMARY KEY (tenant, run)) WITHOUT ROWID",
        """
        CREATE TABLE compactions (
            tenant TEXT NOT NULL, sort TEXT NOT NULL, owner TEXT NOT NULL, at BIGINT NOT NULL, body BLOB NOT NULL,
            PRIMARY KEY (tenant, sort, owner, at))
        """,
        "DROP INDEX steps_by_fingerprint",
        "CREATE INDEX steps_failed ON steps (tenant, name, fingerprint, started) WHERE fingerprint IS NOT NULL",
        "ALTER TABLE links ADD COLUMN overcame INTEGER NOT NULL DEFAULT 0",
        # Patterns: their sums, which can be counted anew, and what people decided, which cannot.
        """
        CREATE TABLE patterns (
            tenant TEXT NOT NULL, id TEXT NOT NULL, tool TEXT NOT NULL, fingerprint TEXT NOT NULL, kind TEXT NOT NULL,
            server TEXT, message TEXT NOT NULL, template TEXT NOT NULL, count INTEGER NOT NULL,
            overcome INTEGER NOT NULL, runs INTEGER NOT NULL, first BIGINT NOT NULL, first_run TEXT NOT NULL,
            first_seq INTEGER NOT NULL, last BIGINT NOT NULL, PRIMARY KEY (tenant, id))
        """,
        "CREATE INDEX patterns_by_count ON patterns (tenant, count, id)",
        "CREATE INDEX patterns_by_last ON patterns (tenant, last, id)",
        "CREATE INDEX patterns_by_first ON patterns (tenant, first, id)",
        "CREATE INDEX patterns_by_tool ON patterns (tenant, tool)",
        """
        CREATE TABLE pattern_days (
            tenant TEXT NOT NULL, day BIGINT NOT NULL, id TEXT NOT NULL, count INTEGER NOT NULL,
            overcome INTEGER NOT NULL, PRIMARY KEY (tenant, day, id)) WITHOUT ROWID
        """,
        """
        CREATE TABLE pattern_agents (
            tenant TEXT NOT NULL, id TEXT NOT NULL, agent TEXT NOT NULL, count INTEGER NOT NULL,
            PRIMARY KEY (tenant, id, agent)) WITHOUT ROWID
        """,
        """
        CREATE TABLE decisions (
            tenant TEXT NOT NULL, id TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (tenant, id))
        """,
        # Sums by hour and by day, each packed into one value.
        """
        CREATE TABLE rollups (
            tenant TEXT NOT NULL, grain TEXT NOT NULL, slice TEXT NOT NULL, bucket BIGINT NOT NULL,
            value TEXT NOT NULL, cell BLOB NOT NULL, PRIMARY KEY (tenant, grain, slice, bucket, value)) WITHOUT ROWID
        """,
        # What the store knows about itself: how often something was forgotten, until when something was pruned.
        "CREATE TABLE meta (tenant TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (tenant, key))",
    ),
    (
        # Who wrote a run: what it teaches is one vote of that one.
        "ALTER TABLE runs ADD COLUMN principal TEXT NOT NULL DEFAULT ''",
        "UPDATE runs SET principal = 'import' WHERE imported = 1",
        "CREATE TABLE principals (tenant TEXT NOT NULL, principal TEXT NOT NULL, last BIGINT NOT NULL, "
        "PRIMARY KEY (tenant, principal)) WITHOUT ROWID",
        # What was tried after a failure: `failed` and `tried` are calls or attempts of the run.
        """
        CREATE TABLE votes (
            tenant TEXT NOT NULL, run TEXT NOT NULL, tried BIGINT NOT NULL, failed BIGINT NOT NULL, fix TEXT NOT NULL,
            worked INTEGER NOT NULL, at BIGINT NOT NULL, principal TEXT NOT NULL, agent TEXT NOT NULL,
            automatic INTEGER NOT NULL, body BLOB, PRIMARY KEY (tenant, run, tried, failed, fix)) WITHOUT ROWID
        """,
        "CREATE INDEX votes_by_fix ON votes (tenant, fix, at, run)",
        # What the votes for each fix come to, which can be counted anew.
        """
        CREATE TABLE fixes (
            tenant TEXT NOT NULL, id TEXT NOT NULL, tool TEXT NOT NULL, pattern TEXT NOT NULL, last BIGINT NOT NULL,
            body BLOB NOT NULL, PRIMARY KEY (tenant, id))
        """,
        "CREATE INDEX fixes_by_pattern ON fixes (tenant, pattern, last)",
        "CREATE INDEX fixes_by_tool ON fixes (tenant, tool, last)",
        # Patterns that have a fix, in short, so that others like them are found.
        "CREATE TABLE fixed (tenant TEXT NOT NULL, tool TEXT NOT NULL, pattern TEXT NOT NULL, sketch BLOB NOT NULL, "
        "PRIMARY KEY (tenant, tool, pattern)) WITHOUT ROWID",
        # What operators said, which cannot be counted anew.
        "CREATE TABLE verdicts (tenant TEXT NOT NULL, id TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (tenant, id))",
        "CREATE TABLE revocations (tenant TEXT NOT NULL, principal TEXT, tool TEXT, since BIGINT, until BIGINT)",
        "CREATE INDEX revocations_by_tenant ON revocations (tenant)",
    ),
    (
        # Of a sum `cell` is the outline now, and the rest of it is read only where it is asked for.
        "ALTER TABLE rollups ADD COLUMN rest BLOB",
        # The patterns of a day by how often they were met, roughly, so that the most frequent are found at once.
        "ALTER TABLE pattern_days ADD COLUMN size INTEGER NOT NULL DEFAULT 0",
        "UPDATE pattern_days SET size = 10 * length(CAST(count AS TEXT)) "
        "+ CAST(substr(CAST(count AS TEXT), 1, 1) AS INTEGER)",
        "CREATE INDEX pattern_days_by_size ON pattern_days (tenant, day, size)",
    ),
    (
        # Lessons: their words, and what people said of them. Their figures are those of fixes and patterns.
        """
        CREATE TABLE lessons (
            tenant TEXT NOT NULL, id TEXT NOT NULL, tool TEXT NOT NULL, pattern TEXT NOT NULL, source TEXT NOT NULL,
            body BLOB NOT NULL, PRIMARY KEY (tenant, id))
        """,
        "CREATE INDEX lessons_by_tool ON lessons (tenant, tool)",
        "CREATE INDEX lessons_by_pattern ON lessons (tenant, pattern)",
        # Patterns of which fixes have changed since lessons were made of them.
        "CREATE TABLE unlearned (tenant TEXT NOT NULL, pattern TEXT NOT NULL, PRIMARY KEY (tenant, pattern)) "
        "WITHOUT ROWID",
        "INSERT INTO unlearned SELECT DISTINCT tenant, pattern FROM fixes",
    ),
    (
        # What people changed.
        "CREATE TABLE audit (tenant TEXT NOT NULL, at BIGINT NOT NULL, id TEXT NOT NULL, body BLOB NOT NULL, "
        "PRIMARY KEY (tenant, at, id)) WITHOUT ROWID",
    ),
    (
        # When the first of a run came, where that was a step: what PostgreSQL keeps by day is of that day.
        "ALTER TABLE orphans ADD COLUMN kept BIGINT NOT NULL DEFAULT 0",
        # The words of patterns that have a fix, by which PostgreSQL finds the most alike of very many.
        "ALTER TABLE fixed ADD COLUMN words TEXT NOT NULL DEFAULT ''",
        "UPDATE fixed SET words = coalesce((SELECT substr(p.template, 1, 400) FROM patterns p "
        "WHERE p.tenant = fixed.tenant AND p.id = fixed.pattern), '')",
    ),
    (
        # The patterns of a tool that have a fix, packed together: a new failure is compared with all of them.
        "CREATE TABLE sketches (tenant TEXT NOT NULL, tool TEXT NOT NULL, stamp BIGINT NOT NULL, body BLOB NOT NULL, "
        "PRIMARY KEY (tenant, tool))",
    ),
    # More of them are packed together than before: those that had no room are taken in (`PACKED_AT`).
    (),
    # Of a call that worked at once, the body of its step leaves out what the columns say (`bodies.Rest`). What was kept
    # before stays as it is; a number of its own, so that no earlier version reads what it does not understand.
    (),
    (
        # What tells equal trials apart, and a setting from a coincidence: hashes of stored values.
        "ALTER TABLE votes ADD COLUMN content TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE votes ADD COLUMN old_value TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE votes ADD COLUMN other_values TEXT NOT NULL DEFAULT ''",
        # Runs that have not ended and hold provisional links: they are judged when they have been idle for a while.
        "CREATE TABLE provisional (tenant TEXT NOT NULL, run TEXT NOT NULL, at BIGINT NOT NULL, "
        "PRIMARY KEY (tenant, run)) WITHOUT ROWID",
    ),
)

RECOUNTED_AT = 3
"""Stores of an earlier schema are counted anew when they are opened: sums are never migrated from nothing."""

REPACKED_AT = 4
"""In stores of an earlier schema the sums were packed in another way."""

PACKED_AT = 9
"""In stores of an earlier schema the patterns of a tool were not packed together, or fewer of them."""

APPLICATION = 0x6D756C67
"""Marks an SQLite file as ours ("mulg"), so that we never write into somebody else's database."""

HALF = 0x6D756C68
"""Marks one into which a copy is being made, or was begun and not ended ("mulh"): nobody else opens it."""

ORDERED = ("links", "runs")
"""Tables of which it counts in which order their rows came."""
