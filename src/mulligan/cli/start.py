"""Entry script of the mulligan command under `-ESP`, for installations that `-I` does not find.

`clients.py` explains when a start command uses this file.
"""

import os
import runpy
import site
import sys


def run() -> None:
    """Set the import path like `site` does, but without PYTHONUSERBASE. Then run the command."""
    base = os.environ.pop("PYTHONUSERBASE", None)
    site.main()
    if base is not None:
        os.environ["PYTHONUSERBASE"] = base  # the server behind the proxy may need it
    folder = os.path.abspath(__file__)
    for _ in ("start.py", "cli", "mulligan"):
        folder = os.path.dirname(folder)
    if folder not in sys.path:
        sys.path.append(folder)

    runpy.run_module("mulligan", run_name="__main__")


if __name__ == "__main__":
    run()
