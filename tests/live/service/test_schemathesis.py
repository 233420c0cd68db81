"""Requests made up from the OpenAPI document, with links between them, against a server."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.commands import call
from tests.core.attack.common import SCALE
from tests.live.places import Place, sound
from tests.live.population.server import find_binaries
from tests.live.service.running import Process

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "response_headers_conformance,unsupported_method,missing_required_header"
)


@pytest.mark.slow
def test_whatever_the_document_allows(durable: Place, tmp_path: Path) -> None:
    if durable.kind == "sqlite" and SCALE == 1 and find_binaries():
        pytest.skip("PostgreSQL, which takes fewer texts, is enough; `make chaos` tries both")
    added = call("keys", "add", durable.url, "--scope", "decide,reward,read,admin")
    with Process(durable.url, "--no-log-requests", log=tmp_path / "log") as server:
        server.wait_ready()
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("schemathesis")), "run", f"{server.url}/openapi.json",
                "--header", f"Authorization: Bearer {added.stdout.strip()}", "--checks", CHECKS,
                "--phases", "coverage,fuzzing,stateful", "--max-examples", str(8 * SCALE), "--seed", "1",
                "--request-timeout", "300", "--no-color",
            ],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=560 * SCALE,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-6000:]
        found = re.search(r"API Links:\s+(\d+) covered", done.stdout)
        assert found, done.stdout
        assert int(found[1]) >= 3
        assert server.kill(signal.SIGTERM) == 0
    assert "a request failed" not in (tmp_path / "log").read_text()
    assert sound(durable.open())
