"""Failure, Kind and Remedy: what went wrong and whose move is next; and the errors that carry them."""

from __future__ import annotations

import enum
import re
from typing import Any

import msgspec

from mulligan.redaction import quote
from mulligan.redaction.expressions import Expression


class Remedy(enum.Enum):
    """Whose move is next."""

    WAIT = "wait"
    """The other side needs time: try the same again, later."""
    REPAIR = "repair"
    """The arguments are wrong, and something other than a model may know better ones."""
    COMPRESS = "compress"
    """The conversation is too long."""
    TELL = "tell"
    """The model must do something else."""
    STOP = "stop"
    """Only a person can help."""


class Ran(enum.Enum):
    """Could the failed call have taken effect?"""

    NO = "no"
    YES = "yes"
    UNKNOWN = "unknown"


class Kind(str):
    """The name of a sort of failure, such as `tool/timeout`, with the two answers every decision rests on.

    It is a string, so that it prints, compares and travels as one; two kinds of one name are the same kind.
    """

    __slots__ = ("code", "hint", "ran", "remedy", "type")

    type: str
    code: str
    remedy: Remedy
    ran: Ran
    hint: str

    def __new__(
        cls, type: str, code: str, remedy: Remedy = Remedy.TELL, ran: Ran = Ran.UNKNOWN, hint: str = ""
    ) -> Kind:
        kind = super().__new__(cls, f"{type}/{code}")
        kind.type = type
        kind.code = code
        kind.remedy = remedy
        kind.ran = ran
        kind.hint = hint
        return kind

    @classmethod
    def named(cls, name: str) -> Kind:
        """A kind known by its name alone, as it comes back from a store."""
        type, _, code = name.partition("/")
        return cls(type, code or "unknown")

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.type, self.code, self.remedy, self.ran, self.hint


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What went wrong, after classification.

    It repeats its kind's remedy, because whoever reads it later may never have heard of a kind that some agent defined.
    """

    kind: Kind
    remedy: Remedy
    ran: Ran
    message: str = ""
    """One clean sentence."""
    hint: str = ""
    """What a model can do differently: the kind's, or that of the `AgentError` its author raised."""
    detail: str = ""
    """The rest of what was said: body, stack, notes."""
    status: int | None = None
    """The HTTP status, where there was one."""
    code: str = ""
    """The provider's or the author's own name for it (`insufficient_quota`, `E0308`)."""
    retry_after: float | None = None
    """Seconds the other side asked us to wait."""
    evidence: tuple[str, ...] = ()
    """What agreed on the kind, strongest first."""
    confidence: float = 1.0
    fingerprint: str = ""
    recoverable: bool = True
    """False where the author of an error said that trying again cannot help."""

    def __post_init__(self) -> None:
        kind = self.kind
        if kind.remedy is not self.remedy:  # read back from a store, or an error that knows better than its kind
            msgspec.structs.force_setattr(self, "kind", Kind(kind.type, kind.code, self.remedy, kind.ran, kind.hint))

    @classmethod
    def of(
        cls, kind: Kind, message: str = "", *, ran: Ran | None = None, hint: str | None = None, **fields: Any
    ) -> Failure:
        """A failure of this kind, which answers both questions unless the caller knows better."""
        return cls(
            kind=kind,
            remedy=kind.remedy,
            ran=kind.ran if ran is None else ran,
            message=message,
            hint=kind.hint if hint is None else hint,
            **fields,
        )

    @property
    def counts(self) -> bool:
        """Whether it is a failure at all: a refusal by the user or a cancelled sibling is of type `none`."""
        return self.kind.type != "none"


class MulliganError(Exception):
    """Everything mulligan itself complains about; the user's own errors are never of this class."""


class SettingsError(MulliganError):
    """A setting that cannot be meant, with the one that may be."""


def one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuses a setting that is none of these."""
    if value not in choices:
        raise SettingsError(f"{name} is {', '.join(choices[:-1])} or {choices[-1]}, got {value!r}.")


class StoreError(MulliganError):
    """A store that cannot be opened, read or written, and what to do about it."""


class Unanswerable(StoreError):
    """Something that no store can do, however often it is asked; and what to ask instead."""


class LessonFileError(MulliganError):
    """A file of a lesson that cannot be read, with its line, or a folder that cannot be written."""


class MissingExtra(MulliganError):
    """A part that needs a package which is not installed."""


class AgentError(Exception):
    """Raise it in a tool, before anything has happened, when the model should see what to do differently.

    Because it promises that nothing has happened yet, even a tool with side effects may be called again after it.
    """

    def __init__(self, message: str, code: str = "", hint: str = "", recoverable: bool = True) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.hint = hint
        self.recoverable = recoverable

    def to_tool_response(self) -> dict[str, Any]:
        """The answer a model can act on, without a stack."""
        return _tool_response("tool/invalid_arguments", self.code, self.message, self.hint, self.recoverable)


class InfraError(Exception):
    """Raise it in a tool when only a person can help: it is not retried, and leaves the agent's loop at once."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code

    def to_tool_response(self) -> dict[str, Any]:
        """What a model may know of it: that it happened. The message is for people and may name internals."""
        return _tool_response(
            "tool/unavailable", self.code, "The tool is out of order.", "Go on without it; a person must act.", False
        )


_CODE = Expression(r"[A-Za-z0-9][\w.:/-]{0,47}", re.ASCII)
"""A code is one word: a sentence in its place would be read as one."""


def _tool_response(error: str, code: str, message: str, hint: str, recoverable: bool) -> dict[str, Any]:
    from mulligan.redaction import Redactor  # most raise nothing, and some only show what is kept

    shown = Redactor(personal=False).shown
    return {
        "error": error,
        "code": code if _CODE.fullmatch(code) and shown(code) == code else error.partition("/")[2],
        "message": quote(shown(message)),  # its author wrote it, but what was put into it may come from anywhere
        "hint": shown(hint),
        "recoverable": recoverable,
    }
