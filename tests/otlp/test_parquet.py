"""Parquet files that pyarrow writes, as LangSmith, Langfuse and Phoenix export them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pyarrow = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402
from session_logs import read  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "transcripts"))
from test_tracing_exports import PRODUCTS, check_shop  # noqa: E402

pytestmark = pytest.mark.otlp


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_parquet_file_gives_the_run_with_its_calls_and_failures(product, tmp_path):
    parquet.write_table(pyarrow.Table.from_pylist(_with_equal_columns(product)), tmp_path / "export.parquet")
    (history,) = read(tmp_path / "export.parquet")
    check_shop(history)


def _with_equal_columns(product: str) -> list[dict[str, object]]:
    """Return rows with all columns. Inputs and outputs have no schema, so they are columns of JSON."""
    rows = PRODUCTS[product]()
    names = dict.fromkeys(name for row in rows for name in row)
    return [
        {name: json.dumps(row[name]) if isinstance(row.get(name), dict) else row.get(name) for name in names}
        for row in rows
    ]
