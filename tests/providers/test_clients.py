"""The real clients of OpenAI, Anthropic and LiteLLM recover from each class of failure, over a fake provider.

They are heavy and not needed otherwise: `make test-providers` installs them and runs this; elsewhere it is skipped.
"""

from __future__ import annotations

import os

import pytest
from outcomes import CASES, CLIENTS, Case, Client, is_about, outcome

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no network

PAIRS = [(case, client) for client in CLIENTS for case in CASES if is_about(case, client)]


@pytest.mark.filterwarnings("ignore")  # those of the clients are theirs
@pytest.mark.parametrize(
    ("case", "client"), PAIRS, ids=[f"{client.name}: {case.name}".replace(" ", "_") for case, client in PAIRS]
)
def test_each_class_of_failure_ends_as_the_page_says(case: Case, client: Client) -> None:
    if not client.is_here:
        pytest.skip(f"{client.package} is not installed: make test-providers")
    told, provider, played = outcome(case, client)
    assert told == case.expected
    by_us = [step.after for step in played.steps if step.after and step.after.source == "fallback"]
    made = len(played.steps) - sum(not after.changes for after in by_us)
    assert len(provider.requests) == made  # the client itself has repeated nothing
    assert all(wait <= 90 for wait in played.waits)
