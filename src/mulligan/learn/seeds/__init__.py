"""Seed lessons that ship with mulligan, one file each in `lessons/`, and how they are matched to failures."""
