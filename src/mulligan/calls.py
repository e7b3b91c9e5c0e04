"""Attempts joined into calls, a run's status, what changed between two calls, and what overcame what.

Everything here is a plain function of records, so that a store, a report and a test cannot disagree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from mulligan.failure import Failure, Remedy
from mulligan.records import (
    VERIFY,
    Change,
    How,
    Link,
    Overcome,
    Precedent,
    Record,
    Recovery,
    Run,
    Status,
    Step,
    encode,
    ordered,
)

ALIKE = 0.5
"""How much of a later call must be that of the failed one before it counts as its correction."""
ALIKE_WHEN_REJECTED = 0.25
"""The same where the arguments themselves were rejected: to come back with other ones is then the point."""
OPEN = 100
"""How many open failures a success is compared with, so that a run of any length costs the same for each call."""
BETWEEN = 50
"""How many names of what came between are told."""
RECENT = 24
"""How many of the latest successes are remembered with their arguments while something is not overcome."""
BRIEF = 80
"""Characters of a text argument, and members of a list, beyond which it is not remembered there."""
BROKEN = frozenset({"execution_failed", "api_error", "invalid_response", "unknown"})
"""Where a tool broke and said nothing of its arguments, to call it about another thing corrects nothing."""
MISSING = frozenset({"not_found", "file_not_found"})
"""Where what was named is not there, to name another thing right away is the next one, and no correction."""
NUMBERED = frozenset({"id", "number", "no", "key", "index", "page"})
"""How the name of an argument ends whose numbers are names."""
TOLD = 2000
"""Characters of a text whose words are compared."""
TOOL = "(tool)"
"""The path of a change to the name of the tool itself."""


class Call(Record, frozen=True):
    """What the user asked for: one or more attempts at the same thing, in order."""

    steps: tuple[Step, ...]

    @property
    def id(self) -> int:
        return self.first.call

    @property
    def first(self) -> Step:
        return self.steps[0]

    @property
    def last(self) -> Step:
        return self.steps[-1]

    @property
    def name(self) -> str:
        return self.first.name

    @property
    def has_failed(self) -> bool:
        """Whether any attempt failed, however it ended."""
        return self.steps[0].has_failed or (len(self.steps) > 1 and any(step.has_failed for step in self.steps))

    @property
    def has_succeeded(self) -> bool:
        return self.last.outcome == "success"

    @property
    def failure(self) -> Failure | None:
        """The last thing that went wrong."""
        return next((step.failure for step in reversed(self.steps) if step.has_failed), None)

    @property
    def changes(self) -> tuple[Change, ...]:
        """What recovery changed on the way."""
        return tuple(change for step in self.steps if step.after for change in step.after.changes)

    @property
    def waited(self) -> float:
        return sum(step.after.seconds for step in self.steps if step.after)

    @property
    def repairs(self) -> int:
        """How many attempts were made with other arguments."""
        return sum(bool(step.after and step.after.changes) for step in self.steps)

    @property
    def recovery_seconds(self) -> float:
        """What recovery took: the waits, and every attempt but the first."""
        return self.waited + sum(step.seconds for step in self.steps[1:])

    @property
    def recovery_tokens(self) -> int:
        """The tokens of every attempt but the last, where they are known."""
        return sum(sum((step.tokens or {}).values()) for step in self.steps[:-1])

    @property
    def ending(self) -> str:
        """How it came out, in the words people see."""
        if not self.has_succeeded:
            if not self.has_failed:
                return self.last.outcome
            return "given up with suggestions" if self.last.ending and self.last.ending.offered else "given up"
        if not self.has_failed:
            return "first try"
        if self.last.after is not None and self.last.after.source == VERIFY:
            return "confirmed by a check"
        if self.repairs:
            if self.repairs == 2:
                return "repaired on the second try"  # the second suggestion, after the first had failed
            return "repaired" if len(self.steps) == 2 else "repaired on a later try"
        waited = any(step.after and step.after.remedy is Remedy.WAIT for step in self.steps)
        return "recovered by waiting" if waited else "recovered"


def joined(steps: Iterable[Step]) -> list[Call]:
    """The calls these steps were attempts at, in the order of their first attempts."""
    attempts: dict[int, list[Step]] = {}
    for step in ordered(list(steps)):
        made = attempts.get(step.call)
        if made is None:
            attempts[step.call] = [step]
        else:
            made.append(step)
    return [Call(steps=_in_order(attempts[id])) for id in sorted(attempts)]


def _in_order(attempts: list[Step]) -> tuple[Step, ...]:
    return (attempts[0],) if len(attempts) == 1 else tuple(sorted(attempts, key=lambda step: step.attempt))


def status(run: Run, steps: Iterable[Step], links: Iterable[Link] = ()) -> Status:
    """Nothing failed, every failed call was overcome, one was given up, or the run itself failed."""
    failed = [call for call in joined(steps) if call.has_failed]
    linked = {link.failed for link in links}
    overcome = sum(call.has_succeeded or call.id in linked for call in failed)
    has_own = any(call.first.type == "run" for call in failed)
    return Standing(failed=len(failed), overcome=overcome, has_own=has_own).status(run)


def precedents(links: Iterable[Link], seen: int) -> list[Precedent]:
    """What overcame a failure before, the most often first; the same change in several runs is one precedent."""
    runs: dict[object, set[str]] = {}
    first: dict[object, Link] = {}
    for link in links:
        shape = shape_of(link)
        runs.setdefault(shape, set()).add(link.run)
        # The same one, in whichever order they come: two stores that know the same give the same answer.
        first[shape] = min(first.get(shape, link), link, key=lambda each: (each.run, each.failed))
    return ranked([(len(runs[shape]), link) for shape, link in first.items()], seen)


def ranked(links: Iterable[tuple[int, Link]], seen: int, limit: int | None = None) -> list[Precedent]:
    """The most frequent of links that have nothing in common, each with the number of runs that it stands for."""
    # What recovery did is no move of the model's, and a conversation that went on is no correction.
    met = [each for each in links if each[1].changes or each[1].how not in ("repair", "agent")]
    if limit is not None and 0 < limit < len(met):
        least = sorted([count for count, _ in met])[-limit]
        met = [each for each in met if each[0] >= least]
    met.sort(key=lambda each: (-each[0], _shape(each[1])))
    return [
        Precedent(how=link.how, changes=link.changes, between=link.between, worked=count, seen=max(seen, 1))
        for count, link in met[:limit]
    ]


def shape_of(link: Link) -> object:
    """What two links have in common that are one precedent."""
    return (link.how, link.between, tuple([_told(change) for change in link.changes]))


def _told(change: Change) -> object:
    """What says whether two changes are the same: not where they come from, nor what was there before."""
    after = change.after
    # What is equal may still be another thing: 1, 1.0 and True. And what is neither text nor number may hold anything.
    is_plain = type(after) is str or type(after) is int
    return (change.path, change.how, type(after), after) if is_plain else encode((change.path, change.how, after))


def _shape(link: Link) -> bytes:
    return encode((link.how, [(change.path, change.how, change.after) for change in link.changes], link.between))


def wilson(worked: int, tried: int, z: float = 1.28) -> float:
    """The lower end of what a share may be, by its record: 7 of 7 give 0.81."""
    if not tried:
        return 0.0
    share = worked / tried
    middle = share + z * z / (2 * tried)
    spread = z * math.sqrt(share * (1 - share) / tried + z * z / (4 * tried * tried))
    return (middle - spread) / (1 + z * z / tried)


class Open(msgspec.Struct, frozen=True):
    """A failed call that nothing has overcome yet, and the names of what has succeeded since, models apart."""

    call: Call
    between: tuple[str, ...] = ()


class Done(msgspec.Struct, frozen=True):
    """A call that worked while something was open: what may have been missing."""

    call: int
    name: str
    arguments: dict[str, Any]
    """In brief: a long text or a nested value is None."""


class Standing(msgspec.Struct, frozen=True):
    """Where a run stands after some of its calls. A value: one may go back to an earlier one, and on from there."""

    open: tuple[Open, ...] = ()
    failed: int = 0
    """Calls that failed, however they ended."""
    overcome: int = 0
    """Those of them that worked in the end."""
    has_own: bool = False
    """Whether the run itself failed, and not only a call of it."""
    recent: tuple[Done, ...] = ()
    """The latest successes since something is open."""

    def status(self, run: Run) -> Status:
        """Nothing failed, every failed call was overcome, one was given up, or the run itself failed."""
        if run.end in ("raised", "abandoned") or self.has_own:
            return "failure"
        if not self.failed:
            return "success"
        return "recovered" if self.overcome >= self.failed else "partial"

    def after(self, call: Call) -> tuple[Standing, list[Link]]:
        """Where the run stands after its next call, and what that call has overcome."""
        has_failed = call.has_failed
        if not call.has_succeeded:
            if not has_failed:
                return self, []
            if call.first.type == "run":
                return msgspec.structs.replace(self, failed=self.failed + 1, has_own=True), []
            recent = self.recent if self.open else ()
            still = (*self.open[1 - OPEN :], Open(call))
            return msgspec.structs.replace(self, open=still, failed=self.failed + 1, recent=recent), []
        links: list[Link] = []
        if has_failed:
            links.append(_own_link(call))
        if not links and not self.open:
            return self, links
        first = call.steps[0]
        name, is_model = first.name, first.type == "model"
        still_open: list[Open] = []
        for each in self.open:
            if _corrects(call, each.call) and not _is_made_anew(call, each) and not _is_the_next(call, each):
                links.append(_correction(each.call, call, each.between))
            elif is_model or name in each.between or len(each.between) >= BETWEEN:
                still_open.append(each)
            else:
                still_open.append(Open(each.call, (*each.between, name)))
        has_own = self.has_own or (has_failed and first.type == "run")
        failed, overcome = self.failed + has_failed, self.overcome + len(links)
        recent = (*self.recent[1 - RECENT :], Done(call.id, name, brief(call.last.arguments))) if still_open else ()
        return Standing(tuple(still_open), failed, overcome, has_own, recent), links


def brief(arguments: Any) -> dict[str, Any]:
    """Arguments as they are remembered for others: what is long or nested is not."""
    if not isinstance(arguments, Mapping):
        return {}
    return {str(name)[:BRIEF]: _brief(value) for name, value in list(arguments.items())[:16]}


def _brief(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value if len(value) <= BRIEF else None
    if isinstance(value, list) and len(value) <= 16:
        short = [each for each in value if isinstance(each, bool | int | float) or _brief(each) is not None]
        return value if len(short) == len(value) and not any(isinstance(each, list) for each in value) else None
    return None


def overcame(steps: Iterable[Step]) -> list[Link]:
    """A link from each failed call of a run to the success that overcame it: its own last attempt, or a later call.

    In the order of the failed calls; each has one link at most.
    """
    links: list[Link] = []
    standing = Standing()
    for call in joined(steps):
        standing, found = standing.after(call)
        links += found
    return sorted(links, key=lambda link: link.failed)


def _correction(failed: Call, call: Call, between: tuple[str, ...]) -> Link:
    changed = corrected(failed.last, call.last)
    if failed.name != call.name:
        renamed = Change(path=TOOL, how="rename", before=failed.name, after=call.name)
        return _link(failed, call, "agent", (renamed, *changed), between)
    if changed or goes_on(failed.last, call.last):
        return _link(failed, call, "agent", changed, between if changed else ())
    # The same arguments, and now it works: either time has passed or something else had to happen first.
    return _link(failed, call, "recipe" if between else "retry", (), between)


def _link(failed: Call, call: Call, how: Overcome, changed: Sequence[Change], between: tuple[str, ...]) -> Link:
    return Link(
        run=failed.first.run, failed=failed.id, overcame=call.id, how=how, changes=tuple(changed), between=between
    )


def _own_link(call: Call) -> Link:
    """What overcame a call that was made again by recovery."""
    if call.changes:
        return _link(call, call, "repair", call.changes, ())
    first = tuple(dict.fromkeys(name for step in call.steps if step.after for name in step.after.first))
    if first:
        return _link(call, call, "recipe", (), first[:BETWEEN])
    is_retry = all(is_the_same_again(step.after) for step in call.steps)
    return _link(call, call, "retry" if is_retry else "repair", (), ())


def is_the_same_again(after: Recovery | None) -> bool:
    """Whether an attempt was the very same call, made again later.

    It was not where the conversation had been shortened, the model told something or a key renewed in between, nor
    where the answer is a check's or a fallback's: its success says nothing about making the same call again.
    """
    if after is None:
        return True
    return after.remedy is Remedy.WAIT and after.source != VERIFY and not (after.changes or after.first)


def _corrects(call: Call, failed: Call) -> bool:
    """Whether a success is plausibly the same thing done right, and not another thing done by the same tool."""
    # Every success comes here once for each failure that is open, and most are of another tool.
    one, other = call.steps[0], failed.steps[0]
    if one.type != other.type or one.server != other.server:
        return False
    last = failed.steps[-1]
    if call.steps[-1].seq < last.seq:
        return False  # it worked before the other failed for the last time
    failure = last.failure if last.has_failed else failed.failure
    kind = failure.kind.code if failure else ""
    if one.name != other.name:
        return (
            kind == "unknown_tool"
            and similarity(other.name, one.name) >= 0.75
            and alike(last.arguments, call.last.arguments) >= ALIKE
        )
    if kind == "invalid_arguments" and _is_part(failed.last.arguments, call.last.arguments):
        return True  # something was missing, and nothing that was there is gone
    is_waited_for = failure is not None and failure.remedy is Remedy.WAIT and kind != "invalid_arguments"
    if is_waited_for and one.type != "model":
        # The other side was at fault, and not the arguments: the next page, or another order, is another thing.
        return _asks_no_more(last.arguments, call.last.arguments)
    if kind in BROKEN and one.type != "model" and _is_of_another(last.arguments, call.last.arguments):
        return False
    threshold = ALIKE_WHEN_REJECTED if kind == "invalid_arguments" else ALIKE
    return alike(failed.last.arguments, call.last.arguments) >= threshold


def _is_made_anew(call: Call, failed: Open) -> bool:
    """Whether the same call was left and made again for its own sake, so that what came between explains nothing.

    Where only time can help, nothing else had to come first. Who went on with something else had given it up.
    """
    failure = failed.call.failure
    is_left = bool(failed.between) and failure is not None and failure.remedy is Remedy.WAIT
    return is_left and call.first.type != "model" and same(failed.call.last.arguments, call.last.arguments)


def _is_the_next(call: Call, failed: Open) -> bool:
    """Whether something was not there and the next thing is: nothing came between that could have told a better name.

    The same name in another writing, and the same file in another folder, are what was meant.
    """
    failure = failed.call.failure
    if failure is None or failure.kind.code not in MISSING or call.first.type == "model":
        return False
    if any(name != call.name for name in failed.between):
        return False
    before, after = failed.call.last.arguments, call.last.arguments
    if not isinstance(before, Mapping) or not isinstance(after, Mapping) or before.keys() != after.keys():
        return False
    differing = [key for key in before if not same(before[key], after[key])]
    return bool(differing) and all(_names_another(key, before[key], after[key]) for key in differing)


def _names_another(key: str, old: Any, new: Any) -> bool:
    if type(old) is int and type(new) is int:
        return key.casefold().rpartition("_")[2] in NUMBERED
    if not (_is_name(old) and _is_name(new)):
        return False
    one, other = ("".join(c for c in name.casefold() if c.isalnum()) for name in (old, new))
    if one in other or other in one:
        return False
    numbers, others = ("".join(c for c in name if c.isdigit()) for name in (one, other))
    likeness = similarity(old.rpartition("/")[2], new.rpartition("/")[2])  # of a path, the file itself
    return likeness < 1 and (numbers != others or likeness < 0.75)


def _is_part(before: Any, after: Any) -> bool:
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return False
    return all(key in after and same(value, after[key]) for key, value in before.items())


def _is_of_another(before: Any, after: Any) -> bool:
    """Whether two calls differ in nothing but whom they are about: identifiers, paths, addresses."""
    if not isinstance(before, Mapping) or not isinstance(after, Mapping) or before.keys() != after.keys():
        return False
    differing = [(before[key], after[key]) for key in before if not same(before[key], after[key])]
    return bool(differing) and all(_is_name(old) and _is_name(new) for old, new in differing)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= BRIEF and not value.isalpha() and len(value.split()) == 1


def _asks_no_more(before: Any, after: Any) -> bool:
    """Whether a call is the same as another, or the same in less or in other words: a lower limit, a flag more."""
    if same(before, after):
        return True
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        both = before.keys() & after.keys()
        return bool(both) and all(_asks_no_more(before[key], after[key]) for key in both)
    if isinstance(before, bool) or isinstance(after, bool):
        return isinstance(before, bool) and isinstance(after, bool)
    if isinstance(before, int | float) and isinstance(after, int | float):
        return after <= before
    if isinstance(before, str) and isinstance(after, str):
        old, new = set(before[:TOLD].casefold().split()), set(after[:TOLD].casefold().split())
        return old <= new or new <= old
    if isinstance(before, list) and isinstance(after, list):
        return all(any(same(each, other) for other in before[:BETWEEN]) for each in after[:BETWEEN])
    return False


def alike(before: Any, after: Any) -> float:
    """How much of one call's arguments is in another's, from 0 to 1."""
    if same(before, after):
        return 1.0
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return 0.0
    keys = before.keys() | after.keys()
    return sum(_alike_at(before, after, key) for key in keys) / len(keys)


def _alike_at(before: Mapping[str, Any], after: Mapping[str, Any], key: str) -> float:
    if key not in before or key not in after:
        value = before.get(key, after.get(key))
        other = after if key in before else before
        is_renamed = value is not None and any(same(value, each) for each in other.values())
        return 0.8 if is_renamed else 0.0
    old, new = before[key], after[key]
    if same(old, new):
        return 1.0
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return alike(old, new)
    if isinstance(old, str) and isinstance(new, str):
        return similarity(old, new)
    if _how(old, new) in ("cast", "parse", "wrap"):
        return 1.0
    both_numbers = isinstance(old, int | float) and isinstance(new, int | float)
    return 0.4 if both_numbers else 0.25


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same to a tool: to Python 1, 1.0 and True are equal, to JSON they are three."""
    try:
        return bool(one == other) and _sorted.encode(one) == _sorted.encode(other)
    except Exception:  # noqa: BLE001 - a run that is still going compares objects of any class, and some cannot be
        return False


