"""What every store promises: its methods, queries, counters and audit log. Databases implement it."""
