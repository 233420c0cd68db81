"""Requests made up from the OpenAPI document, with links between them, against a server."""

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.core.attack.common import SCALE
from tests.live.places import Place, sound
from tests.live.population.server import find_binaries
from tests.live.service.running import InProcess

from shoal.live.service import keys

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "response_headers_conformance,unsupported_method,missing_required_header"
)


@pytest.mark.slow
@pytest.mark.no_cover
def test_whatever_the_document_allows(
    durable: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if durable.kind == "sqlite" and SCALE == 1 and find_binaries():
        pytest.skip("PostgreSQL, which takes fewer texts, is enough; `make chaos` tries both")
    # No clock: on a busy machine a server would say 503 that was not scheduled for seconds, and requests that
    # take long to make up would be a failure, too.
    monkeypatch.setattr(keys, "STALE", math.inf)
    with InProcess(durable.url, lease=600.0) as server:
        _, key = server.keys.add(keys.SCOPES)
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("schemathesis")), "run", f"{server.url}/openapi.json",
                "--header", f"Authorization: Bearer {key}", "--checks", CHECKS,
                "--phases", "coverage,fuzzing,stateful", "--max-examples", str(8 * SCALE), "--seed", "1",
                "--request-timeout", "300", "--no-color", "--suppress-health-check", "too_slow",
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
    assert "a request failed" not in caplog.text
    assert sound(durable.open())
