"""Starts a hook, run by its path: the settings of an agent name it, so that no wrapper and no `site` comes first.

An interpreter gives the path of its script in full, so what is added here is never the working directory.
"""

import sys

sys.path.append(__file__.rpartition("/mulligan/")[0] or "/")

from mulligan.serve.hooks.main import main

main()
