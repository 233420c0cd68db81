"""No file, however damaged or hostile, does more than be refused: every policy, every field."""

import json
import os
import time
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
from tests.core.attack.common import SCALE, run
from tests.core.attack.hostile import pack, saved
from tests.core.contracts.test_policies import CLASSES, D, every_policy, kept, make, play
from tests.saved.make import OWN as WRITTEN
from tests.saved.make import go_on, relations

import shoal
from shoal.core import fields
from shoal.core.policy import files
from shoal.core.policy.steps import Common, step
from shoal.core.types import Vector

SAVED = Path(__file__).parents[2] / "saved"


@pytest.mark.slow
def test_mutated_files_of_every_policy_are_refused_or_work() -> None:
    done = run("-m", "tests.core.attack.hostile", "0", str(SCALE))
    last = done.stderr.splitlines()[-1:]
    assert done.returncode == 0, f"died with {done.returncode} at {last}"
    found = json.loads(done.stdout)
    assert found["failures"] == []
    assert found["refused"] > 1500
    assert found["accepted"] > 100  # byte order, Fortran order, flips of what means nothing


@every_policy
def test_every_field_is_declared(name: str) -> None:
    leaves = fields.leaves(CLASSES[name].State)
    assert len(leaves) > 10
    for leaf in leaves:
        if leaf.field.role is fields.Role.KEPT and leaf.field.dtype.kind in "iu":
            below = leaf.below({"agents": 9, "clusters": 3, "rows": 9, "grid": 8})
            bounded = leaf.field.low > -np.inf and below < np.inf
            assert bounded or leaf.name in ("apart", "common.rng"), leaf.name  # any bits are a set, or a seed


def test_a_state_with_an_undeclared_field_is_refused() -> None:
    class ForgetfulState(NamedTuple):
        common: Common
        weights: Vector

    with pytest.raises(TypeError, match=r"field 'weights' of ForgetfulState must have one declaration"):
        step("select", ForgetfulState)

    class VagueState(NamedTuple):
        common: Common
        weights: Annotated[Any, "a comment"]

    with pytest.raises(TypeError, match=r"field 'weights' of VagueState must have one declaration"):
        step("select", VagueState)


def test_a_size_in_the_header_is_compared_before_anything_is_made(tmp_path: Path) -> None:
    _, header, arrays = saved("bass")
    for key, value in (("dim", 15_000), ("n_agents", 10**9), ("dim", 10**30), ("n_agents", -1)):
        (tmp_path / "p").write_bytes(pack(header | {key: value}, arrays))
        start = time.thread_time()
        with pytest.raises(shoal.PolicyFileError, match=r"but array 'local.A' has shape \(11, 6\)"):
            shoal.load_policy(tmp_path / "p")
        assert time.thread_time() - start < 1.0
    _, header, arrays = saved("dynucb")
    parameters = header["parameters"] | {"n_clusters": 10**12}
    (tmp_path / "p").write_bytes(pack(header | {"parameters": parameters}, arrays))
    with pytest.raises(shoal.PolicyFileError, match=r"'pool.A' is float64"):
        shoal.load_policy(tmp_path / "p")


def test_what_is_not_a_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(shoal.PolicyFileError, match="is not a file"):
            shoal.load_policy(path)


@every_policy
def test_fortran_order_and_other_byte_order_load_like_ours(name: str, tmp_path: Path) -> None:
    content, header, arrays = saved(name)
    (tmp_path / "ours").write_bytes(content)
    for kind in (np.asfortranarray, lambda array: array.astype(array.dtype.newbyteorder(">"))):
        (tmp_path / "theirs").write_bytes(pack(header, {key: kind(value) for key, value in arrays.items()}))
        ours, theirs = (shoal.load_policy(tmp_path / who) for who in ("ours", "theirs"))
        assert play(ours, 50) == play(theirs, 50)
        assert all(np.array_equal(value, kept(theirs)[key]) for key, value in kept(ours).items())


