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
)

APPLICATION = 0x6D756C67
"""Marks an SQLite file as ours ("mulg"), so that we never write into somebody else's database."""
