"""Redaction and sanitization of everything that leaves the process.

`to_plain_data` copies any value into bounded plain data. A `Redactor` removes secrets and personal data. `sanitize` and
`quote_untrusted` make untrusted text safe to display. Redact first: `sanitize` does not look for secrets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mulligan.redaction.plain_data import to_plain_data
from mulligan.redaction.text_sanitizer import (
    MAX_QUOTED_CHARS,
    find_unsafe_text,
    quote_untrusted,
    sanitize,
    strip_quote_marks,
)

if TYPE_CHECKING:
    from mulligan.redaction.redactor import Redactor

__all__ = [
    "MAX_QUOTED_CHARS",
    "Redactor",
    "find_unsafe_text",
    "quote_untrusted",
    "sanitize",
    "strip_quote_marks",
    "to_plain_data",
]


def __getattr__(name: str) -> object:
    # Lazy: processes that only display stored text never need the redactor, which is the larger part.
    if name == "Redactor":
        from mulligan.redaction.redactor import Redactor

        return Redactor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
