"""Every sentence a model reads about a failure: the other exit of the process, and guarded like the first.

`guard` says what of a stranger's words may be shown. All sentences go through it: none can be had without a redactor.
"""

from __future__ import annotations

from mulligan.prompt.guard import SENTENCE, tokens
from mulligan.prompt.lessons import BUDGET, Lessons, section_title, skill_about
from mulligan.prompt.sessions import REMINDER, Sessions, Told, last_turn, retell

__all__ = [
    "BUDGET", "REMINDER", "SENTENCE", "Prompt", "Told", "last_turn", "retell", "section_title", "skill_about", "tokens",
]  # fmt: skip


class Prompt(Lessons, Sessions):
    """The sentences about failures: of one call, of many, and of what was learned from them."""

    __slots__ = ()
