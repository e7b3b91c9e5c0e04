"""mulligan reflect: what the user's own model suggests for a recorded failure."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import click

from mulligan.build import build_redactor, build_reflector, connect_reflector
from mulligan.capture.reflector import Reflector
from mulligan.capture.run_judge import TOOL_STEP_TYPES
from mulligan.cli.analyze import build_fix_lookup
from mulligan.cli.options import CommandContext, command, find_run, import_function
from mulligan.contract.store import DEFAULT_TENANT, Store
from mulligan.core.calls import Call, group_attempts
from mulligan.core.failure import Failure, Remedy, SettingsError
from mulligan.core.records import History, Recovery
from mulligan.prompt import Prompt
from mulligan.prompt.reflection_messages import RunCall
from mulligan.record.memory_lookup import find_profiles, to_precedent
from mulligan.recover.policy import EarlierCall, Suggestion, Tool
from mulligan.recover.reflection import Reflection, parse_reflection
from mulligan.recover.repair import suggest
from mulligan.report.tables import render_pairs, to_line


@command("mulligan reflect run_8f2c", "mulligan reflect run_8f2c --call 4 --using http://localhost:11434/v1#qwen3")
@click.argument("run")
@click.option("--call", "number", type=click.IntRange(1), help="Number of the failed call. Default: the last one.")
@click.option(
    "--using", metavar="URL#MODEL", help="Endpoint and model, or MODULE:FUNCTION. Default: the setting reflect."
)
def reflect(context: CommandContext, run: str, number: int | None, using: str | None) -> None:
    """Ask your own model how a failed call should be corrected. Nothing is called or changed.

    The model gets the call as it is stored, that is without secrets, the error as data, and what recovered the same
    failure before. Exits 1 if it has no suggestion.
    """
    store = context.find_store()
    if store is None:
        raise SettingsError(f"No runs in {context.where} yet. Name another store with --store, or try: mulligan demo")
    history = find_run(store, run, context.now)
    call = _find_failed_call(history, number)
    reflector = build_connected_reflector(context, store, using)
    facts = _reflect_on(call, history, store, context, reflector)
    rows = [(name, to_line(str(value), 400)) for name, value in facts.items() if value not in (None, "")]
    context.print(facts, [f"{call.name}, call {call.id} of {history.run.id}", "", *render_pairs(rows, context.width)])
    sys.exit(0 if facts["suggestion"] else 1)


def _find_failed_call(history: History, number: int | None) -> Call:
    calls = [call for call in group_attempts(history.steps) if call.has_failed and call.first.type in TOOL_STEP_TYPES]
    if number is not None:
        calls = [call for call in calls if call.id == number]
    if not calls:
        which = f"Call {number} of {history.run.id}" if number else f"No tool call of {history.run.id}"
        raise SettingsError(f"{which} has failed. List the calls: mulligan show {history.run.id}")
    return ([call for call in calls if not call.has_succeeded] or calls)[-1]


def build_connected_reflector(context: CommandContext, store: Store, using: str | None = None) -> Reflector:
    """Build the reflector of `--using` or the settings, with the limits per day of the store."""
    settings = context.settings
    reflector: Reflector | None
    if using and "://" not in using:
        reflector = build_reflector(import_function("--using", using))
    else:
        reflector = build_reflector(using or settings.reflect, settings.reflect_key)
    if reflector is None:
        raise SettingsError(
            "No reflector is set. Pass --using http://localhost:11434/v1#MODEL, or set reflect in your settings."
        )
    connect_reflector(reflector, store, time.time)
    return reflector


def build_text_model(context: CommandContext, store: Store) -> Callable[[str], str]:
    """Return the reflector as a function of texts, within its limits. It returns nothing if it is not asked."""
    reflector = build_connected_reflector(context, store)

    def ask(text: str) -> str:
        reply = reflector.ask(text)
        if isinstance(reply, str) or reply.error:
            click.echo(f"No rewording: {reply if isinstance(reply, str) else reply.error}.", err=True)
            return ""
        return reply.text

    return ask


def _reflect_on(
    call: Call, history: History, store: Store, context: CommandContext, reflector: Reflector
) -> dict[str, Any]:
    step = next(step for step in reversed(call.steps) if step.has_failed)
    arguments = step.arguments if isinstance(step.arguments, dict) else {}
    failure = step.failure
    assert isinstance(failure, Failure)
    tool_steps = [step for step in history.steps if step.type in TOOL_STEP_TYPES]
    # With the attempts of this call before the one that is asked about.
    earlier_calls = [EarlierCall.from_step(earlier) for earlier in tool_steps if earlier.seq < step.seq]
    prompt = Prompt(build_redactor(context.settings, "local", personal=False)).for_arguments(arguments)
    fixes = build_fix_lookup(store, history.run.agent)(call.name, step.tool_key, failure, arguments, "", history.run.id)
    tools = dict.fromkeys(tool_step.name for tool_step in tool_steps if tool_step.outcome == "success")
    request = prompt.reflection_request(
        call.name,
        arguments,
        failure,
        precedents=[to_precedent(fix) for fix in fixes if fix.showable],
        profiles=find_profiles(store, DEFAULT_TENANT, call.name, step.tool_key),
        calls=[
            RunCall(earlier.tool, earlier.arguments, earlier.result, not earlier.has_succeeded)
            for earlier in earlier_calls
        ],
        tools=tools,
    )
    if not request:
        raise SettingsError(f"Call {call.id} is too long to be sent to a model.")
    reply = reflector.ask(request)
    if isinstance(reply, str):
        raise SettingsError(f"The model was not asked: {reply}.")
    answer = reply.error or parse_reflection(reply.text)
    facts: dict[str, Any] = {
        "kind": str(failure.kind),
        "error": failure.message,
        "suggestion": "",
        "tokens": reply.tokens,
        "seconds": round(reply.seconds, 3),
    }
    if not isinstance(answer, Reflection):
        return facts | {"reason": answer}
    tool = Tool(name=call.name, effects=step.effects or "once", key=step.tool_key)
    calibrated = reflector.calibrate(step.tool_key, answer, tools)
    suggestions = suggest(arguments, failure, tool, earlier_calls, reflection=calibrated)
    suggestion = next((suggestion for suggestion in suggestions if suggestion.source == "reflection"), None)
    facts |= {"reason": answer.reason, "stated_confidence": answer.confidence}
    if suggestion is None:
        return facts
    return facts | {
        "suggestion": _describe(suggestion, prompt),
        "confidence": suggestion.confidence,
        "automatic": "yes" if suggestion.automatic else f"no: {suggestion.reason}",
        "arguments": suggestion.arguments,
    }


def _describe(suggestion: Suggestion, prompt: Prompt) -> str:
    prerequisites = tuple(call.tool for call in suggestion.prerequisites)
    return prompt.suggestion(Recovery(remedy=Remedy.REPAIR, changes=suggestion.changes, prerequisites=prerequisites))
