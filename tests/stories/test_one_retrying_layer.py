"""A program with a retry library around its tools: nothing is called nine times, and the record says who retries.

`tests/capture/test_retry_layers.py` and `tests/providers/test_client_retries.py` have the whole matrix.
"""

from __future__ import annotations

import pytest
import tenacity

import mulligan
from mulligan import Policy


def test_show_names_the_layer_that_retries(tmp_path, types) -> None:
    store = str(tmp_path / "failures.db")
    program = mulligan.Mulligan()
    program.configure(store=store, policy=Policy(initial_backoff=0.001))

    @program.tool(effects="none")
    @tenacity.retry(stop=tenacity.stop_after_attempt(3))
    def fetch() -> None:
        raise ConnectionError("reset")

    with program.run("agent") as run, pytest.raises(tenacity.RetryError):
        fetch()
    program.close()

    shown = " ".join(types("show", run.id, "--store", store)[1].split())
    assert "tenacity inside this call made 3 attempts, so mulligan makes no more" in shown
