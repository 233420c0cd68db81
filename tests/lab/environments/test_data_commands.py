"""`shoal data` on files small enough to count by hand."""

import subprocess
import sys
from pathlib import Path

import pytest

LETOR = "".join(f"{q % 3} qid:{q} 1:{q}.5 {2 + d}:1.0 # document\n" for q in range(1, 5) for d in range(3))


def shoal(*arguments: str, cache: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", "from shoal.cli import main; main()", "data", *arguments]
    environment = {"SHOAL_CACHE": str(cache), "PATH": "", "COLUMNS": "200", "HOME": str(cache)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


def lines(output: str) -> dict[str, str]:
    pairs = (line.strip().split("  ", 1) for line in output.splitlines() if "  " in line.strip())
    return {name.strip(): value.strip() for name, value in pairs}


def test_inspect_counts(tmp_path: Path) -> None:
    file = tmp_path / "ranking.txt"
    file.write_text(LETOR)
    done = shoal("inspect", str(file), cache=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = lines(done.stdout)
    assert (shown["agents"], shown["arms"], shown["observed"], shown["features"]) == ("4", "12", "12", "4")
    assert shown["reward mean"] == "1"
    assert "terms" in done.stdout


def test_prepare_keeps_what_it_made(tmp_path: Path) -> None:
    pytest.importorskip("surprise", reason="needs the data extra")
    folder = tmp_path / "ml"
    folder.mkdir()
    genres = ["Action", "Comedy", "Drama|War", "(no genres listed)"]
    (folder / "movies.csv").write_text(
        "movieId,title,genres\n" + "".join(f"{m},Film {m},{genres[m % 4]}\n" for m in range(1, 61))
    )
    (folder / "ratings.csv").write_text(
        "userId,movieId,rating,timestamp\n"
        + "".join(
            f"{u},{m},{(u + m) % 5 + 1}.0,0\n" for u in range(1, 8) for m in range(1, 61) if (u * m) % 3
        )
    )
    for cached in ("no", "yes"):
        done = shoal("prepare", str(folder), "--fill", "tuned", cache=tmp_path / "cache")
        assert done.returncode == 0, done.stderr
        shown = lines(done.stdout)
        # users 3 and 6 rated nothing
        assert (shown["agents"], shown["arms"], shown["fill"]) == ("5", "30", "tuned")
        assert shown["from cache"] == cached


def test_bad_calls_say_what_is_wrong(tmp_path: Path) -> None:
    missing = shoal("inspect", str(tmp_path / "absent"), cache=tmp_path)
    assert missing.returncode == 2
    assert "absent" in missing.stderr
    unknown = shoal("fetch", "ml-unknown", cache=tmp_path)
    assert unknown.returncode == 2
    assert "ml-latest-small" in unknown.stderr
