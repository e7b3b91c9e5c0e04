"""Long texts that are alike for different items: letters, reports (LEARNING.md, rule 4, evidence 5)."""

from __future__ import annotations

from pathlib import Path

import pytest

from mulligan.api import Mulligan

TEXT = (
    "Dear {name}, your subscription ends at the end of this month. Please renew it in time, or write to us "
    "if you have questions about it. Kind regards, the office"
)


def send_letters(store: Path, names: str, refused: str) -> str:
    """Send a letter to each of some people, of whom some are refused. Return the status of the run."""
    mulligan = Mulligan()
    mulligan.configure(store=str(store))

    @mulligan.tool(effects="once")
    def send_letter(body: str) -> str:
        if any(f"Dear {name}," in body for name in refused):
            raise ValueError("The letter could not be printed.")
        return "sent"

    try:
        with mulligan.run("office") as run:
            for name in names:
                try:
                    send_letter(TEXT.format(name=name))
                except ValueError:
                    continue
        mulligan.flush(30)
        return run.status
    finally:
        mulligan.close()


@pytest.mark.parametrize(("names", "refused"), [("ABC", "B"), ("ABCD", "B"), ("ABCD", "C"), ("ABC", "A")])
def test_letter_to_another_person_corrects_none_whenever_a_like_letter_was_sent(tmp_path, names, refused):
    assert send_letters(tmp_path / "a.db", names, refused) == "partial"


def test_letters_to_two_people_are_items_once_two_like_ones_were_sent_in_a_run(tmp_path):
    assert send_letters(tmp_path / "a.db", "AB", "A") == "recovered"  # as far as one run can tell, an edit
    assert send_letters(tmp_path / "a.db", "AB", "") == "success"
    assert send_letters(tmp_path / "a.db", "AB", "A") == "partial"
