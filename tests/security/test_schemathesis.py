"""Schemathesis makes requests from our own OpenAPI document: none gets a 5xx, or an answer that the
document does not describe. `make test-security` installs it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.security.support.server_probe import probe_server

CASES = int(os.environ.get("ANTIPHON_TEST_CASES", "500"))
OPERATIONS = 56
COMMAND = shutil.which("schemathesis", path=str(Path(sys.executable).parent))
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.skipif(COMMAND is None, reason="schemathesis is not installed: make test-security")
def test_every_request_that_the_document_allows_gets_an_answer_that_it_describes(
    tmp_path: Path,
) -> None:
    assert COMMAND is not None
    with probe_server(tmp_path, "--store", "sqlite") as server:
        command = [
            *(COMMAND, "run", f"{server.url}/schema/openapi.json", "--checks", ",".join(CHECKS)),
            *("--phases", "coverage,fuzzing", "--max-examples", str(max(5, CASES // OPERATIONS))),
            *("--generation-deterministic", "--suppress-health-check", "all", "--no-color"),
        ]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
        assert "Traceback" not in server.log()
    print(done.stdout[-300:])
