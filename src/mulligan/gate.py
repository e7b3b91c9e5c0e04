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

from mulligan.failure import Failure, Kind
from mulligan.records import Change, Ending, Link, Recovery, Run, Step, encode
from mulligan.redaction import Redactor, plain
from mulligan.redaction.detect import might_hold
from mulligan.success import FLAT, Form, Success, thawed

NAME = 200
"""Stored characters of a name or an id."""
SHORT = 4000
"""Characters of a text that the fast scan covers. Longer texts may have to be shortened."""
MANY = 100
"""Values of a dictionary that the fast scan covers. Larger ones may have to be shortened."""
NAMES = 10_000
"""Argument names whose redaction is cached."""

TOGETHER = 100
"""Successful calls scanned together."""
FEW = 25
"""Steps scanned together: fewer than calls, because they hold more text."""
_EXACT = 2**53
"""Larger integers lose precision in JSON and may have to be replaced by a description."""
_NAMES = frozenset({str})

_pack = msgspec.msgpack.Encoder().encode
Changed = TypeVar("Changed", Recovery, Link)


class Gate:
    """Redacts records by the rules of one redactor."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._names: dict[str, tuple[str, bool, bool]] = {}
        self._told: set[tuple[str, ...]] = set()
        """Field name combinations in which no name requires redaction."""
        # The fast scan supports neither level shared, which redacts every value, nor user-defined patterns.
        self._looks_once = redactor.level == "local" and not redactor._patterns

    def finds(self, text: str) -> bool:
        """Return whether redaction would change a text."""
        return self._redactor.text(text) != text

    def nameable(self, id: str) -> str:
        """Return the session id, or its hash if the id contains a secret or personal data."""
        if not self.finds(id):
            return id
        import hashlib  # lazy: rarely needed

        return f"session_{hashlib.sha256(id.encode('utf-8', 'replace')).hexdigest()[:16]}"

    def texts(self, *values: Any) -> tuple[Any, ...]:
        """Redact the texts of one record. A secret found in one text is removed from all."""
        return self._redactor.record(*map(_text, values))

    def known(self, form: Form) -> Form:
        """Add the journal prefixes and the names without redaction to a call template. Done once per template."""
        if form.prefixes is None:
            form.kept_name = _name(form.name, self._redactor)
            form.server = _maybe_name(form.server, self._redactor)
            form.named = self._known
            kept = [self._known(name)[0] for name in form.names]
            is_told = {name: self._known(name)[:2] == (name, False) for name in (*form.names, *form.plain)}
            form.plain = frozenset(name for name in form.plain if is_told[name])
            server = () if form.server is None else (form.server,)
            form.prefixes = tuple(
                msgspec.Raw(_pack((form.type, form.kept_name, kept[:count], *server))) for count in range(len(kept) + 1)
            )
            # Set this last: callers on other threads use the template from here on.
            if not form.is_reduced:
                hides = (place for place, name in enumerate(form.names) if not is_told[name])
                form.leading = next(hides, len(form.names))
        return form

    def successes(self, batch: Sequence[Success]) -> tuple[dict[int, Step], dict[int, Run]]:
        """Redact successful calls. Return, by index, the steps that changed and the runs of standalone calls.

        `build_steps` builds all other steps.
        """
        steps: dict[int, Step] = {}
        are_fine = self._harmless(batch)
        if not all(are_fine):
            for place, (success, is_fine) in enumerate(zip(batch, are_fine, strict=True)):
                if not is_fine:
                    told = self._redactor.record(plain(success.arguments), plain(thawed(success.result)))
                    steps[place] = success.step(success.form.kept_name, *told)
        runs: dict[int, Run] = {}
        are_plain: dict[int, bool] = {}
        for place, success in enumerate(batch):
            of = success.alone
            if of is None:
                continue
            # Redact the shared run once: if it is unchanged, the run of each call is unchanged too.
            is_plain = are_plain.get(id(of))
            if is_plain is None:
                is_plain = are_plain[id(of)] = self.run(of.run) is of.run
            run = success.whole_run(of.run)
            runs[place] = run if is_plain and _id(run.id) is run.id else self.run(run)
        return steps, runs

    def _harmless(self, batch: Sequence[Success]) -> list[bool]:
        """Return, per call, whether it needs no redaction. Calls of one template are scanned together."""
        are_fine = [False] * len(batch)
        forms = {success.form for success in batch}
        for form in forms:
            self.known(form)
        if not self._looks_once:
            return are_fine
        groups: list[Sequence[int]] = [range(len(batch))]
        if len(forms) > 1 or False in {success.is_flat for success in batch}:
            alike: dict[Form, list[int]] = {form: [] for form in forms}
            for number, success in enumerate(batch):
                if success.is_flat:
                    alike[success.form].append(number)
            groups = [*alike.values()]
        for numbers in groups:
            for start in range(0, len(numbers), TOGETHER):
                self._look(batch, numbers[start : start + TOGETHER], are_fine)
        return are_fine

    def _look(self, batch: Sequence[Success], numbers: Sequence[int], are_fine: list[bool]) -> None:
        """Scan calls of one template and mark the harmless ones.

        One scan of all texts is usually enough. Otherwise the batch is split until each chunk is harmless or a single
        call.
        """
        some = [batch[number] for number in numbers]
        first = some[0]
        names = (*first.form.names[: len(first.given)], *first.named)
        if type(first.result) is dict:
            names += tuple(first.result)
        columns = _columns(some)
        if columns is None:  # calls with different arguments: scan each group separately
            alike: dict[tuple[Any, ...], list[int]] = {}
            for number, success in zip(numbers, some, strict=True):
                result = success.result
                like = (len(success.given), *success.named, None, *(result if type(result) is dict else ()))
                alike.setdefault((type(result) is dict, *like), []).append(number)
            for others in alike.values():
                if len(others) < len(numbers):
                    self._look(batch, others, are_fine)
            return
        if not self._hides_nothing(names):
            return
        texts: list[str] = []
        few = 1
        if all(_is_simple(column, texts) for column in columns):
            once = dict.fromkeys(texts)  # results often repeat arguments
            size = sum(map(len, once))
            if size <= (SHORT if len(numbers) > 1 else 2 * SHORT):
                text = "\n".join(once)
                if text.isascii() and not might_hold(text):
                    for number in numbers:
                        are_fine[number] = True
                    return
                few = max(1, len(numbers) // 10)  # usually only a few calls need redaction
            else:
                few = max(1, len(numbers) * SHORT // (2 * size))
        if len(numbers) > 1:
            for start in range(0, len(numbers), few):
                self._look(batch, numbers[start : start + few], are_fine)

    def _hides_nothing(self, names: Iterable[Any]) -> bool:
        """Return whether none of these names, nor a value under them, requires redaction."""
        return all(type(name) is str and self._known(name) == (name, False, False) for name in names)

    def _known(self, name: str) -> tuple[str, bool, bool]:
        return self._names.get(name) or self._named(name)

    def _named(self, name: str) -> tuple[str, bool, bool]:
        """Return the redacted name, and whether numbers and texts under it are redacted. Cached: few names recur."""
        ((kept, number),) = self._redactor.value({plain(name): 1}).items()
        ((_, text),) = self._redactor.value({plain(name): "x"}).items()
        known = (kept, number != 1, text != "x")
        if len(self._names) < NAMES:
            self._names[name] = known
        return known

    def run(self, run: Run) -> Run:
        redactor = self._redactor
        names = (run.version, run.environment)
        ids = (run.id, run.session, run.parent, run.traceparent)
        if (
            _kept_as_is(run.agent, redactor)
            and all(each is None or _kept_as_is(each, redactor) for each in names)
            and all(each is None or _id(each) is each for each in ids)
            and self._says_nothing(run.context, run.metadata)
        ):
            return run  # the common case
        named = _named(run.metadata, redactor, "model")
        context, metadata, *told = redactor.record(_maybe(run.context), _fields(run.metadata), *named.values())
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
            metadata=_with_names(metadata, named, told),
        )

    def _says_nothing(self, context: Any, metadata: Any) -> bool:
        """Return whether context and metadata of a run need no redaction."""
        if context is None and metadata is None:
            return True
        texts: list[str] = []
        if context is not None and type(context) is str:
            texts.append(context)
        elif context is not None:
            return False
        if not self._looks_once or (metadata is not None and not self._holds_texts_only(metadata, texts)):
            return False
        text = "\n".join(texts)
        return len(text) <= 2 * SHORT and text.isascii() and not might_hold(text)

    def steps(self, batch: Sequence[Step]) -> list[Step]:
        """Redact many steps. Most need none, which one scan of a batch shows."""
        kept = list(batch)
        numbers: list[int] = []
        texts: list[str] = []
        starts: list[int] = []
        """The index of the first text of each of these steps."""
        for number, step in enumerate(batch):
            start = len(texts)
            if self._looks_once and self._is_plain(step, texts):
                numbers.append(number)
                starts.append(start)
            else:
                del texts[start:]
                kept[number] = self.step(step)[0]
        starts.append(len(texts))
        for first in range(0, len(numbers), FEW):
            self._look_through(kept, numbers, texts, starts, first, min(first + FEW, len(numbers)))
        return kept

    def _look_through(
        self, kept: list[Step], numbers: list[int], texts: list[str], starts: list[int], first: int, last: int
    ) -> None:
        """Scan the texts of these steps together. After a hit, split the range; redact a single step."""
        text = "\n".join(texts[starts[first] : starts[last]])
        if len(text) <= 2 * SHORT and text.isascii() and not might_hold(text):
            return
        if last - first == 1:
            kept[numbers[first]] = self.step(kept[numbers[first]])[0]
            return
        count = last - first
        size = max(1, count // 5 if len(text) <= 2 * SHORT else count * SHORT // len(text))
        for place in range(first, last, size):
            self._look_through(kept, numbers, texts, starts, place, min(place + size, last))

    def _is_plain(self, step: Step, texts: list[str]) -> bool:
        """Return whether only the texts of a step can need redaction. Collects these texts."""
        redactor = self._redactor
        if step.after is not None or step.ending is not None or step.links:
            return False
        if step.key is not None and not _kept_as_is(step.key, redactor):
            return False
        if _id(step.run) is not step.run or not _kept_as_is(step.name, redactor):
            return False
        if step.server is not None and not _kept_as_is(step.server, redactor):
            return False
        if step.failure is not None and not self._is_plain_failure(step.failure, texts):
            return False
        arguments, result, metadata = step.arguments, step.result, step.metadata
        if arguments is not None and not self._holds_texts_only(arguments, texts):
            return False
        if metadata is not None and not self._holds_texts_only(metadata, texts):
            return False
        if type(result) is dict:
            return self._holds_texts_only(result, texts)
        if type(result) is str:
            texts.append(result)
            return True
        return result is None or _is_simple([result], texts)

    def _is_plain_failure(self, failure: Failure, texts: list[str]) -> bool:
        """Return whether only the texts of a failure can need redaction. Collects these texts."""
        said = (failure.message, failure.detail, failure.hint, failure.code)
        if not _NAMES.issuperset(map(type, said)):
            return False
        texts += said
        return (
            _kind(failure.kind, self._redactor) is failure.kind
            and (failure.status is None or type(failure.status) is int)
            and _seconds(failure.retry_after) is failure.retry_after
            and _seconds(failure.confidence) is failure.confidence
            and type(failure.recoverable) is bool
            and _id(failure.fingerprint) is failure.fingerprint
            and all(_kept_as_is(each, self._redactor) for each in failure.evidence)
        )

    def _holds_texts_only(self, held: Any, texts: list[str]) -> bool:
        """Return whether only the texts of these fields can need redaction. Collects these texts."""
        if type(held) is not dict or len(held) > MANY:
            return False
        for value in held.values():
            kind = type(value)
            if kind is str:
                texts.append(value)
            elif kind is int:
                if not -_EXACT <= value <= _EXACT:
                    return False
            elif kind is float:
                if not math.isfinite(value):
                    return False
            elif kind not in FLAT:
                return False
        # Cached: the same names usually occur together.
        names = tuple(held)
        return names in self._told or self._tells(names)

    def _tells(self, names: tuple[Any, ...]) -> bool:
        if not self._hides_nothing(names):
            return False
        if len(self._told) < NAMES:
            self._told.add(names)
        return True

    def step(self, step: Step, next: Recovery | None = None) -> tuple[Step, Recovery | None]:
        """Redact a step, and the recovery planned after it."""
        redactor = self._redactor
        failure = step.failure
        # Redact them as one record: a secret in the arguments is also removed from the message that quotes it.
        texts = (failure.message, failure.detail, failure.hint, failure.code) if failure else ()
        offered = step.ending.offered if step.ending is not None else ()
        said = _named(step.metadata, redactor, "model", "by")
        called = _named(step.arguments, redactor, "model") if step.type == "model" else {}
        arguments, result, metadata, led, planned, left, linked, *told = redactor.record(
            plain(step.arguments),
            plain(step.result),
            _fields(step.metadata),
            _values(step.after),
            _values(next),
            [_values(each) for each in offered],
            [_values(link) for link in step.links],
            *map(_text, texts),
            *said.values(),
            *called.values(),
        )
        names = told[len(texts) :]
        if failure is not None:
            message, detail, hint, code = told[: len(texts)]
            failure = msgspec.structs.replace(
                failure,
                kind=_kind(failure.kind, redactor),
                message=message,
                detail=detail,
                hint=hint,
                code=code,
                status=failure.status if type(failure.status) is int else None,
                retry_after=_seconds(failure.retry_after),
                evidence=tuple(_name(each, redactor) for each in failure.evidence),
                confidence=_seconds(failure.confidence) or 0.0,
                fingerprint=_id(failure.fingerprint),
                recoverable=bool(failure.recoverable),
            )
        step = msgspec.structs.replace(
            step,
            run=_id(step.run),
            name=_name(step.name, redactor),
            server=_maybe_name(step.server, redactor),
            arguments=_with_names(arguments, called, names[len(said) :]),
            result=result,
            metadata=_with_names(metadata, said, names),
            failure=failure,
            after=_with_values(step.after, led, redactor),
            ending=_ending(step.ending, left, redactor),
            key=_maybe_name(step.key, redactor),
            links=tuple(
                _with_values(link, values, redactor) or link for link, values in zip(step.links, linked, strict=True)
            ),
        )
        return step, _with_values(next, planned, redactor)


def steps_of(some: Iterable[Success]) -> list[Step]:
    """Build the steps of calls that need no redaction. Positional arguments are faster than keywords here."""
    return [
        Step(
            each.run, each.seq, each.seq, 1, each.parent, each.form.type, each.form.kept_name, each.form.server,
            each.arguments, "success", each.result, int(each.started * 1000), each.seconds, None, None, None,
            each.tokens, key=each.form.key,
        )
        for each in some
    ]  # fmt: skip


def _columns(some: Sequence[Success]) -> list[list[Any]] | None:
    """Return the values of calls of one template by column, or None if the calls differ in shape."""
    first = some[0]
    is_told = type(first.result) is dict
    if len(some) == 1:
        return [[*first.given, *first.named.values(), *(first.result.values() if is_told else (first.result,))]]
    given = [each.given for each in some]
    named = [each.named for each in some]
    results = [each.result for each in some]
    sizes = {*map(len, given)}, {*map(len, named)}, {type(result) is dict for result in results}
    if any(len(each) > 1 for each in sizes) or (is_told and len({*map(len, results)}) > 1):
        return None
    try:
        # The sizes are equal and every name of the first call exists, so the names are the same.
        columns = [[values[place] for values in given] for place in range(len(first.given))]
        columns += [[values[name] for values in named] for name in first.named]
        if not is_told:
            return [*columns, results]
        columns += [[result[name] for result in results] for name in first.result]
    except KeyError:
        return None
    if not _NAMES.issuperset(map(type, chain.from_iterable(results))):  # a key may equal a string without being one
        return [*columns, results]
    return columns


def _is_simple(column: list[Any], texts: list[str]) -> bool:
    """Return whether only the texts of these values can need redaction. Collects these texts."""
    kinds = set(map(type, column))
    if not FLAT.issuperset(kinds):
        return False
    if str in kinds:
        texts += column if len(kinds) == 1 else [value for value in column if type(value) is str]
    if float in kinds and not all(math.isfinite(value) for value in column if type(value) is float):
        return False
    if int not in kinds:
        return True
    numbers = column if len(kinds) == 1 else [value for value in column if type(value) is int]
    return min(numbers) >= -_EXACT and max(numbers) <= _EXACT


def _ending(ending: Ending | None, values: list[list[dict[str, Any]]], redactor: Redactor) -> Ending | None:
    if ending is None:
        return None
    offered = tuple(
        _with_values(each, held, redactor) or each for each, held in zip(ending.offered, values, strict=True)
    )
    return Ending(why=redactor.text(ending.why), offered=offered, spiral=redactor.text(ending.spiral))


def _text(value: Any) -> str:
    value = plain(value)
    return value if isinstance(value, str) else "" if value is None else encode(value).decode()


def _maybe(value: Any) -> str | None:
    return None if value is None else _text(value)


def _fields(value: Any) -> dict[str, Any] | None:
    value = plain(value)
    return value if value is None or isinstance(value, dict) else {"": value}


def _named(held: Any, redactor: Redactor, *keys: str) -> dict[str, str]:
    """Return the names that metrics are grouped by, such as models. They stay readable at level shared."""
    if redactor.level == "local" or type(held) is not dict:
        return {}
    known = (key for key in keys if type(held.get(key)) is str and len(held[key]) <= NAME)
    return {key: held[key] for key in known if not redactor.says_secret(key)}


def _with_names(held: Any, named: Mapping[str, str], told: Sequence[str]) -> Any:
    return {**held, **dict(zip(named, told, strict=False))} if named and type(held) is dict else held


def _seconds(value: Any) -> float | None:
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def _name(name: Any, redactor: Redactor) -> str:
    """Return a name in a form that may be stored. Names may come from models or untrusted servers."""
    return _kept(name, redactor) if type(name) is str else _kept(_text(name), redactor)


def _kept_as_is(name: Any, redactor: Redactor) -> bool:
    return type(name) is str and _kept(name, redactor) == name


def _maybe_name(name: Any, redactor: Redactor) -> str | None:
    return None if name is None else _name(name, redactor)


@functools.lru_cache(maxsize=1024)
def _kept(name: str, redactor: Redactor) -> str:
    return redactor.text(plain(name))[:NAME]


def _id(id: Any) -> str:
    # Ids are not scanned for secrets: random ids may look like one, and redacted ids would be equal.
    return id if type(id) is str and len(id) <= NAME and id.isascii() else _text(id)[:NAME]


def _kind(kind: Kind, redactor: Redactor) -> Kind:
    if kind.isascii() and len(kind) <= NAME:
        return kind
    return Kind(_name(kind.type, redactor), _name(kind.code, redactor), kind.remedy, kind.ran, kind.hint)


def _values(recovery: Recovery | Link | None) -> list[dict[str, Any]]:
    """Return before and after of each change under the argument's path, whose names may indicate a secret."""
    if recovery is None:
        return []
    return [_under(change, side) for change in recovery.changes for side in (change.before, change.after)]


