"""Maintenance of a database: erasing records, and recounting everything derived from the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from mulligan import calls, figures
from mulligan.figures import Cell, Cells, Place
from mulligan.links import derive_status, link_recoveries
from mulligan.records import Compaction, History, Run, Step, encode
from mulligan.remember import audit, bodies, forgetting, learning, tallies
from mulligan.remember.connection import Connection
from mulligan.remember.ledger import NOTHING, Account, Known, Ledger, part_of
from mulligan.remember.lessons import making as lessons
from mulligan.remember.lessons import rows as lesson_rows
from mulligan.remember.patterns import day_of
from mulligan.remember.rollups import Rollups, repack
from mulligan.remember.rows import (
    FIRST,
    USED,
    forget_used,
    history_of,
    links_since,
    note,
    noted,
    put_links,
    remove_run,
    replace_steps,
    runs_since,
    set_status,
)
from mulligan.remember.store import DAY, ITEMS_KIND, Forget, Forgotten, Progress, Revocation
from mulligan.remember.tables import RECOUNTED_AT


def told(forgotten: Forgotten) -> str:
    """Return how much was erased, for the audit log. It never contains what was erased."""
    return audit.counted(
        runs=forgotten.runs, steps=forgotten.steps, patterns=forgotten.patterns, notes=forgotten.shelf,
        fixes=forgotten.fixes, lessons=forgotten.lessons,
    )  # fmt: skip


class Forgetting:
    """Erases a run, tool, session or text from all tables in one transaction."""

    def __init__(self, writer: Connection, ledger: Ledger, tenant: str, what: Forget) -> None:
        self._writer, self._ledger, self._tenant, self._what = writer, ledger, tenant, what
        self._account = Account()
        self.runs = self.steps = 0
        self.gone: set[str] = {what.run} if what.run is not None else set()
        """Runs that are erased completely."""

    def _is_held(self, body: Any) -> bool:
        if self._what.text is None or body is None:
            return False
        data = bodies.plain(body) if isinstance(body, bytes) else str(body).encode("utf-8", "replace")
        return forgetting.holds(data, self._what.text)

    def _holding(self, sql: str, *places: int) -> list[Any]:
        """Return the rows that contain the text in one of these columns. Reads all before the caller changes any."""
        rows = self._writer.stream(sql, (self._tenant,))
        return [row for row in rows if any(self._is_held(row[place]) for place in places)]

    def perform(self) -> Forgotten:
        if self._what.learned is not None:
            return self._forget_learned(self._what.learned)
        for id in self._touched():
            self._forget_in(id)
        gone = self._ledger.settle(self._writer, self._tenant, self._account)
        changed = {tallies.id_of(each.step.name, each.step.failure.fingerprint) for each in self._account.seen
                   if each.step.failure is not None and each.step.failure.fingerprint} - gone  # fmt: skip
        for id in changed:
            tallies.refresh(self._writer, self._tenant, id)
        counted = 0
        if self._what.tool is not None:
            gone |= self._forget_counted_tool(self._what.tool)
        if self._what.text is not None:
            counted = self._forget_counted_text(self._what.text)
            text = self._what.text
            audit.forget(self._writer, self._tenant, lambda act: forgetting.without(act, text))
        self._forget_fixes()
        self._forget_lessons(changed | gone)
        for id in gone:
            self._forget_pattern(id)
        shelf = self._forget_shelf()
        forgotten = Forgotten(runs=self.runs, steps=self.steps, patterns=len(gone) + counted, shelf=shelf)
        # Other processes drop their caches before the next batch.
        note(self._writer, "", "forgotten", str(int(noted(self._writer, "", "forgotten") or 0) + 1))
        self._ledger.let_go()
        return forgotten

    def _forget_learned(self, until: int) -> Forgotten:
        """Discard fixes, lessons and item arguments, and learn no more from runs that began before this time."""
        revoked = learning.revoke(self._writer, self._tenant, Revocation(until=until))
        lessons_removed = lesson_rows.remove(self._writer, self._tenant, "learned")
        (items,) = self._ask("SELECT count(*) FROM shelf WHERE tenant = ? AND kind = ?", ITEMS_KIND)[0]
        self._writer.execute("DELETE FROM shelf WHERE tenant = ? AND kind = ?", (self._tenant, ITEMS_KIND))
        return Forgotten(fixes=revoked.fixes, lessons=lessons_removed, shelf=items)

    def _ask(self, sql: str, *values: Any) -> list[Any]:
        return self._writer.execute(sql, (self._tenant, *values)).fetchall()

    def _touched(self) -> list[str]:
        what = self._what
        if what.run is not None:
            return [what.run]
        if what.session is not None:
            return [id for (id,) in self._ask("SELECT id FROM runs WHERE tenant = ? AND session = ?", what.session)]
        if what.tool is not None:
            used = self._ask("SELECT run FROM used WHERE tenant = ? AND sort = 'tool' AND name = ?", what.tool)
            orphans = self._ask("SELECT run FROM orphans WHERE tenant = ?")
            return sorted({id for (id,) in (*used, *orphans)})
        held = (self._writer.stream(sql, (self._tenant,)) for sql in (
            "SELECT run, name, body FROM steps WHERE tenant = ?", "SELECT id, body FROM runs WHERE tenant = ?"
        ))  # fmt: skip
        steps, runs = held
        found = {id for id, *told in steps if any(map(self._is_held, (id, *told)))}
        return sorted(found | {id for id, body in runs if self._is_held(body) or self._is_held(id)})

    def _forget_in(self, id: str) -> None:
        what = self._what
        known = self._ledger.look_up(self._writer, self._tenant, [id]).get(id)
        before = history_of(self._writer, self._tenant, known.run if known else Run(id=id))
        if what.run is not None or what.session is not None or (what.text is not None and what.text in id):
            self._forget_run(known, before)
        elif what.tool is not None:
            left = tuple(step for step in before.steps if step.name != what.tool)
            if before.steps and not left:
                self._forget_run(known, before)
            elif len(left) != len(before.steps):
                self._change(known, before, before.run, left)
        elif what.text is not None:
            run = forgetting.without(before.run, what.text)
            self._change(known, before, run, tuple(forgetting.without(step, what.text) for step in before.steps))

    def _forget_run(self, known: Known | None, before: History) -> None:
        remove_run(self._writer, self._tenant, before)
        self.gone.add(before.run.id)
        learning.forget_run(self._writer, self._tenant, before.run.id)
        self.runs, self.steps = self.runs + (known is not None), self.steps + len(before.steps)
        if known is not None:
            self._account.add(part_of(before), NOTHING)
            self._account.add_run(known, None, known.status)

    def _change(self, known: Known | None, before: History, run: Run, steps: tuple[Step, ...]) -> None:
        """Replace a run and its steps by changed or fewer ones."""
        place = (self._writer, self._tenant)
        kept = {step.seq: step for step in steps}
        self.steps += sum(kept.get(step.seq) != step for step in before.steps)
        forget_used(*place, before)
        replace_steps(*place, run.id, steps)
        if known is None:
            return
        relinked(*place, run, steps)
        learning.relearn(*place, run, steps)
        if encode(run) != encode(known.run):
            self.runs += 1
            self._ledger.update_runs(*place, [run])
        after = msgspec.structs.replace(
            history_of(*place, run), links=tuple(link_recoveries(steps, run)), compactions=before.compactions
        )
        self._account.add(part_of(before), part_of(after))
        status = derive_status(run, steps, after.links)
        set_status(*place, run.id, status, known.is_plain)
        self._account.add_run(known, run, status)
        self._account.add_used(run, steps, set())

    def _forget_fixes(self) -> None:
        """Erase learned fixes that name the tool or contain the text, and the text from votes."""
        tool, text = self._what.tool, self._what.text
        if tool is not None:
            learning.forget_where(
                self._writer, self._tenant, lambda tally, _: tool == tally.tool or tool in tally.form.names
            )
        elif text is not None:
            learning.forget_where(self._writer, self._tenant, lambda _, body: forgetting.holds(body, text))
            votes = self._holding("SELECT run, tried, failed, fix, agent, body FROM votes WHERE tenant = ?", 4, 5)
            self._writer.executemany(
                "UPDATE votes SET agent = ?, body = ? WHERE tenant = ? AND run = ? AND tried = ? AND failed = ? "
                "AND fix = ?",
                [
                    (
                        agent.replace(text, forgetting.FORGOTTEN),
                        None if self._is_held(body) else body,
                        self._tenant,
                        *key,
                    )
                    for *key, agent, body in votes
                ],
            )

    def _forget_lessons(self, patterns: set[str]) -> None:
        """Erase lessons of changed patterns, and lessons that name the tool or contain the text."""
        tool, text = self._what.tool, self._what.text
        place = (self._writer, self._tenant)
        lesson_rows.forget_patterns(*place, sorted(patterns))
        if tool is not None:
            lesson_rows.forget_where(*place, lambda kept, _: lessons.names(kept, tool))
        elif text is not None:
            lesson_rows.forget_where(*place, lambda _, body: forgetting.holds(body, text))

    def _forget_pattern(self, id: str) -> None:
        for table in ("patterns", "pattern_days", "pattern_agents", "decisions"):
            self._writer.execute(f"DELETE FROM {table} WHERE tenant = ? AND id = ?", (self._tenant, id))
        merged = self._ask("SELECT id, body FROM decisions WHERE tenant = ?")
        for other, body in merged:
            if msgspec.json.decode(body).get("into") == id:
                self._writer.execute("DELETE FROM decisions WHERE tenant = ? AND id = ?", (self._tenant, other))

    def _forget_counted_tool(self, tool: str) -> set[str]:
        """Subtract the remaining counters of a tool, whose rows may have been pruned. Return its patterns."""
        rows = self._ask("SELECT grain, bucket, value, cell, rest FROM rollups WHERE tenant = ? AND slice = 'place'")
        for grain, bucket, value, cell, rest in rows:
            place = place_of(bucket, value)
            if place.name == tool and place.type:
                self._ledger.rollups.add(
                    self._writer, self._tenant, _negative({place: figures.unpack(cell, rest)}), grains=(grain,)
                )
        return {id for (id,) in self._ask("SELECT id FROM patterns WHERE tenant = ? AND tool = ?", tool)}

    def _forget_counted_text(self, text: str) -> int:
        """Erase a text from counters and patterns, also of pruned rows. Return the number of changed patterns."""
        columns = ("tool", "kind", "server", "message", "template")
        patterns = self._holding(f"SELECT id, {', '.join(columns)} FROM patterns WHERE tenant = ?", 1, 2, 3, 4, 5)
        for id, *values in patterns:
            cleaned = [value and value.replace(text, forgetting.FORGOTTEN) for value in values]
            self._writer.execute(
                f"UPDATE patterns SET {' = ?, '.join(columns)} = ? WHERE tenant = ? AND id = ?",
                (*cleaned, self._tenant, id),
            )
        self._writer.executemany(
            "UPDATE fixed SET words = ? WHERE tenant = ? AND tool = ? AND pattern = ?",
            [
                (words.replace(text, forgetting.FORGOTTEN), self._tenant, tool, pattern)
                for tool, pattern, words in self._holding("SELECT tool, pattern, words FROM fixed WHERE tenant = ?", 2)
            ],
        )
        for id, agent, count in self._holding("SELECT id, agent, count FROM pattern_agents WHERE tenant = ?", 1):
            self._writer.execute(
                "DELETE FROM pattern_agents WHERE tenant = ? AND id = ? AND agent = ?", (self._tenant, id, agent)
            )
            self._writer.execute(
                tallies.AGENT.one, (self._tenant, id, agent.replace(text, forgetting.FORGOTTEN), count)
            )
        rows = self._holding("SELECT grain, slice, bucket, value, cell, rest FROM rollups WHERE tenant = ?", 3, 5)
        for grain, slice, bucket, value, cell, rest in rows:
            self._ledger.rollups.move(
                self._writer,
                (self._tenant, grain, slice, bucket, value),
                value.replace(text, forgetting.FORGOTTEN),
                _without(figures.unpack(cell, rest), text),
            )
        for sort, owner, at, body in self._holding("SELECT sort, owner, at, body FROM compactions WHERE tenant = ?", 3):
            cleaned_body = encode(forgetting.without(bodies.read(body, Compaction), text))
            self._writer.execute(
                "UPDATE compactions SET owner = ?, body = ? WHERE tenant = ? AND sort = ? AND owner = ? AND at = ?",
                (owner.replace(text, forgetting.FORGOTTEN), cleaned_body, self._tenant, sort, owner, at),
            )
        return len(patterns)

    def _forget_shelf(self) -> int:
        rows = self._ask("SELECT kind, key, value FROM shelf WHERE tenant = ?")
        gone = [(self._tenant, kind, key) for kind, key, value in rows
                if forgetting.is_on_shelf(kind, key, value, self._what)]  # fmt: skip
        self._writer.executemany("DELETE FROM shelf WHERE tenant = ? AND kind = ? AND key = ?", gone)
        return len(gone)


def place_of(bucket: int, value: str) -> Place:
    return Place(bucket, *value.split("\x1f"))


def _negative(cells: Cells) -> Cells:
    found: Cells = {place: Cell() for place in cells}
    for place, cell in cells.items():
        figures.merge(found[place], cell, -1)
    return found


def _without(cell: Cell, text: str) -> Cell:
    """Return a copy of counters with the text erased from their names."""
    clean = Cell()
    figures.merge(clean, cell)
    clean.wrong = {name.replace(text, forgetting.FORGOTTEN): count for name, count in clean.wrong.items()}
    clean.kinds = {name.replace(text, forgetting.FORGOTTEN): count for name, count in clean.kinds.items()}
    return clean


# Recounting


def relinked(writer: Connection, tenant: str, run: Run, steps: Iterable[Step]) -> dict[int, Any]:
    steps = tuple(steps)
    links = {link.failed: link for link in link_recoveries(steps, run)}
    failed = {call.id: call for call in calls.group_attempts(steps)}
    put_links(writer, tenant, run.id, links_since(writer, tenant, run.id, FIRST), links, failed)
    return links


def rebuild(writer: Connection, tenant: str, done: Callable[[int], None] = lambda runs: None) -> None:
    """Recount links, statuses, patterns and rollups from the rows.

    Counters of days with pruned rows are retained: the rows are incomplete.
    """
    pruned = noted(writer, tenant, "pruned")
    horizon = day_of(int(pruned)) + DAY if pruned else FIRST
    writer.execute("DELETE FROM used WHERE tenant = ?", (tenant,))
    writer.execute("DELETE FROM rollups WHERE tenant = ? AND bucket >= ?", (tenant, horizon))
    writer.execute("DELETE FROM pattern_days WHERE tenant = ? AND day >= ?", (tenant, horizon))
    if not pruned:
        for table in ("patterns", "pattern_agents", "met"):
            writer.execute(f"DELETE FROM {table} WHERE tenant = ?", (tenant,))
    sums = Rollups()
    after = 0
    while rows := runs_since(writer, tenant, after):
        account = Account()
        for rowid, _, status, _, _, body in rows:
            after = rowid
            _count_anew(writer, tenant, Known(bodies.read(body, Run), status), account)
        writer.put(USED, [(tenant, *used) for used in account.used])
        counted = {place: cell for place, cell in account.counted().items() if place.hour >= horizon}
        sums.add(writer, tenant, counted)
        if pruned:
            tallies.add_days(writer, tenant, [each for each in account.seen if each.step.started >= horizon])
        else:
            tallies.add(writer, tenant, account.seen)
        done(len(rows))
    if pruned:
        tallies.sum_days(writer, tenant)


def _count_anew(writer: Connection, tenant: str, known: Known, account: Account) -> None:
    run = known.run
    before = history_of(writer, tenant, run)
    links = relinked(writer, tenant, run, before.steps)
    history = msgspec.structs.replace(before, links=tuple(links.values()))
    status = derive_status(run, history.steps, history.links)
    is_plain = all(call.first.seq == call.id and len(call.steps) == 1 and call.has_succeeded and not call.has_failed
                   for call in calls.group_attempts(history.steps))  # fmt: skip
    set_status(writer, tenant, run.id, status, is_plain)
    if not is_plain:
        learning.relearn(writer, tenant, run, history.steps)
    account.add_used(run, history.steps, set())
    account.add(NOTHING, part_of(history))
    account.add_run(None, run, status)


def rebuild_all(writer: Connection, done: Callable[[int], None] = lambda runs: None) -> None:
    """Recount all tenants of a store whose earlier schema had no counters."""
    writer.execute(
        "INSERT INTO orphans (tenant, run) SELECT DISTINCT tenant, run FROM steps s "
        "WHERE NOT EXISTS (SELECT 1 FROM runs r WHERE r.tenant = s.tenant AND r.id = s.run) ON CONFLICT DO NOTHING"
    )
    for (tenant,) in writer.execute("SELECT tenant FROM runs UNION SELECT tenant FROM orphans").fetchall():
        rebuild(writer, tenant, done)


def count_anew(writer: Connection, version: int, progress: Progress | None) -> None:
    """Complete the migration from this schema version with steps that SQL cannot express."""
    ((sums,),) = writer.execute("SELECT count(*) FROM rollups").fetchall()
    ((runs,),) = writer.execute("SELECT count(*) FROM runs").fetchall()
    so_far, of = 0, sums + (runs if version < RECOUNTED_AT else 0)

    def done(number: int) -> None:
        nonlocal so_far
        so_far += number
        if progress is not None:
            progress(min(so_far, of), of)

    repack(writer, done)
    if version < RECOUNTED_AT:
        rebuild_all(writer, done)
