"""Cells of a run outside its grid: named computations whose outcome is stored as JSON.

Anything slow that a report needs (simulations of its own, fits) is a measurement, so that the report computes
nothing and an interrupted run continues where it stopped.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from shoal.core.atomic import write_whole
from shoal.lab.experiments.fingerprint import code_digest

DIRECTORY = "measurements"
"""Their place in an output directory."""


@dataclass(frozen=True)
class Measurement:
    """One computation.

    Parameters
    ----------
    id : str
        Like that of a cell, e.g. "theory/coverage".
    settings : plain data
        What determines the outcome, together with the code; stored with it.
    compute : callable
        Takes no arguments and returns anything that msgspec encodes. It must be picklable.
    """

    id: str
    settings: Any
    compute: Callable[[], Any]

    @property
    def identity(self) -> str:
        """Hash of its settings and of the code that it reaches."""
        # The code is included, so that an edited policy is measured again.
        content = msgspec.json.encode([code_digest(self.compute), self.settings])
        return hashlib.sha256(content).hexdigest()[:16]


class MeasurementFile(msgspec.Struct, frozen=True):
    """What the file of a measurement holds."""

    identity: str
    settings: Any
    outcome: Any


def is_kept(out: Path, measurement: Measurement) -> bool:
    """Whether its outcome is stored, complete, and from the same settings and code."""
    kept = load_outcome(out, measurement.id, Any)
    return kept is not None and kept.identity == measurement.identity


def keep_outcome(out: Path, measurement: Measurement, outcome: Any) -> None:
    """Write an outcome; the file is complete when this returns."""
    path = _path(out, measurement.id)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(
        path, msgspec.json.encode(MeasurementFile(measurement.identity, measurement.settings, outcome))
    )


def load_outcome(out: Path, measurement_id: str, kind: Any) -> MeasurementFile | None:
    """The outcome of a measurement as a `kind`, or None if it is missing, damaged or of another kind."""
    try:
        # A file of an older version, or an incomplete one, counts as missing: it is measured again.
        kept = msgspec.json.decode(_path(out, measurement_id).read_bytes(), type=MeasurementFile)
        return msgspec.structs.replace(kept, outcome=msgspec.convert(kept.outcome, kind))
    except (FileNotFoundError, msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
        return None


def _path(out: Path, measurement_id: str) -> Path:
    return out / DIRECTORY / (measurement_id.replace("/", "__") + ".json")
