"""The documentation states the limits of retries as the code has them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mulligan.recover import model, policy, target_state
from mulligan.recover.policy import Policy

ROOT = Path(__file__).parent.parent
SECONDS, AWAITED_SECONDS = f"{policy.DEFAULT_RETRY_SECONDS:g}", f"{policy.AWAITED_RETRY_SECONDS:g}"
OUTAGE_SECONDS, ATTEMPTS = f"{policy.AWAITED_OUTAGE_SECONDS:g}", policy.DEFAULT_ATTEMPTS
AWAITED_ATTEMPTS, DEFAULT = policy.AWAITED_ATTEMPTS, Policy()
NUMBER_WORDS = ["no", "one", "two", "three", "four", "five"]
BEFORE_MODEL = NUMBER_WORDS[model.MAX_ATTEMPTS_BEFORE_MODEL]
BEFORE_FALLBACK = NUMBER_WORDS[model.MAX_ATTEMPTS_BEFORE_FALLBACK]
TIMEOUT_TOKENS = NUMBER_WORDS[target_state.TIMEOUT_TOKENS]
SUCCESS_TOKENS = NUMBER_WORDS[target_state.SUCCESS_TOKENS]
DOWN_AFTER_UNRELIABLE = DEFAULT.down_after * target_state.UNRELIABLE_STREAK_FACTOR
RETRY_RULE = {
    "README.md": [
        f"retried for up to {SECONDS} s and {ATTEMPTS} attempts",
        f"answers a model, for {AWAITED_SECONDS} s and {AWAITED_ATTEMPTS} attempts",
    ],
    "docs/recover.md": [
        f"gets at most {ATTEMPTS} attempts, and no retry starts later than {SECONDS} s after it began",
        f"answers a model gets at most {AWAITED_ATTEMPTS} attempts within {AWAITED_SECONDS} s",
        f"Delays double from {DEFAULT.initial_backoff:g} s to {DEFAULT.compute_backoff(9, None, 0.0):g} s",
        f"| attempts | {ATTEMPTS} | {AWAITED_ATTEMPTS} |",
        f"| seconds until the last retry starts | {SECONDS} | {AWAITED_SECONDS} |",
        f"is down](#targets-that-are-down) | {SECONDS} | {OUTAGE_SECONDS} |",
        f"| repairs | {policy.MAX_CALL_REPAIRS} per call, {DEFAULT.max_run_retries} per run |",
        f"until {DEFAULT.max_backoff:g} s after the call began; {policy.MODEL_MAX_BACKOFF_SECONDS:g} s for models",
        f"After {DEFAULT.down_after} failures in a row without an answer",
        f"at least {target_state.MIN_PROBE_SECONDS:g} s. Probes do not count",
        f"Each target has {DEFAULT.retry_tokens} tokens. A retry that fails costs one, and {TIMEOUT_TOKENS}",
        f"Each success returns {SUCCESS_TOKENS}",
        f"down only after {DOWN_AFTER_UNRELIABLE}",
        f"calls are retried for {SECONDS} s",
        f"| `retry_seconds` | {SECONDS}; {AWAITED_SECONDS} and {OUTAGE_SECONDS} for calls that answer a model |",
        f"| `retry_tokens` | {DEFAULT.retry_tokens} |",
        f"| `down_after` | {DEFAULT.down_after} |",
        f"kept for up to {target_state.MAX_TARGETS:,} targets, each for {target_state.MAX_IDLE_SECONDS / 60:g} minutes",
        f"By default {ATTEMPTS}, and {AWAITED_ATTEMPTS} for a call that answers a model",
        f"By default {SECONDS}; {AWAITED_SECONDS} for a call that answers a model, {OUTAGE_SECONDS} while its",
    ],
    "docs/models.md": [
        f"at most {policy.MODEL_MAX_BACKOFF_SECONDS:g} s unless you set `max_backoff`. After {BEFORE_MODEL} attempts",
        f"gets at most {ATTEMPTS} attempts within {SECONDS} s",
        f"`fallback` (after {BEFORE_FALLBACK} attempts)",
        f"took longer than {SECONDS} s",
    ],
    "docs/safety.md": [
        f"at most {ATTEMPTS} attempts per call, none starting later than {SECONDS} s after it began; "
        f"{AWAITED_ATTEMPTS} attempts within {AWAITED_SECONDS} s for a call that answers a model, "
        f"or {OUTAGE_SECONDS} s while its target is down",
        f"{DEFAULT.max_backoff:g} s for tools, {policy.MODEL_MAX_BACKOFF_SECONDS:g} s for models",
        f"at most {policy.MAX_CALL_REPAIRS} repairs per call and {DEFAULT.max_run_retries} per run",
        f"{DEFAULT.retry_tokens} tokens per target: a retry that fails costs one ({TIMEOUT_TOKENS} after a timeout), "
        f"a success returns {SUCCESS_TOKENS}",
        f"after {DEFAULT.down_after} failures in a row without an answer a target is down",
        f"is down after {DOWN_AFTER_UNRELIABLE}",
    ],
    "docs/rollout.md": [f"Retries end after {ATTEMPTS} attempts or {SECONDS} s"],
    "docs/faq.md": [f"the limit of {ATTEMPTS} attempts is reached", f"Each success returns {SUCCESS_TOKENS}"],
    "docs/settings.md": [
        f"maximum attempts of a call: {ATTEMPTS}, or {AWAITED_ATTEMPTS} for a call that answers a model",
        f"| `initial_backoff` | {DEFAULT.initial_backoff:g} |",
        f"| `max_backoff` | {DEFAULT.max_backoff:g} | maximum backoff in seconds; for models "
        f"{policy.MODEL_MAX_BACKOFF_SECONDS:g},",
        f"call began: {SECONDS}, or {AWAITED_SECONDS} for a call that answers a model ({OUTAGE_SECONDS} while its",
        f"| `max_run_retries` | {DEFAULT.max_run_retries} |",
        f"| `retry_tokens` | {DEFAULT.retry_tokens} |",
        f"| `down_after` | {DEFAULT.down_after} |",
    ],
}
"""What the documentation says about retries, with the numbers of the code."""


@pytest.mark.parametrize("name", RETRY_RULE)
def test_the_documentation_states_the_retry_rule_with_the_numbers_of_the_code(name):
    text = re.sub(r"\s+", " ", (ROOT / name).read_text())
    assert [phrase for phrase in RETRY_RULE[name] if phrase not in text] == []
    for number in re.findall(r"at most (\w+) attempts", text):
        assert number in (str(ATTEMPTS), str(AWAITED_ATTEMPTS)), f"at most {number} attempts"
