"""Fantômas, E4: attackers trained on other parameters, other methods or other faces than those they are tried on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ficgan.lab.attacks import REVERSERS
from ficgan.lab.bench import open_bench
from ficgan.lab.matrix_config import MatrixConfig, SetConfig
from ficgan.lab.papers.transfer import transfer
from ficgan.lab.papers.treatment import Treatment, treatment
from ficgan.lab.results import Trial
from ficgan.registry import parse_spec

__all__ = ["LEARNT", "MET", "fantomas_transfer", "learnt_on"]

MET = "Gaussian Blur 29"
_BLUR = "gaussian-blur:variant=as_released,kernel="
LEARNT = {
    **{f"Gaussian Blur {kernel}": f"{_BLUR}{kernel}" for kernel in (21, 25, 29, 33, 37)},
    "Gaussian Noise 200": "gaussian-noise:variant=as_released,sigma=200",
    "DP Snow 0.5": "dp-snow:variant=as_released,delta=0.5",
    "Pixelation 16": "pixelation:variant=as_released,size=16",
}
"""Section 7.2, E4; all of these mean the same in crops of any size."""


def learnt_on(config: MatrixConfig, other: Path) -> MatrixConfig:
    """The same matrix, its general attackers trained on another set of faces (E4.2).

    Args:
        config: of `fantomas_matrix`.
        other: folder, zip or tar of faces with identities, in a layout that is recognised.
    """
    taught = SetConfig(name=other.absolute().stem, path=str(other))
    given = taught.model_dump(exclude_unset=True)
    sets = [SetConfig.model_validate({**one.model_dump(), "learn_from": given}) for one in config.sets]
    scenarios = ["clear", "naive", "reversed-general"]
    return config.model_copy(update={"sets": sets, "scenarios": scenarios, "utility": False})


def fantomas_transfer(
    config: MatrixConfig, out: Path, told: Callable[[int, int, str], None] | None = None
) -> list[Trial]:
    """Every general attacker that learns from pairs, trained eight times and tried on Gaussian Blur 29.

    Args:
        config: of `fantomas_matrix`; its first set, its judges and its general attackers.
        out: folder of the matrix: crops, trained attackers and what judges read are kept in its store.
        told: called as told(done, total, what).

    Source: Fantômas, Figures 12 (the auto-encoder) and 17 (Pix2Pix).
    """
    bench = open_bench(config, config.sets[0], out)
    met = treatment(LEARNT[MET], MET)
    learnt: list[Treatment] = [treatment(text, label) for label, text in LEARNT.items()]
    trials: list[Trial] = []
    for spec in config.general:
        if "pairs" in REVERSERS[parse_spec(spec)[0]].traits.knowledge:
            trials += transfer(bench, spec, learnt, [met], scenario=f"transfer: {spec}", told=told)
    return trials
