"""Failure episodes of a run: which model caused a failed tool call, and what it cost until it was recovered.

All of it is derived from stored steps, links and advice, so that it covers records of every version and every writer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from mulligan.core.calls import Call, group_attempts
from mulligan.core.records import History, Record, Run, Step, encode

TOOL_TYPES = ("tool", "retrieval")
PROMPT_VERSION_KEY = "prompt_version"
"""In the metadata of a run: the version of its prompt, as the user names it."""


class FailureCause(Record, frozen=True):
    """The model that requested a failed tool call."""

    model: str
    version: str = ""
    """The version of the model that answered, if the provider names it."""
    turn: int | None = None
    """The step of the model's answer, if it is recorded."""
    prompt_version: str = ""


class FailureEpisode(Record, frozen=True):
    """Failed calls with the same recovery, or of the same tool without one, and what came after them.

    A call that mulligan recovered by itself is an episode without turns of the model.
    """

    run: str
    calls: tuple[int, ...]
    tool: str
    kind: str
    fingerprint: str = ""
    started_at: int = 0
    recovering_call: int | None = None
    """The call that recovered it: the same call if a later attempt did. None if nothing did."""
    by_mulligan: bool = False
    """Whether an attempt of mulligan recovered it."""
    by_program: bool = False
    """Whether an attempt that the recorded program made itself recovered it."""
    cause: FailureCause | None = None
    model_attempts: int = 0
    """How often the model, or the program, repeated the call: 1 if the first repetition recovered it."""
    turns: tuple[int, ...] = ()
    """The model's answers between the first failure and the end of the episode, by step."""
    tokens: int = 0
    """Tokens of these answers, and of the later attempts of these calls."""
    cost_nanos: int | None = None
    """Their cost; None if no price is known."""
    seconds: float = 0.0
    """From the end of the first failed attempt to the end of the last call of the episode."""
    backoff_seconds: float = 0.0
    later_attempts: int = 0
    """Attempts after the first one of each call."""
    fixes: tuple[str, ...] = ()
    """The learned fixes that the model read."""
    held_out_fixes: tuple[str, ...] = ()
    """Those that it did not read, so that their effect can be measured."""
    is_undecided: bool = False
    """Whether a later call may have recovered it, and nothing proves that: there is a possible link only."""

    @property
    def is_recovered(self) -> bool:
        return self.recovering_call is not None


EpisodesByRun = Mapping[str, Sequence[FailureEpisode]]


def find_causes(history: History) -> dict[int, FailureCause]:
    """Return the model that requested each failed tool call of a run, by call."""
    return {call.id: cause for call, cause in list_requests(history) if call.has_failed}


def list_requests(history: History) -> list[tuple[Call, FailureCause]]:
    """Return the tool calls of a run with the model that requested each. The calls of a tool are left out."""
    run_calls = group_attempts(history.steps)
    finder = _CauseFinder(history.run, run_calls)
    tool_calls = [call for call in run_calls if call.first.type in TOOL_TYPES]
    return [(call, cause) for call in tool_calls if (cause := finder.find(call)) is not None]


class _CauseFinder:
    """Finds the model behind the tool calls of one run."""

    def __init__(self, run: Run, run_calls: Iterable[Call]) -> None:
        self._metadata = run.metadata or {}
        self._steps: dict[int, Step] = {}
        self.turns: dict[int | None, list[Step]] = {}
        """Answers of models by enclosing step, in order."""
        for call in run_calls:
            self._steps.update((step.seq, step) for step in call.steps)
            last = call.last
            if last.type == "model" and last.outcome == "success" and not (last.is_summary or last.within_recovery):
                self.turns.setdefault(last.parent, []).append(last)

    def find(self, call: Call) -> FailureCause | None:
        first = call.first
        prompt = _text((first.metadata or {}).get(PROMPT_VERSION_KEY) or self._metadata.get(PROMPT_VERSION_KEY))
        turn, is_nested = self._find_turn(first)
        model = _text(first.model) or (turn and (turn.model or turn.name)) or ""
        version = _text((turn.metadata or {}).get("model_version")) if turn else ""
        if not model and not is_nested:
            model = _text(self._metadata.get("model"))
        if not model:
            return None
        return FailureCause(model=model, version=version, turn=turn.seq if turn else None, prompt_version=prompt)

    def _find_turn(self, first: Step) -> tuple[Step | None, bool]:
        """Return the answer that requested a call, and whether the call was made inside another tool."""
        parent = first.parent
        while True:
            turns = [turn for turn in self.turns.get(parent, ()) if turn.seq < first.seq]
            if len({turn.model or turn.name for turn in turns}) > 1:  # agents that run at the same time
                turns = [turn for turn in turns if _requests(turn, first.name)] or turns
            if turns:
                return turns[-1], False
            enclosing = self._steps.get(parent) if parent is not None else None
            if enclosing is None:
                return None, False
            if enclosing.type == "model":
                return enclosing, False
            if enclosing.type in TOOL_TYPES:
                return None, True
            parent = enclosing.parent


