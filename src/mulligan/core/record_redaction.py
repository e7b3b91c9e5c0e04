"""Redaction of records: what may leave the process of a run, a step or a successful call.

Every field keeps the type that its record declares, whatever the input: one invalid value would make a run unreadable.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import msgspec

from mulligan.core import fork_safety
from mulligan.core.failure import Failure, Kind
from mulligan.core.records import (
    AvoidedTurn,
    Change,
    Link,
    MessagePart,
    RecordedMessage,
    Recovery,
    RecoveryStop,
    Run,
    Step,
    SuspectedFailure,
    encode,
)
from mulligan.core.value_snapshots import IMMUTABLE_TYPES
from mulligan.redaction import Redactor, to_plain_data
from mulligan.redaction.regex import LazyRegex

MAX_NAME_CHARS = 200
"""Stored characters of a name or an id."""
MAX_FAST_TEXTS = 25
"""Texts of a record up to which only a search decides. A record with more long texts may have to be shortened."""
MAX_CACHED_NAMES = 10_000
"""Argument names whose redaction is cached."""
_MAX_EXACT_INTEGER = 2**53
"""Larger integers lose precision in JSON and may have to be replaced by a description."""
_TEXT_TYPES = frozenset({str})

_pack = msgspec.msgpack.Encoder().encode
AnyRecord = TypeVar("AnyRecord")
ChangesRecord = TypeVar("ChangesRecord", Recovery, Link)


_message_lock = threading.RLock()
"""Guards the secrets of messages: two threads of one run may publish at once."""
fork_safety.hold_locks(lambda: (_message_lock,))


class RecordRedactor:
    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._names: dict[str, tuple[str, bool, bool]] = {}
        self._harmless_name_sets: set[tuple[str, ...]] = set()
        """Field name combinations in which no name requires redaction."""
        self._harmless_names: set[tuple[str | None, ...]] = set()
        """Combinations of names of tools, servers and the like that require none."""
        self._message_redactors: dict[str, Redactor] = {}
        """By run with secrets in recorded messages: the redactor that also removes these."""

    def redact_messages(self, run: str, messages: Sequence[RecordedMessage]) -> tuple[RecordedMessage, ...]:
        """Redact messages of a run. A secret found in one is removed from all later messages and steps of the run."""
        if not messages:
            return ()
        parts = [part for message in messages for part in message.parts]
        texts = [_text(part.text) for part in parts]
        arguments = [to_plain_data(part.arguments) for part in parts]
        with _message_lock:
            redactor = self._message_redactors.get(run, self._redactor).with_secrets_from(*texts, *arguments)
            if redactor is not self._redactor:
                self._message_redactors[run] = redactor
            # Runs with secrets in their messages that are remembered.
            while len(self._message_redactors) > 1000:
                del self._message_redactors[next(iter(self._message_redactors))]
        values = redactor.record(*texts, *arguments)
        redacted_parts = iter(
            MessagePart(
                type=part.type,
                text=text,
                name=_name(part.name, self._redactor) if part.name else "",
                # A call with a single text as its arguments, which are then not free text.
                arguments=value if type(value) is not str else redactor.value(value),
                is_error=bool(part.is_error),
            )
            for part, text, value in zip(parts, values[: len(parts)], values[len(parts) :], strict=True)
        )
        return tuple(
            RecordedMessage(
                role=_name(message.role, self._redactor),
                parts=tuple(next(redacted_parts) for _ in message.parts),
                number=message.number,
            )
            for message in messages
        )

    def redact_session_id(self, id: str) -> str:
        """Return the session id, or its hash if the id contains a secret or personal data."""
        if self._redactor.text(id) == id:
            return id
        import hashlib  # lazy: rarely needed

        return f"session_{hashlib.sha256(id.encode('utf-8', 'replace')).hexdigest()[:16]}"

    def redact_texts(self, *values: Any) -> tuple[Any, ...]:
        """Redact the texts of one record. A secret found in one text is removed from all."""
        return self._redactor.record(*map(_text, values))

    def _find_changed(
        self, records: Sequence[AnyRecord], collect_texts: Callable[[AnyRecord, list[str]], bool]
    ) -> Iterable[int]:
        """Return the indexes of the records that redaction may change. One search of all texts excludes most.

        `collect_texts` returns whether only the texts that it adds to the list can need redaction.
        """
        if self._redactor.level != "local":
            return range(len(records))
        changed_indexes: list[int] = []
        texts: list[str] = []
        ends = [0]
        for index, record in enumerate(records):
            if not collect_texts(record, texts) or len(texts) - ends[-1] > MAX_FAST_TEXTS:
                del texts[ends[-1] :]
                changed_indexes.append(index)
            ends.append(len(texts))
        if changed_texts := self._redactor.find_changed_texts(texts):
            changed_indexes += [
                index
                for index, (start, end) in enumerate(pairwise(ends))
                if not changed_texts.isdisjoint(texts[start:end])
            ]
        return changed_indexes

    def _collect_value(self, value: Any, texts: list[str]) -> bool:
        """Add the texts of a value. Return whether nothing else in it can need redaction."""
        if type(value) is str:
            texts.append(value)
            return True
        if type(value) is dict:
            return self._collect_values(value.values(), tuple(value), texts)
        return value is None or self._collect_values((value,), (), texts)

    def _collect_fields(self, fields: Any, texts: list[str]) -> bool:
        if type(fields) is dict:
            return self._collect_values(fields.values(), tuple(fields), texts)
        return fields is None

    def _collect_values(self, values: Iterable[Any], names: tuple[Any, ...], texts: list[str]) -> bool:
        for value in values:
            kind = type(value)
            if kind is str:
                texts.append(value)
            elif kind is int:
                if not -_MAX_EXACT_INTEGER <= value <= _MAX_EXACT_INTEGER:
                    return False
            elif kind not in IMMUTABLE_TYPES or (kind is float and not math.isfinite(value)):
                return False
        # Cached: the same names usually occur together.
        return names in self._harmless_name_sets or self._are_harmless_names(names)

    def _are_harmless_names(self, names: tuple[Any, ...]) -> bool:
        """Return whether none of these names, nor a value under them, requires redaction."""
        # Values of a dictionary up to which only a search of its texts decides.
        if len(names) > 100 or not all(
            type(name) is str and self.lookup_name(name) == (name, False, False) for name in names
        ):
            return False
        if len(self._harmless_name_sets) < MAX_CACHED_NAMES:
            self._harmless_name_sets.add(names)
        return True

    def lookup_name(self, name: str) -> tuple[str, bool, bool]:
        return self._names.get(name) or self._redact_name(name)

    def _redact_name(self, name: str) -> tuple[str, bool, bool]:
        """Return the redacted name, and whether numbers and texts under it are redacted. Cached: few names recur."""
        ((redacted_name, number),) = self._redactor.value({to_plain_data(name): 1}).items()
        ((_, text),) = self._redactor.value({to_plain_data(name): "x"}).items()
        entry = (redacted_name, number != 1, text != "x")
        if len(self._names) < MAX_CACHED_NAMES:
            self._names[name] = entry
        return entry

    def redact_run(self, run: Run) -> Run:
        redactor = self._redactor
        is_bare = run.context is None and run.metadata is None
        if (is_bare or redactor.level == "local") and self._has_harmless_fields(run):
            return run  # the common case
        public_names = _public_names(run.metadata, redactor, "model") | _bookkeeping(run.metadata, redactor)
        context, metadata, *redacted_names = redactor.record(
            None if run.context is None else _text(run.context), _fields(run.metadata), *public_names.values()
        )
        return msgspec.structs.replace(
            run,
            id=_id(run.id),
            agent=_name(run.agent, redactor),
            version=_maybe_name(run.version, redactor),
            environment=_maybe_name(run.environment, redactor),
            session=None if run.session is None else _id(run.session),
            parent=None if run.parent is None else _id(run.parent),
            traceparent=None if run.traceparent is None else _id(run.traceparent),
            context=context,
            metadata=_with_names(metadata, public_names, redacted_names),
        )

    def _has_harmless_fields(self, run: Run) -> bool:
        ids = (run.id, run.session, run.parent, run.traceparent)
        texts: list[str] = []
        return (
            run.agent is not None
            and self._are_harmless(run.agent, run.version, run.environment)
            and all(identifier is None or _id(identifier) is identifier for identifier in ids)
            and (run.context is None or type(run.context) is str)
            and self._collect_value(run.context, texts)
            and self._collect_fields(run.metadata, texts)
            and len(texts) <= MAX_FAST_TEXTS
            and not (texts and self._redactor.find_changed_texts(texts))
        )

    def _are_harmless(self, *names: Any) -> bool:
        try:
            if names in self._harmless_names:
                return True
        except TypeError:  # one of them is not even a text
            return False
        is_harmless = all(
            name is None or (type(name) is str and _redact_cached(name, self._redactor) == name) for name in names
        )
        if is_harmless and len(self._harmless_names) < MAX_CACHED_NAMES:
            self._harmless_names.add(names)
        return is_harmless

    def redact_steps(self, batch: Sequence[Step]) -> list[Step]:
        """Redact many steps. Most need none."""
        steps = list(batch)
        for index in self._find_changed(batch, self._collect_step_texts):
            steps[index] = self.redact_step(batch[index])[0]
        return steps

    def _collect_step_texts(self, step: Step, texts: list[str]) -> bool:
        if step.recovery is not None or step.stop is not None or step.links or step.run in self._message_redactors:
            return False
        return (
            self._are_harmless(step.name, step.server, step.key, step.avoided and step.avoided.model)
            and _id(step.run) is step.run
            and (step.failure is None or self._collect_failure_texts(step.failure, texts))
            and (step.suspected is None or self._collect_suspected_texts(step.suspected, texts))
            and self._collect_fields(step.arguments, texts)
            and (step.metadata is None or self._collect_fields(step.metadata, texts))
            and self._collect_value(step.result, texts)
        )

    def _collect_failure_texts(self, failure: Failure, texts: list[str]) -> bool:
        failure_texts = (failure.message, failure.detail, failure.hint, failure.code, failure.trace)
        if not _TEXT_TYPES.issuperset(map(type, failure_texts)):
            return False
        texts += failure_texts
        return (
            _kind(failure.kind, self._redactor) is failure.kind
            and (failure.status is None or type(failure.status) is int)
            and _seconds(failure.retry_after) is failure.retry_after
            and _seconds(failure.clears_after) is failure.clears_after
            and _seconds(failure.confidence) is failure.confidence
            and type(failure.recoverable) is bool
            and _id(failure.fingerprint) is failure.fingerprint
            and self._are_harmless(*failure.evidence, failure.exception)
        )

    def _collect_suspected_texts(self, suspected: SuspectedFailure, texts: list[str]) -> bool:
        texts.append(suspected.sentence)
        return (
            type(suspected.sentence) is str
            and self._are_harmless(suspected.kind)
            and _seconds(suspected.confidence) is suspected.confidence
        )

    def redact_step(self, step: Step, next: Recovery | None = None) -> tuple[Step, Recovery | None]:
        """Redact a step, and the recovery planned after it."""
        redactor = self._message_redactors.get(step.run, self._redactor)
        failure = step.failure
        # Redact them as one record: a secret in the arguments is also removed from the message that quotes it.
        texts = (failure.message, failure.detail, failure.hint, failure.code, failure.trace) if failure else ()
        suspected_texts = (step.suspected.sentence,) if step.suspected else ()
        suggestions = step.stop.suggestions if step.stop is not None else ()
        metadata_names = _public_names(step.metadata, redactor, "model", "service_tier", "by")
        metadata_names |= _bookkeeping(step.metadata, redactor)
        argument_names = _public_names(step.arguments, redactor, "model") if step.type == "model" else {}
        arguments, result, metadata, recovery_values, next_values, suggestion_values, link_values, *redacted_texts = (
            redactor.record(
                to_plain_data(step.arguments),
                to_plain_data(step.result),
                _fields(step.metadata),
                _change_values(step.recovery),
                _change_values(next),
                [_change_values(suggestion) for suggestion in suggestions],
                [_change_values(link) for link in step.links],
                *map(_text, (*texts, *suspected_texts)),
                *metadata_names.values(),
                *argument_names.values(),
            )
        )
        names = redacted_texts[len(texts) + len(suspected_texts) :]
        suspected = step.suspected
        if suspected is not None:
            suspected = SuspectedFailure(
                kind=_name(suspected.kind, redactor),
                confidence=_seconds(suspected.confidence) or 0.0,
                sentence=redacted_texts[len(texts)],
            )
        if failure is not None:
            message, detail, hint, code, trace = redacted_texts[: len(texts)]
            failure = msgspec.structs.replace(
                failure,
                kind=_kind(failure.kind, redactor),
                message=message,
                detail=detail,
                hint=hint,
                code=code,
                status=failure.status if type(failure.status) is int else None,
                retry_after=_seconds(failure.retry_after),
                clears_after=_seconds(failure.clears_after),
                evidence=tuple(_name(evidence, redactor) for evidence in failure.evidence),
                confidence=_seconds(failure.confidence) or 0.0,
                fingerprint=_id(failure.fingerprint),
                recoverable=bool(failure.recoverable),
                exception=_name(failure.exception, redactor),
                trace=trace,
            )
        stop = step.stop
        if stop is not None:
            stop = RecoveryStop(
                reason=redactor.text(stop.reason),
                suggestions=_with_all_values(suggestions, suggestion_values, redactor),
                spiral=redactor.text(stop.spiral),
            )
        step = msgspec.structs.replace(
            step,
            run=_id(step.run),
            name=_name(step.name, redactor),
            server=_maybe_name(step.server, redactor),
            arguments=_with_names(arguments, argument_names, names[len(metadata_names) :]),
            result=result,
            metadata=_with_names(metadata, metadata_names, names),
            failure=failure,
            recovery=_with_values(step.recovery, recovery_values, redactor),
            stop=stop,
            key=_maybe_name(step.key, redactor),
            avoided=_redact_avoided(step.avoided, redactor),
            links=tuple(map(_keep_forms, step.links, _with_all_values(step.links, link_values, redactor))),
            suspected=suspected,
        )
        return step, _with_values(next, next_values, redactor)


def _redact_avoided(avoided: AvoidedTurn | None, redactor: Redactor) -> AvoidedTurn | None:
    return avoided and msgspec.structs.replace(avoided, model=_name(avoided.model, redactor))


def _with_all_values(
    records: Sequence[ChangesRecord], values: Sequence[list[dict[str, Any]]], redactor: Redactor
) -> tuple[ChangesRecord, ...]:
    pairs = zip(records, values, strict=True)
    return tuple(_with_values(record, redacted_values, redactor) or record for record, redacted_values in pairs)


def _keep_forms(link: Link, redacted_link: Link) -> Link:
    """Replace hidden new values by the form that the old value got: "without blanks" says nothing about the value."""
    changes = map(_keep_form, link.changes, redacted_link.changes)
    return msgspec.structs.replace(redacted_link, changes=tuple(changes)) if link.changes else redacted_link


def _keep_form(change: Change, redacted_change: Change) -> Change:
    is_hidden = (change.before, change.after) != (redacted_change.before, redacted_change.after)
    if not is_hidden or change.operation != "substitute" or change.source == "run":
        return redacted_change
    with fork_safety.import_lock:
        from mulligan.core.transformations import encode_form, find_transformations, keeps_identity  # lazy: for changes
    form = next(filter(keeps_identity, find_transformations(change.before, change.after)), None)
    return msgspec.structs.replace(redacted_change, after=encode_form(change.before, form)) if form else redacted_change


def _text(value: Any) -> str:
    value = to_plain_data(value)
    return value if isinstance(value, str) else "" if value is None else encode(value).decode()


def _fields(value: Any) -> dict[str, Any] | None:
    value = to_plain_data(value)
    return value if value is None or isinstance(value, dict) else {"": value}


def _public_names(fields: Any, redactor: Redactor, *keys: str) -> dict[str, str]:
    """Return the names that metrics are grouped by, such as models. They stay readable at level shared."""
    if redactor.level == "local" or type(fields) is not dict:
        return {}
    public_keys = (key for key in keys if type(fields.get(key)) is str and len(fields[key]) <= MAX_NAME_CHARS)
    return {key: fields[key] for key in public_keys if not redactor.secret_kind_of_name(key)}


_BOOKKEEPING = {
    "span": (_ID_LETTERS := LazyRegex(r"[a-p]{4}(?: [a-p]{1,40}){3}")),
    "of": _ID_LETTERS,
    "format": LazyRegex(r"[a-z][a-z-]{0,30}"),
    "sent_attempt": LazyRegex(r"[0-9]{1,4}"),
}
"""Metadata that mulligan itself writes, by its form: span ids and call keys as letters, the format of a log, and the
number of an attempt. A server that restarts continues a trace by them."""


def _bookkeeping(fields: Any, redactor: Redactor) -> dict[str, str]:
    names = _public_names(fields, redactor, *_BOOKKEEPING)
    return {name: text for name, text in names.items() if _BOOKKEEPING[name].fullmatch(text)}


def _with_names(fields: Any, names: Mapping[str, str], redacted_names: Sequence[str]) -> Any:
    return {**fields, **dict(zip(names, redacted_names, strict=False))} if names and type(fields) is dict else fields


def _seconds(value: Any) -> float | None:
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def _name(name: Any, redactor: Redactor) -> str:
    """Return a name in a form that may be stored. Names may come from models or untrusted servers."""
    return _redact_cached(name, redactor) if type(name) is str else _redact_cached(_text(name), redactor)


def _maybe_name(name: Any, redactor: Redactor) -> str | None:
    return None if name is None else _name(name, redactor)


@functools.lru_cache(maxsize=1024)
def _redact_cached(name: str, redactor: Redactor) -> str:
    return redactor.text(to_plain_data(name))[:MAX_NAME_CHARS]


def _id(id: Any) -> str:
    # Ids are not scanned for secrets: random ids may look like one, and redacted ids would be equal.
    return id if type(id) is str and len(id) <= MAX_NAME_CHARS and id.isascii() else _text(id)[:MAX_NAME_CHARS]


def _kind(kind: Kind, redactor: Redactor) -> Kind:
    if kind.isascii() and len(kind) <= MAX_NAME_CHARS:
        return kind
    return Kind(_name(kind.type, redactor), _name(kind.code, redactor), kind.remedy, kind.took_effect, kind.hint)


def _change_values(recovery: Recovery | Link | None) -> list[dict[str, Any]]:
    """Return before and after of each change under the argument's path, whose names may indicate a secret."""
    if recovery is None:
        return []
    return [_nest_value(change, side) for change in recovery.changes for side in (change.before, change.after)]


