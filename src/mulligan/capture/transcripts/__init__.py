"""Session logs that are already on disk, read as records: one file a format.

`formats.py` tells a file's format by its content; each format yields a `History` a run, from `gathering.py`.
"""
