"""Thousands of requests made from the OpenAPI document: no fault of the server, no status that is not documented."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytest.importorskip("schemathesis", reason="run by make test-api")

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.mark.api
def test_the_api_does_what_its_document_says(tmp_path):
    serving = subprocess.Popen(
        [sys.executable, "-m", "mulligan", "serve", "--no-auth", "--port", "0", "--store", str(tmp_path / "s.db")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        url = re.search(r"Listening on (\S+) with store ", serving.stdout.readline())[1]
        words = ["run", f"{url}/openapi.json", "--checks", CHECKS, "-n", "25", "--phases", "examples,coverage,fuzzing"]
        done = subprocess.run(
            [sys.executable, "-m", "schemathesis.cli", *words],
            capture_output=True,
            text=True,
            timeout=1500,
            cwd=tmp_path,
        )
    finally:
        serving.kill()
        _, err = serving.communicate()
    assert done.returncode == 0, done.stdout[-4000:]
    assert "Traceback" not in err
