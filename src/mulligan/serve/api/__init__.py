"""Ingest and query over HTTP (extra `server`)."""
