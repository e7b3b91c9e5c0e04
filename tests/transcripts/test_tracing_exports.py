"""Exports of Langfuse, LangSmith and Phoenix become runs, in each form that these products write."""

from __future__ import annotations

import gzip
import json
import sys
from datetime import UTC, datetime, timedelta

import pytest
from session_logs import read, write
from tracing_exports import FORMS, PRODUCTS, Rows, at, check_shop, langfuse, langsmith, phoenix, to_csv, to_document

from mulligan.cli import import_export
from mulligan.transcripts import otlp, tracing_exports
from mulligan.transcripts.log_lines import LogLines
from mulligan.transcripts.run_builder import ReaderState


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("product", PRODUCTS)
def test_an_export_gives_the_run_with_its_calls_and_failures(product, form, tmp_path):
    (history,) = read(FORMS[form](tmp_path / "export", PRODUCTS[product]()))
    check_shop(history)


def test_a_trace_of_langfuse_gives_its_observations_its_user_and_session(tmp_path):
    names = {"trace_id", "trace_name", "user_id", "session_id"}
    observations = [
        {("".join(word.capitalize() if number else word for number, word in enumerate(name.split("_")))): value
         for name, value in row.items() if name not in names}
        for row in langfuse()
    ]  # fmt: skip
    trace = {"id": "t1", "name": "shop", "userId": "u7", "sessionId": "s1", "observations": observations}
    (history,) = read(write(tmp_path / "trace-t1.json", trace))
    check_shop(history)


def test_rows_of_no_known_product_are_counted_and_the_others_are_read(tmp_path):
    state = ReaderState()
    rows = [*langsmith(), {"run_type": "tool"}, {"other": 1}, [1]]
    (history,) = read(write(tmp_path / "export.jsonl", *rows, b"{broken"), state)
    check_shop(history)
    assert state.unrecognized_lines == 4


@pytest.mark.parametrize("value", ["yesterday", "", 1e300, -5, "9" * 400, None, {"a": 1}])
def test_a_time_that_is_none_costs_no_row(value, tmp_path):
    rows = langsmith()
    rows[3]["end_time"] = value
    (history,) = read(write(tmp_path / "export.jsonl", *rows))
    assert len(history.steps) == 3


def test_an_imported_export_is_counted_and_a_second_import_adds_nothing(types, tmp_path):
    file, store = to_csv(tmp_path / "observations.csv", langfuse()), tmp_path / "runs.db"
    code, out, _ = types("import", file, "--store", store)
    assert code == 0
    assert out.startswith("1 run with 3 steps read")
    assert types("import", file, "--store", store)[1] == f"Nothing new: everything is already in {store}.\n"
    (run,) = json.loads(types("runs", "--store", store, "--json")[1])
    assert (run["agent"], run["status"]) == ("shop", "recovered")


def test_a_call_that_the_model_corrected_is_not_reported_as_recovered_by_mulligan(types, tmp_path):
    def call(id: str, second: int, n: object, **fields: object) -> dict[str, object]:
        times = {"startTime": at(second), "endTime": at(second + 1), "level": "DEFAULT"}
        return {
            "traceId": "t1",
            "id": id,
            "type": "TOOL",
            "name": "f",
            "input": {"n": n, "unit": "m"},
            **times,
            **fields,
        }

    generation = call("b", 2, 0, type="GENERATION", name="g", model="gpt-x", input="retry", output="ok")
    error = {"level": "ERROR", "statusMessage": "Invalid arguments: n must be an integer"}
    path, store = (
        write(tmp_path / "two.jsonl", call("a", 0, "x", **error), generation, call("c", 4, 7)),
        tmp_path / "runs.db",
    )
    assert types("import", "--format", "tracing-export", path, "--store", store)[0] == 0
    text = types("show", "last", "--store", store)[1]
    assert "recovered: 3 calls in 3 attempts, 1 of 1 failed calls recovered" in text
    assert "recovered by the first later call: 1 model turn" in text
    assert "repair" not in text
    assert "backoff" not in text
    facts = json.loads(types("show", "last", "--store", store, "--json")[1])
    assert facts["status"] == "recovered"
    assert [(episode["recovering_call"], episode.get("by_mulligan", False)) for episode in facts["episodes"]] == [
        (3, False)
    ]
    (run,) = json.loads(types("runs", "--store", store, "--json")[1])
    assert run["status"] == "recovered"
    counts = json.loads(types("stats", "--since", "2026-02-01", "--store", store, "--json")[1])["model_recovery"]
    assert (counts["recovered_by_mulligan"], counts["recovered_by_model"]) == (0, 1)


