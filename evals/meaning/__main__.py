"""Whether repairs keep the meaning of a call: mistaken calls, made through every door of mulligan.

    python evals/meaning                            # all batches, all doors
    python evals/meaning --batch 3 4 --door turn proxy
    python evals/meaning --list wrong               # with each call that was executed with another meaning
    python evals/meaning --list missed --json

A batch is a file `batch_N.py` with mistaken calls (`mistakes.py` has the format). Its author has not read the rules of
mulligan, nor the other batches, and labels each call from the view of its caller: "form" if it is the same call in
another spelling or type, "equivalent" if another call means the same to one who knows the subject, "meaning" if none
does. Labels are not changed because a door disagrees with them. The first count of a
new batch is written into README.md, before any rule is changed for it.

Doors: `program` calls a wrapped function, `turn` is `turn.call` of an agent loop, `langchain` and `pydantic_ai` are the
adapters with a scripted model, `proxy` is `mulligan proxy --repair --trust-annotations` before a real MCP server.

What a tool's body executed and returned is compared with the call:

- wrong: executed with another meaning, or a tool with effects="once" was executed twice. If mulligan has no note, the
  framework has changed the call;
- repaired: executed with a call that means the same;
- less: executed with less than was asked for. That is right only if the tool has no effects and the caller is a model
  that reads about the change. Otherwise it is wrong;
- as asked: the door accepted the call as it was. Python, for example, does not check annotations;
- missed, not executed: nothing was executed. This is right for a mistake of meaning;
- protected: missed, because a privileged argument would have to change, which mulligan never does by itself.

The share of repaired calls is that of mistakes of form which the door did not accept as they were, without protected
ones. Suggested counts the
mistakes of meaning after which the caller reads a suggestion. It exits with 1 if a call is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from doors import MissingFrameworkError, play_in_sandbox
from judge import Play, count_verdicts, judge, to_json
from proxy_door import play_through_proxy

HERE = Path(__file__).resolve().parent
DOORS = ("program", "turn", "langchain", "pydantic_ai", "proxy")
MAX_ANSWER_CHARS = 600
COLUMNS = {
    "calls": "calls",
    "with_effects": "effects",
    "wrong": "wrong",
    "form_repaired": "repaired",
    "form_missed": "missed",
    "form_protected": "protected",
    "form_as_asked": "as asked",
    "repaired_share": "share",
    "equivalent_executed": "executed",
    "equivalent_not_executed": "not",
    "meaning_not_executed": "not executed",
    "meaning_less": "less",
    "meaning_same": "same",
    "meaning_as_asked": "as asked",
    "meaning_suggested": "suggested",
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--batch", nargs="+", default=[], metavar="N", help="number of a batch, or the path of one")
    options.add_argument("--door", nargs="+", default=DOORS, choices=DOORS, metavar="NAME", help=", ".join(DOORS))
    options.add_argument("--json", action="store_true", help="print the same as JSON")
    options.add_argument("--list", choices=("wrong", "missed", "all"), help="also print these calls")
    choices = options.parse_args()
    paths = [HERE / f"batch_{name}.py" if name.isdigit() else Path(name) for name in choices.batch]
    paths = paths or sorted(HERE.glob("batch_*.py"), key=lambda path: int(path.stem.rpartition("_")[2]))
    if not paths or any(not path.exists() for path in paths):
        missing = next((path for path in paths if not path.exists()), HERE / "batch_1.py")
        options.error(f"There is no batch {missing}. mistakes.py has the format of a batch.")
    plays = [play for path in paths for door in choices.door for play in play_door(path, door)]
    rows = list(count_rows(plays))
    listed = [play for play in plays if choices.list in ("all", judge(play))]
    if choices.json:
        data: dict[str, Any] = {"rows": rows}
        if choices.list:
            data["calls"] = [describe_play(play) for play in listed]
        print(json.dumps(data, indent=1, default=str))
    else:
        print_table(rows)
        for play in listed:
            print_play(play)
    sys.exit(1 if any(row["wrong"] for row in rows) else 0)


def play_door(path: Path, door: str) -> Iterator[Play]:
    """Make the calls of a batch through a door. Say what is left out, and how long it took."""
    start = time.monotonic()
    try:
        for play in play_through_proxy(path) if door == "proxy" else play_in_sandbox(path, door):
            play.drop_earlier()
            if not play.problem:
                yield play
            else:
                print(f"{path.stem} {door}: {play.mistake.name} is left out, {play.problem}", file=sys.stderr)
    except MissingFrameworkError as error:
        print(f"{path.stem} {door} is left out: {error}", file=sys.stderr)
    else:
        print(f"{path.stem} {door}: {time.monotonic() - start:.1f} s", file=sys.stderr)


def count_rows(plays: list[Play]) -> Iterator[dict[str, Any]]:
    """Count each batch, all of them, and the last two: by door, and over all doors."""
    batches = list(dict.fromkeys(play.batch for play in plays))
    groups = [(batch, [batch]) for batch in batches]
    groups += [("total", batches), ("last two batches", batches[-2:])] if len(batches) > 1 else []
    for title, names in groups:
        members = [play for play in plays if play.batch in names]
        for door in dict.fromkeys(play.door for play in members):
            yield {"batch": title, "door": door, **count_verdicts(play for play in members if play.door == door)}
        yield {"batch": title, "door": "all doors", **count_verdicts(members)}


def print_table(rows: list[dict[str, Any]]) -> None:
    widths = {name: max(len(title), 5) for name, title in COLUMNS.items()}
    form_width = sum(widths[name] + 2 for name in COLUMNS if name.startswith(("form", "repaired")))
    start_width = sum(widths[name] + 2 for name in ("calls", "with_effects", "wrong"))
    other_width = sum(widths[name] + 2 for name in COLUMNS if name.startswith("equivalent"))
    groups = f"{'mistakes of form':{form_width}}{'equivalent':{other_width}}mistakes of meaning"
    print(f"{'':16}  {'':11}{'':{start_width}}  {groups}")
    print(f"{'batch':16}  {'door':11}" + "".join(f"  {title:>{widths[name]}}" for name, title in COLUMNS.items()))
    for number, row in enumerate(rows):
        if number and row["batch"] != rows[number - 1]["batch"]:
            print()
        cells = {name: row[name] for name in COLUMNS}
        cells["repaired_share"] = "-" if row["repaired_share"] is None else f"{row['repaired_share']:.1%}"
        print(f"{row['batch']:16}  {row['door']:11}" + "".join(f"  {cells[name]:>{widths[name]}}" for name in COLUMNS))


def describe_play(play: Play) -> dict[str, Any]:
    mistake = play.mistake
    return {
        "verdict": judge(play),
        "batch": play.batch,
        "door": play.door,
        "tool": mistake.name,
        "topic": mistake.topic,
        "kind": mistake.kind,
        "effects": mistake.effects,
        "asked": dict(mistake.asked),
        "executed": play.returned_arguments,
        "same": list(mistake.same),
        "reason": mistake.reason,
        "note": play.note,
        "suggestions": play.suggestions,
        "stop_reason": play.stop_reason,
        "answer": play.answer,
    }


def print_play(play: Play) -> None:
    facts = describe_play(play)
    head = " ".join(str(facts.pop(name)) for name in ("verdict", "batch", "door", "tool"))
    print(f"\n{head} ({facts.pop('kind')}, {facts.pop('topic')}, effects {facts.pop('effects')})")
    for name, value in facts.items():
        text = (
            value if isinstance(value, str) else "\n".join(map(to_json, value)) if name != "asked" else to_json(value)
        )
        if text:
            print(f"  {name.replace('_', ' '):12} {textwrap.indent(text[:MAX_ANSWER_CHARS], ' ' * 15).lstrip()}")


if __name__ == "__main__":
    main()