def _nest_value(change: Change, value: Any) -> dict[str, Any]:
    nested = {"": to_plain_data(value)}
    if change.operation == "rename":
        return nested  # the value is a name itself
    for name in reversed(change.path.split(".")):  # any part of the path may indicate a secret, as in credentials.user
        nested = {name: nested}
    return nested


def _with_values(
    recovery: ChangesRecord | None, values: list[dict[str, Any]], redactor: Redactor
) -> ChangesRecord | None:
    if recovery is None or not recovery.changes:
        return recovery
    changes = []
    for change, before, after in zip(recovery.changes, values[::2], values[1::2], strict=True):
        names = 0 if change.operation == "rename" else change.path.count(".") + 1
        path, old = _unwrap_path(before, names)
        _, new = _unwrap_path(after, names)
        if change.operation == "rename":
            path = to_plain_data(change.path)
            # Names of tools and arguments are not values: they stay readable at every level.
            old, new = (
                _redact_cached(name, redactor) if redactor.level != "local" and type(name) is str else hidden
                for name, hidden in ((change.before, old), (change.after, new))
            )
        changes.append(msgspec.structs.replace(change, path=path, before=old, after=new))
    return msgspec.structs.replace(recovery, changes=tuple(changes))


def _unwrap_path(value: Any, names: int) -> tuple[str, Any]:
    """Return the path and the value of a result of `_nest_value`. Names on the path may be redacted too."""
    path: list[str] = []
    for _ in range(names):
        ((name, value),) = value.items()
        path.append(name)
    return ".".join(path), value[""]
