"""Tables and migrations for all databases. Migrations that have landed are never edited."""

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
        # Columns and indexes for run queries. `kept` is when a run was stored; for runs older than this column, when it
        # began.
        "ALTER TABLE runs ADD COLUMN version TEXT",
        "ALTER TABLE runs ADD COLUMN environment TEXT",
        "ALTER TABLE runs ADD COLUMN status TEXT NOT NULL DEFAULT 'success'",
        "ALTER TABLE runs ADD COLUMN kept BIGINT NOT NULL DEFAULT 0",
        "ALTER TABLE runs ADD COLUMN imported INTEGER NOT NULL DEFAULT 0",
        # Whether every call succeeded at its first attempt.
        "ALTER TABLE runs ADD COLUMN plain INTEGER NOT NULL DEFAULT 1",
        "UPDATE runs SET kept = started",
        "DROP INDEX runs_by_time",
        "CREATE INDEX runs_by_start ON runs (tenant, started, id)",
        "CREATE INDEX runs_by_agent ON runs (tenant, agent, started, id) WHERE agent <> ''",
        "CREATE INDEX runs_by_session ON runs (tenant, session, started, id) WHERE session IS NOT NULL",
        "CREATE INDEX runs_by_version ON runs (tenant, version, started, id) WHERE version IS NOT NULL",
        "CREATE INDEX runs_by_environment ON runs (tenant, environment, started, id) WHERE environment IS NOT NULL",
        "CREATE INDEX runs_by_status ON runs (tenant, status, started, id) WHERE status <> 'success'",
        # Runs by tool and model: `sort` is the type of the name.
        """
        CREATE TABLE used (
            tenant TEXT NOT NULL, sort TEXT NOT NULL, name TEXT NOT NULL, started BIGINT NOT NULL, run TEXT NOT NULL,
            PRIMARY KEY (tenant, sort, name, started, run)) WITHOUT ROWID
        """,
        # Runs by pattern, with counts; '' stands for failures without a fingerprint.
        """
        CREATE TABLE met (
            tenant TEXT NOT NULL, pattern TEXT NOT NULL, started BIGINT NOT NULL, run TEXT NOT NULL,
            kind TEXT NOT NULL, count INTEGER NOT NULL, PRIMARY KEY (tenant, pattern, started, run, kind)) WITHOUT ROWID
        """,
        "CREATE INDEX met_by_kind ON met (tenant, kind, started, run)",
        # Runs of which only steps have arrived so far.
        "CREATE TABLE orphans (tenant TEXT NOT NULL, run TEXT NOT NULL, PRIMARY KEY (tenant, run)) WITHOUT ROWID",
        """
        CREATE TABLE compactions (
            tenant TEXT NOT NULL, sort TEXT NOT NULL, owner TEXT NOT NULL, at BIGINT NOT NULL, body BLOB NOT NULL,
            PRIMARY KEY (tenant, sort, owner, at))
        """,
        "DROP INDEX steps_by_fingerprint",
        "CREATE INDEX steps_failed ON steps (tenant, name, fingerprint, started) WHERE fingerprint IS NOT NULL",
        "ALTER TABLE links ADD COLUMN overcame INTEGER NOT NULL DEFAULT 0",
        # Patterns: counters, which can be recomputed, and decisions of people, which cannot.
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
        # Counters per hour and per day, each packed into one value.
        """
        CREATE TABLE rollups (
            tenant TEXT NOT NULL, grain TEXT NOT NULL, slice TEXT NOT NULL, bucket BIGINT NOT NULL,
            value TEXT NOT NULL, cell BLOB NOT NULL, PRIMARY KEY (tenant, grain, slice, bucket, value)) WITHOUT ROWID
        """,
        # State of the store: number of erasures, time of pruning.
        "CREATE TABLE meta (tenant TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (tenant, key))",
    ),
    (
        # The author of a run: what the run teaches is one vote of the author.
        "ALTER TABLE runs ADD COLUMN principal TEXT NOT NULL DEFAULT ''",
        "UPDATE runs SET principal = 'import' WHERE imported = 1",
        "CREATE TABLE principals (tenant TEXT NOT NULL, principal TEXT NOT NULL, last BIGINT NOT NULL, "
        "PRIMARY KEY (tenant, principal)) WITHOUT ROWID",
        # Trials after a failure: `failed` and `tried` are calls or attempts of the run.
        """
        CREATE TABLE votes (
            tenant TEXT NOT NULL, run TEXT NOT NULL, tried BIGINT NOT NULL, failed BIGINT NOT NULL, fix TEXT NOT NULL,
            worked INTEGER NOT NULL, at BIGINT NOT NULL, principal TEXT NOT NULL, agent TEXT NOT NULL,
            automatic INTEGER NOT NULL, body BLOB, PRIMARY KEY (tenant, run, tried, failed, fix)) WITHOUT ROWID
        """,
        "CREATE INDEX votes_by_fix ON votes (tenant, fix, at, run)",
        # Vote counts of each fix, which can be recomputed.
        """
        CREATE TABLE fixes (
            tenant TEXT NOT NULL, id TEXT NOT NULL, tool TEXT NOT NULL, pattern TEXT NOT NULL, last BIGINT NOT NULL,
            body BLOB NOT NULL, PRIMARY KEY (tenant, id))
        """,
        "CREATE INDEX fixes_by_pattern ON fixes (tenant, pattern, last)",
        "CREATE INDEX fixes_by_tool ON fixes (tenant, tool, last)",
        # Sketches of patterns that have a fix, for similarity search.
        "CREATE TABLE fixed (tenant TEXT NOT NULL, tool TEXT NOT NULL, pattern TEXT NOT NULL, sketch BLOB NOT NULL, "
        "PRIMARY KEY (tenant, tool, pattern)) WITHOUT ROWID",
        # Decisions of operators, which cannot be recomputed.
        "CREATE TABLE verdicts (tenant TEXT NOT NULL, id TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (tenant, id))",
        "CREATE TABLE revocations (tenant TEXT NOT NULL, principal TEXT, tool TEXT, since BIGINT, until BIGINT)",
        "CREATE INDEX revocations_by_tenant ON revocations (tenant)",
    ),
    (
        # `cell` now contains the summary of a rollup; `rest` is read only if needed.
        "ALTER TABLE rollups ADD COLUMN rest BLOB",
        # Size classes of the patterns of a day, for a fast search of the most frequent ones.
        "ALTER TABLE pattern_days ADD COLUMN size INTEGER NOT NULL DEFAULT 0",
        "UPDATE pattern_days SET size = 10 * length(CAST(count AS TEXT)) "
        "+ CAST(substr(CAST(count AS TEXT), 1, 1) AS INTEGER)",
        "CREATE INDEX pattern_days_by_size ON pattern_days (tenant, day, size)",
    ),
    (
        # Lessons: texts and decisions of people. Their counts come from fixes and patterns.
        """
        CREATE TABLE lessons (
            tenant TEXT NOT NULL, id TEXT NOT NULL, tool TEXT NOT NULL, pattern TEXT NOT NULL, source TEXT NOT NULL,
            body BLOB NOT NULL, PRIMARY KEY (tenant, id))
        """,
        "CREATE INDEX lessons_by_tool ON lessons (tenant, tool)",
        "CREATE INDEX lessons_by_pattern ON lessons (tenant, pattern)",
        # Patterns with changed fixes, which need consolidation.
        "CREATE TABLE unlearned (tenant TEXT NOT NULL, pattern TEXT NOT NULL, PRIMARY KEY (tenant, pattern)) "
        "WITHOUT ROWID",
        "INSERT INTO unlearned SELECT DISTINCT tenant, pattern FROM fixes",
    ),
    (
        # The audit log.
        "CREATE TABLE audit (tenant TEXT NOT NULL, at BIGINT NOT NULL, id TEXT NOT NULL, body BLOB NOT NULL, "
        "PRIMARY KEY (tenant, at, id)) WITHOUT ROWID",
    ),
    (
        # When a run's first record was stored, if that was a step: PostgreSQL partitions steps by that day.
        "ALTER TABLE orphans ADD COLUMN kept BIGINT NOT NULL DEFAULT 0",
        # Texts of patterns that have a fix, for the similarity index of PostgreSQL.
        "ALTER TABLE fixed ADD COLUMN words TEXT NOT NULL DEFAULT ''",
        "UPDATE fixed SET words = coalesce((SELECT substr(p.template, 1, 400) FROM patterns p "
        "WHERE p.tenant = fixed.tenant AND p.id = fixed.pattern), '')",
    ),
    (
        # The sketches of a tool, packed together: a new failure is compared with all of them.
        "CREATE TABLE sketches (tenant TEXT NOT NULL, tool TEXT NOT NULL, stamp BIGINT NOT NULL, body BLOB NOT NULL, "
        "PRIMARY KEY (tenant, tool))",
    ),
    # The limit of packed sketches was raised; `PACKED_AT` packs those that were left out.
    (),
    # The step body of a simple success omits what the columns contain (`CompactStep`). Older rows remain as they are.
    # The version number prevents earlier programs from reading the new format.
    (),
    (
        # Hashes of stored values: they tell equal trials apart, and settings from coincidences.
        "ALTER TABLE votes ADD COLUMN content TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE votes ADD COLUMN old_value TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE votes ADD COLUMN other_values TEXT NOT NULL DEFAULT ''",
        # Unfinished runs with provisional links, which are decided after an idle time.
        "CREATE TABLE provisional (tenant TEXT NOT NULL, run TEXT NOT NULL, at BIGINT NOT NULL, "
        "PRIMARY KEY (tenant, run)) WITHOUT ROWID",
    ),
)

RECOUNTED_AT = 3
"""Stores of an earlier schema are recounted when they are opened, because they had no counters."""

REPACKED_AT = 4
"""Stores of an earlier schema packed rollups differently."""

PACKED_AT = 9
"""Stores of an earlier schema packed fewer sketches of a tool, or none."""

APPLICATION = 0x6D756C67
"""Marks an SQLite file as a mulligan store ("mulg"), so that databases of other programs are never changed."""

HALF = 0x6D756C68
"""Marks the file of an unfinished copy ("mulh"), which only `mulligan copy` opens."""

ORDERED = ("links", "runs")
"""Tables whose row order matters."""
