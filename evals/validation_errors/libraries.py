"""The errors of six validation libraries for the scenarios, made by running the libraries.

    python evals/validation_errors/libraries.py NODE_FOLDER

It needs `pip install jsonschema marshmallow fastapi`, and a folder with `npm install ajv zod zod3@npm:zod@3`. It writes
`recorded.jsonl`, so that the evaluation and the tests need none of them.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Literal, Union

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from validation_errors.scenarios import Scenario, Schema, negatives, positives  # noqa: E402

Rendering = tuple[str, str, str]
"""Library with version, rendering, error text."""


def main() -> None:
    rows = [
        {"scenario": scenario.name, "library": library, "rendering": rendering, "error": error}
        for scenario in (*positives(), *negatives())
        for library, rendering, error in render_errors(scenario)
    ]
    rows += run_javascript(pathlib.Path(sys.argv[1]))
    rows.sort(key=lambda row: (row["scenario"], row["library"], row["rendering"]))
    text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
    (HERE / "recorded.jsonl").write_text(text, encoding="utf-8")
    print(f"{len(rows)} errors recorded")


def run_javascript(folder: pathlib.Path) -> list[dict[str, str]]:
    calls = [{"name": row.name, "schema": row.validated, "call": row.arguments} for row in (*positives(), *negatives())]
    answer = subprocess.run(
        ["node", str(HERE / "javascript.mjs")],
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
    )
    rows: list[dict[str, str]] = json.loads(answer.stdout)
    return rows


def render_errors(scenario: Scenario) -> Iterator[Rendering]:
    """Yield the errors of the Python libraries. marshmallow has no unions, so it validates scenarios without them."""
    yield from render_pydantic(scenario)
    yield from _fastapi(scenario)
    yield from _jsonschema(scenario)
    if not {"anyOf", "oneOf"} & set(_keywords(scenario.validated)):
        yield from _marshmallow(scenario)


def _keywords(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from schema
        for child in schema.values():
            yield from _keywords(child)
    elif isinstance(schema, list):
        for child in schema:
            yield from _keywords(child)


def _version(library: str) -> str:
    return f"{library} {importlib.metadata.version(library)}"


def _to_type(schema: Schema, name: str, extra: Any) -> Any:
    """Build the pydantic type of a schema."""
    from pydantic import ConfigDict, StrictInt, create_model

    if "const" in schema:
        return Literal[schema["const"]]
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    if branches := schema.get("anyOf") or schema.get("oneOf"):
        return Union[tuple(_to_type(branch, f"{name}{at}", extra) for at, branch in enumerate(branches))]  # noqa: UP007
    if schema["type"] == "object":
        fields: dict[str, Any] = {}
        for field, child in schema["properties"].items():
            child_type = _to_type(child, field.title(), extra)
            fields[field] = (child_type, ...) if field in schema["required"] else (child_type, None)
        return create_model(name, __config__=ConfigDict(extra=extra), **fields)
    if schema["type"] == "array":
        return list[_to_type(schema["items"], name.removesuffix("s") or name, extra)]  # type: ignore[misc]
    return {"string": str, "integer": StrictInt, "number": float, "boolean": bool, "null": None}[schema["type"]]


def render_pydantic(scenario: Scenario) -> Iterator[Rendering]:
    from pydantic import ValidationError

    for extra in ("forbid", "ignore"):
        try:
            _to_type(scenario.validated, "Arguments", extra).model_validate(scenario.arguments)
        except ValidationError as error:
            yield _version("pydantic"), f"text, extra {extra}", str(error)
            if extra == "forbid":
                yield _version("pydantic"), "json", error.json(include_url=False)


def _fastapi(scenario: Scenario) -> Iterator[Rendering]:
    from fastapi import FastAPI

    app = FastAPI()

    def endpoint(body: Any) -> str:
        return "done"

    endpoint.__annotations__["body"] = _to_type(scenario.validated, "Arguments", "forbid")
    app.post("/")(endpoint)
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(scenario.arguments).encode(), "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/", "raw_path": b"/", "query_string": b"", "root_path": "",
        "scheme": "http", "http_version": "1.1", "headers": [(b"content-type", b"application/json")],
        "server": ("localhost", 80), "client": ("localhost", 1), "asgi": {"version": "3.0"},
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    if sent[0]["status"] == 422:
        body = b"".join(message.get("body", b"") for message in sent)
        yield _version("fastapi"), "body", body.decode()


def _jsonschema(scenario: Scenario) -> Iterator[Rendering]:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    validator = Draft202012Validator(_forbid_unknown_names(scenario.validated))
    errors = sorted(validator.iter_errors(scenario.arguments), key=lambda error: error.json_path)
    if errors:
        yield _version("jsonschema"), "first", str(best_match(errors))
        yield _version("jsonschema"), "all", "\n".join(f"{error.json_path}: {error.message}" for error in errors)


def _forbid_unknown_names(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_forbid_unknown_names(child) for child in schema]
    if not isinstance(schema, dict):
        return schema
    mapped = {key: _forbid_unknown_names(value) for key, value in schema.items()}
    is_object = mapped.get("type") == "object" and "properties" in mapped
    return {**mapped, "additionalProperties": False} if is_object else mapped


def _marshmallow(scenario: Scenario) -> Iterator[Rendering]:
    from marshmallow import ValidationError

    try:
        _to_marshmallow(scenario.validated).load(scenario.arguments)
    except ValidationError as error:
        yield _version("marshmallow"), "messages", str(error)


def _to_marshmallow(schema: Schema) -> Any:
    from marshmallow import Schema as MarshmallowSchema

    fields = {
        name: _to_field(child, required=name in schema["required"]) for name, child in schema["properties"].items()
    }
    return MarshmallowSchema.from_dict(fields)()


def _to_field(schema: Schema, **options: Any) -> Any:
    from marshmallow import fields, validate

    if schema["type"] == "object":
        return fields.Nested(_to_marshmallow(schema), **options)
    if schema["type"] == "array":
        return fields.List(_to_field(schema["items"]), **options)
    if "enum" in schema:
        return fields.String(validate=validate.OneOf(schema["enum"]), **options)
    types = {"string": fields.String, "integer": fields.Integer, "number": fields.Float, "boolean": fields.Boolean}
    field: Any = types[schema["type"]]
    return field(strict=True, **options) if schema["type"] == "integer" else field(**options)


if __name__ == "__main__":
    main()
