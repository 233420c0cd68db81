"""The TypeScript client, generated, packed and called in Node against a server; skipped without Node.

Types are checked if there is a compiler: `tsc` on the path, or named by SHOAL_TSC.
"""

import http.server
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.service.running import Caller
from tools.typescript import generate

import shoal
from shoal.live.service.app import endpoints

NODE = shutil.which("node")
TSC = os.environ.get("SHOAL_TSC") or shutil.which("tsc")
pytestmark = pytest.mark.skipif(NODE is None, reason="there is no Node")

HEAD = """import { Client, ShoalError, UnavailableError } from "./client.js";
const [url, population] = process.argv.slice(2);
const shoal = new Client(url);
const said = (error) => `${error.name} ${error.kind ?? ""}`;
const caught = async (promise) => promise.then(() => "nothing", said);
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("typescript")
    generate(directory)
    return directory


def run(package: Path, program: str, *arguments: str) -> Any:
    """What a program prints, as JSON."""
    (package / "program.mjs").write_text(HEAD + program)
    done = subprocess.run(
        [str(NODE), package / "program.mjs", *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_operation_is_a_method(package: Path) -> None:
    names = run(
        package, "console.log(JSON.stringify(Object.getOwnPropertyNames(Client.prototype)))", "http://x"
    )
    assert len(set(names) - {"constructor", "request"}) == sum(bool(one.answers) for one in endpoints())


def test_decisions_and_rewards(package: Path, call: Caller, shop: str) -> None:
    name = shop.rsplit("/", 1)[1]
    found = run(
        package,
        """
        const arms = { tea: [1, 0], coffee: [0, 1] };
        await shoal.addArms({ population, body: { arms } });
        const first = await shoal.decide({ population, body: { agent: "a/b c", id: "visit 1" } });
        const again = await shoal.decide({ population, body: { agent: "a/b c", id: "visit 1" } });
        const nothing = await shoal.putReward({ population, id: first.id, body: { reward: 0.5 } });
        const requests = [{ agent: "ben" }, { agent: "ben" }];
        const many = await shoal.decideMany({ population, body: { requests } });
        const learned = await shoal.observe({ population, body: { agent: "ben", arm: "tea", reward: 1 } });
        const why = await shoal.explain({ population, agent: "a/b c" });
        const events = await shoal.events({ population, after: 1, limit: 2 });
        const conflict = await caught(shoal.putReward({ population, id: first.id, body: { reward: 1 } }));
        const unknown = await caught(shoal.getPopulation({ population: "nowhere" }));
        const metrics = await shoal.scrape();
        console.log(JSON.stringify({ same: first.sequence === again.sequence, nothing: nothing ?? null,
          many: new Set(many.results.map((one) => one.decision.id)).size, learned, agent: why.agent,
          events: events.events.length, conflict, unknown, metrics: metrics.includes("shoal_decisions") }));
        """,
        str(call.http.base_url),
        name,
    )
    assert found == {
        "same": True, "nothing": None, "many": 2, "learned": {"new": True}, "agent": "a/b c", "events": 2,
        "conflict": "ShoalError conflict", "unknown": "ShoalError unknown", "metrics": True,
    }  # fmt: skip
    assert call("GET", f"{shop}/decisions/visit%201").json()["rewards"] == [0.5]


class Flaky(http.server.BaseHTTPRequestHandler):
    """Fails twice in the ways that servers and proxies fail, then answers."""

    seen: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.seen.append(body)
        status, text = [(503, b"<html>"), (429, b'{"status": 429}'), (201, b'{"arm": "tea"}')][
            min(len(self.seen), 3) - 1
        ]
        if body["agent"] == "never":
            status, text = 503, b"{}"
        self.send_response(status)
        self.send_header("retry-after", "0")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def flaky() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    Flaky.seen = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Flaky) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", Flaky.seen
        server.shutdown()


def test_repeated_under_one_id_until_the_deadline(
    package: Path, flaky: tuple[str, list[dict[str, Any]]]
) -> None:
    url, seen = flaky
    found = run(
        package,
        """
        const decision = await shoal.decide({ population, body: { agent: "ada" } });
        const never = { population, body: { agent: "never" }, deadline: 300 };
        const late = await caught(shoal.decide(never));
        const instead = await shoal.decide({ ...never, fallback: "water" });
        const gone = await caught(new Client("http://127.0.0.1:9").decide(never));
        const stopped = await caught(shoal.decide({ ...never, signal: AbortSignal.abort() }));
        console.log(JSON.stringify({ decision, late, instead, gone, stopped }));
        """,
        url,
        "shop",
    )
    assert found["decision"] == {"arm": "tea"}
    asked = [one for one in seen if one["agent"] == "ada"]
    assert len(asked) == 3
    assert len({one["id"] for one in asked}) == 1
    assert found["late"].startswith("UnavailableError")
    assert found["gone"] == "UnavailableError unavailable"
    assert (found["instead"]["arm"], found["instead"]["sequence"]) == ("water", 0)
    assert found["stopped"].startswith("AbortError")


def test_what_is_packed(package: Path) -> None:
    if (npm := shutil.which("npm")) is None:
        pytest.skip("there is no npm")
    done = subprocess.run(
        [npm, "pack", "--dry-run", "--json", "--offline"],
        cwd=package,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    (packed,) = json.loads(done.stdout)
    assert {one["path"] for one in packed["files"]} == {
        "client.js", "index.d.ts", "operations.js", "package.json", "README.md"
    }  # fmt: skip
    assert (packed["name"], packed["version"]) == ("shoal-client", shoal.__version__)


@pytest.mark.skipif(TSC is None, reason="there is no TypeScript compiler; SHOAL_TSC names one")
def test_types(package: Path) -> None:
    def errors(program: str) -> str:
        (package / "typed.ts").write_text(f'import {{ Client }} from "./index.js";\n{program}')
        done = subprocess.run(
            [str(TSC), "--noEmit", "--strict", "--target", "es2022", "--module", "nodenext", "typed.ts"],
            cwd=package, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        return done.stdout

    start = 'const shoal = new Client("http://x", { key: "k", deadline: 5 });\n'
    good = 'const made = await shoal.decide({ population: "shop", body: { agent: "ada", arms: ["tea"] } });\n'
    assert errors(start + good + "const arm: string | number = made.arm; export { arm };") == ""
    for bad in (
        'await shoal.decide({ population: "shop", body: { agnt: "ada" } });',
        'await shoal.decide({ body: { agent: "ada" } });',
        'const made = await shoal.decide({ population: "s", body: { agent: "a" } }); made.nothing;',
        'await shoal.putAgent({ population: "s", agent: "a", body: { sharing: "some" } });',
    ):
        assert "error TS" in errors(start + bad + "export {};")
