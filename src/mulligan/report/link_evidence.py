"""Text rendering of the evidence for recovery links."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from mulligan.core.calls import group_attempts
from mulligan.core.records import Fix, History, Link, LinkEvidence
from mulligan.store.base import Store, TrialReport

MAX_EXPLAINED_RUNS = 20
"""Latest runs of a fix that are read to explain it."""
PROVISIONAL = "provisional until the run ends"
EVIDENCE_TEXTS: dict[LinkEvidence, str] = {
    "same_arguments": "same arguments",
    "same_values": "same values in another form",
    "missing_arguments": "the error names the missing argument",
    "conversation": "same conversation continued",
    "attempt": "another attempt at the same call",
    "handler": "made in the error handler",
    "model_turn": "the model's next turn",
    "next_call": "the tool's next call in the log",
    "stated_limit": "the error states the limit",
    "tool_result": "the value came from a tool result",
    "same_text": "corrected text",
    "explicit": "marked by the program",
}


def describe_evidence(link: Link) -> str:
    """Describe why both calls of a recovery link have the same intent."""
    reasons = [EVIDENCE_TEXTS[evidence] for evidence in link.evidence] or ["not recorded"]
    if link.provisional:
        reasons.append(PROVISIONAL)
    return ", ".join(reasons)


def explain_trials(store: Store, tenant: str, fix: Fix, trials: Iterable[TrialReport]) -> dict[str, str]:
    """Return the evidence of the links behind a fix, by run. Only the latest runs are read."""
    reasons: dict[str, str] = {}
    for trial in islice(trials, MAX_EXPLAINED_RUNS):
        history = store.run(tenant, trial.run)
        if history is not None and (links := _links_of(history, fix)):
            reasons[trial.run] = "; ".join(dict.fromkeys(map(describe_evidence, links)))
    return reasons


def _links_of(history: History, fix: Fix) -> list[Link]:
    """Return the links whose failed call has the tool and fingerprint of a fix."""
    failed_calls = {
        call.id
        for call in group_attempts(history.steps)
        if call.name == fix.tool
        and any(step.failure is not None and step.failure.fingerprint == fix.fingerprint for step in call.steps)
    }
    return [link for link in history.links if link.failed_call in failed_calls]
