"""Raw bytes, slow and half-open connections: no 500, no stack trace, no change of state, others served."""

import asyncio
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.core.attack.common import SCALE
from tests.live.service.running import ARMS, Caller, InProcess, wait_until
from uvicorn.server import ServerState

from shoal.live.service import middleware
from shoal.live.service import server as server_module
from shoal.live.service.server import LARGEST_HEAD, MOST_HEADERS, Protocol, config_of

HEAD = (
    b"POST /v1/populations/abuse/decisions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
)
BODY = b'{"agent":"ada","arms":{"tea":[1.0,0.0],"coffee":[0.0,1.0]}}'


@pytest.fixture(scope="module")
def abused() -> Iterator[InProcess]:
    with InProcess() as running:
        with Caller(running.url) as call:
            call.make("abuse")
        yield running


def say(running: InProcess, *pieces: bytes, wait: float = 2.0, half_close: bool = True) -> bytes:
    """Send pieces of bytes on one connection; what is answered until it is closed, or nothing more comes."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=wait) as sock:
        answer = b""
        try:
            for piece in pieces:
                sock.sendall(piece)
                time.sleep(0.005)
            if half_close:
                sock.shutdown(socket.SHUT_WR)
            while chunk := sock.recv(65536):
                answer += chunk
        except OSError:
            pass
        return answer


def sequence(running: InProcess) -> int:
    with Caller(running.url) as call:
        found: int = call("GET", "/v1/populations/abuse").json()["sequence"]
        return found


def unharmed(running: InProcess, before: int, answer: bytes) -> None:
    assert b" 500 " not in answer.partition(b"\r\n")[0]
    for trace in (b"Traceback", b'File "', b".py"):
        assert trace not in answer
    assert sequence(running) == before


@pytest.mark.parametrize(
    "pieces",
    [
        [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"],  # TLS, which is not spoken here
        [b"\x00" * 1000],
        [b"GET\r\n\r\n"],
        [b"GET / HTTP/9.9\r\n\r\n"],
        [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"],
        [b"OPTIONS * HTTP/1.1\r\nhost: localhost\r\n\r\n"],
        [b"CONNECT evil.example:443 HTTP/1.1\r\nhost: localhost\r\n\r\n"],
        [b"GET http://evil.example/v1/populations HTTP/1.1\r\nhost: evil.example\r\n\r\n"],
        [b"GET /v1/populations/\xff\xfe HTTP/1.1\r\nhost: localhost\r\n\r\n"],
        [b"GET /v1/populations/%ff%fe HTTP/1.1\r\nhost: localhost\r\n\r\n"],
        [b"GET /v1/populations/%00 HTTP/1.1\r\nhost: localhost\r\n\r\n"],
        [b"GET /v1/populations/abuse?at=%ff HTTP/1.1\r\nhost: localhost\r\n\r\n"],
        [b"GET /v1/populations/abuse/../../etc/passwd HTTP/1.1\r\nhost: localhost\r\n\r\n"],
        [b"GET /livez HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\nx-request-id: \xff\r\n\r\n"],
        [b"GET /session HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer \xff_\xff_\xff\r\n\r\n"],
        [b"GET /session HTTP/1.1\r\nhost: localhost\r\ncookie: shoal_session=\xff; ;;=\r\n\r\n"],
        [HEAD + b"content-length: -1\r\n\r\n" + BODY],
        [HEAD + b"content-length: 99999999999999999999\r\n\r\n" + BODY],
        [HEAD + b"content-length: 5\r\ncontent-length: 7\r\n\r\n" + BODY],
        [HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"],
        [HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n"],
        [HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n"],
        [HEAD + b"content-encoding: gzip\r\ncontent-length: 3\r\n\r\n\x1f\x8b\x08"],
        [HEAD + b"content-length: 1000\r\n\r\n" + BODY],  # and then nothing more
        [HEAD + b"upgrade: websocket\r\nconnection: upgrade\r\n\r\n"],
        [HEAD[:40]],
        [b"GET /livez HTTP/1.1\r\n" + b"x: y\r\n" * 20_000],
        [b"GET /" + b"a" * 200_000],
    ],
)
def test_bytes_that_are_no_request(abused: InProcess, pieces: list[bytes]) -> None:
    before = sequence(abused)
    unharmed(abused, before, say(abused, *pieces, wait=1.0))


def test_random_damage(abused: InProcess) -> None:
    """Requests that are fine but for some bytes, of which some may still be understood."""
    draw = random.Random(11)
    whole = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
    for _ in range(60 * SCALE):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            place = draw.randrange(len(data))
            match draw.randrange(3):
                case 0:
                    data[place] = draw.randrange(256)
                case 1:
                    del data[place : place + draw.randint(1, 9)]
                case 2:
                    data[place:place] = bytes(draw.randrange(256) for _ in range(draw.randint(1, 9)))
        cuts = sorted(draw.sample(range(len(data)), 2))
        answer = say(abused, bytes(data[: cuts[0]]), bytes(data[cuts[0] : cuts[1]]), bytes(data[cuts[1] :]))
        status = answer.partition(b"\r\n")[0]
        assert b" 500 " not in status, (bytes(data), answer)
        assert b"Traceback" not in answer
    sequence(abused)


def test_a_request_in_single_bytes_is_served(abused: InProcess) -> None:
    whole = HEAD + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY
    answer = say(abused, *(whole[n : n + 7] for n in range(0, len(whole), 7)), half_close=False, wait=5.0)
    assert answer.startswith(b"HTTP/1.1 201 ")


def test_several_requests_at_once(abused: InProcess) -> None:
    """Pipelined: answered in order."""
    one = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"
    answer = say(abused, one * 20, wait=2.0, half_close=False)
    assert answer.count(b"HTTP/1.1 200 OK") == 20


def test_slow_and_half_open_connections_end_and_disturb_nobody(
    abused: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "PATIENCE", 3.0)
    before = sequence(abused)
    idle = [socket.create_connection(("127.0.0.1", abused.port)) for _ in range(100)]
    for number, sock in enumerate(idle):
        match number % 4:
            case 1:
                sock.sendall(HEAD[:30])
            case 2:
                sock.sendall(HEAD + b"content-length: 60\r\n\r\n")
            case 3:
                sock.sendall(HEAD + b"content-length: 60\r\n\r\n" + BODY[:20])
    with Caller(abused.url) as call:
        for _ in range(20):
            assert call("GET", "/livez").status_code == 200
    deadline = time.monotonic() + 30.0
    for sock in idle:
        sock.settimeout(max(0.1, deadline - time.monotonic()))
        assert sock.recv(1000) == b""  # closed by the server
        sock.close()
    unharmed(abused, before, b"")
    assert len(abused._server.server_state.connections) <= 2


@pytest.fixture(scope="module")
def large(abused: InProcess) -> tuple[bytes, int]:
    """A request, and the size of its answer, which is more than the operating system takes of it."""
    with Caller(abused.url) as call:
        shop = call.make("large", dim=512)
        for first in range(0, 800, 400):
            arms = {f"arm {n}": [n + 0.123456789] * 512 for n in range(first, first + 400)}
            assert call("PATCH", f"{shop}/catalogue", {"arms": arms}).status_code == 204
        size = len(call("GET", f"{shop}/catalogue").content)
    head = b"GET /v1/populations/large/catalogue HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    return head, size


def read_all(sock: socket.socket, pause: float = 0.0) -> int:
    """How many bytes come, with a pause after each 200,000 of them."""
    count, due = 0, 0
    try:
        while chunk := sock.recv(65536):
            count += len(chunk)
            if count > due:
                due += 200_000
                time.sleep(pause)
    except OSError:  # reset
        pass
    return count


@pytest.mark.parametrize(("bound", "value"), [("PATIENCE", 0.5), ("MOST_UNREAD", 3_000_000)])
def test_callers_that_do_not_read_are_dropped(
    abused: InProcess, large: tuple[bytes, int], monkeypatch: pytest.MonkeyPatch, bound: str, value: float
) -> None:
    """After a while, or when they hold too much together; one that reads slowly is served."""
    monkeypatch.setattr(server_module, bound, value)
    request, size = large
    idle = []
    for _ in range(6):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        sock.connect(("127.0.0.1", abused.port))
        sock.settimeout(20.0)
        sock.sendall(request)
        idle.append(sock)
    time.sleep(0.1)
    wait_until(lambda: abused.app.under_way == 0, 20.0)
    if bound == "PATIENCE":
        with socket.create_connection(("127.0.0.1", abused.port), timeout=5.0) as slow:
            slow.sendall(request)
            assert read_all(slow, 0.05) > size
        wait_until(lambda: not Protocol._unread, 20.0)
    assert sum(Protocol._unread.values()) <= 3_000_000
    sizes = [read_all(sock) for sock in idle]
    for sock in idle:
        sock.close()
    assert sum(one < size for one in sizes) >= (6 if bound == "PATIENCE" else 3), sizes


@pytest.mark.parametrize("rest", [HEAD[:30], HEAD + b"content-length: 60\r\n\r\n" + BODY[:20]])
def test_the_rest_must_come_also_after_a_complete_request(
    abused: InProcess, monkeypatch: pytest.MonkeyPatch, rest: bytes
) -> None:
    """A complete request and the beginning of another, in one piece."""
    monkeypatch.setattr(server_module, "PATIENCE", 0.3)
    before = sequence(abused)
    whole = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with socket.create_connection(("127.0.0.1", abused.port), timeout=5.0) as sock:
        sock.sendall(whole)
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 OK")  # and is kept open
        time.sleep(0.4)
        sock.sendall(whole + rest)
        answer = b""
        while chunk := sock.recv(65536):
            answer += chunk
    assert answer.count(b"HTTP/1.1 200 OK") == 1
    wait_until(lambda: abused.app.under_way == 0, 5.0)
    unharmed(abused, before, answer)


def test_requests_that_arrive_out_of_step_are_served(
    abused: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has its time to arrive: pieces that end within a request, for longer than one may take."""
    monkeypatch.setattr(server_module, "PATIENCE", 0.5)
    whole = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"
    shifted = whole[20:] + whole[:20]
    with socket.create_connection(("127.0.0.1", abused.port), timeout=5.0) as sock:
        sock.sendall(whole[:20])
        for _ in range(8):
            time.sleep(0.1)
            sock.sendall(shifted)
            answer = sock.recv(65536)
            while not answer.endswith(b"}"):
                chunk = sock.recv(65536)
                assert chunk, answer
                answer += chunk
            assert answer.startswith(b"HTTP/1.1 200 OK")


