"""OTLP in: traces and logs of other programs become runs."""
