"""Spool of successful calls after a failure. Nothing is answered to them, so they wait redacted in a file.

Such a success may have recovered the failure. The next event of the session that must be stored, or the next command,
stores it. Imports no classification and no store, which take most of the time of a hook.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from mulligan import settings as settings_file
from mulligan.core.events import StepEnded, redact_event
from mulligan.core.records import Step, encode, new_id
from mulligan.hooks import agents, session_files
from mulligan.hooks.agents import AgentCall, SpooledEvent
from mulligan.journal import EVENT_FRAME, encode_frame, read_frames
from mulligan.redaction import Redactor
from mulligan.settings import Settings

MAX_SPOOLED_EVENTS = 10
"""Events after which the next one is stored, with the spooled ones: then the failure may no longer be recoverable."""


def spool_successes(agent: str, data: bytes) -> bool:
    """Spool an event with successful calls. Return False if it must be processed instead."""
    try:
        raw_event = msgspec.json.decode(data)
    except msgspec.DecodeError:
        return False
    event = agents.parse_event(agent, raw_event) if isinstance(raw_event, dict) else None
    if event is None or not event.session or not event.calls or any(map(_needs_processing, event.calls)):
        return False
    settings = settings_file.load_settings(of_user=True)
    if not settings.enabled or settings.record != "full":
        return False
    path = Path(session_files.session_file_path(event.session.encode("utf-8", "replace"), ".spool"))
    if path.exists() and len(list(read_frames(path))) >= MAX_SPOOLED_EVENTS:
        return False
    redactor, now = build_redactor(settings), int(time.time() * 1000)
    calls = [(call.id, redact_call(build_success(agent, call, now), redactor)) for call in event.calls]
    spooled = SpooledEvent(id=new_id("event"), at=now, event=replace(event, calls=()), calls=calls)
    frame = encode_frame(EVENT_FRAME, encode(spooled))
    try:
        session_files.append_frame(event.session, frame, must_process_next=False)
    except OSError:
        return False  # no space in the folder; perhaps the store has some
    return True


def _needs_processing(call: AgentCall) -> bool:
    return call.error is not None or call.is_interrupted or call.is_rejected


def build_redactor(settings: Settings) -> Redactor:
    """Build the redactor of records with the user's settings."""
    options: dict[str, Any] = {
        "names": settings.redact_names,
        "patterns": settings.redact_patterns,
        "allowed": settings.redact_ignore,
        "unredacted_arguments": settings.unredacted_arguments,
        "keeps_quantities": True,
    }
    return Redactor(level=settings.level, **options)


def build_success(agent: str, call: AgentCall, now: int) -> Step:
    """Return the step of a successful call. Its position follows when it is added to the run."""
    return Step(
        run="", seq=0, call=0, name=call.name, server=call.server,
        key=None if call.server else f"{agent}:{call.name}",
        arguments=call.arguments,
        started_at=now - int(call.duration_seconds * 1000),
        duration_seconds=call.duration_seconds,
    )  # fmt: skip


def redact_call(step: Step, redactor: Redactor) -> Step:
    """Return a step redacted and without its result, which is a file or the output of a command."""
    return cast(StepEnded, redact_event(StepEnded(replace(step, result=None)), redactor)).step
