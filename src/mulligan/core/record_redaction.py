"""Redaction of records: what may leave the process of a run, a step or a successful call.

Every field keeps the type that its record declares, whatever the input: one invalid value would make a run unreadable.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

import msgspec

from mulligan.core.failure import Failure, Kind
from mulligan.core.fast_path import IMMUTABLE_TYPES, CallTemplate, SuccessRecord, restore_value
from mulligan.core.records import Change, Link, Recovery, RecoveryStop, Run, Step, encode
from mulligan.redaction import Redactor, to_plain_data
from mulligan.redaction.detect import may_contain

MAX_NAME_CHARS = 200
"""Stored characters of a name or an id."""
MAX_FAST_CHARS = 4000
"""Characters of a text that the fast scan covers. Longer texts may have to be shortened."""
MAX_FAST_ITEMS = 100
"""Values of a dictionary that the fast scan covers. Larger ones may have to be shortened."""
MAX_CACHED_NAMES = 10_000
"""Argument names whose redaction is cached."""

REDACTION_BATCH_SIZE = 100
"""Successful calls scanned together."""
MAX_STEPS_PER_SCAN = 25
"""Steps scanned together: fewer than calls, because they hold more text."""
_MAX_EXACT_INTEGER = 2**53
"""Larger integers lose precision in JSON and may have to be replaced by a description."""
_TEXT_TYPES = frozenset({str})

_pack = msgspec.msgpack.Encoder().encode
ChangesRecord = TypeVar("ChangesRecord", Recovery, Link)


class RecordRedactor:
    """Redacts records by the rules of one redactor."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._names: dict[str, tuple[str, bool, bool]] = {}
        self._harmless_name_sets: set[tuple[str, ...]] = set()
        """Field name combinations in which no name requires redaction."""
        # The fast scan supports neither level shared, which redacts every value, nor user-defined patterns.
        self._can_scan_fast = redactor.level == "local" and not redactor._patterns

    def has_secret(self, text: str) -> bool:
        """Return whether redaction would change a text."""
        return self._redactor.text(text) != text

    def redact_session_id(self, id: str) -> str:
        """Return the session id, or its hash if the id contains a secret or personal data."""
        if not self.has_secret(id):
            return id
        import hashlib  # lazy: rarely needed

        return f"session_{hashlib.sha256(id.encode('utf-8', 'replace')).hexdigest()[:16]}"

    def redact_texts(self, *values: Any) -> tuple[Any, ...]:
        """Redact the texts of one record. A secret found in one text is removed from all."""
        return self._redactor.record(*map(_text, values))

    def prepare_template(self, template: CallTemplate) -> CallTemplate:
        """Add the journal prefixes and the names without redaction to a call template. Done once per template."""
        if template.journal_prefixes is None:
            template.stored_name = _name(template.name, self._redactor)
            template.server = _maybe_name(template.server, self._redactor)
            template.lookup_name = self._lookup_name
            stored_names = [self._lookup_name(name)[0] for name in template.positional_names]
            is_harmless = {
                name: self._lookup_name(name)[:2] == (name, False)
                for name in (*template.positional_names, *template.recordable_names)
            }
            template.recordable_names = frozenset(name for name in template.recordable_names if is_harmless[name])
            server = () if template.server is None else (template.server,)
            template.journal_prefixes = tuple(
                msgspec.Raw(_pack((template.type, template.stored_name, stored_names[:count], *server)))
                for count in range(len(stored_names) + 1)
            )
            # Set this last: callers on other threads use the template from here on.
            if not template.is_reduced:
                hides = (index for index, name in enumerate(template.positional_names) if not is_harmless[name])
                template.safe_positional_count = next(hides, len(template.positional_names))
        return template

    def redact_successes(self, batch: Sequence[SuccessRecord]) -> tuple[dict[int, Step], dict[int, Run]]:
        """Redact successful calls. Return, by index, the steps that changed and the runs of standalone calls.

        `build_steps` builds all other steps.
        """
        steps: dict[int, Step] = {}
        are_fine = self._find_harmless(batch)
        if not all(are_fine):
            for index, (success, is_fine) in enumerate(zip(batch, are_fine, strict=True)):
                if not is_fine:
                    redacted_values = self._redactor.record(
                        to_plain_data(success.arguments), to_plain_data(restore_value(success.result))
                    )
                    steps[index] = success.to_step(success.template.stored_name, *redacted_values)
        runs: dict[int, Run] = {}
        unchanged_runs: dict[int, bool] = {}
        for index, success in enumerate(batch):
            standalone_run = success.standalone_run
            if standalone_run is None:
                continue
            # Redact the shared run once: if it is unchanged, the run of each call is unchanged too.
            is_unchanged = unchanged_runs.get(id(standalone_run))
            if is_unchanged is None:
                is_unchanged = unchanged_runs[id(standalone_run)] = (
                    self.redact_run(standalone_run.run) is standalone_run.run
                )
            run = success.to_run(standalone_run.run)
            runs[index] = run if is_unchanged and _id(run.id) is run.id else self.redact_run(run)
        return steps, runs

    def _find_harmless(self, batch: Sequence[SuccessRecord]) -> list[bool]:
        """Return, per call, whether it needs no redaction. Calls of one template are scanned together."""
        are_fine = [False] * len(batch)
        forms = {success.template for success in batch}
        for form in forms:
            self.prepare_template(form)
        if not self._can_scan_fast:
            return are_fine
        groups: list[Sequence[int]] = [range(len(batch))]
        if len(forms) > 1 or False in {success.is_immutable for success in batch}:
            numbers_by_template: dict[CallTemplate, list[int]] = {form: [] for form in forms}
            for number, success in enumerate(batch):
                if success.is_immutable:
                    numbers_by_template[success.template].append(number)
            groups = [*numbers_by_template.values()]
        for numbers in groups:
            for start in range(0, len(numbers), REDACTION_BATCH_SIZE):
                self._scan_batch(batch, numbers[start : start + REDACTION_BATCH_SIZE], are_fine)
        return are_fine

    def _scan_batch(self, batch: Sequence[SuccessRecord], numbers: Sequence[int], are_fine: list[bool]) -> None:
        """Scan calls of one template and mark the harmless ones.

        One scan of all texts is usually enough. Otherwise the batch is split until each chunk is harmless or a single
        call.
        """
        successes = [batch[number] for number in numbers]
        first = successes[0]
        names = (*first.template.positional_names[: len(first.positional)], *first.keywords)
        if type(first.result) is dict:
            names += tuple(first.result)
        columns = _columns(successes)
        if columns is None:  # calls with different arguments: scan each group separately
            numbers_by_shape: dict[tuple[Any, ...], list[int]] = {}
            for number, success in zip(numbers, successes, strict=True):
                result = success.result
                shape = (len(success.positional), *success.keywords, None, *(result if type(result) is dict else ()))
                numbers_by_shape.setdefault((type(result) is dict, *shape), []).append(number)
            for group_numbers in numbers_by_shape.values():
                if len(group_numbers) < len(numbers):
                    self._scan_batch(batch, group_numbers, are_fine)
            return
        if not self._are_harmless_names(names):
            return
        texts: list[str] = []
        chunk_size = 1
        if all(_is_simple(column, texts) for column in columns):
            distinct_texts = dict.fromkeys(texts)  # results often repeat arguments
            size = sum(map(len, distinct_texts))
            if size <= (MAX_FAST_CHARS if len(numbers) > 1 else 2 * MAX_FAST_CHARS):
                text = "\n".join(distinct_texts)
                if text.isascii() and not may_contain(text):
                    for number in numbers:
                        are_fine[number] = True
                    return
                chunk_size = max(1, len(numbers) // 10)  # usually only a few calls need redaction
            else:
                chunk_size = max(1, len(numbers) * MAX_FAST_CHARS // (2 * size))
        if len(numbers) > 1:
            for start in range(0, len(numbers), chunk_size):
                self._scan_batch(batch, numbers[start : start + chunk_size], are_fine)

    def _are_harmless_names(self, names: Iterable[Any]) -> bool:
        """Return whether none of these names, nor a value under them, requires redaction."""
        return all(type(name) is str and self._lookup_name(name) == (name, False, False) for name in names)

    def _lookup_name(self, name: str) -> tuple[str, bool, bool]:
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
        names = (run.version, run.environment)
        ids = (run.id, run.session, run.parent, run.traceparent)
        if (
            _is_harmless_name(run.agent, redactor)
            and all(name is None or _is_harmless_name(name, redactor) for name in names)
            and all(identifier is None or _id(identifier) is identifier for identifier in ids)
            and self._has_nothing_to_redact(run.context, run.metadata)
        ):
            return run  # the common case
        public_names = _public_names(run.metadata, redactor, "model")
        context, metadata, *redacted_names = redactor.record(
            _optional_text(run.context), _fields(run.metadata), *public_names.values()
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

    def _has_nothing_to_redact(self, context: Any, metadata: Any) -> bool:
        """Return whether context and metadata of a run need no redaction."""
        if context is None and metadata is None:
            return True
        texts: list[str] = []
        if context is not None and type(context) is str:
            texts.append(context)
        elif context is not None:
            return False
        if not self._can_scan_fast or (metadata is not None and not self._fields_have_only_text(metadata, texts)):
            return False
        text = "\n".join(texts)
        return len(text) <= 2 * MAX_FAST_CHARS and text.isascii() and not may_contain(text)

    def redact_steps(self, batch: Sequence[Step]) -> list[Step]:
        """Redact many steps. Most need none, which one scan of a batch shows."""
        redacted_steps = list(batch)
        numbers: list[int] = []
        texts: list[str] = []
        starts: list[int] = []
        """The index of the first text of each of these steps."""
        for number, step in enumerate(batch):
            start = len(texts)
            if self._can_scan_fast and self._has_only_text(step, texts):
                numbers.append(number)
                starts.append(start)
            else:
                del texts[start:]
                redacted_steps[number] = self.redact_step(step)[0]
        starts.append(len(texts))
        for first in range(0, len(numbers), MAX_STEPS_PER_SCAN):
            self._scan_steps(
                redacted_steps, numbers, texts, starts, first, min(first + MAX_STEPS_PER_SCAN, len(numbers))
            )
        return redacted_steps

    def _scan_steps(
        self, redacted_steps: list[Step], numbers: list[int], texts: list[str], starts: list[int], first: int, last: int
    ) -> None:
        """Scan the texts of these steps together. After a hit, split the range; redact a single step."""
        text = "\n".join(texts[starts[first] : starts[last]])
        if len(text) <= 2 * MAX_FAST_CHARS and text.isascii() and not may_contain(text):
            return
        if last - first == 1:
            redacted_steps[numbers[first]] = self.redact_step(redacted_steps[numbers[first]])[0]
            return
        count = last - first
        size = max(1, count // 5 if len(text) <= 2 * MAX_FAST_CHARS else count * MAX_FAST_CHARS // len(text))
        for start in range(first, last, size):
            self._scan_steps(redacted_steps, numbers, texts, starts, start, min(start + size, last))

    def _has_only_text(self, step: Step, texts: list[str]) -> bool:
        """Return whether only the texts of a step can need redaction. Collects these texts."""
        redactor = self._redactor
        if step.recovery is not None or step.stop is not None or step.links:
            return False
        if step.key is not None and not _is_harmless_name(step.key, redactor):
            return False
        if _id(step.run) is not step.run or not _is_harmless_name(step.name, redactor):
            return False
        if step.server is not None and not _is_harmless_name(step.server, redactor):
            return False
        if step.failure is not None and not self._failure_has_only_text(step.failure, texts):
            return False
        arguments, result, metadata = step.arguments, step.result, step.metadata
        if arguments is not None and not self._fields_have_only_text(arguments, texts):
            return False
        if metadata is not None and not self._fields_have_only_text(metadata, texts):
            return False
        if type(result) is dict:
            return self._fields_have_only_text(result, texts)
        if type(result) is str:
            texts.append(result)
            return True
        return result is None or _is_simple([result], texts)

    def _failure_has_only_text(self, failure: Failure, texts: list[str]) -> bool:
        """Return whether only the texts of a failure can need redaction. Collects these texts."""
        failure_texts = (failure.message, failure.detail, failure.hint, failure.code)
        if not _TEXT_TYPES.issuperset(map(type, failure_texts)):
            return False
        texts += failure_texts
        return (
            _kind(failure.kind, self._redactor) is failure.kind
            and (failure.status is None or type(failure.status) is int)
            and _seconds(failure.retry_after) is failure.retry_after
            and _seconds(failure.confidence) is failure.confidence
            and type(failure.recoverable) is bool
            and _id(failure.fingerprint) is failure.fingerprint
            and all(_is_harmless_name(evidence, self._redactor) for evidence in failure.evidence)
        )

    def _fields_have_only_text(self, fields: Any, texts: list[str]) -> bool:
        """Return whether only the texts of these fields can need redaction. Collects these texts."""
        if type(fields) is not dict or len(fields) > MAX_FAST_ITEMS:
            return False
        for value in fields.values():
            kind = type(value)
            if kind is str:
                texts.append(value)
            elif kind is int:
                if not -_MAX_EXACT_INTEGER <= value <= _MAX_EXACT_INTEGER:
                    return False
            elif kind is float:
                if not math.isfinite(value):
                    return False
            elif kind not in IMMUTABLE_TYPES:
                return False
        # Cached: the same names usually occur together.
        names = tuple(fields)
        return names in self._harmless_name_sets or self._cache_harmless_names(names)

    def _cache_harmless_names(self, names: tuple[Any, ...]) -> bool:
        if not self._are_harmless_names(names):
            return False
        if len(self._harmless_name_sets) < MAX_CACHED_NAMES:
            self._harmless_name_sets.add(names)
        return True

    def redact_step(self, step: Step, next: Recovery | None = None) -> tuple[Step, Recovery | None]:
        """Redact a step, and the recovery planned after it."""
        redactor = self._redactor
        failure = step.failure
        # Redact them as one record: a secret in the arguments is also removed from the message that quotes it.
        texts = (failure.message, failure.detail, failure.hint, failure.code) if failure else ()
        suggestions = step.stop.suggestions if step.stop is not None else ()
        metadata_names = _public_names(step.metadata, redactor, "model", "by")
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
                *map(_text, texts),
                *metadata_names.values(),
                *argument_names.values(),
            )
        )
        names = redacted_texts[len(texts) :]
        if failure is not None:
            message, detail, hint, code = redacted_texts[: len(texts)]
            failure = msgspec.structs.replace(
                failure,
                kind=_kind(failure.kind, redactor),
                message=message,
                detail=detail,
                hint=hint,
                code=code,
                status=failure.status if type(failure.status) is int else None,
                retry_after=_seconds(failure.retry_after),
                evidence=tuple(_name(evidence, redactor) for evidence in failure.evidence),
                confidence=_seconds(failure.confidence) or 0.0,
                fingerprint=_id(failure.fingerprint),
                recoverable=bool(failure.recoverable),
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
            stop=_redact_stop(step.stop, suggestion_values, redactor),
            key=_maybe_name(step.key, redactor),
            links=tuple(
                _with_values(link, values, redactor) or link
                for link, values in zip(step.links, link_values, strict=True)
            ),
        )
        return step, _with_values(next, next_values, redactor)


def build_steps(successes: Iterable[SuccessRecord]) -> list[Step]:
    """Build the steps of calls that need no redaction. Positional arguments are faster than keywords here."""
    return [
        Step(
            success.run, success.seq, success.seq, 1, success.parent,
            success.template.type, success.template.stored_name, success.template.server,
            success.arguments, "success", success.result, int(success.started_at * 1000), success.duration_seconds,
            None, None, None, success.tokens, key=success.template.key,
        )
        for success in successes
    ]  # fmt: skip


def _columns(successes: Sequence[SuccessRecord]) -> list[list[Any]] | None:
    """Return the values of calls of one template by column, or None if the calls differ in shape."""
    first = successes[0]
    has_dict_result = type(first.result) is dict
    if len(successes) == 1:
        return [
            [
                *first.positional,
                *first.keywords.values(),
                *(first.result.values() if has_dict_result else (first.result,)),
            ]
        ]
    positional_values = [success.positional for success in successes]
    keyword_values = [success.keywords for success in successes]
    results = [success.result for success in successes]
    sizes = {*map(len, positional_values)}, {*map(len, keyword_values)}, {type(result) is dict for result in results}
    if any(len(size_set) > 1 for size_set in sizes) or (has_dict_result and len({*map(len, results)}) > 1):
        return None
    try:
        # The sizes are equal and every name of the first call exists, so the names are the same.
        columns = [[values[index] for values in positional_values] for index in range(len(first.positional))]
        columns += [[values[name] for values in keyword_values] for name in first.keywords]
        if not has_dict_result:
            return [*columns, results]
        columns += [[result[name] for result in results] for name in first.result]
    except KeyError:
        return None
    if not _TEXT_TYPES.issuperset(
        map(type, chain.from_iterable(results))
    ):  # a key may equal a string without being one
        return [*columns, results]
    return columns


def _is_simple(column: list[Any], texts: list[str]) -> bool:
    """Return whether only the texts of these values can need redaction. Collects these texts."""
    kinds = set(map(type, column))
    if not IMMUTABLE_TYPES.issuperset(kinds):
        return False
    if str in kinds:
        texts += column if len(kinds) == 1 else [value for value in column if type(value) is str]
    if float in kinds and not all(math.isfinite(value) for value in column if type(value) is float):
        return False
    if int not in kinds:
        return True
    numbers = column if len(kinds) == 1 else [value for value in column if type(value) is int]
    return min(numbers) >= -_MAX_EXACT_INTEGER and max(numbers) <= _MAX_EXACT_INTEGER


def _redact_stop(
    stop: RecoveryStop | None, values: list[list[dict[str, Any]]], redactor: Redactor
) -> RecoveryStop | None:
    if stop is None:
        return None
    suggestions = tuple(
        _with_values(suggestion, redacted_values, redactor) or suggestion
        for suggestion, redacted_values in zip(stop.suggestions, values, strict=True)
    )
    return RecoveryStop(reason=redactor.text(stop.reason), suggestions=suggestions, spiral=redactor.text(stop.spiral))


def _text(value: Any) -> str:
    value = to_plain_data(value)
    return value if isinstance(value, str) else "" if value is None else encode(value).decode()


def _optional_text(value: Any) -> str | None:
    return None if value is None else _text(value)


def _fields(value: Any) -> dict[str, Any] | None:
    value = to_plain_data(value)
    return value if value is None or isinstance(value, dict) else {"": value}


def _public_names(fields: Any, redactor: Redactor, *keys: str) -> dict[str, str]:
    """Return the names that metrics are grouped by, such as models. They stay readable at level shared."""
    if redactor.level == "local" or type(fields) is not dict:
        return {}
    public_keys = (key for key in keys if type(fields.get(key)) is str and len(fields[key]) <= MAX_NAME_CHARS)
    return {key: fields[key] for key in public_keys if not redactor.secret_kind_of_name(key)}


def _with_names(fields: Any, names: Mapping[str, str], redacted_names: Sequence[str]) -> Any:
    return {**fields, **dict(zip(names, redacted_names, strict=False))} if names and type(fields) is dict else fields


def _seconds(value: Any) -> float | None:
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def _name(name: Any, redactor: Redactor) -> str:
    """Return a name in a form that may be stored. Names may come from models or untrusted servers."""
    return _redact_cached(name, redactor) if type(name) is str else _redact_cached(_text(name), redactor)


def _is_harmless_name(name: Any, redactor: Redactor) -> bool:
    return type(name) is str and _redact_cached(name, redactor) == name


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
