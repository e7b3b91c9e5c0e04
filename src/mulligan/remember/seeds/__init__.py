"""Lessons that come with mulligan, a file each in `lessons/`, and how a failure finds its own."""
