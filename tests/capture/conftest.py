"""A rehearsal of whatever is wrapped in a test: no waiting, no files, and every event in a list."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mulligan.testing import Rehearsal, rehearsal


@pytest.fixture
def played() -> Iterator[Rehearsal]:
    with rehearsal() as played:
        yield played
