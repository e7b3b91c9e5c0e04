"""mulligan patterns and mulligan fixes: list and show failure patterns and their fixes, and decide about them."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import click

from mulligan.cli.options import (
    CommandContext,
    Decorator,
    command,
    has_filters,
    import_function,
    list_group,
    list_options,
    parse_time_option,
)
from mulligan.contract.store import (
    DAY,
    DEFAULT_TENANT,
    OWN_NAME,
    FixQuery,
    PatternAction,
    PatternCommand,
    RecallQuery,
    Revocation,
    Store,
    find_new_start,
)
from mulligan.core.failure import SettingsError
from mulligan.core.records import Fix, Lesson, Pattern, lesson_id, to_builtins
from mulligan.learn import lesson_files, project_lessons
from mulligan.learn.patterns import find_related
from mulligan.learn.working_calls import PastFailure
from mulligan.report import memory_text
from mulligan.report.resources import FIX_SPEC, PATTERN_SPEC
from mulligan.report.run_text import explain_trials
from mulligan.report.tables import SHOWN_ID_CHARS, format_count, render_columns, to_line

MAX_LISTED_FIXES = 100_000
ACTION_HELP: dict[PatternAction, str] = {
    "merge": "Count PATTERN as part of INTO from now on, including earlier occurrences.",
    "mute": "Hide patterns from lists and alerts.",
    "unmute": "Show muted patterns in lists and alerts again.",
    "resolve": "Mark patterns as resolved; they reopen at the next occurrence, in a version that is not older.",
    "reopen": "Reopen resolved patterns.",
    "split": "Separate patterns that were merged into others.",
    "note": "Replace the note of a pattern. An empty text removes it.",
    "acknowledge": "Mark patterns as known; they stay open.",
    "assign": "Set the owner of patterns.",
    "link": "Link a pattern to its issue in a tracker. An empty address removes the link.",
    "comment": "Add a comment to the history of a pattern.",
}
ACTION_OPTIONS: dict[PatternAction, tuple[Decorator, ...]] = {
    "mute": (
        click.option("--until", metavar="7d", help="Until this time: 24h or 7d from now, a date."),
        click.option("--max-per-day", type=click.IntRange(0), help="While they occur at most so often per UTC day."),
    ),
    "resolve": (
        click.option("--version", "text", default="", help="Occurrences in older versions do not reopen them."),
    ),
    "assign": (click.option("--to", "text", default=OWN_NAME, help="A person or team; empty for none. Default: you."),),
}
"""Options of the actions that have some."""


@list_group(
    "mulligan patterns --since 7d",
    "mulligan patterns --new --since 1d || echo new failures",
    "mulligan patterns show pat_8f2c",
    "mulligan patterns similar pat_8f2c",
    "mulligan patterns assign pat_8f2c --to search-team",
    "mulligan patterns resolve pat_8f2c --version 1.5.0",
    "mulligan patterns mute pat_8f2c --max-per-day 10",
    "mulligan patterns merge pat_8f2c pat_11aa",
)
@click.option(
    "--new", is_flag=True, help="Only those new in --since (1d, at least 48 hours); exits 1 if there are any."
)
@click.option("--mine", is_flag=True, help="Only patterns that you own.")
@list_options(PATTERN_SPEC)
def patterns(context: CommandContext, new: bool, mine: bool, limit: int, as_csv: bool, **filters: Any) -> None:
    """List patterns: failures with the same cause, counted together."""
    since = filters["since"]
    if new:
        since = since if since is not None else context.now - DAY
        filters |= {"since": since, "new_since": find_new_start(since, context.now)}
    if mine:
        filters["owner"] = OWN_NAME
    store, matches = context.read_list(PATTERN_SPEC, filters, limit)
    if not context.print_list(PATTERN_SPEC, matches, limit, as_csv):
        if store is None:
            click.echo(f"Store {context.where} does not exist yet.")
            click.echo("Wrap a function with @mulligan.tool and call it, or try: mulligan demo")
        elif new:
            click.echo("No new patterns in this period.")
        else:
            click.echo("No pattern matches." if since is None else "No pattern occurred in this period.")
    elif not (context.as_json or as_csv):
        click.echo(f"\nShow one: mulligan patterns show {matches[0].id[:SHOWN_ID_CHARS]}{context.suffix}", err=True)
    sys.exit(1 if new and matches else 0)


def _require_pattern(pattern: Pattern | None, id: str) -> Pattern:
    if pattern is None:
        raise SettingsError(f"No pattern matches {id!r}, or several start with it. List patterns: mulligan patterns")
    return pattern


@command(
    "mulligan patterns similar pat_8f2c",
    "mulligan patterns similar pat_8f2c --embedder mine:embed",
    parent=patterns,
)
@click.argument("pattern")
@click.option(
    "--embedder",
    metavar="MODULE:FUNCTION",
    help="Your function that turns a text into a vector; it gets each pattern once.",
)
@click.option(
    "--limit", default=10, show_default=True, type=click.IntRange(1, 1000), help="Maximum number of patterns."
)
def similar(context: CommandContext, pattern: str, embedder: str | None, limit: int) -> None:
    """List patterns of any tool that are similar to one, with their fixes.

    A fix of a similar pattern may help: try it, or count both as one with `mulligan patterns merge`.
    """
    store = context.require_store()
    stored_pattern = _require_pattern(store.pattern(DEFAULT_TENANT, pattern), pattern)
    embed = import_function("--embedder", embedder, "embed") if embedder else None
    facts = []
    rows = [("similarity", "pattern", "tool", "fix", "message template")]
    for similarity, related in find_related(store, DEFAULT_TENANT, stored_pattern, limit, embed, embedder or ""):
        query = FixQuery(tool=related.tool, fingerprint=related.fingerprint, now=context.now, limit=1)
        fix = next(iter(store.fixes(DEFAULT_TENANT, query)), None)
        fix_facts = {"fix": memory_text.fix_facts(fix) if fix else None}
        facts.append({"similarity": round(similarity, 4), **memory_text.pattern_facts(related), **fix_facts})
        fix_text = memory_text.describe_action(fix) if fix else "-"
        template = to_line(related.template or related.message, 80)
        rows.append((f"{similarity:.0%}", related.id[:SHOWN_ID_CHARS], to_line(related.tool, 30), fix_text, template))
    if facts:
        table = render_columns(rows, right=(0,), width=context.width)
        context.print(facts, [f"{format_count(len(facts), 'similar pattern')}.", "", *table])
    else:
        context.print(facts, "No similar pattern.")


@command("mulligan patterns show pat_8f2c --json", parent=patterns, name="show")
@click.argument("pattern")
def _show_pattern(context: CommandContext, pattern: str) -> None:
    """Show one pattern: its message template, its occurrences and its fixes.

    PATTERN is an id or any unambiguous prefix.
    """
    store = context.require_store()
    stored_pattern = _require_pattern(store.pattern(DEFAULT_TENANT, pattern), pattern)
    query = RecallQuery(tool=stored_pattern.tool, fingerprint=stored_pattern.fingerprint)
    precedents = store.recall(DEFAULT_TENANT, query)
    facts = memory_text.pattern_facts(stored_pattern) | {"precedents": to_builtins(precedents)}
    context.print(facts, memory_text.render_pattern(stored_pattern, precedents, context.now, context.width))


def _add_pattern_action(action: PatternAction) -> None:
    """Register the command that applies this decision to patterns."""

    def decide(
        context: CommandContext, pattern: str | tuple[str, ...], into: str | None = None, text: str = "",
        until: str | None = None, max_per_day: int | None = None,
    ) -> None:  # fmt: skip
        store = context.require_store()
        ids = (pattern,) if isinstance(pattern, str) else pattern
        for id in (*ids, *([into] if into else [])):  # check all before any is changed
            if action != "split":
                _require_pattern(store.pattern(DEFAULT_TENANT, id), id)
        facts, sentences = [], []
        for id in ids:
            request = PatternCommand(
                action=action, pattern=id, into=into, at=context.now, until=_parse_future(until, context.now),
                max_per_day=max_per_day, **{"note" if action == "note" else "text": text},
            )  # fmt: skip
            updated_pattern = _require_pattern(store.update_pattern(DEFAULT_TENANT, request), id)
            facts.append(memory_text.pattern_facts(updated_pattern))
            sentences.append(_describe_action(action, updated_pattern, id))
        context.print(facts, "\n".join(sentences))

    if second_argument := {"merge": "into", "note": "text", "link": "text", "comment": "text"}.get(action):
        decide = click.argument(second_argument)(decide)
    for option in ACTION_OPTIONS.get(action, ()):
        decide = option(decide)
    decide = click.argument("pattern", nargs=1 if second_argument else -1, required=True)(decide)
    command(parent=patterns, name=action, help=ACTION_HELP[action])(decide)


def _parse_future(text: str | None, now: int) -> int | None:
    """Return the time that an option names: a date, or a duration from now."""
    time = parse_time_option(text)
    return time if time is None or time > now else 2 * now - time


def _describe_action(action: PatternAction, pattern: Pattern, id: str) -> str:
    occurrences = format_count(pattern.occurrences, "occurrence")
    match action:
        case "resolve":
            version = to_line(pattern.resolved_version, 80)
            if version and pattern.state == "resolved":
                return f"{pattern.id} is resolved in {version}. It reopens at an occurrence in it or a newer version."
            return f"{pattern.id} is resolved. It reopens at the next occurrence."
        case "merge":
            return f"{pattern.id} now has {occurrences}. To undo: mulligan patterns split {id}"
        case "split":
            return f"{pattern.id} is separate again, with {occurrences}."
        case "note":
            return f"Note of {pattern.id} {'replaced' if pattern.note else 'removed'}."
        case "assign":
            return f"Owner of {pattern.id}: {to_line(pattern.owner, 80) or 'none'}."
        case "link":
            return f"Issue of {pattern.id}: {to_line(pattern.link, 500) or 'none'}."
        case "comment":
            return f"Comment added to {pattern.id}."
    return f"{pattern.id} is {pattern.status}."


for _action in get_args(PatternAction):
    _add_pattern_action(_action)


# Fixes


@list_group(
    "mulligan fixes --tool search",
    "mulligan fixes show fix_8f2c",
    "mulligan fixes approve fix_8f2c",
    "mulligan fixes revoke --principal ann --since 2d",
)
@list_options(FIX_SPEC)
def fixes(context: CommandContext, limit: int, as_csv: bool, **filters: Any) -> None:
    """List fixes: what turned failures into successes, how often, and whether it is shown to models or applied."""
    _, matches = context.read_list(FIX_SPEC, filters, limit)
    if not context.print_list(FIX_SPEC, matches, limit, as_csv):
        click.echo("No fix matches." if has_filters(filters) else "No fixes yet: no failure has recovered.")
    elif not (context.as_json or as_csv):
        for reason, count in Counter(fix.hidden_reason for fix in matches if not fix.showable).most_common():
            if reason:
                click.echo(f"Not shown to models, {format_count(count, 'fix')}: {to_line(reason, 120)}", err=True)


def _find_fix(context: CommandContext, store: Store, id: str) -> Fix:
    all_fixes = store.fixes(DEFAULT_TENANT, FixQuery(now=context.now, limit=MAX_LISTED_FIXES))
    matches = [fix for fix in all_fixes if fix.id == id] or [fix for fix in all_fixes if fix.id.startswith(id)]
    if not matches:
        raise SettingsError(f"No fix matches {id!r}. List fixes: mulligan fixes")
    if len(matches) > 1:
        ids = ", ".join(fix.id for fix in matches[:5])
        raise SettingsError(f"{len(matches)} fixes start with {id!r}: {ids}{', ...' if len(matches) > 5 else ''}")
    return matches[0]


@command("mulligan fixes show fix_8f2c --json", parent=fixes, name="show")
@click.argument("fix")
def _show_fix(context: CommandContext, fix: str) -> None:
    """Show one fix: its action, whether it is applied and shown to models, its counts, and the runs behind it."""
    store = context.require_store()
    stored_fix = _find_fix(context, store, fix)
    evidence = store.evidence(DEFAULT_TENANT, stored_fix.id)
    reasons = explain_trials(store, DEFAULT_TENANT, stored_fix, evidence)
    facts = memory_text.fix_facts(stored_fix) | {"evidence": to_builtins(evidence)}
    context.print(facts, memory_text.render_fix(stored_fix, evidence, reasons, context.now, context.width))


@command("mulligan fixes approve fix_8f2c", "mulligan fixes approve fix_8f2c --project .", parent=fixes)
@click.argument("fix")
@click.option(
    "--project",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Also write it as a lesson to .mulligan/lessons of this folder, for review and version control.",
)
def approve(context: CommandContext, fix: str, project: Path | None) -> None:
    """Apply a fix automatically from now on, whatever its counts. Safety rules still hold."""
    _decide_fix(context, fix, True)
    if project is not None:
        rule = _build_project_rule(context, fix)
        lesson_files.write_folder(project / project_lessons.LESSON_FOLDER, [rule])
        click.echo("Written to .mulligan/lessons. To show it to coding agents there: mulligan lessons trust", err=True)


def _build_project_rule(context: CommandContext, id: str) -> Lesson:
    """Return the lesson about what an approved fix did, from the newest run that shows a command or a file."""
    store = context.require_store()
    fix = _find_fix(context, store, id)
    for trial in store.evidence(DEFAULT_TENANT, fix.id):
        history = store.run(DEFAULT_TENANT, trial.run)
        if history is None or not trial.successful:
            continue
        for link in history.links:
            failed = next((step for step in history.steps if step.call == link.failed_call and step.has_failed), None)
            if failed is None or failed.failure is None or failed.failure.fingerprint != fix.fingerprint:
                continue
            later = [step for step in history.steps if failed.seq < step.seq and step.call <= link.recovering_call]
            rule = project_lessons.build_rule(PastFailure(failed, link, later), lesson_id(fix.tool, fix.id), fix.id)
            if rule is not None:
                return rule
    raise SettingsError(f"No run of {fix.id} shows the command or the file that worked, so there is nothing to write.")


def _decide_fix(context: CommandContext, id: str, approved: bool) -> None:
    store = context.require_store()
    full_id = _find_fix(context, store, id).id
    store.decide(DEFAULT_TENANT, full_id, approved=approved, at=context.now)
    fix = _find_fix(context, store, full_id)
    reason = memory_text.not_automatic_reason(fix) if fix.state == "approved" else ""
    not_applied = f" (not applied: {reason})" if reason else ""
    sentence = f"{fix.id} is {fix.state}: {memory_text.describe_action(fix)}{not_applied}"
    context.print(memory_text.fix_facts(fix), sentence)


@command(
    "mulligan fixes revoke fix_8f2c",
    "mulligan fixes revoke --principal ann",
    "mulligan fixes revoke --tool search --since 2d",
    parent=fixes,
)
@click.argument("fix", required=False)
@click.option("--principal", help="All trials that this principal recorded; it is ignored from now on.")
@click.option("--tool", help="All fixes for this tool.")
@click.option("--since", "past", metavar="2d", help="All trials in runs since this time: 24h, 7d, a date.")
def revoke(context: CommandContext, fix: str | None, principal: str | None, tool: str | None, past: str | None) -> None:
    """Revoke one fix, or all trials by a principal, for a tool or since a time.

    The runs stay stored; memory ignores the revoked trials.
    """
    is_bulk = any(criterion is not None for criterion in (principal, tool, past))
    if (fix is None) == (not is_bulk):
        raise click.UsageError("Nothing selected. Name one fix, or use --principal, --tool or --since.")
    if fix is not None:
        _decide_fix(context, fix, False)
        return
    since = parse_time_option(past)
    revocation = Revocation.before(context.now, principal, tool, since)
    revoked = context.require_store().revoke(DEFAULT_TENANT, revocation)
    trials = f"{format_count(revoked.votes, 'trial')} in {format_count(revoked.runs, 'run')}"
    context.print(revoked, f"Revoked {trials}; {format_count(revoked.fixes, 'fix')} changed.")
