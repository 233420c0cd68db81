"""What `make release` refuses."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import shoal

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "tools" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_version_is_stated_once(release: ModuleType) -> None:
    assert release.stated_version() == shoal.__version__
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text()


def test_the_section_of_a_version_is_found(release: ModuleType) -> None:
    text = (
        "# Changes\n\n## Unreleased\n\n## 1.2.3 - 2026-01-31\n\n- This.\n\n## 1.2.2 - 2026-01-01\n\n- That.\n"
    )
    assert release.changelog_section(text, "1.2.3") == "- This."


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("# Changelog\n", "must be titled '1.2.3 - YYYY-MM-DD', found"),
        ("## 1.2.2 - 2026-01-01\n\n- That.\n", "must be titled '1.2.3"),
        ("## 1.2.3\n\n- Undated.\n", "must be titled '1.2.3"),
        ("## 1.2.34 - 2026-01-01\n\n- Another.\n", "must be titled '1.2.3"),
        ("## Unreleased\n\n- Forgotten.\n\n## 1.2.3 - 2026-01-31\n\n- This.\n", "lists unreleased changes"),
        ("## 1.2.3 - 2026-01-31\n\n## 1.2.2 - 2026-01-01\n\n- That.\n", "says nothing about 1.2.3"),
    ],
)
def test_a_changelog_that_is_not_ready_is_refused(release: ModuleType, text: str, reason: str) -> None:
    with pytest.raises(release.ReleaseError, match=reason):
        release.changelog_section(text, "1.2.3")


def test_a_failing_command_is_shown_with_its_output(release: ModuleType) -> None:
    with pytest.raises(release.ReleaseError, match=r"(?s)failed:.*no-such-ref"):
        release.run("git", "rev-parse", "no-such-ref")
