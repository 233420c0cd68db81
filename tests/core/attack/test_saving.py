"""Saving under load: threads, signals, forks, and growth at the same time."""

import os
import signal
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.core.attack.common import SCALE, run
from tests.core.contracts.test_policies import D, every_policy, grow, make, play, snapshot

import shoal

ROUNDS = 30 * SCALE


@pytest.fixture(autouse=True)
def _disk_that_need_not_be_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


@every_policy
def test_saving_changes_nothing(name: str, tmp_path: Path) -> None:
    policy = make(name)
    play(policy, 100)
    state, before = policy.state, snapshot(policy)
    policy.save(tmp_path / "p")
    assert policy.state is state
    assert snapshot(policy) == before


@pytest.mark.parametrize("name", ["bass", "cluster_mixture", "oracle"])
def test_eleven_threads_update_grow_save_and_load_one_file(name: str, tmp_path: Path) -> None:
    policy, path, errors = make(name), tmp_path / "p", list[BaseException]()
    play(policy, 30)
    policy.save(path)

    def guarded(work: Any) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    def save() -> None:
        for _ in range(ROUNDS):
            policy.save(path)

    def load() -> None:
        for _ in range(ROUNDS):
            loaded = shoal.load_policy(path)
            assert loaded.n_agents == len(loaded.graph)

    def update() -> None:
        rng = np.random.default_rng()
        for _ in range(4 * ROUNDS):
            x = rng.standard_normal(D)
            policy.update(int(rng.integers(9)), x, float(x[0]))

    def enlarge() -> None:
        for _ in range(ROUNDS // 6):
            grow(policy, 1)

    work = [save] * 4 + [load] * 3 + [update] * 3 + [enlarge]
    threads = [threading.Thread(target=guarded, args=(item,)) for item in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert policy.n_agents == 9 + ROUNDS // 6
    assert policy.rounds == 30 + 12 * ROUNDS
    assert os.listdir(tmp_path) == ["p"]


@pytest.mark.parametrize("name", ["bass", "cluster_mixture"])
def test_a_signal_handler_may_save_while_the_policy_learns(name: str, tmp_path: Path) -> None:
    policy, twin, path, saves = make(name), make(name), tmp_path / "p", list[int]()

    def save(*_: Any) -> None:
        policy.save(path)
        saves.append(shoal.load_policy(path).rounds)
        if len(saves) < 20 * SCALE:
            signal.setitimer(signal.ITIMER_REAL, 0.002)  # the next one, when this one is done

    before = signal.signal(signal.SIGALRM, save)
    signal.setitimer(signal.ITIMER_REAL, 0.002)
    try:
        for n in range(300 * SCALE):
            play(policy, 60, seed=n)
            if len(saves) >= 20 * SCALE:
                break
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    for m in range(n + 1):
        play(twin, 60, seed=m)
    assert len(saves) == 20 * SCALE
    assert saves == sorted(saves)
    assert snapshot(policy) == snapshot(twin)


def test_saving_in_the_middle_of_a_change_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, refused = make("bass"), list[str]()

    def interrupted(*_: Any) -> None:  # as a signal handler would
        calls: list[Callable[[], Any]] = [lambda: policy.save(tmp_path / "p"), lambda: policy.add_agents(1)]
        for call in calls:
            with pytest.raises(
                RuntimeError, match=r"is in the middle of (add_agents|remove_agent)"
            ) as caught:
                call()
            refused.append(str(caught.value))

    monkeypatch.setattr(policy, "_join", interrupted)
    monkeypatch.setattr(policy, "_end_edges", interrupted)
    policy.add_agents(1)
    policy.remove_agent(2)
    assert len(refused) == 4
    policy.save(tmp_path / "p")


FORK = textwrap.dedent(
    """
    import os, signal, sys, threading, time
    import numpy as np
    from tests.core.contracts.test_policies import make, play
    policy, stop = make("bass"), threading.Event()
    play(policy, 50)

    def work():
        while not stop.is_set():
            play(policy, 50)

    def busy():
        with policy.lock:
            time.sleep(0.05)

    thread = threading.Thread(target=work)
    thread.start()
    outcomes = []
    for n in range(int(sys.argv[1])):
        if n % 2:  # half of the forks while another thread surely holds the lock
            other = threading.Thread(target=busy)
            other.start()
            time.sleep(0.01)
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # a child that hangs dies of it
            try:
                policy.select(0, np.eye(3))
                policy.update(0, np.ones(3), 1.0)
            except RuntimeError as error:
                os._exit(7 if "forked while another thread was using the policy" in str(error) else 8)
            os._exit(0)
        outcomes.append(os.waitpid(child, 0)[1])
    stop.set()
    thread.join()
    print(sorted(set(map(os.waitstatus_to_exitcode, outcomes))), outcomes.count(7 << 8))
    """
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_while_another_thread_learns_works_or_raises() -> None:
    done = run("-W", "ignore::DeprecationWarning", "-c", FORK, str(20 * SCALE))
    assert done.returncode == 0, done.stderr
    codes, raised = done.stdout.rsplit(" ", 1)
    assert set(codes.strip("[]").split(", ")) <= {"0", "7"}, done.stdout
    assert int(raised) >= 5 * SCALE


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, path = make("bass"), tmp_path / ("p" * 200)
    policy.save(path)
    content = path.read_bytes()
    play(policy, 20)
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        policy.save(path)
    assert path.read_bytes() == content
    assert os.listdir(tmp_path) == [path.name]