def test_probes_are_answered_while_too_many_wait(abused: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "MOST_WAITING", 0)
    with Caller(abused.url) as call:
        assert call("GET", "/livez").status_code == 200
        assert call("GET", "/readyz").status_code == 200
        refused = call("GET", "/v1/populations")
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"


def test_more_connections_than_there_may_be(abused: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are open are served on, further ones are refused, and nothing is left of them."""
    monkeypatch.setattr(server_module, "MOST_CONNECTIONS", 20)
    connections = abused._server.server_state.connections
    with Caller(abused.url) as early:
        assert early("GET", "/livez").status_code == 200
        idle = [socket.create_connection(("127.0.0.1", abused.port), timeout=5.0) for _ in range(60)]
        assert idle[-1].recv(1000).startswith(b"HTTP/1.1 503 ")
        assert idle[-1].recv(1000) == b""
        wait_until(lambda: len(connections) == 20, 5.0)
        assert early("GET", "/v1/populations").status_code == 200
        for sock in idle:
            sock.close()
        wait_until(lambda: len(connections) == 1, 5.0)
        with Caller(abused.url) as late:
            assert late("GET", "/livez").status_code == 200


def test_connections_leave_descriptors_for_the_rest() -> None:
    """The process's limit is raised as far as it may be, and so many connections fewer are taken."""
    program = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, {hard}))\n"
        "from shoal.live.service import server\n"
        "server.raise_descriptors()\n"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE), server.most_connections())\n"
    )
    for hard, most in ((700, 500), (8_000, 5_000)):
        done = subprocess.run(
            [sys.executable, "-c", program.format(hard=hard)], capture_output=True, text=True, timeout=60
        )
        assert done.stdout.split() == [str(hard), str(hard), str(most)], done.stderr


