"""Short texts that state a failure in words that no rule knows, and similar ones that state none."""

from __future__ import annotations

import pytest

from mulligan.classify.statements import may_state_failure, score_statement, states_failure

STATEMENTS = [
    "anchor hash mismatch at 12:b7, the line now reads 12:f0; nothing written",
    "list_rows: table does not exist: orders_2031. Similar: orders",
    "Sorry, this item has been removed or never existed.",
    "hr-core is closed until 04:30, nothing was read",
    "Die Sitzung ist abgelaufen, bitte melden Sie sich erneut an.",
    "Aucune autorisation pour ce dossier.",
    "只今アクセスが集中しております。しばらく時間をおいてから再度お試しください。",
    "ERR 7719",
]
OTHERS = [
    "Error messages: what they should say",
    "Failed to connect? Five things to check\n\n1. The name of the host\n2. The port\n",
    "Unknown artist, Bern, oil on canvas, 1902",
    "Error rate: 0.2 %",
    "ana: prod is down, 502 everywhere\nbo: fixed, bad deploy",
    "On call: Sam. Open: 1 (high error rate). Closed today: 3.",
    'The label reads "access denied" in red letters.',
    "Deleted 4 failed jobs.",
    "No results found.",
    "We never fail our customers and you know it.",
    "Dear Ms Okafor, your application was rejected, since your quota is exhausted.",
    "HTTP 429 means that you sent too many requests and must wait.",
    "throw new Error(`card expired`);",
    "src/a.py:4:    raise ValueError('invalid')",
]


@pytest.mark.parametrize("text", STATEMENTS)
def test_sentence_that_says_what_failed_is_a_statement(text: str) -> None:
    assert states_failure(text)
    assert may_state_failure(text), "the cheap check lets it pass"


@pytest.mark.parametrize("text", OTHERS)
def test_heading_log_measurement_quotation_and_code_are_none(text: str) -> None:
    assert not states_failure(text)


def test_long_text_is_none() -> None:
    assert score_statement("The order could not be found. " * 20) == 0
