"""A server for each test, on a store of its own."""

from __future__ import annotations

import pytest


@pytest.fixture
def serving(tmp_path):
    from servers import served  # skips, with the reason, where the extra is not installed

    with served(tmp_path) as running:
        yield running


@pytest.fixture
def anybody(serving):
    return serving.anybody()


@pytest.fixture
def person(serving):
    return serving.person()
