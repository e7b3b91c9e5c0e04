"""Changed calls of a model right after a failure: they recover nothing, and teach if they recur with contrast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import mulligan
from mulligan.contract.store import DAY
from mulligan.learn.fixes import FixAction, FixRecord, TrialDetails, Vote

PARTS = ("S1", "S2", "T1")


@pytest.fixture
def memory() -> mulligan.Mulligan:
    return mulligan.Mulligan(store="memory:")


def play(memory: mulligan.Mulligan, tool: Callable[..., Any], *calls: dict[str, Any]) -> tuple[list[str], str]:
    """Let a model make one call a turn in a run. Return the notes that it reads and the status of the run."""
    notes: list[str] = []
    with memory.run("model") as run:
        for turn, arguments in zip(memory.turns(limit=len(calls)), calls, strict=True):
            notes += turn.call([tool], tool.__name__, arguments).notes
    memory.flush()
    return notes, run.status


def build_printer(memory: mulligan.Mulligan, error: str) -> Callable[..., Any]:
    @memory.tool
    def print_part(piece: str, voice: str, copies: int) -> Any:
        return {"printed": copies} if voice in PARTS else {"error": error.format(voice=voice)}

    return print_part


def ask_for_mezzo(number: int) -> tuple[dict[str, Any], ...]:
    piece = f"piece {number}"
    return (
        {"piece": piece, "voice": "S1", "copies": 8},
        {"piece": piece, "voice": "mezzo", "copies": 3},
        {"piece": piece, "voice": "S2", "copies": 3},
    )


TOLD = "In earlier runs this recovered the call: voice=S2"


@pytest.mark.parametrize(("error", "runs"), [("E-41", 3), ("There is no such part.", 5)])
def test_correction_that_recurs_is_shown_if_another_call_is_about_another_item(memory, error, runs):
    tool = build_printer(memory, error)
    for number in range(runs):
        assert play(memory, tool, *ask_for_mezzo(number)) == ([], "partial")
    notes, status = play(memory, tool, *ask_for_mezzo(runs))
    assert [note.startswith(TOLD) for note in notes] == [True]
    assert status == "partial"  # one run shows no evidence that both calls have the same intent


def test_next_item_of_a_loop_teaches_nothing_however_often_it_recurs(memory):
    tool = build_printer(memory, "E-41")
    for number in range(12):
        calls = [{"piece": f"piece {number}", "voice": voice, "copies": 2} for voice in ("mezzo", "S2")]
        assert play(memory, tool, *calls)[0] == []


@pytest.mark.parametrize(
    ("error", "runs"),
    [("bad key {voice}", 3), ("E-41 VOICE: NOT LOADED", 3), ("There is no such part, check the voice", 5)],
    ids=["value", "argument", "asks to check"],
)
def test_error_that_mentions_what_was_changed_needs_no_other_call(memory, error, runs):
    tool = build_printer(memory, error)
    for number in range(runs):
        assert play(memory, tool, *ask_for_mezzo(number)[1:])[0] == []
    [note] = play(memory, tool, *ask_for_mezzo(runs)[1:])[0]
    assert note.startswith(TOLD)


def test_error_that_mentions_an_argument_and_finds_nothing_needs_another_call(memory):
    tool = build_printer(memory, "There is nothing for this voice.")
    for number in range(8):
        assert play(memory, tool, *ask_for_mezzo(number)[1:])[0] == []


def test_call_that_keeps_all_values_and_adds_one_needs_no_other_call(memory):
    @memory.tool
    def quote(hotel: str, rate: str, company: str = "") -> Any:
        return {"total": 90} if company == "LX-1" else {"error": "E-41"}

    def answer(number: int) -> list[str]:
        asked = {"hotel": f"hotel {number}", "rate": "CORP"}
        return play(memory, quote, asked, {**asked, "company": "LX-1"})[0]

    for number in range(5):
        assert answer(number) == []
    [note] = answer(5)
    assert note.startswith("In earlier runs this recovered the call: company=LX-1")


def test_value_that_moves_to_another_argument_needs_no_other_call(memory):
    @memory.tool(effects="none")
    def find_part(name: str, vin: str = "", chassis: str = "") -> Any:
        return {"part": name} if chassis else {"error": "vehicle reference missing"}

    def answer(number: int) -> list[str]:
        asked = {"name": "oil filter", "vin": f"WVW{number}"}
        return play(memory, find_part, asked, {"name": "oil filter", "chassis": asked["vin"]})[0]

    for number in range(2):
        assert answer(number) == []
    [note] = answer(2)
    assert note.startswith("In earlier runs this recovered the call: rename vin to chassis")


def test_added_value_is_shown_for_the_values_of_the_argument_that_decides_it(memory):
    codes = {"lipids": "SER", "urine": "URI"}

    @memory.tool
    def order(patient: str, panel: str, specimen: str = "") -> Any:
        return {"ordered": panel} if specimen == codes[panel] else {"error": "E-41"}

    def answer(number: int, panel: str) -> list[str]:
        asked = {"patient": f"P{number}", "panel": panel}
        return play(memory, order, asked, {**asked, "specimen": codes[panel]})[0]

    for number in range(9):
        answer(number, "lipids")
    answer(10, "urine")
    assert answer(11, "urine") == []
    [note] = answer(12, "urine")
    assert note.startswith("In earlier runs this recovered the call: specimen=URI")


def test_size_that_is_sold_out_for_one_colour_is_replaced_by_no_other(memory):
    @memory.tool
    def reserve(basket: str, size: str, colour: str) -> Any:
        return {"error": "OUT_OF_STOCK"} if (size, colour) == ("M", "navy") else {"reserved": 1}

    for number in range(12):
        basket = f"b-{number}"
        mother, child = ({"basket": basket, "size": "M", "colour": colour} for colour in ("navy", "red"))
        assert play(memory, reserve, mother, {**mother, "size": "L"}, child)[0] == []


def test_call_around_a_missing_permission_teaches_nothing(memory):
    @memory.tool(effects="none")
    def get_scan(box: int, dpi: int, sheet: int) -> Any:
        if dpi > 300:
            raise PermissionError("Master files are issued on written request only.")
        return {"dpi": dpi}

    for number in range(8):
        asked = {"box": number, "dpi": 600, "sheet": 1}
        assert play(memory, get_scan, asked, {**asked, "dpi": 150}, {**asked, "dpi": 150, "sheet": 2})[0] == []


def test_loop_over_two_arguments_teaches_nothing(memory):
    tool = build_printer(memory, "E-41")
    for number in range(8):
        calls = [
            {"piece": f"{piece} {number}", "voice": voice, "copies": 2}
            for piece in ("Ave", "Gloria")
            for voice in ("mezzo", "S2")
        ]
        assert play(memory, tool, *calls)[0] == []


def test_choice_instead_of_a_value_that_succeeds_elsewhere_is_never_shown(memory):
    is_taken = True

    @memory.tool
    def book(guest: str, room: str, nights: int) -> Any:
        return {"error": "The room is occupied."} if room == "sea view" and is_taken else {"booked": room}

    for number in range(20):
        is_taken = number % 3 > 0
        asked = {"guest": f"guest {number}", "room": "sea view", "nights": 2}
        calls = [asked, {**asked, "room": "garden"}] if is_taken else [asked]
        assert play(memory, book, *calls)[0] == []


def test_choice_of_two_values_together_is_never_shown_if_the_old_ones_succeed_elsewhere(memory):
    is_empty = True

    @memory.tool
    def prepare(patient: str, strength: int, tablets: int) -> Any:
        return {"error": "not in stock"} if strength == 20 and is_empty else {"prepared": tablets}

    for number in range(20):
        is_empty = number % 3 > 0
        asked = {"patient": f"patient {number}", "strength": 20, "tablets": 1}
        calls = [asked, {**asked, "strength": 10, "tablets": 2}] if is_empty else [asked]
        assert play(memory, prepare, *calls)[0] == []


def test_argument_that_alone_distinguishes_two_successes_names_items(memory):
    tool = build_printer(memory, "E-41")
    for number in range(8):
        first, failed, then = ask_for_mezzo(number)
        assert play(memory, tool, first, failed, then, {**then, "voice": "T1"})[0] == []


def test_other_argument_of_the_same_failures_is_shown_only_if_it_succeeds_more_often(memory):
    @memory.tool(effects="none")
    def turnout(district: str, ballot: str, level: str) -> Any:
        return {"error": "E-7"} if (ballot, level) == ("postal", "precinct") else {"percent": 50}

    def answer(number: int, **change: str) -> list[str]:
        district = f"district {number}"
        failed = {"district": district, "ballot": "postal", "level": "precinct"}
        first = {"district": "capital", "ballot": "booth", "level": "precinct"}
        return play(memory, turnout, first, failed, {**failed, **change})[0]

    for number in range(12):
        notes = answer(number, **({"ballot": "booth"} if number % 4 == 3 else {"level": "municipality"}))
    assert [note.partition(": ")[2].partition(" (")[0] for note in notes] == ["level=municipality"]


def test_model_that_changed_another_argument_does_not_read_the_same_advice_about_two(memory):
    tool = build_printer(memory, "bad key {voice}")
    for number in range(3):
        play(memory, tool, *ask_for_mezzo(number)[1:])
    failed = ask_for_mezzo(9)[1]
    assert len(play(memory, tool, failed, {**failed, "copies": 1})[0]) == 1
    assert len(play(memory, tool, failed, {**failed, "voice": "alto"})[0]) == 1


def test_call_that_keeps_the_values_of_money_and_people_teaches_nothing(memory):
    @memory.tool
    def pay(invoice: str, amount: int) -> Any:
        return {"error": "E-41"} if amount == 100 else {"paid": amount}

    for number in range(8):
        other = {"invoice": f"other {number}", "amount": 7}
        calls = [{"invoice": f"I{number}", "amount": amount} for amount in (100, 90)]
        assert play(memory, pay, other, *calls)[0] == []


def test_possible_corrections_promote_nothing():
    def vote(number: int) -> Vote:
        details = TrialDetails(is_possible=True)
        return Vote(
            f"run_{number}", "local", "", number * DAY, number, successful=True, content=f"{number}", details=details
        )

    record = FixRecord(id="fix", tool="print_part", fingerprint="f", action=FixAction())
    for number in range(1, 30):
        record.add(vote(number))
    assert record.successes == 29
    assert not record.distinct_trials


def test_form_is_learned_of_values_that_redaction_hides(memory):
    @memory.tool
    def call_back(number: str, queue: str) -> Any:
        return {"queued": queue} if number.isdigit() else {"error": "4012 destination not routable"}

    for line in ("472030", "462031", "492032"):
        notes, status = play(
            memory,
            call_back,
            {"number": f"+{line}4050", "queue": "moves"},
            {"number": f"00{line}4050", "queue": "moves"},
        )
        assert status == "recovered"
    assert notes == [
        'In earlier runs this recovered the call: number="004920324050" (2 of 2 runs).',
        "That is number with 00 before the country code.",
    ]


def test_form_without_blanks_is_told_as_such(memory):
    @memory.tool(effects="none")
    def get_policy(policy_no: str, year: int) -> Any:
        return {"policy": policy_no} if " " not in policy_no else {"error": "Policy not found."}

    for number in ("HR 1204 551", "KV 8841 202", "LV 3101 777"):
        calls = [{"policy_no": text, "year": 2026} for text in (number, number.replace(" ", ""))]
        notes, _ = play(memory, get_policy, *calls)
    assert notes[1:] == ["That is policy_no without blanks."]


def test_argument_that_must_be_left_out_is_shown_whatever_its_value_was(memory):
    @memory.tool
    def sell(seat: str, member: str = "", perk: str = "") -> Any:
        return {"error": "E-11 conflict"} if member and perk else {"sold": seat}

    def answer(number: int, perk: str) -> list[str]:
        asked = {"seat": f"N{number}", "member": f"M{number}"}
        guest = {"seat": "W2", "perk": perk}
        return play(memory, sell, guest, {**asked, "perk": perk}, asked)[0]

    words = ("student", "senior", "youth")
    for number in range(9):
        assert answer(number, words[number % 3]) == []
    [note] = answer(9, "student")  # three successes of this word, and six of others
    assert note.startswith("In earlier runs this recovered the call: omit perk")


def test_error_that_names_and_quotes_what_was_changed_is_about_it_unless_nothing_was_found(memory):
    def answer(number: int, error: str) -> list[str]:
        tool = build_printer(memory, error)
        return [play(memory, tool, *ask_for_mezzo(number + each)[1:])[0] for each in range(6)][-1]

    assert answer(10, "There is no voice '{voice}'.") == []
    [note] = answer(20, "The desk denied the request: voice '{voice}'")
    assert note.startswith(TOLD)
