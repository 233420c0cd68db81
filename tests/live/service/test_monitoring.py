"""Readiness, metrics, and the dashboard and alert rules that are made of them."""

import asyncio
import json
import re
import shutil
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tests.live.service.running import ARMS, Caller, InProcess, wait_until

import shoal
from shoal.live.journal.stores.sqlite import SQLiteStore
from shoal.live.protocol.errors import UnavailableError
from shoal.live.service import service

MONITORING = Path(__file__).parents[3] / "docs" / "monitoring"


def scraped(running: InProcess) -> dict[str, float]:
    """Every sample by its name, labels left out: the last of each."""
    text = httpx.get(f"{running.url}/metrics").text
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {re.split(r"[ {]", line, maxsplit=1)[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_readiness_follows_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it cannot commit the server is not ready; it finds out by itself when it can again."""
    with InProcess(str(tmp_path / "shop.db")) as running, Caller(running.url) as call:
        shop = call.make("shop", policy="independent")
        decision = {"agent": "ada", "arms": ARMS, "id": "first"}

        def fail(*_: object) -> None:
            raise UnavailableError(f"{tmp_path} cannot be written: database or disk is full")

        with monkeypatch.context() as full:
            full.setattr(SQLiteStore, "append", fail)
            full.setattr(SQLiteStore, "probe", fail)
            assert call("POST", f"{shop}/decisions", decision).status_code == 503
            found = scraped(running)
            assert (found["shoal_commit_failures_total"], found["shoal_store_available"]) == (1.0, 0.0)
            answer = call("GET", "/readyz")
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert "disk is full" in answer.json()["detail"]
            running.keys.add(["read"])  # from now on strangers are not told where the store is
            wait_until(lambda: call("GET", "/v1/populations").status_code == 401)
            assert call("GET", "/readyz").json()["detail"] == "the store cannot commit"
        wait_until(lambda: call("GET", "/readyz").status_code == 200, 10.0)


def test_a_full_disk_is_noticed_without_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise UnavailableError("full")

    with InProcess(str(tmp_path / "shop.db")) as running, Caller(running.url) as call:
        with monkeypatch.context() as full:
            full.setattr(SQLiteStore, "free", lambda self: 0)
            full.setattr(SQLiteStore, "probe", fail)
            wait_until(lambda: call("GET", "/readyz").status_code == 503, 10.0)
        wait_until(lambda: call("GET", "/readyz").status_code == 200, 10.0)


def test_a_probe_commits(tmp_path: Path) -> None:
    """It writes, so that a full disk shows, and changes nothing."""
    path = tmp_path / "shop.db"
    with shoal.open(path) as controller:
        before = controller.store.nbytes()
        controller.store.probe()
        assert controller.store.nbytes() > before
        with sqlite3.connect(path, timeout=0.1) as other:
            assert other.execute("PRAGMA user_version").fetchone() == (1,)


def test_why_a_server_is_not_ready_yet() -> None:
    async def compiling() -> None:
        with InProcess() as running:
            running.app.is_prepared = False
            with Caller(running.url) as call:
                assert "populations are being opened: 0 so far" in call("GET", "/readyz").text
                running.app._compiled["bass"] = asyncio.Event()
                answer = call("GET", "/readyz")
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
                assert answer.json()["detail"] == "the policy 'bass' is being compiled"

    asyncio.run(compiling())


def test_what_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "LAG", 0.01)
    monkeypatch.setattr(service, "TEND", 0.1)
    monkeypatch.setattr(service, "EXAMINE", 0.1)
    monkeypatch.setattr(service, "RESTS", 0.0)
    with InProcess(str(tmp_path / "shop.db")) as running, Caller(running.url) as call:
        shop = call.make("shop")
        for n in range(5):
            call("POST", f"{shop}/decisions", {"agent": "ada", "arms": ARMS, "id": f"d{n}"})
        for id, reward in (("d0", 1.0), ("d1", 0.5), ("d1", 2.0), ("nobody's", 1.0)):
            call("PUT", f"{shop}/decisions/{id}/reward", {"reward": reward})
        wait_until(lambda: scraped(running).get("shoal_store_bytes", 0.0) > 0.0)
        wait_until(lambda: "shoal_alarm" in scraped(running))
        found = scraped(running)
        assert found["shoal_commit_seconds_count"] >= 6
        assert found["shoal_loop_lag_seconds_count"] > 0
        assert found["shoal_snapshot_age_records"] == call("GET", shop).json()["sequence"]
        assert found["shoal_disk_free_bytes"] > 0
        assert found["shoal_build_info"] == 1.0
        text = call("GET", "/metrics").text
        assert f'shoal_build_info{{version="{shoal.__version__}"}} 1.0' in text
        assert "_created" not in text
        names = {*scraped(running)}
        for kind, file in (("dashboard", "grafana.json"), ("alerts", "alerts.yml")):
            asked = [
                one for expr in expressions(file) for one in re.findall(r"\b(?:shoal|process)_\w+", expr)
            ]
            assert len(asked) > 10, kind
            missing = {one for one in asked if one not in names}
            assert not missing, f"{file} asks for {missing}"


def expressions(file: str) -> list[str]:
    """All queries in a file."""
    content: Any = (MONITORING / file).read_text()
    if file.endswith(".json"):
        return [target["expr"] for panel in json.loads(content)["panels"] for target in panel["targets"]]
    return [rule["expr"] for group in yaml.safe_load(content)["groups"] for rule in group["rules"]]


def test_rules_as_prometheus_reads_them() -> None:
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed here")
    done = subprocess.run(
        [promtool, "check", "rules", MONITORING / "alerts.yml"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_over_tls_browsers_stay_there() -> None:
    for behind_tls in (False, True):
        with InProcess(behind_tls=behind_tls) as running:
            answer = httpx.get(f"{running.url}/livez")
            assert ("strict-transport-security" in answer.headers) == behind_tls


def test_old_records_are_archived_while_it_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "HOUR", 0.1)
    archive = tmp_path / "archive"
    archive.mkdir()
    running = InProcess(str(tmp_path / "shop.db"), retention=(str(archive), 0.5))
    with running, Caller(running.url) as call:
        shop = call.make("shop", policy="independent")
        for n in range(20):
            call("POST", f"{shop}/decisions", {"agent": "ada", "arms": ARMS, "id": f"d{n}"})
            call("PUT", f"{shop}/decisions/d{n}/reward", {"reward": 1.0})
        last = call("GET", shop).json()["sequence"]
        time.sleep(0.6)
        wait_until(lambda: running.app.populations["shop"].owner.base.seq == last, 20.0)
        assert call("GET", f"{shop}/agents/ada").json()["rewards"] == 20
        made = call("POST", f"{shop}/decisions", {"agent": "ada", "arms": ARMS, "id": "later"})
        assert made.status_code == 201
    assert list(archive.glob("*.parquet"))
    with shoal.open(tmp_path / "shop.db") as controller:
        assert controller.verify() == {"shop": []}
        assert controller.population("shop").sequence >= last + 1
