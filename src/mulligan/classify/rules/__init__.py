"""Rules that recognize failures, one file for each source of error texts."""
