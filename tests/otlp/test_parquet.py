"""Parquet files that pyarrow writes, as LangSmith, Langfuse and Phoenix export them."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest

pyarrow = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402
from session_logs import read  # noqa: E402
from tracing_exports import PRODUCTS, check_shop, langfuse  # noqa: E402

pytestmark = pytest.mark.otlp


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_parquet_file_gives_the_run_with_its_calls_and_failures(product, tmp_path):
    (history,) = read(write_table(tmp_path / "export.parquet", product))
    check_shop(history)


def test_maps_of_langfuse_give_tokens_and_cost(tmp_path):
    rows = langfuse()
    usage = [list((row.pop("usage_details", None) or {}).items()) for row in rows]
    costs = [[("input", Decimal("0.05")), ("total", Decimal("0.25"))] if counts else [] for counts in usage]
    for row in rows:
        row.pop("total_cost", None)
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {
        name: [json.dumps(row[name]) if isinstance(row.get(name), dict) else row.get(name) for row in rows]
        for name in names
    }
    text = pyarrow.string()
    columns |= {
        "usage_details": pyarrow.array(usage, pyarrow.map_(text, pyarrow.uint64())),
        "cost_details": pyarrow.array(costs, pyarrow.map_(text, pyarrow.decimal128(18, 12))),
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "export.parquet")
    (history,) = read(tmp_path / "export.parquet")
    check_shop(history)


@pytest.mark.parametrize("damage", ["cut off", "footer", "pages", "only its mark"])
def test_a_damaged_parquet_file_is_reported(damage, types, tmp_path):
    path = write_table(tmp_path / "export.parquet", "langfuse")
    data = bytearray(path.read_bytes())
    if damage == "pages":
        data[4 : len(data) // 2] = b"\xff" * (len(data) // 2 - 4)
    elif damage == "footer":
        data[-200:-8] = b"\x00" * 192
    path.write_bytes(data[:100] if damage == "cut off" else b"PAR1" if damage == "only its mark" else data)
    code, out, error = types("import", path, "--store", tmp_path / "runs.db")
    assert (code, out) == (1, "The file contains no runs.\n")
    assert "damaged Parquet file" in error
    assert "Traceback" not in error


def write_table(path: Path, product: str) -> Path:
    """Write rows with all columns. Inputs and outputs have no schema, so they are columns of JSON."""
    rows = PRODUCTS[product]()
    names = dict.fromkeys(name for row in rows for name in row)
    cells = [
        {name: json.dumps(row[name]) if isinstance(row.get(name), dict) else row.get(name) for name in names}
        for row in rows
    ]
    parquet.write_table(pyarrow.Table.from_pylist(cells), path)
    return path
