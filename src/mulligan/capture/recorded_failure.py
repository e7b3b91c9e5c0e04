"""Failures that a program records itself, mostly while it handles an error: whatever it passes, nothing is raised."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from mulligan.capture.context import CaptureContext
from mulligan.core import fork_safety
from mulligan.core.failure import Failure, to_code
from mulligan.core.kinds import KINDS


def build_recorded_failure(
    capture: CaptureContext,
    type: str | Enum,
    code: str | Enum,
    message: object,
    *,
    source: str,
    tool: str,
    arguments: object,
    facts: Mapping[str, Any],
) -> Failure:
    """Build the failure that a program describes. `source` is the type of what failed, `tool` its name.

    Without a code, the message is classified. An undeclared code is stored as it is, and logged once.
    """
    text = _to_text(message)
    type_name, code_name = to_code(type), to_code(code)
    values = arguments if isinstance(arguments, dict) else None
    classified = capture.classify_safely(text=text, source=type_name or source, tool=tool, arguments=values)
    kind, fingerprint = classified.kind, classified.fingerprint
    if code_name:
        with fork_safety.import_lock:
            from mulligan.classify.recorded_kinds import find_fingerprint, name_kind  # lazy: few programs name kinds
        kinds = capture.kinds if capture.kinds is not None else KINDS
        kind, warning = name_kind(type_name, code_name, kinds, source=source)
        if warning and capture.kinds is not None:  # otherwise mulligan is off, and nobody has read the declared ones
            capture.warn_once(str(kind), "undeclared kind", "%s", warning)
        fingerprint = find_fingerprint(kind, msgspec.structs.replace(classified, message=text), tool, values)
    return Failure.of(kind, text, **{"fingerprint": fingerprint, **_check_facts(capture, facts)})


def _to_text(message: object) -> str:
    try:
        return str(message)
    except Exception:  # noqa: BLE001 - it may be an exception, which the user is handling
        return message.__class__.__name__


def _check_facts(capture: CaptureContext, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that are fields of a failure, with values that can be stored. The others are logged once."""
    if not facts:
        return {}
    types = typing.get_type_hints(Failure)
    checked: dict[str, Any] = {}
    for name, value in facts.items():
        try:
            if name in ("kind", "remedy", "message"):
                raise ValueError("it follows from type and code")
            checked[name] = msgspec.convert(value, types[name], strict=False)
        except (KeyError, ValueError) as error:
            reason = "a failure has no such field" if isinstance(error, KeyError) else str(error)
            capture.warn_once(
                name, "recorded failure", "Ignored %.80r of a recorded failure: %.200s. Add it to the step's metadata.",
                name, reason,
            )  # fmt: skip
    return checked
