"""The outcome of a tool call that a model requested."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mulligan.core.conversation import to_text
from mulligan.core.failure import Failure

NOTE_KEY = "mulligan"
"""The key under which mulligan adds a block to a tool's result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutcome:
    """The outcome of a tool call: the tool's own value, or the failure with an answer for the model.

    It is true if the call succeeded, whatever its value: `if outcome:` is `if outcome.ok:`.
    """

    ok: bool
    """Whether the call succeeded, perhaps after retries or repairs."""
    value: Any = None
    """What the tool returned. None if it raised or was not called."""
    failure: Failure | None = None
    """Why the call failed. Set if the tool raised, was not called, or returned an error."""
    notes: tuple[str, ...] = ()
    """Sentences for the model: what mulligan changed in a call that succeeded, or suggests after a failure."""
    answer: dict[str, Any] | None = field(default=None, repr=False)
    """The failure as a dictionary for the model, with `error`, `code`, `message`, `hint` and `recoverable`."""
    is_returned_error: bool = field(default=False, repr=False)
    """Whether the tool returned the error instead of raising it: `value` is then what it returned."""

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return self.to_message()

    def to_message(self) -> str:
        """Return the content of the tool message for the model.

        A text stays as it is, and any other value becomes JSON. What mulligan adds to a value is under `mulligan`.
        """
        return to_text(self.value if self.answer is None and not self.notes else self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return the same content as a dictionary. A value that is none is under `result`."""
        if self.answer is not None and not self.is_returned_error:
            return self.answer
        if self.answer is not None:
            # The value contains the tool's own message, so it is not quoted again.
            return self._with_block({key: self.answer[key] for key in self.answer if key != "message"})
        if self.notes:
            return self._with_block({"note": " ".join(self.notes)})
        return self.value if isinstance(self.value, dict) else {"result": self.value}

    def to_note(self) -> str:
        """Return only what mulligan adds, for a value with images or other parts that must stay as they are."""
        return " ".join(self.notes) if self.ok else to_text(self.answer)

    def _with_block(self, block: dict[str, Any]) -> dict[str, Any]:
        if isinstance(self.value, dict) and NOTE_KEY not in self.value:
            return {**self.value, NOTE_KEY: block}
        return {"result": self.value, NOTE_KEY: block}
