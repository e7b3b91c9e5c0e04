"""A rehearsal of whatever is wrapped in a test: no waiting, no files, and every event in a list."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mulligan.testing import Sandbox, sandbox


@pytest.fixture
def played() -> Iterator[Sandbox]:
    with sandbox() as played:
        yield played
