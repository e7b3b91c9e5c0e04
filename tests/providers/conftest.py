"""Clients of providers close their sockets when they are collected: in the test that made them, not at the end."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    gc.freeze()  # what the packages of earlier tests left is not traversed: half of the time of this tier
    yield
    gc.collect()
