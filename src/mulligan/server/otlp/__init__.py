"""OTLP ingest: traces and logs of other programs become runs."""
