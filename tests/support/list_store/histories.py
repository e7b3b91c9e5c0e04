"""Runs, steps and compactions of one tenant in lists: kept, found, sampled and forgotten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from msgspec.structs import replace

from list_store.occurrences import Occurrence, PatternCounter, find_occurrences
from mulligan.classify.fingerprint import compute_fingerprint
from mulligan.contract import counters
from mulligan.contract.run_facts import compute_facts
from mulligan.contract.search_terms import find_matches, parse_search
from mulligan.contract.store import ForgetRequest, RunQuery
from mulligan.core.events import AnyEvent, ContextCompacted, FailureRecorded, RunEnded, RunStarted, StepEnded
from mulligan.core.records import (
    FIRST_FAILURE_SEQ,
    Compaction,
    History,
    RecordedMessage,
    Run,
    Step,
    message_numbers,
    pattern_id,
)
from mulligan.core.run_links import derive_status, link_recoveries
from mulligan.learn import patterns
from mulligan.learn.pattern_decisions import SeenVersion
from mulligan.store import erasure
from mulligan.store.sent_records import is_placeholder, merge_sent_fields


class Histories:
    """What happened, by run; of what is gone, that which is still counted."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.steps: dict[str, dict[int, Step]] = {}
        self.messages: dict[str, dict[int, RecordedMessage]] = {}
        self.writers: dict[str, str] = {}
        """Who wrote a run."""
        self._kept: dict[str, tuple[int, bool]] = {}
        """When a run came, and whether it happened elsewhere."""
        self._compactions: dict[tuple[str, str], dict[int, Compaction]] = {}
        self._pruned: list[Occurrence] = []
        self._counted: counters.Cells = {}

    def __len__(self) -> int:
        """How many rows it would be in a database."""
        steps, compactions = map(len, self.steps.values()), map(len, self._compactions.values())
        messages = sum(map(len, self.messages.values()))
        return len(self.runs) + sum(steps) + sum(compactions) + messages + len(self._pruned) + len(self._counted)

    def find_versions(self, ids: Collection[str], since: int) -> list[SeenVersion]:
        first: dict[str, int] = {}
        for run in self.runs.values():
            occurred = {occurrence.pattern for occurrence in find_occurrences(self.history(run))} & set(ids)
            if occurred and run.started_at > since:
                first[run.version or ""] = min(run.started_at, first.get(run.version or "", run.started_at))
        return [
            SeenVersion(version, at, (self.find_first_run(version) or 0) if version else 0)
            for version, at in sorted(first.items(), key=lambda item: (item[1], item[0]))
        ]

    def find_first_run(self, version: str) -> int | None:
        return min((run.started_at for run in self.runs.values() if run.version == version), default=None)

    def count_days(self, ids: Collection[str], first_day: int) -> Mapping[int, int]:
        days: Counter[int] = Counter()
        for id, tally in self.tallies().items():
            if id in ids:
                days.update({day: sums[0] for day, sums in tally.days.items() if day >= first_day})
        return days

    # Kept

    def keep(self, event: AnyEvent, is_imported: bool, now: int) -> bool:
        """Whether it was new."""
        match event:
            case RunStarted(run, sent) | RunEnded(run, sent) if sent is not None and run.id in self.runs:
                merged = merge_sent_fields(self.runs[run.id], run, sent)
                is_new = merged != self.runs[run.id]
                self._put(merged, is_imported, now)
                return is_new
            case RunStarted(run):
                is_new = run.id not in self.runs or (self.runs[run.id] != run and is_placeholder(self.runs[run.id]))
                if is_new:
                    self._put(run, is_imported, now)
                return is_new
            case RunEnded(run):
                is_new = self.runs.get(run.id) != run
                if is_new:
                    self._put(run, is_imported, now)
                return is_new
            case StepEnded(step, messages):
                for message in messages:
                    self.messages.setdefault(step.run, {}).setdefault(message.number, message)
                steps = self.steps.setdefault(step.run, {})
                is_new = step.seq not in steps
                steps.setdefault(step.seq, step)
                self._kept.setdefault(step.run, (now, is_imported))
                self._join_nested_failures(steps)
                return is_new
            case FailureRecorded(run_id, seq, failure):
                step = self.steps.get(run_id, {}).get(seq)
                is_new = step is not None and step.with_failure(failure) != step
                if step is not None and is_new:
                    self.steps[run_id][seq] = step.with_failure(failure)
                return is_new
            case ContextCompacted(compaction):
                return self._keep_compaction(compaction)
            case _:
                return False

    @staticmethod
    def _join_nested_failures(steps: dict[int, Step]) -> None:
        """A failure that was stored beside a step is that step's failure."""
        for nested in [step for seq, step in steps.items() if seq >= FIRST_FAILURE_SEQ]:
            step = steps.get(nested.parent or 0)
            if step is None or nested.failure is None:
                continue
            del steps[nested.seq]
            recorded = nested.failure
            if nested.name != step.name:
                recorded = replace(
                    recorded, fingerprint=compute_fingerprint(recorded.kind, step.name, recorded.message)
                )
            if step.failure is None:
                steps[step.seq] = step.with_failure(recorded)
            elif not (step.failure.message and recorded.evidence):
                steps[step.seq] = step.with_failure(step.failure.with_recorded(recorded))

    def _put(self, run: Run, is_imported: bool, now: int) -> None:
        if run.id not in self.runs:
            since, _ = self._kept.get(run.id, (now, False))  # when the first of it came
            self._kept[run.id] = since, is_imported
        self.runs[run.id] = run

    def _keep_compaction(self, compaction: Compaction) -> bool:
        sort, owner = ("run", compaction.run) if compaction.run is not None else ("session", compaction.session)
        if owner is None:
            return False
        known = self._compactions.setdefault((sort, owner), {})
        is_new = compaction.at not in known
        known.setdefault(compaction.at, compaction)
        return is_new

    def came(self, run: str) -> tuple[int, bool]:
        """When a run came, and whether it happened elsewhere."""
        return self._kept[run]

    # Found

    def every(self) -> list[History]:
        """All of them, the newest first."""
        return self.asked(RunQuery(), set())

    def asked(self, query: RunQuery, asked_patterns: set[str]) -> list[History]:
        """All that a question asks for, in its order; its limit is for others to keep."""
        histories = [self.history(run) for run in self.runs.values() if is_run_asked(run, query)]
        if query.text is not None:
            histories = list(map(self.with_messages, histories))
        found = [history for history in histories if is_history_asked(history, query, asked_patterns)]
        return sorted(found, key=query.position_of, reverse=True)

    def history(self, run: Run) -> History:
        steps = self.steps_of(run.id)
        compactions = self._compactions_of(run)
        return History(run=run, steps=tuple(steps), links=tuple(link_recoveries(steps, run)), compactions=compactions)

    def with_messages(self, history: History) -> History:
        messages = self.messages.get(history.run.id, {})
        return replace(history, messages=tuple(messages[number] for number in sorted(messages)))

    def _trim_messages(self, run: str) -> int:
        """How many messages no remaining step of a run has; they are removed."""
        used = {number for step in self.steps_of(run) for number in (*message_numbers(step), step.answer)}
        unused = [number for number in self.messages.get(run, {}) if number not in used]
        for number in unused:
            del self.messages[run][number]
        return len(unused)

    def steps_of(self, run: str) -> list[Step]:
        return sorted(self.steps.get(run, {}).values(), key=lambda step: step.seq)

    def _compactions_of(self, run: Run) -> tuple[Compaction, ...]:
        """Its own, and those of its session since it began, and the last before."""
        found = list(self._compactions.get(("run", run.id), {}).values())
        if run.session is not None:
            of_session = self._compactions.get(("session", run.session), {}).values()
            before = max((each.at for each in of_session if each.at < run.started_at), default=run.started_at)
            found += [compaction for compaction in of_session if compaction.at >= before]
        return tuple(sorted(found, key=lambda compaction: compaction.at))

    # Counted

    def tallies(self) -> dict[str, PatternCounter]:
        """Patterns, by their ids."""
        found: dict[str, PatternCounter] = {}
        for sighting in self._pruned:
            found.setdefault(sighting.pattern, PatternCounter(sighting)).add(sighting, is_step_removed=True)
        for history in self.every():
            for sighting in find_occurrences(history):
                found.setdefault(sighting.pattern, PatternCounter(sighting)).add(sighting)
        return found

    def cells(self) -> counters.Cells:
        """Counters of everything that was ever kept, and not forgotten."""
        counted: counters.Cells = {}
        counters.add(counted, self._counted)
        for history in reversed(self.every()):
            counters.add(counted, counters.cells(history))
        return counted

    # Sampled and forgotten

    def shrink(self, history: History, left: History | None) -> None:
        """A run becomes what is left of it; what goes is counted as before."""
        counters.add(self._counted, counters.cells(history))
        if left is not None:
            counters.add(self._counted, counters.cells(left), -1)
            self.steps[history.run.id] = {step.seq: step for step in left.steps}
            self._trim_messages(history.run.id)
            return
        self._pruned.extend(find_occurrences(history))
        self._remove(history.run.id)

    def _remove(self, id: str) -> tuple[int, int, int]:
        """How many runs (none or one), steps and messages that were."""
        steps = self.steps.pop(id, {})
        self._kept.pop(id, None)
        self._compactions.pop(("run", id), None)
        return int(self.runs.pop(id, None) is not None), len(steps), len(self.messages.pop(id, {}))

    def forget(self, what: ForgetRequest) -> tuple[int, int, int]:
        """How many runs, steps and messages were removed or changed."""
        compacted = {name for sort, name in self._compactions if sort == "run"}
        touched = [self._forget_in(id, what) for id in sorted({*self.runs, *self.steps, *compacted})]
        self._forget_pruned(what)
        runs, steps, messages = (sum(counts) for counts in zip((0, 0, 0), *touched, strict=True))
        return runs, steps, messages

    def _change_messages(self, id: str, what: ForgetRequest) -> int:
        """How many messages of a run name the tool or contain the text; they are changed."""
        changed = 0
        for number, message in self.messages.get(id, {}).items():
            cleaned = message if what.tool is None else erasure.erase_tool(message, what.tool)
            cleaned = cleaned if what.text is None else erasure.erase_text(cleaned, what.text)
            changed += cleaned != message
            self.messages[id][number] = cleaned
        return changed

    def _forget_in(self, id: str, what: ForgetRequest) -> tuple[int, int, int]:
        run, steps = self.runs.get(id), self.steps.get(id, {})
        is_text_in_id = what.text is not None and what.text in id
        if what.run == id or is_text_in_id or (what.session is not None and run and run.session == what.session):
            return self._remove(id)
        if what.tool is not None:
            left = {seq: step for seq, step in steps.items() if step.name != what.tool}
            if steps and not left:
                return self._remove(id)
            if len(left) != len(steps):
                self.steps[id] = left
                removed = self._trim_messages(id)
                return 0, len(steps) - len(left), removed + self._change_messages(id, what)
            return 0, 0, self._change_messages(id, what)
        if what.text is not None:
            cleaned = {seq: erasure.erase_text(step, what.text) for seq, step in steps.items()}
            changed = sum(cleaned[seq] != step for seq, step in steps.items())
            self.steps[id] = cleaned
            messages = self._change_messages(id, what)
            if run is not None and (clean := erasure.erase_text(run, what.text)) != run:
                self.runs[id] = clean
                return 1, changed, messages
            return 0, changed, messages
        return 0, 0, 0

    def _forget_pruned(self, what: ForgetRequest) -> None:
        """Of what is only counted any more, names and messages are left."""
        left: Iterable[Occurrence] = (each for each in self._pruned if each.step.name != what.tool)
        self._counted = {
            place: cell for place, cell in self._counted.items() if not (place.type and place.name == what.tool)
        }
        if what.text is not None:
            text = what.text
            left = (replace(each, step=erasure.erase_text(each.step, text)) for each in left)
        self._pruned = list(left)


