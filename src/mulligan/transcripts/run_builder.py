"""Builds runs from the calls and results of a log: steps, failures and recovery links.

Only failures are classified, and long texts are shortened, so that memory depends on the number of calls, not on the
size of the log.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePath
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from mulligan.capture.run_judge import outcome_of
from mulligan.capture.value_recording import MAX_USER_CHARS, truncate_at_word
from mulligan.classify.classifier import classify
from mulligan.classify.result_verdict import MAX_REPORT_CHARS, REPORT_CATEGORIES, suspect_recorded_result
from mulligan.classify.tool_category import find_category_of_name
from mulligan.core.failure import Failure, Kind, ToolCategory, strip_own_blocks
from mulligan.core.kinds import KINDS
from mulligan.core.records import Compaction, History, Outcome, Run, Step, StepType, SuspectedFailure
from mulligan.core.run_links import link_recoveries
from mulligan.redaction.plain_data import escape_surrogates, to_plain_data, truncate_text
from mulligan.transcripts.log_lines import LogLines, decode_line, decode_raw, is_object

FORMAT_KEY = "format"
"""The metadata key of a run for the log format."""
MAX_VALUE_CHARS = 2048
"""Characters of one argument or result that are kept in memory."""
MAX_CALLS_WITH_ARGUMENTS = 20_000
"""Calls of a run whose arguments are kept. Later ones keep them only if they fail."""
MAX_REMEMBERED_IDS = 1_000_000
"""Call ids that are remembered, to skip the copies that a resumed session has in its log."""
NO_JSON = "not JSON, or not of this format"
"""Why a line could not be read."""
MAX_LABEL_CHARS = 1024
"""Characters of a name: of an agent, a session, a user, a tag, a model or a tool."""
MAX_ERROR_CHARS = 8192
"""Characters of the error of a model that are classified."""

T = TypeVar("T")


@dataclass
class ReaderState:
    """State shared by the readers of all files: the classifier, and counts of unreadable lines."""

    classify: Callable[..., Failure] = classify
    kinds: Mapping[str, Kind] = field(default_factory=lambda: KINDS)
    """The kinds that a log may name, with those that the settings declare."""
    keeps_results: bool = False
    on_call: Callable[[str, Step], object] | None = None
    """Called with the log id and step of each call that has ended."""
    line_count: int = 0
    requesting_models: dict[str, str] = field(default_factory=dict)
    """The model behind each call, by the id of the call. Collected for `on_call` only."""
    unrecognized_lines: int = 0
    """Lines that do not match the format of their file."""
    _seen_ids: set[int] = field(default_factory=set)

    def is_copy(self, id: str) -> bool:
        """Return whether a call with this globally unique id was read before."""
        id_hash = hash(id)
        if id_hash in self._seen_ids:
            return True
        if len(self._seen_ids) < MAX_REMEMBERED_IDS:
            self._seen_ids.add(id_hash)
        return False

    def skip_line(
        self, lines: LogLines, reason: str, unit: Literal["line", "row"] = "line", number: int | None = None
    ) -> None:
        self.unrecognized_lines += 1
        lines.report_unreadable(reason, unit, number)

    def decode_lines(
        self, lines: LogLines, decoder: msgspec.json.Decoder[T], is_needed: Callable[[bytes], bool] | None = None
    ) -> Iterator[T]:
        """Yield the value of each line and count the others. Lines that are not needed are not decoded."""
        for line in lines:
            self.line_count += 1
            if is_needed is not None and not is_needed(line):
                if not is_object(line):
                    self.skip_line(lines, NO_JSON)
            elif (value := decode_line(line, decoder)) is not None:
                yield value
            else:
                self.skip_line(lines, NO_JSON)

    def decode_document(self, lines: LogLines, decoder: msgspec.json.Decoder[T]) -> Iterator[T]:
        """Yield the value of each line, or of the whole file if its first line has none."""
        data = lines.read_all() if decode_line(next(iter(lines), b""), decoder) is None else None
        value = decode_line(data, decoder) if data else None
        if value is None:
            yield from self.decode_lines(lines, decoder)
        else:
            self.line_count += 1
            yield value


class _Pending(NamedTuple):
    seq: int
    name: str
    type: StepType
    server: str | None
    arguments: Any
    started: int
    model: str = ""
    """The model that requested it, as far as the log has named it."""

    @property
    def category(self) -> ToolCategory:
        return "model" if self.type == "model" else find_category_of_name(self.name)

    @property
    def named_arguments(self) -> dict[str, Any] | None:
        return self.arguments if isinstance(self.arguments, dict) else None


class RunBuilder:
    """Builds one run from a log. `key` identifies it: reading the same log again gives the same run id."""

    def __init__(self, state: ReaderState, format: str, *key: str) -> None:
        self._state = state
        self.format = format
        self.id = derive_run_id(format, *key)
        self.agent = format
        self.version: str | None = None
        self.session: str | None = key[0] if key else None
        self.parent: str | None = None
        self.environment: str | None = None
        self.context = ""
        self.model = ""
        self.project = ""
        self.user: str | None = None
        self.tags: list[str] = []
        self.started = 0
        self.ended = 0
        self.has_raised = False
        self._pending: dict[str, _Pending] = {}
        self._steps: list[Step] = []
        self._compactions: list[Compaction] = []
        self._has_failed = False
        self._awaits_model = ""
        self.calls = 0
        """The number of the last call."""

    @property
    def needs_text(self) -> bool:
        """Whether plain text is needed: the user's first message, or a sign that the model answers again."""
        return not self.context or bool(self._awaits_model)

    def note_time(self, timestamp: int) -> None:
        """Extend the time range of the run to include this timestamp."""
        if timestamp > self.ended:
            self.ended = timestamp
        if timestamp and (timestamp < self.started or not self.started):
            self.started = timestamp

    def set_context(self, text: str) -> None:
        """Set the context to the user's first message."""
        if not self.context and text and not text.startswith(("<", "Caveat:")):
            self.context = truncate_at_word(text, MAX_USER_CHARS)

    def set_project(self, folder: str | None) -> None:
        """Name the project after the last part of its folder, of any operating system."""
        self.project = PurePath(folder.replace("\\", "/")).name if folder else ""

    def start_call(
        self, id: str, name: str, arguments: Any, timestamp: int = 0, type: StepType = "tool", server: str | None = None
    ) -> None:
        """Start a call, of a server if it is named `mcp__SERVER__TOOL`. It becomes a step when its result is read."""
        if server is None and name.startswith("mcp__"):
            server, _, tool = name[5:].partition("__")
            name, server = (tool, server) if server and tool else (name, None)
        self.calls += 1
        self.note_time(timestamp)
        if self._state.on_call is not None and self.model:
            self._state.requesting_models[id] = self.model
        self._pending[id] = _Pending(self.calls, name, type, server, arguments, timestamp, self.model)

    def is_pending(self, id: str) -> bool:
        return id in self._pending

    def find_category(self, id: str) -> ToolCategory:
        """Return the category of the tool of a pending call."""
        call = self._pending.get(id)
        return "other" if call is None else call.category

    def find_arguments(self, id: str) -> dict[str, Any] | None:
        """Return the arguments of a pending call if they have names."""
        call = self._pending.get(id)
        return call.named_arguments if call is not None else None

    def discard_call(self, id: str) -> None:
        """Discard a call that is recorded elsewhere or was never made. Its number is not reused."""
        self._pending.pop(id, None)

    def end_call(
        self, id: str, answer: Any = None, has_failed: bool = False, timestamp: int = 0, outcome: Outcome | None = None
    ) -> None:
        """End a pending call with its result, or with an outcome that the log states."""
        call = self._pending.pop(id, None)
        if call is None:
            return
        self.note_time(timestamp)
        failure = None
        if has_failed and outcome is None:
            failure = self._classify(call, strip_own_blocks(_answer_text(answer)))
            outcome = outcome_of(failure)
            self._has_failed = self._has_failed or outcome == "failure"
        is_held = outcome not in (None, "success") or len(self._steps) < MAX_CALLS_WITH_ARGUMENTS
        step = Step(
            run=self.id,
            seq=call.seq,
            call=call.seq,
            type=call.type,
            name=call.name,
            server=call.server,
            arguments=bound_arguments(call.arguments) if is_held else None,
            outcome=outcome or "success",
            result=_answer_text(answer) if self._state.keeps_results and not failure and answer is not None else None,
            started_at=call.started,
            duration_seconds=max(0, timestamp - call.started) / 1000 if timestamp and call.started else 0.0,
            failure=failure,
            suspected=self._suspect(call, answer) if outcome is None else None,
            metadata={"model": call.model} if failure is not None and call.model and call.type == "tool" else None,
        )
        self._steps.append(step)
        if self._state.on_call is not None:
            self._state.on_call(id, step)

    def add_step(self, step: Step, timestamp: int = 0) -> None:
        """Add a step that the log holds completely."""
        self.calls = max(self.calls, step.seq)
        self.note_time(step.started_at)
        self.note_time(timestamp)
        self._has_failed = self._has_failed or step.has_failed
        self._steps.append(step)

    def _suspect(self, call: _Pending, answer: Any) -> SuspectedFailure | None:
        """Return what looks like a failure in a result that the log does not flag."""
        size = memoryview(answer).nbytes if isinstance(answer, msgspec.Raw) else 0
        if answer is None or (size > MAX_REPORT_CHARS and call.category in REPORT_CATEGORIES):
            return None  # do not decode it
        text = strip_own_blocks(_answer_text(answer))
        classify = self._state.classify
        return suspect_recorded_result(text, classify, type=call.type, tool=call.name, arguments=call.arguments)

    def _classify(self, call: _Pending, text: str) -> Failure:
        failure = self._state.classify(
            text=text,
            tool=call.name,
            source=call.type,
            is_error=True,
            arguments=call.named_arguments,
            category=call.category,
        )
        return msgspec.structs.replace(failure, detail=_shorten(failure.detail))

    def model_failed(self, text: str, timestamp: int = 0) -> None:
        """Add a failed model call. The model's next answer recovers it."""
        name = self._awaits_model or self.model or "model"
        id = f"model {self.calls}"
        self.start_call(id, name, None, timestamp, type="model")
        self.end_call(id, text[:MAX_ERROR_CHARS], True, timestamp)
        self._awaits_model = name

    def model_answered(self, timestamp: int = 0) -> None:
        if self._awaits_model:
            id = f"model {self.calls}"
            self.start_call(id, self._awaits_model, None, timestamp, type="model")
            self.end_call(id, None, False, timestamp)
            self._awaits_model = ""

    def add_compaction(self, timestamp: int, reason: str = "", tokens: int | None = None) -> None:
        """Add a compaction. Some logs record it twice in a row."""
        self.note_time(timestamp)
        if timestamp and not (self._compactions and self._compactions[-1].steps == self.calls):
            compaction = Compaction(run=self.id, session=self.session, at=timestamp, reason=reason, steps=self.calls)
            self._compactions.append(msgspec.structs.replace(compaction, tokens_before=tokens))

    def build_histories(self) -> Iterator[History]:
        """Build the run so far. Yield nothing if it has no calls."""
        if self._steps:
            steps = tuple(sorted(self._steps, key=lambda step: step.seq))
            run = self.build_run()
            links = tuple(link_recoveries(steps, run)) if self._has_failed else ()
            yield History(run=run, steps=steps, links=links, compactions=tuple(self._compactions))

    def build_run(self) -> Run:
        """Build the run record."""
        properties = {
            FORMAT_KEY: self.format, "model": self.model[:MAX_LABEL_CHARS], "project": self.project,
            "user": (self.user or "")[:MAX_LABEL_CHARS], "tags": [tag[:MAX_LABEL_CHARS] for tag in self.tags],
        }  # fmt: skip
        metadata: dict[str, Any] = {name: value for name, value in properties.items() if value}
        if self._pending:
            metadata["unanswered"] = len(self._pending)
        return Run(
            id=self.id,
            agent=self.agent[:MAX_LABEL_CHARS],
            version=self.version,
            environment=self.environment,
            session=self.session[:MAX_LABEL_CHARS] if self.session is not None else None,
            parent=self.parent,
            context=escape_surrogates(self.context) or None,
            metadata=metadata,
            started_at=self.started,
            ended_at=self.ended or None,
            end_reason="raised" if self.has_raised else "finished",
        )