def test_a_parquet_file_without_pyarrow_says_what_to_install(types, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "runs.parquet").write_bytes(b"PAR1\x15\x04")
    code, _, error = types("import", tmp_path / "runs.parquet", "--store", tmp_path / "runs.db")
    assert code != 0
    assert "pip install '.[parquet]'" in error


def in_pieces(rows: Rows, count: int) -> Rows:
    """Return the rows as `count` traces, a minute apart."""
    copies: Rows = []
    for number in range(count):
        for row in rows:
            copy = {
                name: f"{cell}-{number}" if name.endswith(("id", "Id")) and cell and "session" not in name else cell
                for name, cell in row.items()
            }
            for name in ("start_time", "end_time"):
                copy[name] = copy[name].replace("10:00:", f"{10 + number // 60}:{number % 60:02}:")
            copies.append(copy)
    return copies


def nested_langsmith() -> Rows:
    """Return a run with its children inside, as the SDK loads it."""
    root, *children = langsmith()
    return [{**root, "child_runs": [{**child, "trace_id": None, "parent_run_id": None} for child in children]}]


def langsmith_of_the_command() -> Rows:
    """Return what the product's own command writes: other names for the id, the metadata and the tokens."""
    rows = []
    for run in langsmith():
        usage = {name: run.pop(name, 0) for name in ("prompt_tokens", "completion_tokens")}
        metadata = run.pop("extra", {}).get("metadata", {})
        rows.append({**run, "run_id": run.pop("id"), "custom_metadata": metadata, "token_usage": usage})
    return rows


@pytest.mark.parametrize(
    "document",
    [
        lambda: {"runs": nested_langsmith(), "cursors": {"next": None}},
        lambda: langsmith_of_the_command(),
        lambda: {
            name: {str(index): row.get(name) for index, row in enumerate(phoenix())}
            for name in dict.fromkeys(name for row in phoenix() for name in row)
        },
        lambda: [{"traceId": "t1", "status": "ERROR", "spans": phoenix()}],
    ],
    ids=["children inside", "the command of LangSmith", "columns of a data frame", "the command of Phoenix"],
)
def test_other_documents_of_these_products_give_the_same_run(document, tmp_path):
    path = tmp_path / "export.json"
    path.write_text(json.dumps(document(), indent=1))
    (history,) = read(path)
    check_shop(history)


@pytest.mark.parametrize("product", PRODUCTS)
def test_another_export_of_the_same_traces_adds_nothing(product, types, tmp_path):
    store = tmp_path / "runs.db"
    rows = PRODUCTS[product]()
    assert types("import", to_csv(tmp_path / "a.csv", rows), "--store", store)[0] == 0
    facts = json.loads(types("import", to_document(tmp_path / "b.json", rows), "--store", store, "--json")[1])
    assert (facts["runs"], facts["new"]) == (1, 0)


