"""Documentation page of all kinds: `python -m mulligan.classify.docs_page > docs/kinds.md`."""

from __future__ import annotations

from mulligan.classify.kinds import KINDS, TYPES

_TYPE_DESCRIPTIONS = {
    "tool": "Failures of tool calls.",
    "model": "Failures of model calls.",
    "retrieval": "Failures of searches and lookups.",
    "orchestration": "Failures of the agent that makes the calls.",
    "none": "Not a failure: recorded, never counted.",
}


def render_page() -> str:
    """Render every kind with its remedy, whether the call may have taken effect, and its hint for the model."""
    lines = [
        "# Kinds of failure",
        "",
        "Generated from `src/mulligan/classify/kinds.py` by `python -m mulligan.classify.docs_page`. Do not edit.",
        "",
        "*Remedy* is the next action: retry (after a backoff), repair (the arguments), compress (the conversation),",
        "replan (the model must act differently), stop (a person must act). *Took effect* says whether the failed call",
        "executed, as far as the kind alone shows; a failure with proof overrides it.",
    ]
    for type_ in TYPES:
        lines += [
            "",
            f"## {type_}",
            "",
            _TYPE_DESCRIPTIONS[type_],
            "",
            "| kind | remedy | took effect | hint for the model |",
            "| --- | --- | --- | --- |",
        ]
        for kind in KINDS.values():
            if kind.type == type_:
                lines.append(f"| `{kind}` | {kind.remedy.value} | {kind.took_effect.value} | {kind.hint} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(render_page(), end="")
