"""Builds runs from the calls and results of a log: steps, failures and recovery links.

Only failures are classified, and long texts are shortened, so that memory depends on the number of calls, not on the
size of the log.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from mulligan.capture.tracer import outcome_of
from mulligan.capture.transcripts.lines import opened_value
from mulligan.classify.classifier import classify
from mulligan.failure import Failure
from mulligan.links import link_recoveries
from mulligan.records import Compaction, History, Outcome, Run, Step, StepType
from mulligan.redaction.values import encodable, plain, shortened

FORMAT = "format"
"""The metadata key of a run for the log format."""
CHARS = 2048
"""Characters of one argument or result that are kept in memory."""
CONTEXT = 300
"""Characters of the user's first message."""
FULL = 20_000
"""Calls of a run whose arguments are kept. Later ones keep them only if they fail."""
COPIES = 1_000_000
"""Call ids that are remembered, to skip the copies that a resumed session has in its log."""


class Reading:
    """State shared by the readers of all files: the classifier, and counts of unreadable lines."""

    def __init__(
        self,
        classify: Callable[..., Failure] = classify,
        *,
        keeps_results: bool = False,
        hears: Callable[[str, Step], object] | None = None,
    ) -> None:
        self.classify = classify
        self.keeps_results = keeps_results
        self.hears = hears
        """Called with the log id and step of each failed call."""
        self.lines = 0
        self.unknown = 0
        """Lines that do not match the format of their file."""
        self._copied: set[int] = set()

    def is_copy(self, id: str) -> bool:
        """Return whether a call with this globally unique id was read before."""
        known = hash(id)
        if known in self._copied:
            return True
        if len(self._copied) < COPIES:
            self._copied.add(known)
        return False


class _Pending:
    __slots__ = ("arguments", "name", "seq", "server", "started", "type")

    def __init__(self, seq: int, name: str, type: StepType, server: str | None, arguments: Any, started: int) -> None:
        self.seq = seq
        self.name = name
        self.type = type
        self.server = server
        self.arguments = arguments
        self.started = started


