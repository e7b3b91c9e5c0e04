"""Readers for session logs on disk, one module per format.

`formats.py` detects the format of a file by its content. Each reader yields one `History` per run.
"""
