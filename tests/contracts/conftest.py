"""What tests that run both engines of BASS need."""

import pytest

from shoal.policies.bass import policy as bass


@pytest.fixture(autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a test's `kind` is "crowd", BASS uses that engine however few agents there are."""
    if hasattr(request.node, "callspec") and request.node.callspec.params.get("kind") == "crowd":
        monkeypatch.setattr(bass, "WITNESS_BYTES", 0)
