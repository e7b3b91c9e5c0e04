"""Failure, Kind and Remedy: what failed and which action can help; and the exceptions of mulligan."""

from __future__ import annotations

import enum
import re
from typing import Any

import msgspec

from mulligan.redaction import quote_untrusted
from mulligan.redaction.regex import LazyRegex


class Remedy(enum.Enum):
    """The next action that can help."""

    RETRY = "retry"
    """Repeat the same call after a backoff."""
    REPAIR = "repair"
    """Repeat the call with changed arguments, which mulligan may derive."""
    COMPRESS = "compress"
    """Shorten the conversation and resend it."""
    REPLAN = "replan"
    """Return the failure to the model, which must act differently."""
    STOP = "stop"
    """Stop: a person must act."""


class TookEffect(enum.Enum):
    """Whether the failed call executed."""

    NO = "no"
    YES = "yes"
    UNKNOWN = "unknown"


class Kind(str):
    """The name of a kind of failure, such as `tool/timeout`, with its default remedy and whether it took effect.

    A string subclass: it prints, compares and serializes as a string. Two kinds with the same name are equal.
    """

    __slots__ = ("code", "hint", "remedy", "took_effect", "type")

    type: str
    code: str
    remedy: Remedy
    took_effect: TookEffect
    hint: str

    def __new__(
        cls,
        type: str,
        code: str,
        remedy: Remedy = Remedy.REPLAN,
        took_effect: TookEffect = TookEffect.UNKNOWN,
        hint: str = "",
    ) -> Kind:
        kind = super().__new__(cls, f"{type}/{code}")
        kind.type = type
        kind.code = code
        kind.remedy = remedy
        kind.took_effect = took_effect
        kind.hint = hint
        return kind

    @classmethod
    def from_name(cls, name: str) -> Kind:
        """Build a kind from its name alone, as read from a store."""
        type, _, code = name.partition("/")
        return cls(type, code or "unknown")

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.type, self.code, self.remedy, self.took_effect, self.hint


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error after classification.

    It repeats the remedy of its kind, because a reader may not know a kind that another agent defined.
    """

    kind: Kind
    remedy: Remedy
    took_effect: TookEffect
    message: str = ""
    """The message, in one sanitized sentence."""
    hint: str = ""
    """What a model can do differently: from the kind, or from the `AgentError` raised."""
    detail: str = ""
    """The rest of the error text: body, stack trace, notes."""
    status: int | None = None
    """The HTTP status, if any."""
    code: str = ""
    """The error code of the provider or the author (`insufficient_quota`, `E0308`)."""
    retry_after: float | None = None
    """The delay in seconds that the server requested."""
    evidence: tuple[str, ...] = ()
    """The signals that determined the kind, strongest first."""
    confidence: float = 1.0
    fingerprint: str = ""
    recoverable: bool = True
    """False if the author of the error declared that retrying cannot help."""

    def __post_init__(self) -> None:
        kind = self.kind
        if kind.remedy is not self.remedy:  # read from a store, or the error overrides the remedy of its kind
            msgspec.structs.force_setattr(
                self, "kind", Kind(kind.type, kind.code, self.remedy, kind.took_effect, kind.hint)
            )

    @classmethod
    def of(
        cls,
        kind: Kind,
        message: str = "",
        *,
        took_effect: TookEffect | None = None,
        hint: str | None = None,
        **fields: Any,
    ) -> Failure:
        """Build a failure with the defaults of its kind."""
        return cls(
            kind=kind,
            remedy=kind.remedy,
            took_effect=kind.took_effect if took_effect is None else took_effect,
            message=message,
            hint=kind.hint if hint is None else hint,
            **fields,
        )

    @property
    def is_failure(self) -> bool:
        """Whether it counts as a failure: user rejections and cancelled siblings have the type `none`."""
        return self.kind.type != "none"


class MulliganError(Exception):
    """Base class of mulligan's own errors. Errors of the user are never wrapped in it."""


class SettingsError(MulliganError):
    """An invalid setting. The message names a valid one."""


def require_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise `SettingsError` unless the value is one of the choices."""
    if value not in choices:
        raise SettingsError(f"{name} must be {', '.join(choices[:-1])} or {choices[-1]}, got {value!r}.")


class StoreError(MulliganError):
    """A store that cannot be opened, read or written. The message says what to do."""


class UnsupportedOperationError(StoreError):
    """An operation that this store does not support. The message names an alternative."""


class LessonFileError(MulliganError):
    """A lesson file that cannot be read, with the line, or a folder that cannot be written."""


class MissingExtraError(MulliganError):
    """A feature whose optional package is not installed."""


class AgentError(Exception):
    """Raise it in a tool, before any side effect, when the model should act differently.

    It promises that nothing has executed yet, so even a tool with side effects may be called again.
    """

    def __init__(self, message: str, code: str = "", hint: str = "", recoverable: bool = True) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.hint = hint
        self.recoverable = recoverable

    def to_tool_response(self) -> dict[str, Any]:
        """Return the failure as a tool result that a model can act on, without a stack trace."""
        return _tool_response("tool/invalid_arguments", self.code, self.message, self.hint, self.recoverable)


class InfraError(Exception):
    """Raise it in a tool when only a person can help. It is not retried and ends the agent loop."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code

    def to_tool_response(self) -> dict[str, Any]:
        """Return a tool result that hides the message: it is for people and may name internals."""
        return _tool_response(
            "tool/unavailable", self.code, "The tool is unavailable.", "Continue without it; a person must act.", False
        )


_CODE = LazyRegex(r"[A-Za-z0-9][\w.:/-]{0,47}", re.ASCII)
"""A code is one word. A sentence here could be read as an instruction."""


def _tool_response(error: str, code: str, message: str, hint: str, recoverable: bool) -> dict[str, Any]:
    from mulligan.redaction import Redactor  # lazy: rarely needed, and slow to import

    redact = Redactor(personal=False).text_for_display
    return {
        "error": error,
        "code": code if _CODE.fullmatch(code) and redact(code) == code else error.partition("/")[2],
        "message": quote_untrusted(redact(message)),  # the text may contain untrusted values
        "hint": redact(hint),
        "recoverable": recoverable,
    }
