"""Is this answer a failure, although nothing was raised? Asked of every answer, so the question is cheap."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

import msgspec

from mulligan.capture.context import Kit
from mulligan.classify.kinds import RETRIEVAL_NO_RESULTS
from mulligan.classify.tool_results import is_error_result
from mulligan.core.failure import Failure, TookEffect
from mulligan.core.records import StepType

Empty = Literal["success", "failure"]

UNSUSPECTED = frozenset({type(None), bool, int, float, list, tuple, set, frozenset})
"""Types that are data and nothing else."""
TELLING = frozenset(
    {"isError", "is_error", "content", "returncode", "exit_code", "error", "errors", "ok", "success", "status"}
)
"""Without one of these keys a dictionary is data."""
SMALL = 16
"""Keys of a dictionary that are looked through one by one; a large one is asked for these instead."""
HEAD = 160
"""Characters in which a text says that it is an error, if it is one."""
WORDS = (
    "error",
    "an ",
    "a ",
    "exit",
    "unknown",
    "tool",
    "command",
    "request",
    "execution",
    "mcp",
    "traceback",
    "<tool",
)
"""How a text may begin that is an error and has no colon."""
LONGEST = max(map(len, WORDS))
BEGINNINGS: dict[str, tuple[str, ...]] = {
    **{letter: tuple(word for word in WORDS if word[0] == letter.lower()) for letter in "aAcCeEmMrRtTuU<"},
    **dict.fromkeys(("{", *map(chr, range(33)), "\x85", "\xa0", "\u3000"), ("",)),
}
"""The same by its first character. An object, and whatever may stand before a text, is worth a closer look."""
RESULTS = frozenset(
    {"results", "items", "documents", "docs", "hits", "matches", "data", "records", "rows", "entries", "chunks"}
)
"""Keys under which a search answers with what it found."""
COLLECTIONS = (list, tuple, dict, set, frozenset)


class Judge:
    """What a tool's developer said about its answers: whether errors may be among them, and what an empty one means."""

    __slots__ = ("_finds_errors", "_is_empty_bad", "_name", "_type")

    def __init__(self, type: StepType, name: str, detect_errors: bool, empty: Empty) -> None:
        self._type: StepType = type
        self._name = name
        # What a model says is its own affair: it may well be about an error.
        self._finds_errors = detect_errors and type != "model"
        self._is_empty_bad = empty == "failure"

    @property
    def is_needed(self) -> bool:
        return self._finds_errors or self._is_empty_bad

    def condemns(self, result: Any, first: Any = None) -> bool:
        """Whether the answer is a failure. `first` is the attempt it came from, or its arguments."""
        try:
            return (self._finds_errors and is_error(result)) or (self._is_empty_bad and is_empty(result))
        except Exception:  # noqa: BLE001 - a stranger's object; what cannot be read is not accused
            return False

    def failure(
        self, kit: Kit, result: Any, arguments: Mapping[str, Any], rejects: Collection[int] = ()
    ) -> Failure | None:
        """The failure that an answer is, or None. `rejects` are statuses that prove that nothing was done."""
        if not self.condemns(result):
            return None
        if self._finds_errors and is_error(result):
            failure = kit.failure(result, source=self._type, tool=self._name, arguments=arguments, is_error=True)
            # It answered, so it ran, whatever its words prove elsewhere.
            if failure.status is not None and failure.status in rejects:
                return msgspec.structs.replace(failure, took_effect=TookEffect.NO)
            return (
                msgspec.structs.replace(failure, took_effect=TookEffect.YES)
                if failure.took_effect is TookEffect.NO
                else failure
            )
        said = "The result is empty."
        known = kit.failure(text=said, source=self._type, tool=self._name)
        why = ("an empty result, which the tool declares a failure",)
        return Failure.of(RETRIEVAL_NO_RESULTS, said, fingerprint=known.fingerprint, evidence=why)

    def repair(self, result: Any, arguments: Mapping[str, Any]) -> Any:
        """The answer put right; None where it cannot be. What a tool answered is passed on as it is."""
        return None


def is_error(result: Any) -> bool:
    """`has_failed`, with a quick look first: most answers cannot be errors, and cost a third of a microsecond."""
    kind = type(result)
    if kind is dict:
        return not result.keys().isdisjoint(TELLING) and is_error_result(result)
    if kind is str:
        words = BEGINNINGS.get(result[:1])
        if words is None or not result[:LONGEST].lower().startswith(words):
            # Else it names an error and says more after a colon.
            if result.find(":", 0, HEAD) < 0:
                return False
            head = result[:HEAD].lower()
            if "error" not in head and "exception" not in head and "failure" not in head:
                return False
        return is_error_result(result)
    return kind not in UNSUSPECTED and is_error_result(result)


def is_empty(result: Any) -> bool:
    """Whether nothing was found: nothing at all, or an answer whose one collection is empty.

    `{"results": [], "total": 0}` is empty, `{"answer": "Oslo", "sources": []}` is not.
    """
    if result is None or (isinstance(result, str) and not result.strip()):
        return True
    if isinstance(result, COLLECTIONS) and not result:
        return True
    if not isinstance(result, dict):
        return False
    inside = [name for name, value in result.items() if isinstance(value, COLLECTIONS)]
    if len(inside) != 1 or result[inside[0]]:
        return False
    return inside[0] in RESULTS or not any(isinstance(value, str) and value for value in result.values())
