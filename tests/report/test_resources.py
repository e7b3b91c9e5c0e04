"""Each filter is declared once: commands, API, OpenAPI, CSV and the dashboard have it from the declaration."""

from __future__ import annotations

import importlib
import json
import re

import click.testing
import pytest

pytest.importorskip("starlette", reason="needs the extra: pip install 'mulligan[server]'")
pytest.importorskip("jinja2", reason="needs the extra: pip install 'mulligan[server]'")

from servers import served
from taught import TOO_MANY, fill

from mulligan import cli
from mulligan.cli import lessons as lessons_command
from mulligan.contract.run_facts import RUN_FACTS
from mulligan.dashboard.page_query import find_resource, form_filters
from mulligan.dashboard.pages import build_routes
from mulligan.report.resources import LESSON_SPEC, RESOURCES, Parameter
from mulligan.server.routes import api_document

FILTER = Parameter("fingerprint", "Only lessons about this failure.")


def print_output(*words: str) -> str:
    answer = click.testing.CliRunner().invoke(cli.cli, list(words), prog_name="mulligan")
    assert answer.exit_code == 0, answer.output
    return answer.output


@pytest.fixture
def added(monkeypatch):
    """A filter that is added in one line, and no other."""
    monkeypatch.setattr(LESSON_SPEC, "filters", (*LESSON_SPEC.filters, FILTER))
    importlib.reload(lessons_command)
    api_document.cache_clear()
    yield
    monkeypatch.undo()
    importlib.reload(lessons_command)
    api_document.cache_clear()


@pytest.mark.usefixtures("added")
def test_a_filter_added_to_the_declaration_is_everywhere(tmp_path):
    with served(tmp_path, groups=[build_routes]) as running:
        learned = fill(running.store)
        person, query = running.person(), f"fingerprint={TOO_MANY.fingerprint}"

        assert "--fingerprint TEXT" in print_output("lessons", "--help")
        assert FILTER.description in print_output("lessons", "--help")
        assert "--fingerprint TEXT" in print_output("lessons", "export", "--help")
        words = ("--fingerprint", TOO_MANY.fingerprint, "--store", str(tmp_path / "mulligan.db"))
        assert [row["id"] for row in json.loads(print_output("lessons", "--json", *words))] == [learned.id]
        assert [line.partition(",")[0] for line in print_output("lessons", "--csv", *words).split()[:1]] == ["id"]

        answer = person.get(f"/v1/lessons?{query}")
        assert [row["id"] for row in answer.json["lessons"]] == [learned.id]
        assert person.get(f"/v1/lessons?{query}&{query}").status == 400
        assert person.get(f"/v1/fixes?{query}").status == 400  # not a filter there
        assert person.get(f"/v1/lessons?format=csv&{query}").body.count(b"\r\n") == 2
        parameters = person.get("/openapi.json").json["paths"]["/v1/lessons"]["get"]["parameters"]
        assert FILTER.description in [parameter["description"] for parameter in parameters]

        page = person.get(f"/learned?{query}").body.decode()
        assert f'<input name="fingerprint" value="{TOO_MANY.fingerprint}"' in page
        assert set(re.findall(r'href="/lessons/(les_\w+)"', page)) == {learned.id}


COMMANDS = {
    "runs": "runs", "steps": "tail", "patterns": "patterns", "fixes": "fixes", "lessons": "lessons", "stats": "stats",
    "audit": "audit",
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_each_filter_is_an_option_of_its_command(name):
    help_page = print_output(COMMANDS[name], "--help")
    for parameter in (*RESOURCES[name].options, *RESOURCES[name].filters):
        assert f"--{parameter.name.replace('_', '-')} " in help_page


@pytest.mark.parametrize("name", [name for name in RESOURCES if name != "steps"])
def test_each_filter_is_a_parameter_of_the_api_with_its_description(name):
    described = {
        parameter["name"]: parameter.get("description")
        for parameter in api_document()["paths"][f"/v1/{name}"]["get"]["parameters"]
    }
    for parameter in (*RESOURCES[name].options, *RESOURCES[name].filters):
        assert described[parameter.name] == parameter.description


@pytest.mark.parametrize("name", RESOURCES)
def test_each_filter_is_a_field_of_its_query(name):
    spec = RESOURCES[name]
    fields = {*spec.query.__struct_fields__, *(f"min_{fact}" for fact in RUN_FACTS), "columns"}  # all of min_facts
    assert {parameter.name for parameter in (*spec.options, *spec.filters)} <= fields


def test_each_filter_has_a_field_in_the_form_of_its_page(tmp_path):
    with served(tmp_path, groups=[build_routes]) as running:
        person = running.person()
        lists = ("runs", "patterns", "tools", "agents", "models", "sessions", "learned", "audit")
        pages = {name: person.get(f"/{name}").body.decode() for name in lists}
    for name, page in pages.items():
        for parameter in form_filters(find_resource(f"/{name}")):
            assert re.search(rf'<(input|select) name="{parameter.name}"', page), f"{name} {parameter.name}"
