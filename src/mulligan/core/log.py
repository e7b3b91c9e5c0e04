"""The logger of mulligan, without importing `logging` before something is logged: that would double the import time
of a hook and take a tenth of a first call (benchmarks/imports.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import logging

    log: logging.Logger
else:

    class _LazyLogger:
        def __getattr__(self, name: str) -> Any:
            import logging

            return getattr(logging.getLogger("mulligan"), name)

    log = _LazyLogger()
