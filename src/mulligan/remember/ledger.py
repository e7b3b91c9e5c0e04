"""Batch writer: applies a batch to the database in one transaction, with links, statuses, patterns and rollups.

All derived data can be recomputed from the rows. The writer updates it by difference: it subtracts each changed call
as it was before the batch and adds it as it is after. Most calls succeed at their first attempt in a run without
failures; they cost one row and a few additions. For a run with failures, `RunProgress` restores the state before the
first changed call, so the cost per call does not grow with the length of the run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from msgspec.structs import replace

from mulligan import calls, figures
from mulligan.calls import Call
from mulligan.events import AnyEvent, ContextCompacted, Kept, RunEnded, RunStarted, StepEnded, steps_of
from mulligan.figures import HOUR, Cells
from mulligan.links import (
    Candidate,
    ItemTest,
    RunProgress,
    derive_status,
    differs_in,
    find_refuted,
    link_recoveries,
)
from mulligan.records import Compaction, History, Link, Run, Status, Step, encode
from mulligan.remember import bodies, fixes, learning, tallies, voting
from mulligan.remember.connection import Connection, Insert, upsert
from mulligan.remember.rollups import Rollups
from mulligan.remember.rows import (
    FIRST,
    KEPT_STEP,
    KNOWN_RUN,
    LINK,
    RUN,
    STEP,
    USED,
    calls_of,
    compactions_of,
    extent,
    forget_links,
    forget_used,
    history_of,
    link_rows,
    links_since,
    plain_row,
    put_statuses,
    run_row,
    step_row,
    steps_since,
    worked_row,
)
from mulligan.remember.store import ITEMS_KIND, merge_items
from mulligan.remember.tallies import Seen
from mulligan.success import Form, Success

KNOWN = 10_000
"""Unfinished runs that are cached."""
TRAIL = 100
"""Latest calls of a run that a trail covers at least. Changes to earlier calls need a full read."""
TRAILS = 200
"""Runs with a trail that are cached."""


IDLE_MILLISECONDS = 30 * 60 * 1000
"""An unfinished run that was idle for this long is settled: its provisional links are judged as if it had ended."""
SETTLED = 2**62
"""Stored in place of a time for a run that was settled before it ended."""
MAX_SETTLED_RUNS = 50
"""Idle runs that are settled in one transaction."""
MAX_COMPARED_STEPS = 5000
"""Steps of one tool in one run that the item test reads."""
_PROVISIONAL = upsert("provisional", "tenant run", "at")
_SHELF = upsert("shelf", "tenant kind key", "value")
_ORPHAN = Insert.of("orphans", "tenant run kept")
_COMPACTION = Insert.of("compactions", "tenant sort owner at body")


class _Trail:
    """Progress of a run before each of its latest calls. Allows recounting from any of them."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.before: list[RunProgress] = []
        self.now = RunProgress()
        self.is_cut = False
        """Whether earlier calls were dropped from the trail."""
        self.is_odd = False
        """Whether a call id is greater than the seq of one of its attempts. Then the run is read in full."""

    def back_to(self, call: int) -> RunProgress | None:
        """Rewind to the state before this call and return it. None if the trail does not reach back that far."""
        place = bisect_left(self.ids, call)
        if self.is_odd or (place == 0 and self.is_cut):
            return None
        if place < len(self.ids):
            self.now = self.before[place]
            del self.ids[place:], self.before[place:]
        return self.now

    def follow(self, call: Call, is_item: ItemTest, run: Run) -> list[Link]:
        """Append a call and return its recovery links."""
        self.ids.append(call.steps[0].call)
        self.before.append(self.now)
        links: list[Link] = []
        # Fast path: a first-attempt success without open failures does not change the progress.
        if self.now.open or not self.now.has_success or len(call.steps) > 1 or not _is_plain(call.steps[0]):
            self.now, links = self.now.after(call, None, is_item, run.withdrawn, is_final=run.end is not None)
        if len(self.ids) > 2 * TRAIL:
            del self.ids[:TRAIL], self.before[:TRAIL]
            self.is_cut = True
        return links