def _requests(turn: Step, tool: str) -> bool:
    return encode(tool) in encode(turn.result)


def _text(value: object) -> str:
    return str(value) if isinstance(value, str | int | float) else ""


def list_episodes(history: History) -> list[FailureEpisode]:
    """Return the failure episodes of the tool calls of a run, in the order of their first failures."""
    if not any(step.has_failed and step.type in TOOL_TYPES for step in history.steps):
        return []
    run_calls = [call for call in group_attempts(history.steps) if call.first.type in (*TOOL_TYPES, "model")]
    calls_by_id = {call.id: call for call in run_calls}
    links = {link.failed_call: link.recovering_call for link in history.links}
    possible = {link.failed_call for step in history.steps for link in step.links if link.possible}
    finder = _CauseFinder(history.run, run_calls)
    episodes = []
    for failed_calls in _group_failures(run_calls, links):
        first, last = failed_calls[0], failed_calls[-1]
        recovering_id = last.id if last.has_succeeded else links.get(last.id)
        end = calls_by_id.get(recovering_id, last) if recovering_id is not None else last
        turns = list(_turns_between(finder.turns, first, end, is_unrecovered=recovering_id is None))
        own_steps = [step for call in failed_calls for step in call.steps[1:]]
        costs = [step.cost_nanos for step in (*turns, *own_steps) if step.cost_nanos is not None]
        failure = first.failure
        ids = _ids(failed_calls)
        advice = {record.fix: record.held_out for record in history.run.advice if record.call in ids}
        episodes.append(
            FailureEpisode(
                run=history.run.id,
                calls=tuple(ids),
                tool=first.name,
                kind=str(failure.kind) if failure else "",
                fingerprint=failure.fingerprint if failure else "",
                started_at=first.first.started_at,
                recovering_call=recovering_id,
                by_mulligan=last.has_succeeded and not last.is_repeated_by_program,
                by_program=last.has_succeeded and last.is_repeated_by_program,
                cause=finder.find(first),
                model_attempts=len(failed_calls) - (recovering_id in (None, last.id)),
                turns=tuple(turn.seq for turn in turns),
                tokens=sum(step.token_count for step in (*turns, *own_steps)),
                cost_nanos=sum(costs) if costs else None,
                seconds=_seconds_between(first.first, end.last),
                backoff_seconds=sum(call.backoff_seconds for call in failed_calls),
                later_attempts=len(own_steps),
                fixes=tuple(fix for fix, is_held_out in advice.items() if not is_held_out),
                held_out_fixes=tuple(fix for fix, is_held_out in advice.items() if is_held_out),
                is_undecided=recovering_id is None and not possible.isdisjoint(ids),
            )
        )
    return episodes


def _ids(calls: Iterable[Call]) -> list[int]:
    return [call.id for call in calls]


def _seconds_between(failed: Step, last: Step) -> float:
    """Return the seconds from the end of one step to the end of another."""
    elapsed = (last.started_at - failed.started_at) / 1000
    return round(max(0.0, elapsed + last.duration_seconds - failed.duration_seconds), 6)


def _group_failures(run_calls: Iterable[Call], links: Mapping[int, int]) -> Iterator[list[Call]]:
    """Yield the failed calls of each episode: those with one recovery, else those of one tool until it succeeds."""
    groups: dict[object, list[Call]] = {}
    open_groups: dict[str, list[Call]] = {}
    for call in run_calls:
        first = call.first
        if first.type not in TOOL_TYPES:
            continue
        if not call.has_failed:
            open_groups.pop(first.tool_key, None)
        elif call.has_succeeded:
            groups[call.id] = [call]
        elif call.id in links:
            linked_group = groups.setdefault(("link", links[call.id]), [])
            # Without a log, a hook links only the last of several equal calls.
            repeated = open_groups.pop(first.tool_key, [])
            if repeated and repeated[-1].last.arguments == call.last.arguments:
                linked_group += groups.pop(repeated[0].id)
            linked_group.append(call)
        elif (group := open_groups.get(first.tool_key)) is not None:
            group.append(call)
        else:
            groups[call.id] = open_groups[first.tool_key] = [call]
    return iter(sorted(groups.values(), key=lambda group: group[0].id))


def _turns_between(
    turns: Mapping[int | None, list[Step]], first: Call, end: Call, *, is_unrecovered: bool
) -> Iterator[Step]:
    """Yield the model's answers after a failure until the end of its episode.

    An unrecovered failure ends with the answer that follows its last repetition.
    """
    for turn in turns.get(first.first.parent, ()):
        if first.last.seq < turn.seq:
            if turn.seq < end.first.seq or is_unrecovered:
                yield turn
            if turn.seq > end.first.seq:
                return