@pytest.mark.parametrize(
    ("name", "field", "value", "message"),
    [
        ("club", "apart", -1, "apart cuts an agent from itself"),
        ("sclub", "labels", 2**40, "holds 1099511627776, which is not less than 9"),
        ("sclub", "next_stage", 4, "stages start in rounds 1, 3, 7, 15"),
        ("sclub", "next_stage", -1, "holds -1, which is less than 1"),
        ("cmlb", "labels", 3, "pool.A is not the sum over the members"),
        ("dynucb", "labels", -3, "holds -3, which is less than 0"),
        ("bass", "cuts.used", 2**20, "cuts.used is 1048576, but 'cuts.pairs' has"),
        ("bass", "cuts.pairs", 3, "cuts.pairs are not pairs"),
        ("bass", "blocks", 5.0, "blocks are not the sums of lent"),
        ("bass", "lent", 0.0, "(blocks are not the sums of lent|lent is not what local holds)"),
        ("bass", "local.A_inv", 1.0, "A_inv is not the inverse of A"),
        ("bass", "local.theta_hat", 1.0, "theta_hat is not A⁻¹ b"),
        ("bass", "local.logdet_A", 1.0, "logdet_A is not the log-determinant of A"),
        ("bass", "local.A", -1.0, "A is not symmetric with a positive diagonal"),
        ("bass", "common.rng", 0, "holds 0, which is less than 1"),
        ("bass", "common.withdrawn", True, "an agent is withdrawn, and active or with samples"),
        ("bass", "common.borrows", False, "an agent lends and does not borrow"),
        ("bass", "common.lends", False, "is withdrawn and does not lend"),
        ("bass", "common.restricted", 3, "restricted is 3, and 0 agents do not lend"),
        (
            "cluster_mixture",
            "pool.members.labels",
            0,
            "(not the sum|a cluster has no active member)",
        ),
        ("cluster_mixture", "pool.model.noise", 1.0, "and the samples say"),
        ("cluster_mixture", "pool.model.weights", -1.0, "which is less than"),
        ("cluster_mixture", "pool.model.unit", -9.0, "which is less than"),
        ("cluster_mixture", "pool.model.prior", -99.0, "which is less than"),
        ("cluster_mixture", "looked", 1.0, "looked is not the sum over the agents who lend"),
        ("cluster_mixture", "pool.model.position", 1, "holds 1, which is not less than 1"),
        ("cluster_mixture", "pool.clusters.resummed", 22, "pool.clusters.resummed names no cluster"),
        ("cluster_mixture", "pool.clusters.waiting", 1, "does not count the pending pulls"),
        ("cluster_mixture", "common.pending.counts", 1, "pulls are pending that nobody waits for"),
        ("cluster_mixture", "drift.held", 25, "holds 25, which is not less than 25"),
        ("cluster_mixture", "drift.newest", 24, "holds 24, which is not less than 24"),
    ],
)
def test_contents_that_do_not_fit_together(
    name: str, field: str, value: Any, message: str, tmp_path: Path
) -> None:
    _, header, arrays = saved(name)
    (tmp_path / "p").write_bytes(pack(header, arrays | {field: np.full_like(arrays[field], value)}))
    with pytest.raises(shoal.PolicyFileError, match=message):
        shoal.load_policy(tmp_path / "p")


@pytest.mark.parametrize("version", range(1, files.FORMAT + 1))
@pytest.mark.parametrize("name", WRITTEN)
def test_files_of_every_format_ever_written_go_on_as_they_did(name: str, version: int) -> None:
    folder = SAVED / f"format-{version}"
    expected = json.loads((folder / "policies.json").read_text())[name]
    policy = shoal.load_policy(folder / f"{name}.shoal")
    assert go_on(policy, 100, seed=3) == expected["choices"]
    assert relations(policy) == expected["relations"]