class Known:
    """Cached state of a run. A run with failures but without a trail must be read in full."""

    __slots__ = ("is_plain", "run", "status", "steps", "trail", "used")

    def __init__(self, run: Run, status: Status, is_plain: bool = True, trail: _Trail | None = None) -> None:
        self.run = run
        self.status = status
        self.is_plain = is_plain
        self.trail = trail
        self.steps = (0, 0)
        """With a trail: count of the stored steps and sum of their seqs, to detect writes by other processes."""
        self.used: set[tuple[str, str]] = set()


class _News:
    """Records of one run in a batch."""

    __slots__ = ("ended", "is_plain", "started", "steps", "worked")

    def __init__(self) -> None:
        self.started: Run | None = None
        self.ended: list[Run] = []
        self.steps: list[Step] = []
        self.worked: list[Success] = []
        """First-attempt successes in compact form. Built into steps only when needed (`expand_successes`)."""
        self.is_plain = True
        """Whether all of `steps` are first-attempt successes too."""

    def look_closely(self) -> None:
        """Convert `successes` to steps."""
        self.steps += steps_of(self.worked)
        self.worked = []


class Part(NamedTuple):
    """Some calls of a run with their recovery links, either before or after a batch."""

    run: Run
    calls: dict[int, Call]
    links: dict[int, Link]
    again: set[int]
    """Calls that repeat a failure from before a compaction."""

    def cells(self, id: int) -> Cells:
        """Return the counters of one call."""
        link = self.links.get(id)
        by = self.calls.get(link.overcame) if link else None
        return figures.of_call(self.run, self.calls[id], link, by, id in self.again)

    def seen(self, id: int, sign: int) -> list[Seen]:
        """Return the failures of one call for the pattern counts. `sign` adds (1) or subtracts (-1) them."""
        call = self.calls[id]
        if not call.has_failed:
            return []
        is_overcome = call.has_succeeded or id in self.links
        return [Seen(self.run, step, is_overcome, sign) for step in call.steps if step.has_failed and step.failure]

    def is_counted_as(self, id: int, other: Part) -> bool:
        """Return whether a call has the same counters in both slices."""
        mine, theirs = self.calls.get(id), other.calls.get(id)
        if mine is None or theirs is None or mine.steps != theirs.steps or (id in self.again) != (id in other.again):
            return False
        link = self.links.get(id)
        if link != other.links.get(id):
            return False
        return link is None or self.calls[link.overcame].steps == other.calls[link.overcame].steps


NOTHING = Part(Run(id=""), {}, {}, set())