def is_run_asked(run: Run, query: RunQuery) -> bool:
    return (
        (query.agent is None or run.agent == query.agent)
        and (query.session is None or run.session == query.session)
        and (query.environment is None or run.environment == query.environment)
        and (query.version is None or run.version == query.version)
        and (query.since is None or run.started_at >= query.since)
        and (query.until is None or run.started_at < query.until)
    )


def is_history_asked(history: History, query: RunQuery, pattern: set[str]) -> bool:
    steps = history.steps
    failures = [(step, step.failure) for step in steps if step.has_failed and step.failure]
    facts = compute_facts(history)
    return (
        all(facts[name] >= minimum for name, minimum in query.minima.items())
        and (query.before is None or query.position_of(history) < tuple(query.before))
        and (
            query.status is None
            or (history.run.end_reason and derive_status(history.run, steps, history.links) == query.status)
        )
        and (query.text is None or find_matches(history, parse_search(query.text)) is not None)
        and (query.tool is None or any(step.name == query.tool for step in steps))
        and (query.model is None or any(counters.model_of(history.run, step) == query.model for step in steps))
        and (query.kind is None or any(patterns.matches_kind(failure.kind, query.kind) for _, failure in failures))
        and (
            query.pattern is None or any(pattern_id(step.name, each.fingerprint) in pattern for step, each in failures)
        )
    )