def derive_run_id(*key: str) -> str:
    """Derive a run id from a key, the same whenever the same log is read."""
    digest = hashlib.sha256("\n".join(key).encode("utf-8", "replace")).digest()
    return f"run_{base64.b32encode(digest[:10]).decode().lower()}"


def to_milliseconds(timestamp: object) -> int:
    """Convert a timestamp (ISO 8601, or seconds or milliseconds since the epoch); 0 if it is invalid."""
    if isinstance(timestamp, str) and timestamp:
        try:
            return int(datetime.fromisoformat(timestamp).timestamp() * 1000)
        except (ValueError, OverflowError, OSError):
            return 0
    if isinstance(timestamp, (int, float)) and not isinstance(timestamp, bool) and 0 < timestamp < 1e17:
        return int(timestamp * 1000 if timestamp < 1e11 else timestamp if timestamp < 1e14 else timestamp / 1000)
    return 0


_SMALL_TYPES = frozenset({int, bool, str, type(None)})


def bound_arguments(value: Any) -> Any:
    """Shorten arguments: keep the beginning and end of long texts."""
    if type(value) is str:
        return _shorten(value)
    limit = 4 * MAX_VALUE_CHARS
    if type(value) is dict:
        value = {name: _shorten(member) if type(member) is str else member for name, member in value.items()}
        if all(type(member) in _SMALL_TYPES for member in value.values()):
            return value  # the common case
        limit = 32 * MAX_VALUE_CHARS
    return None if value is None else to_plain_data(value, nodes=1000, chars=limit)


def _shorten(text: str, limit: int = MAX_VALUE_CHARS) -> str:
    return text if len(text) <= limit else truncate_text(text, limit * 3 // 4, limit // 4)


def _answer_text(answer: Any) -> str:
    """Return a result as one text. Unwraps the content blocks of all providers."""
    answer = decode_raw(answer)
    if isinstance(answer, list):
        answer = "\n".join(_block_texts(answer[:50])) or answer
    if answer is None:
        return ""
    if not isinstance(answer, str):
        answer = msgspec.json.encode(to_plain_data(answer, chars=8 * MAX_VALUE_CHARS)).decode()
    return _shorten(answer, 4 * MAX_VALUE_CHARS)


def first_text(content: Any, skipped_prefixes: tuple[str, ...] = ()) -> str:
    """Return the first text of a message, which may be a list of content blocks."""
    content = decode_raw(content)
    if isinstance(content, list):
        return next((text for text in _block_texts(content[:20]) if not text.startswith(skipped_prefixes)), "")
    return content if isinstance(content, str) else ""


def _block_texts(blocks: list[Any]) -> Iterator[str]:
    texts = (block.get("text") if isinstance(block, dict) else block for block in blocks)
    return (text for text in texts if isinstance(text, str))