def test_without_a_key_a_body_is_small(abused: InProcess) -> None:
    """Signing in takes a few bytes: more are refused when they are announced, or come."""
    head = b"POST /session HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    announced = say(abused, head + b"content-length: 1001\r\n\r\n", half_close=False)
    assert announced.startswith(b"HTTP/1.1 413 ")
    assert b"1,000 bytes" in announced
    chunk = b"%x\r\n" % 600 + b" " * 600 + b"\r\n"
    came = say(abused, head + b"transfer-encoding: chunked\r\n\r\n", chunk, chunk, half_close=False)
    assert came.startswith(b"HTTP/1.1 413 ")
    with Caller(abused.url) as call:
        assert call("POST", "/session", {"key": "x" * 256}).status_code == 401


def test_bodies_have_a_bound_together(abused: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has come of all requests under way counts, until they are answered or given up."""
    monkeypatch.setattr(middleware, "MOST_READ", 1_000)
    before = sequence(abused)
    head = HEAD + b"content-length: 700\r\n\r\n"
    path, body = "/v1/populations/abuse/decisions", {"agent": "ada", "arms": ARMS}
    with Caller(abused.url) as call:
        with socket.create_connection(("127.0.0.1", abused.port)) as first:
            first.sendall(head + b" " * 690)
            wait_until(lambda: abused.app.bytes_read == 690, 5.0)
            with socket.create_connection(("127.0.0.1", abused.port), timeout=5.0) as second:
                second.sendall(head + b" " * 690)
                answer = second.recv(65536)
                assert answer.startswith(b"HTTP/1.1 503 ")
                assert b"retry-after: 1\r\n" in answer
            assert call("GET", "/v1/populations/abuse").status_code == 200
        wait_until(lambda: abused.app.bytes_read == 0, 5.0)
        assert sequence(abused) == before
        for _ in range(20):
            assert call("POST", path, body).status_code == 201
    wait_until(lambda: abused.app.bytes_read == 0, 5.0)


def test_a_caller_that_leaves_before_the_answer(abused: InProcess) -> None:
    before = sequence(abused)
    whole = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", abused.port)) as sock:
            sock.sendall(whole)
    with Caller(abused.url) as call:
        call("POST", "/v1/populations/abuse/decisions", {"agent": "ada", "arms": ARMS})
    assert before < sequence(abused) <= before + 22


class Wire(asyncio.Transport):
    """The server's end of a connection, without a network: what is written is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.closing = b"", False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def feed(app: Any, *pieces: bytes) -> tuple[bytes, float]:
    """Give a connection pieces of bytes, in this thread: the answers, and the processor time they took."""

    async def answer() -> tuple[bytes, float]:
        config = config_of(app)
        config.load()
        protocol, wire = Protocol(config, ServerState(), {}, asyncio.get_running_loop()), Wire()
        protocol.connection_made(wire)
        start = time.thread_time()
        for piece in pieces:
            if not wire.closing:
                protocol.data_received(piece)
        while protocol.tasks:
            await asyncio.sleep(0)
        protocol.connection_lost(None)
        return wire.written, time.thread_time() - start

    return asyncio.run(answer())


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})


