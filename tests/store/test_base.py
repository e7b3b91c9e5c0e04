"""The module that the documentation of 0.1.0 names for `Retention` still has it."""

from __future__ import annotations

import mulligan.contract.store
from mulligan.contract.store import Retention


def test_retention_has_the_name_of_0_1_0():
    assert mulligan.contract.store.Retention is Retention
