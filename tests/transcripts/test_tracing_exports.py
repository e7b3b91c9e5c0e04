"""Exports of Langfuse, LangSmith and Phoenix become runs, in each form that these products write."""

from __future__ import annotations

import csv
import gzip
import json
import re
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
    assert fix["imported"] == fix["trials"]  # trials of imported logs alone never promote
    assert fix["state"] == "proposed"


def hostile_rows() -> Rows:
    rows = phoenix()
    rows[2]["attributes.input.value"] = json.dumps({"text": "x" * 10_000_000, "id": 7})
    rows[3]["attributes.output.value"] = "\ud83d" + "y" * 10_000_000
    rows[3]["attributes.llm.cost.total"] = float("nan")
    long = "z" * 10_000_000
    rows[0] |= {"name": long, "attributes.user.id": long, "attributes.session.id": long, "attributes.tag.tags": [long]}
    rows[1]["attributes.llm.model_name"] = long
    return rows[::-1]  # the format is known by the beginning of the file


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


@pytest.mark.parametrize("pack", [lambda data: data, lambda data: gzip.compress(data)[:-12]], ids=["plain", "gzip"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda rows: {"meta": {"page": 1}, "data": rows},
        lambda rows: [{"traceId": "t1", "status": "ERROR", "spans": rows}],
        lambda rows: {"id": "t1", "name": "shop", "sessionId": "s1", "observations": rows},
    ],
    ids=["answer of an API", "traces of Phoenix", "trace of Langfuse"],
)
def test_a_wrapped_document_that_was_cut_off_gives_its_first_rows(wrap, pack, types, tmp_path):
    rows = langfuse() if "name" in wrap([]) else phoenix()
    text = json.dumps(wrap(rows))
    path, store = tmp_path / "export.json", tmp_path / "runs.db"
    path.write_bytes(pack(text[: text.rindex('"start_time"')].encode()))
    code, out, error = types("import", path, "--store", store)
    assert (code, out[:23]) == (0, "1 run with 2 steps read")
    assert "warning:" in error
    (run,) = json.loads(types("runs", "--store", store, "--json")[1])
    assert (run["agent"], run["status"]) == ("shop", "partial")


@pytest.mark.parametrize("cut_at", ["find_order", "sent", "second"], ids=["a cell", "a quoted cell", "a line break"])
def test_the_last_row_of_a_table_that_was_cut_off_is_reported(cut_at, types, tmp_path):
    rows, store = langfuse(), tmp_path / "runs.db"
    rows[3]["output"] = "sent\nsecond line"
    path = to_csv(tmp_path / "observations.csv", rows)
    path.write_bytes(path.read_bytes().rpartition(cut_at.encode())[0])
    facts = json.loads(types("import", path, "--store", store, "--json")[1])
    assert facts["steps"] == len(rows) - 2  # the agent is no step, and the last row is incomplete
    (row,) = facts["unreadable"]
    assert re.fullmatch(r"it has \d+ of \d+ cells(, the last of them cut off)?", row["reason"])


@pytest.mark.parametrize("end", ["\n", ""])
def test_a_last_row_without_a_line_break_is_read_with_a_warning(end, types, tmp_path):
    path = to_csv(tmp_path / "observations.csv", langfuse())
    path.write_text(path.read_text().rstrip() + end)
    facts = json.loads(types("import", path, "--store", tmp_path / "runs.db", "--json")[1])
    assert facts["steps"] == 3
    reasons = [row["reason"] for row in facts["unreadable"]]
    assert reasons == ([] if end else ["its last row has no line break, so that its last cell may be cut off"])


@pytest.mark.parametrize(
    "output",
    [
        {"content": "Error: permission denied", "status": "error"},
        {"content": "Error: permission denied", "status": "error", "type": "tool", "tool_call_id": "c1", "id": None},
        {"lc": 1, "type": "constructor", "id": ["ToolMessage"],
         "kwargs": {"content": "Error: permission denied", "status": "error", "tool_call_id": "c1"}},
    ],
    ids=["plain", "message", "serialized message"],
)  # fmt: skip
def test_an_error_message_of_a_langchain_tool_is_a_suspected_failure(output, types, tmp_path):
    rows, store = langsmith(), tmp_path / "runs.db"
    rows[3]["outputs"] = {"output": output}
    assert types("import", write(tmp_path / "runs.jsonl", *rows), "--store", store)[0] == 0
    text = types("show", "last", "--store", store)[1]
    assert "suspected  tool/permission_denied" in text
    assert '"content": "Error: permission denied"' in text