SMALL = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
START = SMALL[:-2]
HEADS = {
    "many headers": START + b"a: b\r\n" * MOST_HEADERS + b"\r\n",
    "10,000 headers": START + b"a: b\r\n" * 10_000 + b"\r\n",
    "a long header": START + b"a: " + b"b" * LARGEST_HEAD + b"\r\n\r\n",
    "a long path": b"GET /" + b"a" * LARGEST_HEAD + SMALL[5:],
    "endless": START + b"a: " + b"b" * (2 * LARGEST_HEAD),
}
ARRIVALS: dict[str, Callable[[bytes], list[bytes]]] = {
    "at once": lambda head: [head],
    "in pieces": lambda head: [head[n : n + 1_000] for n in range(0, len(head), 1_000)],
    "behind another request": lambda head: [SMALL + head],
    "behind a body": lambda head: [START + b"content-length: 90000\r\n\r\n" + b" " * 90_000 + head],
    "on a line in use": lambda head: [SMALL, head],
}


@pytest.mark.parametrize("arrival", ARRIVALS)
@pytest.mark.parametrize("kind", HEADS)
def test_a_head_that_is_too_large_is_refused_however_it_arrives(kind: str, arrival: str) -> None:
    asked: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["headers"])
        await hello(scope, receive, send)

    pieces = ARRIVALS[arrival](HEADS[kind])
    if kind == "endless" and arrival.startswith("behind"):
        pieces.append(b"b" * 2 * LARGEST_HEAD)  # how much of the first piece was head is not known
    answer, _ = feed(app, *pieces)
    assert answer.count(b"HTTP/1.1 431 ") == 1
    assert b" 400 " not in answer
    assert b"65,536 bytes and 100 headers" in answer
    assert all(len(headers) <= 2 for headers in asked)


@pytest.mark.parametrize("arrival", ARRIVALS)
def test_a_head_as_large_as_it_may_be_is_served(arrival: str) -> None:
    head = START + b"a: b\r\n" * (MOST_HEADERS - 2) + b"a: " + b"b" * 64_000 + b"\r\n"
    body = b"content-length: 200000\r\n\r\n" + b" " * 200_000
    answer, _ = feed(hello, *ARRIVALS[arrival](head + b"\r\n"))
    assert answer.count(b"HTTP/1.1 200 ") == len(answer.split(b"HTTP/1.1 ")) - 1 >= 1
    with_body, _ = feed(hello, *ARRIVALS[arrival](head.replace(b"a: b\r\n", b"", 1) + body))
    assert with_body.count(b"HTTP/1.1 200 ") == len(with_body.split(b"HTTP/1.1 ")) - 1 >= 1


