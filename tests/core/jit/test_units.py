"""Compiled code under attack: damaged caches, interrupts, threads and forks. Each in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import shoal
from shoal.core.jit import cache
from shoal.core.jit.compiled import UNITS, config

pytestmark = pytest.mark.skipif(config.DISABLE_JIT or not UNITS, reason="about units")

KIT = """
import gc, os, signal, sys, threading, time
import numpy as np
from numba.core import event
from shoal.core.jit import cache, units
from shoal.core.jit.compiled import allocating, compiled
units.LARGE = {large}
names = []

class Listener(event.Listener):
    def on_start(self, event):
        if isinstance(event.data["dispatcher"], units.Kernel):
            names.append(event.data["dispatcher"].py_func.__name__)

    def on_end(self, event):
        pass

event.register("numba:compile", Listener())

@compiled
def square(x):
    return x * x

@compiled
def total(xs):
    found = 0.0
    for i in range(xs.shape[0]):
        found += square(xs[i])
    return found

@compiled
def mean(xs):
    return total(xs) / xs.shape[0] + square(0.0)

@allocating
def spread(xs):
    if xs.shape[0] == 0:
        raise ValueError("no numbers", xs.shape[0])
    return np.full(2, mean(xs))

XS = np.arange(4.0)
def child(work):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        signal.alarm(40)
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
    return os.waitpid(pid, 0)[1]

def check():
    assert spread(XS).tolist() == [3.5, 3.5]
    try:
        spread(XS[:0])
    except ValueError as error:
        assert error.args == ("no numbers", 0), error
    else:
        raise AssertionError("no error")
"""


def play(program: str, place: Path, large: int = 0, **environment: str) -> list[str]:
    inherited = {key: value for key, value in os.environ.items() if key != "NUMBA_DISABLE_JIT"}
    path = str(Path(shoal.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", KIT.format(large=large) + program],
        env={**inherited, "NUMBA_CACHE_DIR": str(place), "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


DAMAGE = """
assert child(check) == 0
kept = {path: path.read_bytes() for path in cache.directory().iterdir()}

def found(fewer=False):
    before = len(names)
    check()
    assert (len(names) > before) == fewer, names

assert child(found) == 0
for path, content in kept.items():
    path.unlink()
    assert child(check) == 0, path
    path.write_bytes(content)
for path, content in kept.items():
    path.write_bytes(content[:-1])
assert child(check) == 0
for path, content in kept.items():
    path.write_bytes(content)
assert child(found) == 0
for path in kept:
    path.unlink()
assert child(lambda: found(fewer=True)) == 0
print(len(kept))
"""


@pytest.mark.parametrize("large", [0, 10**9])
def test_a_cache_with_missing_or_damaged_files_is_repaired(large: int, tmp_path: Path) -> None:
    """As units, of which LLVM ends the process if one is missing, and as parts."""
    assert play(DAMAGE, tmp_path, large) == ["5"]


def test_an_entry_with_any_byte_changed_or_missing_is_no_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "directory", lambda: tmp_path)
    assert cache.save("entry", ("symbol", b"code"))
    assert cache.load("entry") == ("symbol", b"code")
    content = (tmp_path / "entry").read_bytes()
    for k in range(len(content)):
        for damaged in (content[:k], content[:k] + bytes([content[k] ^ 1]) + content[k + 1 :]):
            (tmp_path / "entry").write_bytes(damaged)
            assert cache.load("entry") is None
    assert cache.load("another") is None
    assert not cache.save("lambda", lambda: 1)
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]


def test_code_of_a_symbol_that_is_gone_is_not_loaded(tmp_path: Path) -> None:
    """What a caller's file refers to is looked for before the caller is loaded."""
    play("check()", tmp_path)
    (square,) = tmp_path.rglob("__main___square-*")
    square.unlink()
    assert set(play("check(); print(*names)", tmp_path)[0].split()) == {"square", "total", "mean", "spread"}
    assert play("check(); print(*names)", tmp_path) == [""]


INTERRUPT = """
def raising(after):
    left = [after]

    def profile(frame, kind, argument):
        if kind == "call":
            left[0] -= 1
            if left[0] == 0:
                signal.raise_signal(signal.SIGINT)

    return profile

interrupts, after = 0, 1
while True:
    sys.setprofile(raising(after))
    try:
        check()
    except KeyboardInterrupt:
        interrupts += 1
    else:
        break
    finally:
        sys.setprofile(None)
    after = after * 5 // 4 + 1
check()
assert gc.isenabled()
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
assert not any(path.name.startswith(".") for path in cache.directory().iterdir())
print(interrupts)
"""


@pytest.mark.parametrize("large", [0, 10**9])
def test_an_interrupt_at_any_moment_leaves_nothing_half_compiled(large: int, tmp_path: Path) -> None:
    assert int(play(INTERRUPT, tmp_path, large)[0]) > 20
    assert play("check(); print(*names)", tmp_path, large) == [""]


THREADS = """
barrier = threading.Barrier(4)
results = []

def work():
    barrier.wait()
    results.append(spread(XS).tolist())

threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert results == [[3.5, 3.5]] * 4
print(sorted(names))
"""


def test_threads_that_call_a_function_at_once_compile_it_once(tmp_path: Path) -> None:
    assert play(THREADS, tmp_path) == ["['mean', 'spread', 'square', 'total']"]


FORK = """
compiling, forked = threading.Event(), threading.Event()

class Slow(event.Listener):
    def on_start(self, event):
        if event.data["dispatcher"] is square:
            compiling.set()
            forked.wait(2)

    def on_end(self, event):
        pass

event.register("numba:compile", Slow())
thread = threading.Thread(target=check)
thread.start()
compiling.wait()
print(child(check))
forked.set()
thread.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
def test_a_fork_while_a_thread_compiles_can_compile(tmp_path: Path) -> None:
    assert play(FORK, tmp_path) == ["0"]


@pytest.mark.parametrize("switch", ["NUMBA_OPT=1", "NUMBA_BOUNDSCHECK=1", "NUMBA_CPU_NAME=generic"])
def test_a_switch_of_numba_finds_no_code_of_another_setting(switch: str, tmp_path: Path) -> None:
    name, _, value = switch.partition("=")
    play("check()", tmp_path)
    assert len(play("check(); print(*names)", tmp_path, 0, **{name: value})[0].split()) == 4
    assert play("check(); print(*names)", tmp_path) == [""]


FOREIGN = """
import numba
from numba.core.errors import NumbaWarning
import warnings

@compiled
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

@compiled
def is_even(n):
    return True if n == 0 else is_odd(n - 1)

@compiled
def is_odd(n):
    return False if n == 0 else is_even(n - 1)

@numba.njit
def foreign(n, xs):
    return fibonacci(n) + mean(xs)

check()
assert (fibonacci(10), is_even(10), is_odd(10)) == (55, True, False)
assert foreign(10, XS) == 58.5
"""


@pytest.mark.parametrize("large", [0, 10**9])
def test_recursion_and_callers_that_numba_compiles_itself(large: int, tmp_path: Path) -> None:
    for _ in range(2):
        play(FOREIGN, tmp_path, large)


def test_without_compilation_functions_stay_as_they_are(tmp_path: Path) -> None:
    program = "from shoal.core.jit.compiled import compiled; f = lambda: 1; assert compiled(f) is f"
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    assert not list(tmp_path.iterdir())
