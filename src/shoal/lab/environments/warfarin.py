"""Warfarin as a bandit: clinics are agents, dose bands are arms, a patient's features are the context.

International Warfarin Pharmacogenetics Consortium, "Estimation of the Warfarin Dose with Clinical and
Pharmacogenetic Data", New England Journal of Medicine 360, 2009. The bands and a reward for the right one
follow Bastani and Bayati, "Online Decision Making with High-Dimensional Covariates", Operations Research 68,
2020.
"""

from pathlib import Path

import numpy as np

from shoal.core import validation
from shoal.core.types import Integers, Vector
from shoal.lab.environments.offers import OfferedArms, PersonalOffers, given_path, read_columns
from shoal.lab.environments.sources import PathLike

BANDS = (21.0, 49.0)
"""Milligrams a week: below the first, up to the second, above it."""

SITE, DOSE = "Project Site", "Therapeutic Dose of Warfarin"
AGE, HEIGHT, WEIGHT, RACE = "Age", "Height (cm)", "Weight (kg)", "Race (OMB)"
VKORC1, CYP2C9 = "VKORC1     -1639 consensus", "CYP2C9 consensus"
AMIODARONE = "Amiodarone (Cordarone)"
INDUCERS = ("Carbamazepine (Tegretol)", "Phenytoin (Dilantin)", "Rifampin or Rifampicin")
COLUMNS = (SITE, DOSE, AGE, HEIGHT, WEIGHT, RACE, VKORC1, CYP2C9, AMIODARONE, *INDUCERS)

FEATURES = (
    "constant",
    "age in decades",
    "height",
    "weight",
    "VKORC1 −1639 A alleles",
    "CYP2C9 variant alleles",
    "Asian",
    "Black or African American",
    "amiodarone",
    "enzyme inducer",
)
"""Those of the consortium's own dosing model. Numbers and alleles are standardised; 0 where missing."""


class Warfarin(PersonalOffers):
    """Clinics that choose a dose band for each patient: reward 1 if it is the right one, else 0.

    An arm is a band with the features of the round's patient, `e_band ⊗ φ`, so d is three times the number of
    `FEATURES`, and arms change every round. The patient is drawn from those of the clinic that pulls.

    Parameters
    ----------
    path : path, optional
        The consortium's table as CSV, with its own column names; by default the environment variable
        SHOAL_WARFARIN.
    n_agents : int, optional
        Number of clinics, those with the most patients; by default all 22.
    param_norm : float
        Used in place of the largest norm of a true parameter, which real data does not have.
    seed : int or None
        Seed of the order of patients.

    Attributes
    ----------
    agent_ids : (N,)
        Project sites in the data.

    Raises
    ------
    DataUnavailable
        If the file is not there.

    Examples
    --------
    >>> world = shoal.Warfarin("iwpc.csv", seed=0)  # doctest: +SKIP

    Notes
    -----
    Patients without a known dose are left out. Always the middle band is right for 61% of them. Features are
    divided by the root of their mean squared length.
    """

    def __init__(
        self,
        path: PathLike | None = None,
        *,
        n_agents: int | None = None,
        param_norm: float = 1.0,
        seed: int | None = None,
    ) -> None:
        path = given_path(path, "SHOAL_WARFARIN")
        sites, bands, features = _patients(path)
        known, counts = np.unique(sites, return_counts=True)
        n_agents = len(known) if n_agents is None else validation.positive_int("n_agents", n_agents)
        if n_agents > len(known):
            raise ValueError(f"n_agents must be at most {len(known)}, the sites in {path}, got {n_agents}")
        kept = np.sort(np.argsort(-counts, kind="stable")[:n_agents])
        self.agent_ids = known[kept]
        self._patients = [np.flatnonzero(sites == site) for site in self.agent_ids]
        self._bands, self._features = bands, features
        super().__init__(n_agents, draws=1, param_norm=param_norm, seed=seed)
        self.data_files = (path,)

    def offers(self, rounds: Integers, agents: Integers) -> OfferedArms:
        """The three bands for a patient of each clinic."""
        drawn, sizes = self._uniform(rounds)[:, 0], np.array([len(own) for own in self._patients])
        place = (drawn * sizes[agents]).astype(np.int64)
        pairs = zip(agents.tolist(), place.tolist(), strict=True)
        who = np.array([self._patients[agent][at] for agent, at in pairs], dtype=np.int64)
        n_bands = len(BANDS) + 1
        arms = np.einsum("bk,nf->nbkf", np.eye(n_bands), self._features[who])
        return OfferedArms(arms.reshape(len(rounds), n_bands, -1), np.eye(n_bands)[self._bands[who]])


def _patients(path: Path) -> tuple[Integers, Integers, Vector]:
    """The site, the right band and the features (n, F) of every patient with a known dose."""
    sites, bands, rows = [], [], []
    for where, values in read_columns(path, COLUMNS, ","):
        row = dict(zip(COLUMNS, (value.strip() for value in values), strict=True))
        try:
            dose = _number(row[DOSE])
            if np.isnan(dose):
                continue
            if not 0.0 < dose < 1_000.0:
                raise ValueError(f"dose {row[DOSE]!r}")
            sites.append(int(row[SITE]))
            rows.append(
                [
                    _number(row[AGE].partition(" ")[0].rstrip("+")) / 10.0,
                    _number(row[HEIGHT]),
                    _number(row[WEIGHT]),
                    _alleles(row[VKORC1], "A"),
                    _alleles(row[CYP2C9], *(f"*{number}" for number in range(2, 31))),
                    float(row[RACE] == "Asian"),
                    float(row[RACE].startswith("Black")),
                    float(_number(row[AMIODARONE]) == 1.0),
                    float(any(_number(row[name]) == 1.0 for name in INDUCERS)),
                ]
            )
            bands.append(int(dose >= BANDS[0]) + int(dose > BANDS[1]))
        except ValueError as error:
            raise ValueError(f"{where}: expected a patient of the consortium's table, got {error}") from None
    if not rows:
        raise ValueError(f"{path}: no patient has a {DOSE!r}")
    table = np.array(rows)
    measured = table[:, :5]
    measured -= np.nan_to_num(np.nanmean(measured, axis=0))
    measured /= np.maximum(np.nan_to_num(np.nanstd(measured, axis=0)), 1e-12)
    table[:, :5] = np.clip(np.nan_to_num(measured), -4.0, 4.0)
    features = np.hstack([np.ones((len(table), 1)), table])
    features /= np.sqrt((features**2).sum(axis=1).mean())
    return np.array(sites), np.array(bands), features


def _number(text: str) -> float:
    """A number, nan if it is missing."""
    if text in ("", "NA"):
        return float("nan")
    value = float(text)
    if not abs(value) <= validation.LARGEST:
        raise ValueError(f"{text!r}")
    return value


def _alleles(genotype: str, *counted: str) -> float:
    """How many of the two alleles are among those counted; nan if they are not known."""
    return float("nan") if genotype in ("", "NA") else float(sum(a in counted for a in genotype.split("/")))