def test_unreadable_lines_and_rows_are_named_with_the_reason(types, tmp_path):
    good = langsmith()
    lines = write(tmp_path / "runs.jsonl", good[0], b"{broken", *good[1:], {"run_type": "tool"}, {"other": 1})
    table = to_csv(tmp_path / "spans.csv", [*phoenix(), {"name": "stray"}])
    store = tmp_path / "runs.db"
    facts = json.loads(types("import", lines, table, "--store", store, "--json")[1])
    assert [(row["file"][-10:], row.get("line"), row.get("row")) for row in facts["unreadable"]] == [
        ("runs.jsonl", 2, None), ("runs.jsonl", None, 5), ("runs.jsonl", None, 6), ("/spans.csv", None, 5),
    ]  # fmt: skip
    reasons = [row["reason"] for row in facts["unreadable"]]
    assert reasons[0].startswith("not JSON")
    assert reasons[1] == "it names no trace"
    assert reasons[2].startswith("not an observation")
    _, _, error = types("import", lines, "--store", store)
    assert "runs.jsonl, line 2: not JSON" in error


def test_traces_without_observations_say_which_table_to_export(types, tmp_path):
    row = {"id": "t1", "timestamp": at(0), "name": "shop", "userId": "u7", "sessionId": "s1", "bookmarked": "false"}
    code, _, error = types("import", to_csv(tmp_path / "traces.csv", [row]), "--store", tmp_path / "runs.db")
    assert code == 1
    assert "export the table Observations" in error


@pytest.mark.parametrize("form", FORMS)
def test_an_interrupted_import_resumes_after_the_stored_runs(form, types, tmp_path, monkeypatch):
    path, store = FORMS[form](tmp_path / "export", in_pieces(langfuse(), 30)), tmp_path / "runs.db"
    monkeypatch.setattr(import_export, "BATCH_RECORDS", 20)
    built: list[str] = []
    build_events = import_export.Importer.build_events

    def interrupt(self, history, is_export):
        if len(built) == 20:
            raise KeyboardInterrupt
        built.append(history.run.id)
        return build_events(self, history, is_export)

    monkeypatch.setattr(import_export.Importer, "build_events", interrupt)
    code, _, error = types("import", path, "--store", store)
    assert code == 130
    assert "Run the same command to resume" in error
    stored = {run["id"] for run in json.loads(types("runs", "--store", store, "--json")[1])}
    assert 10 <= len(stored) <= 20
    first_try = set(built)
    built.clear()
    monkeypatch.setattr(
        import_export.Importer,
        "build_events",
        lambda self, history, is_export: built.append(history.run.id) or build_events(self, history, is_export),
    )
    assert types("import", path, "--store", store)[0] == 0
    assert not stored & set(built)  # what is stored is not built again
    assert stored | set(built) >= first_try
    assert len(json.loads(types("runs", "--store", store, "--json", "--limit", "99")[1])) == 30
    assert types("import", path, "--store", store)[1].startswith("Nothing new")


def test_more_spans_than_memory_holds_are_imported_from_a_table(types, tmp_path, monkeypatch):
    monkeypatch.setattr(otlp, "MAX_HELD_SPANS", 10)
    path, store = to_csv(tmp_path / "spans.csv", in_pieces(langfuse(), 12)), tmp_path / "runs.db"
    assert types("import", path, "--store", store)[1].startswith("12 runs with 36 steps read")
    assert len(json.loads(types("runs", "--store", store, "--json")[1])) == 12


def test_secrets_and_personal_data_of_an_export_are_not_stored(types, tmp_path):
    rows, store = langfuse(), tmp_path / "runs.db"
    key = "sk-proj-" + "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9v"
    rows[0]["input"] = f"my key is {key}"
    rows[2] |= {"input": {"id": 7, "password": "hunter2-secret"}, "status_message": f"401: {key} is not valid"}
    rows[3]["output"] = {"token": key}
    assert types("import", to_csv(tmp_path / "a.csv", rows), "--store", store)[0] == 0
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("runs.db*"))
    assert key.encode() not in stored
    assert b"hunter2-secret" not in stored


