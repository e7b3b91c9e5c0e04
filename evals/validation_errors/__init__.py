"""Nested renames from validation errors of six libraries: scenarios, their recorded errors, and the figures."""