_sorted = msgspec.json.Encoder(enc_hook=str, order="sorted")


def similarity(one: str, other: str) -> float:
    """From 0 to 1. Long texts are compared by their beginnings, so that no argument can make this slow."""
    one, other = one[:200].casefold(), other[:200].casefold()
    return 2 * _matched(one, other) / (len(one) + len(other)) if one or other else 1.0


def _matched(one: str, other: str) -> int:
    """How many characters two texts share in order: the longest piece that is in both, then left and right of it.

    As difflib's SequenceMatcher counts them, ten times faster: what is in a text is searched for in C.
    """
    total = 0
    parts = [(one, other)]
    while parts:
        one, other = parts.pop()
        size = len(one)
        at = start = 0
        piece = ""
        end = 1  # of what would be longer than the piece
        while end <= size:
            longer = one[start:end]
            if longer in other:
                at, piece = start, longer
                end += 1
            else:
                start += 1
                end = start + len(piece) + 1
        if piece:
            place = other.find(piece)
            total += len(piece)
            after, behind = one[at + len(piece) :], other[place + len(piece) :]
            if at and place:
                parts.append((one[:at], other[:place]))
            if after and behind:
                parts.append((after, behind))
    return total


def changes(before: Any, after: Any) -> tuple[Change, ...]:
    """What one would have to do to the first arguments to get the second."""
    if same(before, after):
        return ()
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return (Change(path="", how=_how(before, after), before=before, after=after),)
    return tuple(_changes(before, after, ""))