class Gathering:
    """Builds one run from a log. `key` identifies it: reading the same log again gives the same run id."""

    def __init__(self, reading: Reading, format: str, *key: str, agent: str = "", id: str | None = None) -> None:
        self._reading = reading
        self.format = format
        self.id = id or run_id(format, *key)
        self.agent = agent or format
        self.version: str | None = None
        self.session: str | None = key[0] if key else None
        self.parent: str | None = None
        self.environment: str | None = None
        self.context = ""
        self.model = ""
        self.project = ""
        self.started = 0
        self.ended = 0
        self.has_raised = False
        self._pending: dict[str, _Pending] = {}
        self._steps: list[Step] = []
        self._compactions: list[Compaction] = []
        self._has_failed = False
        self._awaits_model = ""
        self._seq = 0

    @property
    def calls(self) -> int:
        return self._seq

    @property
    def wants_talk(self) -> bool:
        """Whether plain text is needed: the user's first message, or a sign that the model answers again."""
        return not self.context or bool(self._awaits_model)

    def at(self, moment: int) -> None:
        """Extend the time range of the run to include this timestamp."""
        if moment > self.ended:
            self.ended = moment
        if moment and (moment < self.started or not self.started):
            self.started = moment

    def says(self, text: str) -> None:
        """Set the context to the user's first message."""
        if not self.context and text and not text.startswith(("<", "Caveat:")):
            self.context = text[:CONTEXT].strip()

    def called(
        self,
        id: str,
        name: str,
        arguments: Any,
        moment: int = 0,
        *,
        type: StepType = "tool",
        server: str | None = None,
    ) -> None:
        """Start a call. It becomes a step when its result is read."""
        self._seq += 1
        self.at(moment)
        self._pending[id] = _Pending(self._seq, name, type, server, arguments, moment)

    def numbered(self, seq: int) -> None:
        """Set the number of the next call, as given in the log."""
        self._seq = seq - 1

    def is_waiting(self, id: str) -> bool:
        return id in self._pending

    def passes_over(self, id: str) -> None:
        """Discard a call that is recorded elsewhere or was never made. Its number is not reused."""
        self._pending.pop(id, None)

    def answered(
        self,
        id: str,
        said: Any = None,
        has_failed: bool = False,
        moment: int = 0,
        *,
        seconds: float | None = None,
        outcome: Outcome | None = None,
        **evidence: Any,
    ) -> bool:
        """End a call with its result. Return whether the call was pending. `evidence` helps classify a failure."""
        call = self._pending.pop(id, None)
        if call is None:
            return False
        self.at(moment)
        if seconds is None:
            seconds = max(0, moment - call.started) / 1000 if moment and call.started else 0.0
        failure = None
        if has_failed and outcome is None:
            failure = self._classified(call.type, call.name, call.arguments, said, evidence)
            outcome = outcome_of(failure)
            self._has_failed = self._has_failed or outcome == "failure"
        is_held = outcome not in (None, "success") or len(self._steps) < FULL
        result = _text(said) if self._reading.keeps_results and failure is None and said is not None else None
        step = Step(
            run=self.id,
            seq=call.seq,
            call=call.seq,
            type=call.type,
            name=call.name,
            server=call.server,
            arguments=bounded(call.arguments) if is_held else None,
            outcome=outcome or "success",
            result=result,
            started=call.started,
            seconds=seconds,
            failure=failure,
        )
        self._steps.append(step)
        if failure is not None and self._reading.hears is not None:
            self._reading.hears(id, step)
        return True

    def step(self, step: Step, moment: int = 0) -> None:
        """Add a step that the log holds completely."""
        self._seq = max(self._seq, step.seq)
        self.at(step.started)
        self.at(moment)
        self._has_failed = self._has_failed or step.has_failed
        self._steps.append(step)

    def _classified(self, type: StepType, name: str, arguments: Any, said: Any, evidence: Mapping[str, Any]) -> Failure:
        text = _text(said)
        failure = self._reading.classify(
            text=text,
            tool=name,
            source=type,
            is_error=True,
            arguments=arguments if isinstance(arguments, dict) else None,
            **evidence,
        )
        if len(failure.detail) > CHARS:
            failure = msgspec.structs.replace(failure, detail=shortened(failure.detail, CHARS * 3 // 4, CHARS // 4))
        return failure

    def model_failed(self, text: str, moment: int = 0, **evidence: Any) -> None:
        """Add a failed model call. The model's next answer recovers it."""
        name = self._awaits_model or self.model or "model"
        id = f"model {self._seq}"
        self.called(id, name, None, moment, type="model")
        self.answered(id, text, True, moment, **evidence)
        self._awaits_model = name

    def model_answered(self, moment: int = 0) -> None:
        if self._awaits_model:
            id = f"model {self._seq}"
            self.called(id, self._awaits_model, None, moment, type="model")
            self.answered(id, None, False, moment)
            self._awaits_model = ""

    def compacted(self, moment: int, reason: str = "", tokens: int | None = None) -> None:
        """Add a compaction. Some logs record it twice in a row."""
        self.at(moment)
        if not moment or (self._compactions and self._compactions[-1].steps == self._seq):
            return
        self._compactions.append(
            Compaction(
                run=self.id, session=self.session, at=moment, reason=reason, steps=self._seq, tokens_before=tokens
            )
        )

    def history(self) -> History | None:
        """Build the run so far; None if it has no calls."""
        if not self._steps:
            return None
        steps = sorted(self._steps, key=lambda step: step.seq)
        run = self.run()
        links = link_recoveries(steps, run) if self._has_failed else []
        return History(run=run, steps=tuple(steps), links=tuple(links), compactions=tuple(self._compactions))

    def run(self) -> Run:
        """Build the run record."""
        told = {FORMAT: self.format, "model": self.model, "project": self.project}
        metadata: dict[str, Any] = {name: value for name, value in told.items() if value}
        if self._pending:
            metadata["unanswered"] = len(self._pending)
        return Run(
            id=self.id,
            agent=self.agent,
            version=self.version,
            environment=self.environment,
            session=self.session,
            parent=self.parent,
            context=encodable(self.context) or None,
            metadata=metadata,
            started=self.started,
            ended=self.ended or None,
            end="raised" if self.has_raised else "finished",
        )


def run_id(*key: str) -> str:
    """Derive a run id from a key, the same whenever the same log is read."""
    digest = hashlib.sha256("\n".join(key).encode("utf-8", "replace")).digest()
    return f"run_{base64.b32encode(digest[:10]).decode().lower()}"


def split_server(name: str) -> tuple[str, str | None]:
    """Split `mcp__SERVER__TOOL` into tool and server."""
    if name.startswith("mcp__"):
        server, _, tool = name[5:].partition("__")
        if server and tool:
            return tool, server
    return name, None


def milliseconds(moment: object) -> int:
    """Convert a timestamp (ISO 8601, or seconds or milliseconds since the epoch); 0 if it is invalid."""
    if isinstance(moment, str) and moment:
        try:
            return int(datetime.fromisoformat(moment).timestamp() * 1000)
        except (ValueError, OverflowError, OSError):
            return 0
    if isinstance(moment, (int, float)) and not isinstance(moment, bool) and 0 < moment < 1e17:
        return int(moment * 1000 if moment < 1e11 else moment if moment < 1e14 else moment / 1000)
    return 0


def bounded(value: Any) -> Any:
    """Shorten arguments: keep the beginning and end of long texts."""
    if type(value) is not dict:
        if value is None:
            return None
        return _short(value) if type(value) is str else plain(value, nodes=1000, chars=4 * CHARS)
    for each in value.values():
        if type(each) not in _FLAT and (type(each) is not str or len(each) > CHARS):
            break
    else:
        return value  # the common case
    short = {name: _short(each) if type(each) is str else each for name, each in value.items()}
    if all(type(each) in _FLAT or type(each) is str for each in short.values()):
        return short
    return plain(short, nodes=1000, chars=32 * CHARS)


_FLAT = frozenset({int, bool, type(None)})


def _short(text: str) -> str:
    return text if len(text) <= CHARS else shortened(text, CHARS * 3 // 4, CHARS // 4)


def _text(said: Any) -> str:
    """Return a result as one text. Unwraps the content blocks of all providers."""
    said = opened_value(said)
    if isinstance(said, list):
        texts = [each.get("text") if isinstance(each, dict) else each for each in said[:50]]
        said = "\n".join(each for each in texts if isinstance(each, str)) or said
    if said is None:
        return ""
    if not isinstance(said, str):
        said = msgspec.json.encode(plain(said, chars=8 * CHARS)).decode()
    return _ends(said)


def _ends(text: str) -> str:
    return text if len(text) <= 4 * CHARS else shortened(text, 3 * CHARS, CHARS)
