"""Documentation page of all kinds: `python -m mulligan.classify.docs_page > docs/kinds.md`."""

from __future__ import annotations

from mulligan.classify.kinds import KINDS, TYPES

_TYPE_DESCRIPTIONS = {
    "tool": "A tool was called.",
    "model": "A model was called.",
    "retrieval": "Something was looked up.",
    "orchestration": "The agent around them.",
    "none": "No failure at all: recorded, never counted.",
}


def render_page() -> str:
    """Render every kind with its remedy, whether the call may have taken effect, and its hint for the model."""
    lines = [
        "# Kinds of failure",
        "",
        "Made from `src/mulligan/classify/kinds.py` by `python -m mulligan.classify.docs_page`. Do not edit it here.",
        "",
        "*Remedy* says whose move is next: wait, repair (the arguments), compress (the conversation), tell (the",
        "model), stop (a person must act). *Ran* says whether the failed call may have taken effect, as far as the",
        "kind alone can know; a failure with proof says so itself.",
    ]
    for type_ in TYPES:
        lines += [
            "",
            f"## {type_}",
            "",
            _TYPE_DESCRIPTIONS[type_],
            "",
            "| kind | remedy | ran | hint for the model |",
            "| --- | --- | --- | --- |",
        ]
        for kind in KINDS.values():
            if kind.type == type_:
                lines.append(f"| `{kind}` | {kind.remedy.value} | {kind.took_effect.value} | {kind.hint} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(render_page(), end="")
