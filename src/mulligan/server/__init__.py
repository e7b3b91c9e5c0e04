"""HTTP API for ingest and queries (extra `server`)."""