def test_a_file_of_an_earlier_format_is_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a later version will do it: from a format 0 that never was, with other names and an array more."""
    content, header, arrays = saved("bass")
    old = dict(arrays, theta=arrays["local.theta_hat"], mood=np.zeros(3))
    del old["local.theta_hat"]
    parameters = dict(header["parameters"])
    parameters["confidence"] = 1.0 - parameters.pop("delta")
    path = tmp_path / "old"
    path.write_bytes(pack(header | {"format": 0, "parameters": parameters}, old))
    with pytest.raises(shoal.PolicyFileError, match=r"old has format 0; this version of shoal reads 1$"):
        shoal.load_policy(path)

    def rename(header: dict[str, Any], arrays: dict[str, Any]) -> None:
        header["parameters"]["delta"] = round(1.0 - header["parameters"].pop("confidence"), 9)
        arrays["local.theta_hat"] = arrays.pop("theta")

    monkeypatch.setitem(files.MIGRATIONS, 0, rename)
    (tmp_path / "now").write_bytes(content)
    then, now = (shoal.load_policy(tmp_path / name) for name in ("old", "now"))
    assert then.parameters == now.parameters
    assert all(np.array_equal(value, kept(then)[key]) for key, value in kept(now).items())
    assert play(then, 50) == play(now, 50)
    path.write_bytes(pack(header | {"format": 0}, arrays))
    with pytest.raises(shoal.PolicyFileError, match="old of format 0 cannot be brought to 1: 'confidence'"):
        shoal.load_policy(path)
    path.write_bytes(pack(header | {"format": 2}, arrays))
    with pytest.raises(
        shoal.PolicyFileError, match=r"has format 2, which a newer version wrote; .* 0 and 1$"
    ):
        shoal.load_policy(path)


def test_rows_of_zeros_take_no_place_in_a_file(tmp_path: Path) -> None:
    policy = shoal.ClusterMixture(2_000, 4, seed=0)
    for agent in range(0, 2_000, 100):
        policy.update(agent, np.ones(4), 1.0)
    policy.save(path := tmp_path / "policy")
    _, arrays = unpacked(path)
    rows = arrays["drift.ring@rows"]
    assert np.array_equal(rows, np.arange(0, 2_000, 100) * policy.state.drift.ring.shape[1])
    assert arrays["drift.ring"].shape == (20, 6)
    assert path.stat().st_size < 0.5 * sum(leaf.nbytes for leaf in saved_arrays(policy))
    again = shoal.load_policy(path)
    assert again.to_bytes() == policy.to_bytes()
    for one, other in zip(saved_arrays(policy), saved_arrays(again), strict=True):
        assert one.tobytes() == other.tobytes()


def test_minus_zero_is_not_nothing() -> None:
    leaf = next(
        leaf for leaf in fields.leaves(shoal.ClusterMixture.State) if leaf.name == "pool.clusters.sums"
    )
    array = np.zeros((4_000, 3))
    array[2, 1] = -0.0
    sizes = {"agents": 2_000, "dim": 2, "clusters": 4_000, "packed": 3}
    assert files.shortened(leaf, array, sizes)["pool.clusters.sums@rows"].tolist() == [2]


@every_policy
def test_symmetric_matrices_take_half_their_place_in_a_file(name: str, tmp_path: Path) -> None:
    policy = make(name)
    play(policy, 200)
    policy.save(path := tmp_path / "policy")
    _, arrays = unpacked(path)
    declared = [leaf.name for leaf in fields.leaves(CLASSES[name].State) if leaf.field.symmetric]
    written = [key for key in declared if key in arrays]
    assert written
    assert [arrays[key].shape[1:] for key in written] == [(D * (D + 1) // 2,)] * len(written)
    again = shoal.load_policy(path)
    for one, other in zip(kept(policy).values(), kept(again).values(), strict=True):
        assert one.tobytes() == other.tobytes()


def test_what_is_not_symmetric_to_the_last_digit_is_written_in_full(tmp_path: Path) -> None:
    policy = make("independent")
    play(policy, 40)
    policy.state.local.A_inv[2, 0, 1] *= 1.0 + 2.0**-52
    policy.save(path := tmp_path / "policy")
    _, arrays = unpacked(path)
    assert arrays["local.A_inv"].shape == policy.state.local.A_inv.shape
    assert arrays["local.A"].ndim == 2
    assert shoal.load_policy(path).state.local.A_inv.tobytes() == policy.state.local.A_inv.tobytes()


def test_matrices_of_another_size_are_refused(tmp_path: Path) -> None:
    header, arrays = lived(tmp_path)
    for name in ("local.A", "local.A_inv"):
        for wrong in (arrays[name][:, :-1], arrays[name][:-1], arrays[name].astype(np.float32)):
            (path := tmp_path / "policy").write_bytes(pack(header, arrays | {name: wrong}))
            with pytest.raises(shoal.PolicyFileError, match=f"array '{name}'"):
                shoal.load_policy(path)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([-1], "does not name rows below 9 in increasing order"),
        ([9], "does not name rows below 9 in increasing order"),
        ([3, 3], "does not name rows below 9 in increasing order"),
        ([4, 3], "does not name rows below 9 in increasing order"),
        ([[3]], "expected int64 in a row"),
        ([3.0], "expected int64 in a row"),
        ([3, 4], r"array 'local.b' is float64\(1, 3\), expected float64\(2, 3\)"),
    ],
)
def test_rows_that_cannot_be(rows: Any, message: str, tmp_path: Path) -> None:
    header, arrays = lived(tmp_path)
    arrays["local.b@rows"], arrays["local.b"] = np.array(rows), arrays["local.b"][:1]
    (path := tmp_path / "policy").write_bytes(pack(header, arrays))
    with pytest.raises(shoal.PolicyFileError, match=message):
        shoal.load_policy(path)


def test_what_says_the_sizes_is_there_in_full(tmp_path: Path) -> None:
    header, arrays = lived(tmp_path)
    arrays["local.A@rows"] = np.arange(27)
    (path := tmp_path / "policy").write_bytes(pack(header, arrays))
    with pytest.raises(shoal.PolicyFileError, match=r"holds an array 'local\.A@rows'"):
        shoal.load_policy(path)


def test_a_short_file_gets_no_more_memory_than_it_has_agents_for(tmp_path: Path) -> None:
    _, header, arrays = saved("dynucb")
    parameters = header["parameters"] | {"n_clusters": 10**5}
    arrays["pool.A"] = arrays["pool.A_inv"] = np.zeros((10**5, 6))
    for name in ("pool.tail", "pool.b"):
        arrays[name], arrays[name + "@rows"] = arrays[name][:1], np.zeros(1, dtype=np.int64)
    (path := tmp_path / "policy").write_bytes(pack(header | {"parameters": parameters}, arrays))
    with pytest.raises(shoal.PolicyFileError, match=r"'pool\.tail', of shape .* must be there in full"):
        shoal.load_policy(path)


def lived(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and arrays of a policy that has lived."""
    policy = make("independent")
    play(policy, 40)
    policy.save(path := folder / "lived")
    return unpacked(path)


def unpacked(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    with np.load(path) as archive:
        arrays = dict(archive)
    return json.loads(arrays.pop("header").tobytes()), arrays


def saved_arrays(policy: shoal.Policy) -> list[Any]:
    kept = [leaf for leaf in fields.leaves(type(policy.state)) if leaf.field.role is fields.Role.KEPT]
    return [leaf.get(policy.state) for leaf in kept]