def test_trailers_have_a_bound_and_chunks_have_none() -> None:
    head = b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    chunks = [b"1\r\n \r\n" * 1_000] * 100
    assert feed(hello, head, *chunks, b"0\r\n\r\n")[0].startswith(b"HTTP/1.1 200 ")
    trailers = [b"a: " + b"b" * 10_000 + b"\r\n"] * 10
    assert b"HTTP/1.1 431 " in feed(hello, head, b"0\r\n", *trailers)[0]


def test_the_refusal_of_a_head_reaches_the_caller(abused: InProcess) -> None:
    before = sequence(abused)
    answer = say(abused, b"GET /livez HTTP/1.1\r\nhost: localhost\r\n" + b"a: b\r\n" * 100 + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 431 ")
    unharmed(abused, before, answer)


def asks(path: bytes = b"/session", query: bytes = b"", **headers: bytes) -> bytes:
    lines = [name.replace("_", "-").encode() + b": " + value for name, value in headers.items()]
    method = b"DELETE" if "origin" in headers else b"GET"
    start = [method + b" " + path + query + b" HTTP/1.1", b"host: localhost"]
    return b"\r\n".join([*(start[:1] if "host" in headers else start), *lines, b"", b""])


POPULATION = b"/v1/populations/"
HOSTILE: dict[str, Callable[[int], bytes]] = {
    "cookie of quotes": lambda n: asks(cookie=b'shoal_session="' + b'\\"' * (n // 2) + b'"'),
    "cookie of numbers": lambda n: asks(cookie=b'shoal_session="' + b"\\400" * (n // 4) + b'"'),
    "cookie of backslashes": lambda n: asks(cookie=b'shoal_session="' + b"\\" * n),
    "cookie of dots": lambda n: asks(cookie=b"shoal_session=" + b"." * n),
    "cookies": lambda n: asks(cookie=b"shoal_session=a.b;" * (n // 18)),
    "cookies without names": lambda n: asks(cookie=b"=;" * (n // 2)),
    "spaces in a cookie": lambda n: asks(cookie=b"a" + b" " * n + b"b"),
    "host of digits": lambda n: asks(host=b"a:" + b"1" * n + b"x"),
    "host of ports": lambda n: asks(host=b":1" * (n // 2) + b"x"),
    "key of underscores": lambda n: asks(authorization=b"Bearer shoal_" + b"_" * n),
    "spaces before a key": lambda n: asks(authorization=b"Bearer" + b" " * n + b"x"),
    "request id": lambda n: asks(x_request_id=b"a" * n + b"x"),
    "tags": lambda n: asks(b"/", if_none_match=b'W/"1",' * (n // 6)),
    "encodings": lambda n: asks(b"/", accept_encoding=b"gzi," * (n // 4)),
    "connection": lambda n: asks(connection=b"upgrade," * (n // 8)),
    "origin": lambda n: asks(origin=b"http://[" + b":" * n + b"]"),
    "origin of future addresses": lambda n: asks(origin=b"http://[v1." + b"a" * n + b"]"),
    "escaped name": lambda n: asks(POPULATION + b"%41" * (n // 3)),
    "name of percent signs": lambda n: asks(POPULATION + b"%" * n),
    "slashes": lambda n: asks(POPULATION + b"/" * n),
    "static file": lambda n: asks(b"/static/" + b"../" * (n // 3)),
    "query": lambda n: asks(POPULATION + b"a", b"?" + b"a=b&" * (n // 4)),
    "escaped query": lambda n: asks(POPULATION + b"a", b"?at=" + b"%" * n),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_four_times_the_bytes_take_about_four_times_as_long(abused: InProcess, kind: str) -> None:
    """Sixteen times would mean that a stranger's request of 60 kB stops the server for seconds."""
    few, many = (min(feed(abused.asgi, HOSTILE[kind](n))[1] for _ in range(3)) for n in (15_000, 60_000))
    assert many < 10.0 * few + 0.01


@pytest.mark.parametrize("unit", [b"[", b'{"a":'])
def test_a_body_that_is_nested_too_deeply(abused: InProcess, unit: bytes) -> None:
    before = sequence(abused)
    body = b'{"policy":"bass","parameters":{"alpha":' + unit * 5_000
    head = HEAD.replace(b"decisions", b"evaluation") + b"content-length: %d\r\n\r\n" % len(body)
    answer = say(abused, head + body)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"nested too deeply" in answer
    unharmed(abused, before, answer)
