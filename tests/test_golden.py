"""Same seed, same trace: every policy still does what the saved golden traces say."""

import json

import pytest
from tests.golden.make import CLASSES, PATH, VARIANTS, golden


@pytest.mark.parametrize("name", [*CLASSES, *VARIANTS])
def test_golden_trace(name: str) -> None:
    saved = json.loads(PATH.read_text())[name]
    now = golden(name)
    assert now["regret"] == pytest.approx(saved["regret"], abs=1e-6)
    assert now == saved | {"regret": now["regret"]}
