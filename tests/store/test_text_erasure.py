"""Texts are erased from every field whose values mulligan does not define."""

from __future__ import annotations

from mulligan.core.failure import Remedy
from mulligan.core.records import Change, Recovery, Step
from mulligan.store.text_erasure import ERASED_MARK, erase_text


def test_text_is_erased_from_the_free_source_of_a_recovery() -> None:
    recovery = Recovery(remedy=Remedy.REPAIR, source="memory of 4711-0815")
    step = Step(run="run_1", seq=1, call=1, name="pay", started_at=0, recovery=recovery)
    erased = erase_text(step, "4711-0815")
    assert erased.recovery is not None
    assert erased.recovery.source == f"memory of {ERASED_MARK}"


def test_values_that_mulligan_defines_stay() -> None:
    change = Change(path="k", operation="substitute", before="call me", after="call", source="call")
    assert erase_text(change, "call") == Change(
        path="k", operation="substitute", before=f"{ERASED_MARK} me", after=ERASED_MARK, source="call"
    )
