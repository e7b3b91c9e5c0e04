"""A corpus of responses that are errors, and of successes that look like errors."""
