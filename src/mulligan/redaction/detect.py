"""Secrets in free text."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator


@functools.cache
def _first() -> re.Pattern[str]:
    return re.compile(
        r"(?P<token>\b(?:sk-[\w-]{20,}|gh[pousr]_\w{30,}|xox[abprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}|AIza[\w-]{35}|hf_\w{30,})"
        r"|\beyJ[\w-]{10,}\.[\w-]{5,}\.?[\w-]*)"
        r"|(?P<pem>-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]{0,40}-----|\Z))"
        r"|(?i:\b(?:password|passwd|pwd|secret|api[_-]?key|access[_-]?token|auth[_-]?token|client[_-]?secret)[\"']?\s?[=:]\s?[\"']?)(?P<value>[^\s\"',;]{4,200})"
        r"|(?i:\bbearer )(?P<bearer>[\w.~+/=-]{12,500})"
        r"|://[^\s/:@]{0,100}:(?P<url>[^\s/@]{1,200})@"
        r"|(?P<email>\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,5}\b)"
    )


def detect(text: str) -> Iterator[tuple[str, int, int]]:
    for hit in _first().finditer(text):
        if hit.lastgroup:
            yield hit.lastgroup, *hit.span(hit.lastgroup)
