"""Same seed, same trace: every policy still does what the saved golden traces say."""

import json

import pytest
from tests.golden.make import PATH, POLICIES, VARIANTS, golden


@pytest.mark.parametrize("name", [*POLICIES, *VARIANTS])
def test_golden_trace(name: str) -> None:
    saved = json.loads(PATH.read_text())[name]
    now = golden(name)
    assert now["regret"] == pytest.approx(saved["regret"], abs=1e-6)
    assert now == saved | {"regret": now["regret"]}