def corrected(failed: Step, other: Step) -> tuple[Change, ...]:
    """The same of two calls. What was said in a conversation meanwhile puts no argument of a model's call right."""
    changed = changes(failed.arguments, other.arguments)
    if not changed or failed.type != "model":
        return changed
    said = {name for given in (failed.arguments, other.arguments) for name in _conversations(given)}
    return tuple(change for change in changed if change.path.partition(".")[0] not in said)


def goes_on(failed: Step, other: Step) -> bool:
    """Whether a model was called again after something else was said, so that it is not the same call."""
    return failed.type == "model" and not same(failed.arguments, other.arguments)


def _conversations(arguments: Any) -> Iterator[str]:
    """The arguments that hold what was said: in short, as it is kept, or as it was sent."""
    if isinstance(arguments, Mapping):
        for name, value in arguments.items():
            messages = value if isinstance(value, list) else [value]
            if messages and all(_is_said(each) for each in messages[:BETWEEN]):
                yield name


def _is_said(value: Any) -> bool:
    return isinstance(value, Mapping) and ("role" in value or value.keys() >= {"count", "each"})


def _changes(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str) -> Iterator[Change]:
    gone = [key for key in before if key not in after]
    new = [key for key in after if key not in before]
    for key in gone:
        twin = next((other for other in new if same(after[other], before[key])), None)
        if twin is None:
            yield Change(path=prefix + key, how="drop", before=before[key])
        else:
            new.remove(twin)
            yield Change(path=prefix + key, how="rename", before=key, after=twin)
    for key in before:
        if key in after and not same(before[key], after[key]):
            if isinstance(before[key], Mapping) and isinstance(after[key], Mapping):
                yield from _changes(before[key], after[key], f"{prefix}{key}.")
            else:
                yield Change(path=prefix + key, how=_how(before[key], after[key]), before=before[key], after=after[key])
    for key in new:
        yield Change(path=prefix + key, how="substitute", after=after[key])


def _how(before: Any, after: Any) -> How:
    if isinstance(before, str):
        if isinstance(after, str):
            if before.strip() == after.strip():
                return "trim"
            return "enum" if before.casefold() == after.casefold() else "substitute"
        if isinstance(after, Mapping | list) and same(_parsed(before), after):
            return "parse"
        if isinstance(after, int | float) and before.strip().casefold() == str(after).casefold():
            return "cast"
    if isinstance(after, list) and same(after, [before]):
        return "wrap"
    if isinstance(after, str) and isinstance(before, int | float) and after == str(before):
        return "cast"
    if isinstance(before, int | float) and isinstance(after, int | float) and before == after:
        return "cast"
    return "substitute"


def _parsed(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
