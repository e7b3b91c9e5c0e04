"""Settings files as people may write them, in JSON and TOML: any layout, with comments. For properties."""

from __future__ import annotations

import json

from hypothesis import strategies as st

KEYS = st.sampled_from(["a", "b", "servers", "args", "ü", 'quo"te', ""])
SPACES = st.sampled_from(["", " ", "\n", "\n  ", "\r\n\t", " // note, }\n", "/* a { */", "\n  /* b */ // c\n  "])
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.sampled_from(["//", "/*", "]", "\\", '"'])
)


@st.composite
def json_texts(draw, depth=3):
    """A JSON value as a person may write it: any white space, comments and trailing commas."""

    def gap() -> str:
        return draw(SPACES)

    kind = draw(st.sampled_from(["scalar", "object", "list"])) if depth else "scalar"
    if kind == "scalar":
        return json.dumps(draw(SCALARS), ensure_ascii=draw(st.booleans()))
    if kind == "list":
        parts = [draw(json_texts(depth - 1)) for _ in range(draw(st.integers(0, 3)))]
    else:
        keys = draw(st.lists(KEYS, unique=True, max_size=3))
        parts = [json.dumps(key) + gap() + ":" + gap() + draw(json_texts(depth - 1)) for key in keys]
    inner = (gap() + ",").join(gap() + part for part in parts)
    if parts and draw(st.booleans()):
        inner += gap() + ","
    opening, closing = "[]" if kind == "list" else "{}"
    return opening + inner + gap() + closing


@st.composite
def json_documents(draw):
    keys = draw(st.lists(KEYS, unique=True, max_size=4))
    members = [draw(SPACES) + json.dumps(key) + ":" + draw(json_texts()) + draw(SPACES) for key in keys]
    trailing = "," if members and draw(st.booleans()) else ""
    mark = draw(st.sampled_from(["", "\ufeff"]))
    return mark + draw(SPACES) + "{" + ",".join(members) + trailing + draw(SPACES) + "}" + draw(SPACES)


TOML_VALUES = st.sampled_from(
    ['"a"', "'b # c'", '"""\nx ] "y" # no\n"""', "'''\n[not.a.table]\n'''", "[1, 2]",
     '[\n  "a", # ]\n  [ "b" ],\n]', "1979-05-27 07:32:00Z",
     "{ a = 1, b.c = 'x', d = [ 1, { e = 2 } ] }", "true", "-1.5e3", '"\\u00e9 \\" ["'],
)  # fmt: skip
TOML_KEYS = st.sampled_from(["a", "b-c", '"q r"', "'s.t'", "d.e"])


@st.composite
def toml_documents(draw):
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    lines = []
    for header in ("", "[one]", "[ two . 'three' ] # why", "[[many]]", "[[many]]", "[many.part]"):
        lines += [draw(st.sampled_from(["", "# note [x]"]))] if draw(st.booleans()) else []
        lines += [header] if header else []
        for key in draw(st.lists(TOML_KEYS, unique=True, max_size=3)):
            comment = draw(st.sampled_from(["", " # about"]))
            lines.append(f"{draw(st.sampled_from(['', '  ']))}{key} = {draw(TOML_VALUES)}{comment}")
    return "\n".join(lines).replace("\n", newline) + (newline if lines and draw(st.booleans()) else "")
