"""What tests that run both engines of BASS need."""

import pytest

from shoal.core.policies.bass import policy as bass


@pytest.fixture(autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a test's `kind` ends in "crowd", BASS uses that engine however few agents there are."""
    if hasattr(request.node, "callspec") and str(request.node.callspec.params.get("kind")).endswith("crowd"):
        monkeypatch.setattr(bass, "WITNESS_BYTES", 0)
