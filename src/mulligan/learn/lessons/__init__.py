"""Lessons: consolidated from fixes, stored, exported as files and rendered for a model."""
