"""Recording: journal, queue and thread that move each record into the store exactly once, without blocking callers."""