def test_recoveries_of_an_export_never_make_a_fix_automatic(types, tmp_path):
    rows: Rows = []
    for number, row in enumerate(in_pieces(langfuse(), 12)):
        day = f"{datetime.now(UTC) - timedelta(days=4 - number // 12):%Y-%m-%d}"
        for name in ("start_time", "end_time"):
            row[name] = row[name].replace("2026-03-01", day)
        if row["type"] == "TOOL":
            is_failure = row["level"] == "ERROR"
            row["input"] = {"query": "shoes", "top_k": 50 if is_failure else 10}
            row["status_message"] = "top_k must be 10 or less, got 50" if is_failure else None
        rows.append(row)
    store = tmp_path / "runs.db"
    assert types("import", to_csv(tmp_path / "a.csv", rows), "--store", store)[0] == 0
    (fix,) = json.loads(types("fixes", "--store", store, "--json")[1])
    assert fix["trials"] >= 5
    assert fix["state"] == "proposed"


def hostile_rows() -> Rows:
    rows = phoenix()
    rows[2]["attributes.input.value"] = json.dumps({"text": "x" * 10_000_000, "id": 7})
    rows[3]["attributes.output.value"] = "\ud83d" + "y" * 10_000_000
    rows[3]["attributes.llm.cost.total"] = float("nan")
    return rows


def test_texts_of_10_mb_nan_and_half_characters_cost_no_row(tmp_path):
    state = ReaderState(keeps_results=True)
    (history,) = read(write(tmp_path / "spans.jsonl", *hostile_rows()), state)
    assert [step.outcome for step in history.steps] == ["success", "failure", "success"]
    assert state.unrecognized_lines == 0
    assert len(str(history)) < 300_000


def test_cells_with_line_breaks_and_quotes_stay_whole(tmp_path):
    rows = langfuse()
    rows[2]["input"] = {"text": 'first\r\n\r\nsecond, "third"\n', "id": 7}
    (history,) = read(to_csv(tmp_path / "a.csv", rows))
    assert history.steps[1].arguments == rows[2]["input"]


def test_a_quote_that_never_ends_keeps_the_rows_before_it(tmp_path, monkeypatch):
    monkeypatch.setattr(tracing_exports, "MAX_LINE_BYTES", 4096)
    path = to_csv(tmp_path / "a.csv", langfuse())
    path.write_text(path.read_text() + '"' + "never ends\n" * 1000)
    with LogLines(path) as lines:
        (history,) = tracing_exports.read(lines, ReaderState())
    check_shop(history)
    assert lines.read_error.startswith("broken CSV in line")


def test_a_list_that_was_cut_off_gives_its_first_rows(types, tmp_path):
    path = to_document(tmp_path / "runs.json", langsmith())
    text = path.read_text()
    path.write_text(text[: text.rindex('"status"')])
    code, out, error = types("import", path, "--store", tmp_path / "runs.db")
    assert (code, out[:23]) == (0, "1 run with 2 steps read")
    assert "broken JSON in line" in error


@pytest.mark.parametrize("form", FORMS)
def test_a_gzip_file_that_was_cut_off_says_so(form, types, tmp_path):
    plain = FORMS[form](tmp_path / "plain", in_pieces(langfuse(), 40))
    path = tmp_path / f"{form}.gz"
    path.write_bytes(gzip.compress(plain.read_bytes())[:-200])
    _, _, error = types("import", path, "--store", tmp_path / "runs.db")
    assert "gzip file is truncated" in error


@pytest.mark.parametrize(
    "text",
    [
        "span_kind,context.trace_id\n", "\x00" * 100, "span_kind context.trace_id [[[[", "run_type,trace_id\n1\n,,,,\n",
        '{"run_type": {"0": 1}, "trace_id": {"0": []}}', '[{"run_type": [], "trace_id": {}, "child_runs": [[]]}]',
        "[" * 100_000 + "run_type trace_id",
    ],
)  # fmt: skip
def test_tables_without_rows_or_with_wrong_columns_give_no_run(text, types, tmp_path):
    path = tmp_path / "export.csv"
    path.write_text(text)
    code, _, _ = types("import", "--format", "tracing-export", path, "--store", tmp_path / "runs.db")
    assert code == 1
