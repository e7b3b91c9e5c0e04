"""Entry script of a hook. Agents run it by path, which avoids a wrapper and `site`.

The interpreter passes the script's full path, so the working directory is never added to the import path.
"""

import sys

sys.path.append(__file__.replace("\\", "/").rpartition("/mulligan/")[0] or "/")

from mulligan.hooks.main import main

main()