def to_python_texts(rows: Rows) -> Rows:
    """Return the rows with lists and objects as pandas writes them into CSV."""
    return [{name: repr(cell) if isinstance(cell, dict | list) else cell for name, cell in row.items()} for row in rows]


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_table_that_pandas_wrote_gives_the_same_run(product, tmp_path):
    rows = to_python_texts(PRODUCTS[product]())
    (history,) = read(to_csv(tmp_path / "export.csv", rows))
    check_shop(history)


def test_python_texts_of_pandas_are_read_and_never_executed(types, tmp_path):
    rows, store = to_python_texts(langsmith()), tmp_path / "runs.db"
    mark = tmp_path / "executed"
    rows[2]["inputs"] = f"{{'id': __import__('pathlib').Path({str(mark)!r}).touch(), 'n': 10**10**10}}"
    rows[3]["inputs"] = (
        "{'at': datetime.datetime(2026, 3, 1, 10), 'ids': array([1, 2], dtype=int64), 'x': nan, 'y': None}"
    )
    rows[1]["inputs"] = "[" * 5000
    assert types("import", to_csv(tmp_path / "runs.csv", rows), "--store", store)[0] == 0
    assert not mark.exists()
    facts = json.loads(types("show", "last", "--store", store, "--json")[1])
    run, steps = facts["run"], facts["steps"]
    assert steps[2]["arguments"] == {"at": None, "ids": [1, 2], "x": None, "y": None}
    assert str(steps[1]["arguments"]).startswith("{'id': __import__")
    assert (run["session"], run["metadata"]["user"], run["metadata"]["model"]) == ("s1", "u7", "gpt-x")


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_run_says_which_product_recorded_it(product, types, tmp_path):
    rows, store = PRODUCTS[product](), tmp_path / "runs.db"
    tools = [row for row in rows if row["name"] == "find_order"]
    for row in tools:  # without anything that names the agent
        row.pop("trace_name", None)
    assert types("import", write(tmp_path / "export.jsonl", *tools), "--store", store)[0] == 0
    run = json.loads(types("show", "last", "--store", store, "--json")[1])["run"]
    assert (run["agent"], run["metadata"]["format"]) == (product, product)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("product", PRODUCTS)
def test_rows_that_an_export_repeats_count_once(product, form, tmp_path):
    """Pages overlap, and a row that was exported before its end comes again."""
    rows = PRODUCTS[product]()
    level, status = {"langfuse": ("level", "DEFAULT"), "phoenix": ("status_code", "UNSET")}.get(
        product, ("error", None)
    )
    unfinished = {**rows[2], "end_time": None, level: status}
    (history,) = read(FORMS[form](tmp_path / "export", [rows[0], rows[1], unfinished, *reversed(rows)]))
    check_shop(history)


def test_times_in_other_forms_are_read_and_rows_without_a_time_are_named(types, tmp_path):
    rows, store = langfuse(), tmp_path / "runs.db"
    rows[1] |= {"start_time": "2026-03-01T10:00:01.123456789Z", "end_time": "2026-03-01T11:00:02+01:00"}
    rows[2] |= {"start_time": "2026-03-01 10:00:02 UTC", "end_time": "2026-03-01 10:00:03 UTC"}
    rows[3] |= {"start_time": "1772359204000", "end_time": 1772359205000}
    untimed = {**rows[3], "id": "e", "start_time": "yesterday", "end_time": "today"}
    path = write(tmp_path / "export.jsonl", *rows, untimed)
    facts = json.loads(types("import", path, "--store", store, "--json")[1])
    assert [(row["row"], row["reason"]) for row in facts["unreadable"]] == [(5, "its times cannot be read")]
    steps = json.loads(types("show", "last", "--store", store, "--json")[1])["steps"]
    assert [step["started_at"] - 1772359200000 for step in steps] == [1123, 2000, 4000]


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_tables_with_a_byte_order_mark_and_other_delimiters_are_read(delimiter, tmp_path):
    rows = langfuse()
    path = tmp_path / "export.csv"
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(
            {name: json.dumps(cell) if isinstance(cell, dict) else cell for name, cell in row.items()} for row in rows
        )
    (history,) = read(path)
    check_shop(history)


@pytest.mark.parametrize("form", ["lines", "document"])
def test_json_with_a_byte_order_mark_and_crlf_is_read(form, tmp_path):
    path = FORMS[form](tmp_path / "export.json", langsmith())
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    (history,) = read(path)
    check_shop(history)


def test_a_file_in_utf_16_says_so(types, tmp_path):
    path = tmp_path / "export.csv"
    path.write_text(to_csv(tmp_path / "plain.csv", langfuse()).read_text(), encoding="utf-16")
    code, _, error = types("import", path, "--store", tmp_path / "runs.db")
    assert (code, "UTF-16. Save it as UTF-8" in error) == (2, True)


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
