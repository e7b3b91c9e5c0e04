"""All messages that models read about failures. Every message is sanitized.

`Sanitizer` controls which untrusted text may be shown. All message classes derive from it, so that no message can
bypass the redactor.
"""

from __future__ import annotations

from mulligan.prompt.failure_messages import (
    MAX_REMINDER_LINES,
    MAX_REMINDER_TOKENS,
    CallReport,
    last_turn_notice,
    summary_request,
)
from mulligan.prompt.lesson_messages import DEFAULT_LESSON_TOKENS, Prompt, section_title, skill_front_matter
from mulligan.prompt.sanitizer import MAX_SENTENCE_CHARS, estimate_prompt_tokens

__all__ = [
    "DEFAULT_LESSON_TOKENS", "MAX_REMINDER_LINES", "MAX_REMINDER_TOKENS", "MAX_SENTENCE_CHARS", "CallReport", "Prompt",
    "estimate_prompt_tokens", "last_turn_notice", "section_title", "skill_front_matter", "summary_request",
]  # fmt: skip