class Account:
    """Pending changes of rollups, patterns, links and statuses, written at the end of a transaction."""

    def __init__(self) -> None:
        self.cells: Cells = {}
        self.plain = figures.Successes()
        self.seen: list[Seen] = []
        self.used: list[tuple[str, str, int, str]] = []
        self.news: list[voting.News] = []
        """Trials by run."""
        self.begun: set[str] = set()
        """Runs without any stored record before this transaction."""
        self.links: list[tuple[Any, ...]] = []
        self.unlinked: list[tuple[str, str, int]] = []
        """Links to delete, as (tenant, run, failed call). `links` has the rows to store."""
        self.statuses: list[tuple[Status, int, str, str]] = []
        """Updates of `runs`, as (status, whether it is failure-free, tenant, run)."""
        self._runs: dict[tuple[str, str | None, str | None, int, Status, bool], int] = {}

    def add(self, before: Part, after: Part) -> None:
        """Subtract the calls of `before` and add those of `after`. Unchanged calls are skipped."""
        if not before.calls:
            self._add_all(after)
            return
        is_moved = not _is_same_place(before.run, after.run)
        for id in before.calls.keys() | after.calls.keys():
            if not is_moved and before.is_counted_as(id, after):
                continue
            if id in before.calls:
                figures.add(self.cells, before.cells(id), -1)
                self.seen += before.seen(id, -1)
            if id in after.calls:
                steps = after.calls[id].steps
                if len(steps) == 1 and _is_plain(steps[0]):
                    self.plain.add(after.run, steps, self.cells)
                    continue
                figures.add(self.cells, after.cells(id))
                self.seen += after.seen(id, 1)

    def _add_all(self, part: Part) -> None:
        """Add calls that were not counted before."""
        plain: list[Step] = []
        for id, call in part.calls.items():
            if len(call.steps) == 1 and _is_plain(call.steps[0]):
                plain.append(call.steps[0])
            else:
                figures.add(self.cells, part.cells(id))
                self.seen += part.seen(id, 1)
        self.plain.add(part.run, plain, self.cells)

    def add_run(self, before: Known | None, run: Run | None, status: Status) -> None:
        """Subtract the run as it was before, if any, and add it as it is now, if any."""
        if before is not None and before.run is run and before.status == status:
            return
        if before is not None:
            self._add_runs(before.run, before.status, -1)
        if run is not None:
            self._add_runs(run, status, 1)

    def _add_runs(self, run: Run, status: Status, count: int) -> None:
        """Count runs by their counter key; `collect_cells` builds the counters once per key.

        Standalone calls are one run each, so there can be many equal ones.
        """
        alike = (run.agent, run.version, run.environment, run.started // HOUR, status, run.end is None)
        self._runs[alike] = self._runs.get(alike, 0) + count

    def counted(self) -> Cells:
        """Return all counters, including pending runs and successes."""
        for (agent, version, environment, hour, status, is_running), count in self._runs.items():
            end = None if is_running else "finished"
            run = Run(id="", agent=agent, version=version, environment=environment, started=hour * HOUR, end=end)  # type: ignore[arg-type]
            for place, cell in figures.of_run(run, status).items():
                cell.runs = {name: each * count for name, each in cell.runs.items()}
                cell.running *= count
                figures.add(self.cells, {place: cell})
        self._runs.clear()
        self.plain.count(self.cells)
        return self.cells

    def add_worked(self, run: Run, worked: Sequence[Success], known: set[tuple[str, str]]) -> None:
        """Add first-attempt successes and the tools they used.

        Successes of one form and hour share a counter key, so only the first one is built into a step.
        """
        if len(worked) == 1:  # common case: a standalone call
            steps = steps_of(worked)
            self.plain.add(run, steps, self.cells)
            self.add_used(run, steps, known)
            return
        forms: dict[Form, Sequence[Success]] = dict.fromkeys([each.form for each in worked], worked)
        if len(forms) > 1:
            forms = {form: [each for each in worked if each.form is form] for form in forms}
        for form, some in forms.items():
            starts = [each.started for each in some]
            is_alike = int(min(starts) * 1000) // HOUR == int(max(starts) * 1000) // HOUR
            if is_alike and form.type != "model" and not any(each.tokens for each in some):
                steps = steps_of(some[:1])
                self.plain.add_alike(run, steps[0], [each.seconds for each in some])
            else:
                steps = steps_of(some)
                self.plain.add(run, steps, self.cells)
            self.add_used(run, steps, known)

    def add_used(self, run: Run, steps: Sequence[Step], known: set[tuple[str, str]]) -> None:
        """Add the tools and models of these steps that the run has not used yet."""
        last = None
        of_run = run.metadata
        for step in steps:
            if step.name != last:
                last = step.name
                used = ("tool", last)
                if used not in known:
                    known.add(used)
                    self.used.append((*used, run.started, run.id))
            if (step.metadata or of_run or step.type == "model") and (model := figures.model_of(run, step)):
                used = ("model", model)
                if used not in known:
                    known.add(used)
                    self.used.append((*used, run.started, run.id))


class Ledger:
    """Writer of batches with a cache of unfinished runs. Use it from one thread at a time, within a transaction."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Known] = {}
        self._doubted: dict[tuple[str, str], Known] = {}
        """Runs cached before another process wrote. Their trails are reused if their steps are unchanged."""
        self._version = -1
        self._forgotten = 0
        self._heard: dict[tuple[str, str], int] = {}
        self._has_provisional = True
        """Whether any run may have provisional links. Mostly none does, which saves a statement per run."""
        self.rollups = Rollups()

    def let_go(self) -> None:
        """Clear all caches, after a rollback or a change of stored data by other code."""
        self._known.clear()
        self._doubted.clear()
        self._heard.clear()
        self.rollups.let_go()

    def begin(self, writer: Connection, version: int) -> None:
        """Validate the caches at the start of a transaction. `version` differs if another process has written."""
        if version == self._version:
            return
        self._version = version
        self._doubted.update((key, known) for key, known in self._known.items() if known.trail is not None)
        self._known.clear()
        self.rollups.let_go()
        forgotten = writer.execute("SELECT value FROM meta WHERE tenant = '' AND key = 'forgotten'").fetchone()
        count = int(forgotten[0]) if forgotten else 0
        if count != self._forgotten:
            self._forgotten = count
            self._doubted.clear()

    def append(
        self,
        writer: Connection,
        tenant: str,
        batch: Sequence[AnyEvent],
        now: int,
        is_imported: bool,
        principal: str = "",
    ) -> int:
        """Store a batch. Return how many of its records were new."""
        principal = fixes.IMPORT if is_imported else principal or fixes.OWN
        self._note(writer, tenant, principal, now)
        sql = "SELECT 1 FROM provisional WHERE tenant = ? LIMIT 1"
        self._has_provisional = writer.execute(sql, (tenant,)).fetchone() is not None
        news, compactions = _sorted_out(batch)
        self._make_room()
        orphans = dict(iter(writer.execute("SELECT run, kept FROM orphans WHERE tenant = ?", (tenant,))))
        before = self._looked_up(writer, tenant, news)
        kept = self._put_runs(writer, tenant, news, before, orphans, now, is_imported, principal)
        lost = [id for id, about in news.items() if id not in before and not about.started and not about.ended]
        if lost:
            writer.put(_ORPHAN, [(tenant, id, now) for id in lost])
        kept += self._put_steps(writer, tenant, news)
        account = Account()
        compacted = writer.execute("SELECT 1 FROM compactions WHERE tenant = ? LIMIT 1", (tenant,)).fetchone()
        for id, about in news.items():
            old = before.get(id)
            run = about.ended[-1] if about.ended else about.started if old is None else old.run
            self._account_for(writer, tenant, id, old, run, about, id in orphans, account, bool(compacted), now)
        put_statuses(writer, account.statuses)
        forget_links(writer, account.unlinked)
        writer.put(LINK, account.links)
        kept += self._put_compactions(writer, tenant, compactions, account)
        self.settle(writer, tenant, account)
        if account.news:
            voting.add(writer, tenant, account.news, principal)
        return kept

    def _note(self, writer: Connection, tenant: str, principal: str, now: int) -> None:
        """Every half hour, settle idle runs and record the time of the principal's last write."""
        last = self._heard.get((tenant, principal), -HOUR)
        if now - last >= IDLE_MILLISECONDS:
            self.settle_idle(writer, tenant, now)
            learning.note_principal(writer, tenant, principal, now)
            self._heard[tenant, principal] = now

    def settle(self, writer: Connection, tenant: str, account: Account) -> set[str]:
        """Write the pending counters. Return the ids of patterns without any occurrence left."""
        writer.put(USED, [(tenant, *used) for used in account.used])
        self.rollups.add(writer, tenant, account.counted())
        return tallies.add(writer, tenant, account.seen, account.begun) if account.seen else set()

    def _make_room(self) -> None:
        """Clear the caches that exceed their limits."""
        if len(self._known) > KNOWN:
            self._known.clear()
        if len(self._doubted) > TRAILS or sum(known.trail is not None for known in self._known.values()) > TRAILS:
            self._known.clear()
            self._doubted.clear()

    def _looked_up(self, writer: Connection, tenant: str, news: dict[str, _News]) -> dict[str, Known]:
        """Return the runs of the batch that exist already.

        A run that starts in the batch is assumed to be new; `_put_runs` corrects this.
        """
        found = {id: known for id in news if (known := self._known.get((tenant, id))) is not None}
        asked = [id for id, about in news.items() if id not in found and about.started is None]
        return found | self.look_up(writer, tenant, asked)

    def look_up(self, writer: Connection, tenant: str, ids: Sequence[str]) -> dict[str, Known]:
        """Load the stored ones of these runs, with their cached trails if still valid."""
        found: dict[str, Known] = {}
        for _, id, body, status, is_plain in writer.look_up(KNOWN_RUN, [(tenant, id) for id in ids]):
            known = found[id] = Known(bodies.read(body, Run), status, bool(is_plain))
            earlier = self._doubted.pop((tenant, id), None)
            if earlier is not None and earlier.steps == extent(writer, tenant, id):
                known.trail, known.steps, known.used = earlier.trail, earlier.steps, earlier.used
        return found

    def _put_runs(
        self,
        writer: Connection,
        tenant: str,
        news: dict[str, _News],
        before: dict[str, Known],
        orphans: Mapping[str, int],
        now: int,
        is_imported: bool,
        principal: str,
    ) -> int:
        begun = {
            id: about.ended[-1] if about.ended else about.started
            for id, about in news.items()
            if id not in before and (about.started or about.ended)
        }
        # A run counts as stored since its first record, which may have arrived as an orphan.
        rows = [
            run_row(tenant, run, orphans.get(id) or now, is_imported, principal)
            for id, run in begun.items()
            if run is not None
        ]
        if rows:
            writer.execute("SAVEPOINT beginning")
            if writer.put(RUN, rows) != len(rows):  # some exist already
                writer.execute("ROLLBACK TO beginning")
                known = self.look_up(writer, tenant, [row[1] for row in rows])
                writer.put(RUN, [row for row in rows if row[1] not in known])
                before.update(known)
            writer.execute("RELEASE beginning")
        kept = 0
        changed: list[Run] = []
        for id, about in news.items():
            old = before.get(id)
            current = old.run if old is not None else about.started
            kept += old is None and current is not None
            for run in about.ended:
                if current is None or (run.end != current.end or (run != current and encode(run) != encode(current))):
                    kept += 1
                    current = run
            if old is not None and current is not None and current is not old.run:
                about.ended = [current]
                changed.append(current)
            elif old is not None:
                about.ended = []
        self.update_runs(writer, tenant, changed)
        return kept

    def update_runs(self, writer: Connection, tenant: str, runs: Sequence[Run]) -> None:
        if runs:
            writer.executemany(
                "UPDATE runs SET agent = ?, session = ?, started = ?, body = ?, version = ?, environment = ? "
                "WHERE tenant = ? AND id = ?",
                [
                    (run.agent, run.session, run.started, encode(run), run.version, run.environment, tenant, run.id)
                    for run in runs
                ],
            )

    def _put_steps(self, writer: Connection, tenant: str, news: dict[str, _News]) -> int:
        count = sum(len(about.steps) + len(about.worked) for about in news.values())
        if not count:
            return 0
        mixed = [about for about in news.values() if not about.is_plain]
        others = [step_row(tenant, step) for about in mixed for step in about.steps if not _is_plain(step)]
        # Generators: building rows while they are inserted reuses memory that was just freed, which is faster.
        steps = (filter(None if about.is_plain else _is_plain, about.steps) for about in news.values())
        plain = map(plain_row, chain.from_iterable(steps))
        worked = (worked_row(call) for about in news.values() for call in about.worked)
        writer.execute("SAVEPOINT steps")
        kept = writer.put_plain(tenant, chain(plain, worked)) + writer.put(STEP, others)
        if kept != count:  # some exist already: find out which
            writer.execute("ROLLBACK TO steps")
            for about in news.values():
                about.look_closely()
            places = {(tenant, step.run, step.seq) for about in news.values() for step in about.steps}
            there = {(run, seq) for _, run, seq, _ in writer.look_up(KEPT_STEP, list(places))}
            for about in news.values():
                new = [step for step in about.steps if (step.run, step.seq) not in there]
                about.steps = list({step.seq: step for step in reversed(new)}.values())[::-1]  # of duplicates the first
                about.is_plain = all(map(_is_plain, about.steps))
            writer.put(STEP, [step_row(tenant, step) for about in news.values() for step in about.steps])
        writer.execute("RELEASE steps")
        return kept

    def _account_for(
        self,
        writer: Connection,
        tenant: str,
        id: str,
        old: Known | None,
        run: Run | None,
        about: _News,
        is_orphan: bool,
        account: Account,
        is_compacted: bool,
        now: int,
    ) -> None:
        """Update all data derived from a run by its changes in the batch."""
        if run is None:
            return
        if is_orphan:
            writer.execute("DELETE FROM orphans WHERE tenant = ? AND run = ?", (tenant, id))
        is_quiet = about.is_plain and not is_orphan and (old is None or (old.is_plain and _is_same_place(old.run, run)))
        if not is_quiet:
            about.look_closely()
        steps = about.steps
        if is_quiet:
            status = RunProgress().status(run)
            account.plain.add(run, steps, account.cells)
            tracked = Known(run, status)
            if old is not None:
                tracked.used = old.used
                if status != old.status:
                    account.statuses.append((status, 1, tenant, id))
        elif (
            old is not None
            and not steps
            and _is_same_place(old.run, run)
            and not self._needs_final_links(writer, tenant, old, run)
            and (told := _told(old, run))
        ):
            tracked = Known(run, told, old.is_plain, old.trail)
            tracked.used = old.used
            if told != old.status:
                account.statuses.append((told, int(old.is_plain), tenant, id))
        else:
            compactions = compactions_of(writer, tenant, run) if is_compacted else ()
            tracked = self._recounted(writer, tenant, old, run, steps, is_orphan, account, compactions, now)
        account.add_run(old, run, tracked.status)
        if run.items and run.end is not None:
            put_items(writer, tenant, run.items)
        if run.end is None:
            self._known[tenant, id] = tracked
        else:
            self._known.pop((tenant, id), None)
        if steps:
            account.add_used(run, steps, tracked.used)
        if about.worked:
            account.add_worked(run, about.worked, tracked.used)

    def _recounted(
        self,
        writer: Connection,
        tenant: str,
        old: Known | None,
        run: Run,
        steps: list[Step],
        is_orphan: bool,
        account: Account,
        compactions: tuple[Compaction, ...],
        now: int,
    ) -> Known:
        """Recount a run from its first changed call on. Return its new cached state."""
        # Only compactions within the run need a full read: earlier ones of its session apply to each call by itself.
        is_compacted = any(figures.is_within(compaction, run) for compaction in compactions)
        is_whole = is_orphan or not steps or is_compacted or any(step.call > step.seq for step in steps)
        is_whole = is_whole or (old is not None and self._needs_final_links(writer, tenant, old, run))
        if old is not None and not _is_same_place(old.run, run):
            is_whole = True
            forget_used(writer, tenant, history_of(writer, tenant, old.run))
        start = min((step.call for step in steps), default=0)
        trail = old.trail if old is not None else None
        if trail is None and (old is None or old.is_plain):
            trail = _Trail()
        standing = None if trail is None or is_whole else trail.back_to(start)
        if trail is None or standing is None:
            trail, standing, start, is_whole = _Trail(), RunProgress(), FIRST, True
        is_new = old is None and not is_orphan
        if is_new:
            account.begun.add(run.id)
        everything = steps if is_new else steps_since(writer, tenant, run.id, start, steps)
        trail.is_odd = trail.is_odd or any(step.call > step.seq for step in everything)
        new = {step.seq for step in steps}
        linked = {} if is_new else links_since(writer, tenant, run.id, start)
        opened = {each.call.id: each.call for each in standing.open if each.call.id < start}
        after = Part(run, {call.id: call for call in calls.group_attempts(everything)}, {}, set())
        links: dict[int, Link] = {}
        tried: list[fixes.Trial] = []
        # All calls of a new run are in memory: this avoids one statement per call.
        is_item: ItemTest = _item_test(writer, tenant, run.id)
        if is_new:
            is_item = lambda candidate: differs_in(candidate, everything)  # noqa: E731
        for call in after.calls.values():
            stood = trail.now
            found = trail.follow(call, is_item, run)
            if call.has_succeeded:
                links.update((link.failed, link) for link in found)
            if stood.open or len(call.steps) > 1:
                tried += fixes.find_trials(stood, call, found)
        if learning.is_goal_missed(run):
            tried = [trial for trial in tried if not trial.worked]
        self._note_provisional(writer, tenant, run, links, now)
        if tried or not is_new:
            account.news.append(voting.News(run, start, tried))
        earlier = [] if is_new else [step for step in everything if step.seq not in new]
        before = Part(old.run if old else run, {call.id: call for call in calls.group_attempts(earlier)}, linked, set())
        after = after._replace(links=links)
        earlier_calls = {id for id in linked.keys() | links.keys() if id not in after.calls}
        # One recovery can link many failed calls, of which only the last one is in memory.
        opened |= calls_of(writer, tenant, run.id, earlier_calls - opened.keys())
        for id in earlier_calls:
            if id in opened:
                before.calls[id] = after.calls[id] = opened[id]
            else:
                links.pop(id, None)
        if compactions:
            after = after._replace(again=_again(run, after, compactions))
            before = before._replace(again=_again(run, before, compactions))
        account.add(NOTHING if old is None else before, after)
        account.unlinked += [(tenant, run.id, failed) for failed in linked if failed not in after.links]
        account.links += link_rows(tenant, run.id, after.links, after.calls)
        status = trail.now.status(run)
        account.statuses.append((status, 0, tenant, run.id))
        tracked = Known(run, status, is_plain=False, trail=trail)
        if old is not None and old.trail is trail:
            tracked.used = old.used
            tracked.steps = old.steps[0] + len(steps), old.steps[1] + sum(new)
        elif is_new:
            tracked.steps = len(steps), sum(new)
        elif run.end is None:  # a finished run is not cached
            tracked.steps = extent(writer, tenant, run.id)
        if is_whole:
            account.add_used(run, earlier, tracked.used)
        return tracked

    def _needs_final_links(self, writer: Connection, tenant: str, old: Known, run: Run) -> bool:
        """Return whether the run ends now and all of its links must be judged again."""
        if old.is_plain or run.end is None or old.run.end == run.end:
            return False
        if run.withdrawn or learning.is_goal_missed(run):
            return True
        if not self._has_provisional:
            return False
        sql = "SELECT 1 FROM provisional WHERE tenant = ? AND run = ?"
        return writer.execute(sql, (tenant, run.id)).fetchone() is not None

    def _note_provisional(self, writer: Connection, tenant: str, run: Run, links: Mapping[int, Link], now: int) -> None:
        """Mark a run whose links must be judged when it has ended or was idle for long; unmark an ended one."""
        if run.end is None and any(link.provisional for link in links.values()):
            writer.execute(_PROVISIONAL, (tenant, run.id, now))
            self._has_provisional = True
        elif run.end is not None and self._has_provisional:
            writer.execute("DELETE FROM provisional WHERE tenant = ? AND run = ?", (tenant, run.id))

    def settle_idle(self, writer: Connection, tenant: str, now: int) -> int:
        """Judge the provisional links of idle runs. Return how many runs were checked."""
        rows = writer.execute(
            "SELECT run FROM provisional WHERE tenant = ? AND at < ? LIMIT ?",
            (tenant, now - IDLE_MILLISECONDS, MAX_SETTLED_RUNS),
        ).fetchall()
        for (id,) in rows:
            known = self.look_up(writer, tenant, [id]).get(id)
            sql = "SELECT max(started) FROM steps WHERE tenant = ? AND run = ?"
            (latest,) = writer.execute(sql, (tenant, id)).fetchone() or (None,)
            if known is None or known.run.end is not None:
                writer.execute("DELETE FROM provisional WHERE tenant = ? AND run = ?", (tenant, id))
            elif latest is not None and latest > now - IDLE_MILLISECONDS:
                writer.execute(_PROVISIONAL, (tenant, id, latest))  # still active
            else:
                self._settle_run(writer, tenant, known)
                # Keep the row: if the run continues, its links are judged again at its end.
                writer.execute(_PROVISIONAL, (tenant, id, SETTLED))
        return len(rows)

    def _settle_run(self, writer: Connection, tenant: str, known: Known) -> None:
        """Judge the links of a run as if it had ended: confirmed links give votes, refuted ones are deleted."""
        history = history_of(writer, tenant, known.run)
        run = replace(known.run, withdrawn=find_refuted(history.steps))
        links = tuple(link_recoveries(history.steps, run, is_settled=True))
        learning.relearn(writer, tenant, run, history.steps, is_settled=True)
        account = Account()
        account.add(part_of(history), part_of(replace(history, links=links)))
        status = derive_status(known.run, history.steps, links)
        account.add_run(known, known.run, status)
        put_statuses(writer, [(status, 0, tenant, run.id)])
        linked = {link.failed: link for link in links}
        forget_links(writer, [(tenant, run.id, link.failed) for link in history.links if link.failed not in linked])
        calls_by_id = {call.id: call for call in calls.group_attempts(history.steps)}
        writer.put(LINK, link_rows(tenant, run.id, linked, calls_by_id))
        self.settle(writer, tenant, account)
        self._known.pop((tenant, run.id), None)

    def _put_compactions(self, writer: Connection, tenant: str, compactions: list[Compaction], account: Account) -> int:
        """Store compactions and recount the affected runs. Return how many were new.

        A failure after a compaction that had occurred before it counts as a repeat.
        """
        kept = 0
        for compaction in compactions:
            sort, owner = ("run", compaction.run) if compaction.run is not None else ("session", compaction.session)
            if owner is None:
                continue
            affected = [owner]
            if sort == "session":
                rows = writer.execute("SELECT id FROM runs WHERE tenant = ? AND session = ?", (tenant, owner))
                affected = [id for (id,) in rows]
            runs = [known for known in self.look_up(writer, tenant, affected).values() if not known.is_plain]
            earlier = [history_of(writer, tenant, known.run) for known in runs]
            row = (tenant, sort, owner, compaction.at, encode(compaction))
            if not writer.execute(_COMPACTION.one, row).rowcount:
                continue
            kept += 1
            for before in earlier:
                account.add(part_of(before), part_of(history_of(writer, tenant, before.run)))
        return kept


def _sorted_out(batch: Sequence[AnyEvent]) -> tuple[dict[str, _News], list[Compaction]]:
    """Group a batch by run. Hot path: consecutive records of one run share a bound append method."""
    news: dict[str, _News] = {}
    compactions: list[Compaction] = []
    last = worked_last = None
    for event in batch.records if isinstance(batch, Kept) else batch:
        if type(event) is Success:
            if event.run is not worked_last:  # identity check: mostly the same string object
                worked_last = event.run
                about = news.get(worked_last)
                if about is None:
                    about = news[worked_last] = _News()
                worked = about.worked.append
            worked(event)
        elif type(event) is StepEnded:
            step = event.step
            if step.run is not last:
                last = step.run
                about = news.get(last)
                if about is None:
                    about = news[last] = _News()
                add = about.steps.append
            add(step)
        elif isinstance(event, RunStarted | RunEnded):
            run = event.run
            last = None
            about = news.get(run.id)
            if about is None:
                about = news[run.id] = _News()
            if isinstance(event, RunEnded):
                about.ended.append(run)
            elif about.started is None and not about.ended:
                about.started = run
        elif isinstance(event, ContextCompacted):
            compactions.append(event.compaction)
    for about in news.values():
        about.is_plain = all(map(_is_plain, about.steps))
    return news, compactions


def _is_plain(step: Step) -> bool:
    """Return whether a step is a call that succeeded at its first attempt."""
    return (
        step.outcome == "success"
        and step.call == step.seq
        and step.attempt == 1
        and step.failure is None
        and step.type != "run"
    )


def _is_same_place(one: Run, other: Run) -> bool:
    """Return whether the calls of both runs have the same counter keys."""
    return one is other or (
        one.agent == other.agent
        and one.started == other.started
        and one.version == other.version
        and one.environment == other.environment
        and one.session == other.session
        and (one.metadata or {}).get("model") == (other.metadata or {}).get("model")
    )


def _told(old: Known, run: Run) -> Status | None:
    """Return the status of a run of which only the end is new; None if it depends on its calls."""
    if run.end in ("raised", "abandoned"):
        return "failure"
    return old.status if old.run.end not in ("raised", "abandoned") else None


def _again(run: Run, part: Part, compactions: tuple[Compaction, ...]) -> set[int]:
    return figures.repeated(History(run=run, compactions=compactions), part.calls.values())


def _item_test(writer: Connection, tenant: str, run: str) -> ItemTest:
    """Test a candidate against the rows of its run.

    The recording process uses item arguments learned from earlier runs. Rows stored without its judgement are judged
    by their own run alone, so that a recount gives the same result whatever was stored since.
    """

    def is_item(candidate: Candidate) -> bool:
        last = candidate.call.last
        rows = writer.execute(
            "SELECT seq, name, started, body FROM steps WHERE tenant = ? AND run = ? AND name = ? LIMIT ?",
            (tenant, run, last.name, MAX_COMPARED_STEPS),
        )
        return differs_in(candidate, (bodies.step(run, *row) for row in rows))

    return is_item


def put_items(writer: Connection, tenant: str, items: Mapping[str, Collection[str]]) -> None:
    """Add to the stored arguments that name items, by tool key."""
    for tool, arguments in items.items():
        row = writer.execute(
            "SELECT value FROM shelf WHERE tenant = ? AND kind = ? AND key = ?", (tenant, ITEMS_KIND, tool)
        ).fetchone()
        merged = merge_items(row[0] if row else None, arguments)
        if merged is not None:
            writer.execute(_SHELF, (tenant, ITEMS_KIND, tool, merged))


def part_of(history: History) -> Part:
    """Return all calls of a run history as a slice."""
    joined = {call.id: call for call in calls.group_attempts(history.steps)}
    links = {link.failed: link for link in history.links}
    return Part(history.run, joined, links, figures.repeated(history, joined.values()))