def _under(change: Change, value: Any) -> dict[str, Any]:
    held = {"": plain(value)}
    if change.how == "rename":
        return held  # the value is a name itself
    for name in reversed(change.path.split(".")):  # any part of the path may indicate a secret, as in credentials.user
        held = {name: held}
    return held


def _with_values(recovery: Changed | None, values: list[dict[str, Any]], redactor: Redactor) -> Changed | None:
    if recovery is None or not recovery.changes:
        return recovery
    changes = []
    for change, before, after in zip(recovery.changes, values[::2], values[1::2], strict=True):
        names = 0 if change.how == "rename" else change.path.count(".") + 1
        path, old = _held(before, names)
        _, new = _held(after, names)
        if change.how == "rename":
            path = plain(change.path)
            # Names of tools and arguments are not values: they stay readable at every level.
            old, new = (
                _kept(each, redactor) if redactor.level != "local" and type(each) is str else hidden
                for each, hidden in ((change.before, old), (change.after, new))
            )
        changes.append(msgspec.structs.replace(change, path=path, before=old, after=new))
    return msgspec.structs.replace(recovery, changes=tuple(changes))


def _held(value: Any, names: int) -> tuple[str, Any]:
    """Return the path and the value of a result of `_nest_value`. Names on the path may be redacted too."""
    path: list[str] = []
    for _ in range(names):
        ((name, value),) = value.items()
        path.append(name)
    return ".".join(path), value[""]
