"""All messages that models read about failures. Every message is sanitized.

`Sanitizer` controls which untrusted text may be shown. All message classes derive from it, so that no message can
bypass the redactor.
"""

from __future__ import annotations

from mulligan.prompt.guard import SENTENCE, tokens
from mulligan.prompt.lessons import BUDGET, Lessons, section_title, skill_about
from mulligan.prompt.sessions import REMINDER, Sessions, Told, last_turn, retell

__all__ = [
    "BUDGET", "REMINDER", "SENTENCE", "Prompt", "Told", "last_turn", "retell", "section_title", "skill_about", "tokens",
]  # fmt: skip


class Prompt(Lessons, Sessions):
    """All messages: about one call, about a run or session, and about lessons."""

    __slots__ = ()
