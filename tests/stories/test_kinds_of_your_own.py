"""Kinds and rules of one's own, in a project's file: in force in the program, its records and the command."""

from __future__ import annotations

import json

SETTINGS = """
[kinds."tool/card_declined"]
remedy = "replan"
took_effect = "no"
hint = "Ask the customer for another card."

[[rules]]
kind = "tool/card_declined"
words = ["card was declined"]
"""


def test_a_kind_of_ones_own_is_told_to_the_model_recorded_and_explained(user):
    (user.folder / "mulligan.toml").write_text(SETTINGS)
    done = user.runs_program("""
        import mulligan

        def pay(amount):
            raise RuntimeError("The card was declined by its bank.")

        for turn in mulligan.turns(limit=1):
            print(turn.call([pay], "pay", {"amount": 3}).to_message())
        print(mulligan.classify_error(text="card was declined").kind)
    """)
    told, explained = done.stdout.splitlines()
    assert json.loads(told)["error"] == "tool/card_declined"
    assert json.loads(told)["hint"] == "Ask the customer for another card."
    assert explained == "tool/card_declined"
    assert user.sees("runs")[0]["calls"][0]["kind"] == "tool/card_declined"
    assert "tool/card_declined" in user.types("classify", stdin="Sorry, your card was declined.").stdout


def test_a_kind_that_cannot_be_meant_is_refused_with_the_nearest_name(user):
    (user.folder / "mulligan.toml").write_text(SETTINGS.replace('remedy = "replan"', 'remedy = "repln"'))
    done = user.runs_program("import mulligan; print(mulligan.tool(abs)(-1))")
    assert done.stdout == "1\n"
    assert "replan" in done.stderr
    said = user.types("classify", stdin="card was declined")
    assert said.returncode == 2
    assert "replan" in said.stderr
