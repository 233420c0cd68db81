"""What docs/service.md says: the requests it shows work, and its tables are complete."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.live.service.running import InProcess

from shoal.live.protocol.problems import KINDS
from shoal.live.service.app import endpoints

PAGE = (Path(__file__).parents[3] / "docs" / "service.md").read_text()


def test_requests_by_curl_work() -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed here")
    (script,) = [block for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) if "api=" in block]
    with InProcess() as running:
        script = script.replace("http://127.0.0.1:8000", running.url).replace(
            "curl ", "curl -sS --fail-with-body "
        )
        done = subprocess.run(["bash", "-e", "-c", script], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"id":"visit-7","agent":"ada","arm":"' in done.stdout
    assert "problem" not in done.stdout


def test_every_kind_of_problem_is_listed() -> None:
    for kind, (status, _) in KINDS.items():
        assert re.search(rf"^\|[^|]*`{kind}`[^|]*\| {status} \|", PAGE, re.MULTILINE), kind


def test_every_route_is_listed() -> None:
    table = PAGE.partition("| request | scope |")[2].partition("\n\n")[0]
    for one in (one for one in endpoints() if one.answers):  # the others are the page's
        short = one.path.replace("/v1/populations/{population}/", "…/").replace("/v1/populations/{", "…/{")
        assert short in table, one.path


def test_every_metric_is_listed() -> None:
    with InProcess() as running:
        text = running.app.metrics.text().decode()
    for name in re.findall(r"^# TYPE (shoal_\w+) ", text, re.MULTILINE):
        if not name.endswith("_created"):
            assert f"`{name}`" in PAGE, name
