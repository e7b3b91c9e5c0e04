"""`python -m mulligan` is the mulligan command."""

from mulligan.serve.cli import main

main()
