"""Revelio's part kernel: how strong a blur was, estimated from the blurred face."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import generator
from ficgan.anonymizers.basic import scaled_kernel
from ficgan.errors import FicganError
from ficgan.lab.attacks.blurs import blurred, equivalent_kernel, transfers
from ficgan.lab.papers.revelio_base import Outcome, refused
from ficgan.lab.papers.revelio_lab import OF_256, Lab
from ficgan.lab.papers.revelio_published import BLURS, TRANSFER
from ficgan.lab.papers.transfer import read_trials

__all__ = ["ESTIMATED", "NOT_TOLD", "kernel"]

Rows = NDArray[np.int64]
LARGEST = 81
ESTIMATED = "closed world, kernel estimated"
"""Scenario of the trials whose model is chosen by the estimate."""
NOT_TOLD = "Kernel estimated, not told"
_TOLD = {"same rule": TRANSFER[0], "fixed deviation": TRANSFER[1], "rectangle": TRANSFER[2]}
"""Of `ficgan.lab.attacks.blurs.TRANSFERS`, what the paper's estimator said."""


def kernel(lab: Lab) -> Outcome:
    """Figure 13: every odd kernel from 1 to 81 px of 256 on photos of people from whom nothing was learnt."""
    from ficgan.lab.attacks.kernel import KernelEstimator, confusion, mean_absolute_error

    bench, size = lab.bench, lab.paper.size
    learnt, chosen, tested = (bench.prepared.faces.take(rows).images for rows in _people_apart(lab))
    kernels = tuple(range(1, max(3, scaled_kernel(LARGEST, size)) + 1, 2))
    made = KernelEstimator.train(
        learnt, kernels, validation=chosen, seed=lab.paper.seed, told=lab.told,
        network=lab.paper.estimator_network, weights=lab.paper.estimator_weights or None,
    )  # fmt: skip
    true = np.repeat(kernels, len(tested))
    found = np.concatenate([made.estimate(blurred(tested, one)) for one in kernels])
    error, scale = mean_absolute_error(true, found), OF_256 / size
    per_photo = np.abs(true - found).reshape(len(kernels), -1).mean(0)
    spread = 1.96 * float(per_photo.std(ddof=1)) / np.sqrt(len(tested)) if len(tested) > 1 else 0.0
    told = f"{error * scale:.3f} ± {spread * scale:.3f}" + ("" if size == OF_256 else f" ({error:.3f} of {size})")
    more = []
    for label, blur in transfers(size).items():
        said = scale * float(made.regress(blur(bench.prepared.faces.take(_people_apart(lab)[2]))).mean())
        paper = _TOLD.get(label, {}).get("estimated")
        more.append({
            "": f"here, of “{label}”", "mean absolute error, pixels of 256":
            f"says {said:.1f}; a perfect estimator {scale * equivalent_kernel(blur, kernels):.1f}"
            + (f"; the paper's {paper}" if paper else ""),
            "photos": str(len(tested)), "estimator": made.network,
        })  # fmt: skip
    photos = f"{len(learnt)} to learn, {len(chosen)} to choose, {len(tested)} to test"
    row = {"mean absolute error, pixels of 256": told, "photos": photos, "estimator": made.network}
    out = Outcome(
        [],
        {
            "row": row, "more": more, "kernels": list(kernels), "error": error, "scale": scale,
            "confusion": confusion(true, found, kernels).tolist(),
        },
    )  # fmt: skip
    _not_told(lab, made, out)
    return out


def _not_told(lab: Lab, estimator: Any, out: Outcome) -> None:
    """One guess at each face of the closed world by the model, light or heavy, that the estimate is nearest to.

    Source: Revelio, section 4.2 (the estimate chooses the model).
    """
    rows, label = lab.world.closed, lab.paper.restorer[0]
    widths = np.array([scaled_kernel(kernel, lab.paper.size) for kernel in BLURS.values()])
    out.facts["chosen rightly"] = {}
    for number, level in enumerate(BLURS):
        lab.tell(number, len(BLURS), f"{label} against {level} blur, kernel estimated")
        seen = lab.seen(lab.blur(level), rows)
        chosen = np.abs(estimator.estimate(seen.images)[:, None] - widths).argmin(1)
        out.facts["chosen rightly"][level] = float(np.mean(chosen == number))
        images = seen.images.copy()
        try:
            for index, model in enumerate(BLURS):
                some = np.flatnonzero(chosen == index)
                if len(some):
                    attack = lab.restorer(lab.blur(model))
                    images[some] = attack.guess(seen.take(some), rows[some]).images
        except FicganError as error:
            out.trials += refused(lab, level, NOT_TOLD, str(error), ESTIMATED)
            out.whole = False
            continue
        guesses = seen.with_images(images)
        out.trials += read_trials(lab.bench, guesses, rows, method=level, attacker=NOT_TOLD, scenario=ESTIMATED)


def _people_apart(lab: Lab) -> tuple[Rows, Rows, Rows]:
    """Photos of the reference to learn from, to choose by and to test on: of different people."""
    rows, people = lab.world.reference, lab.bench.people[lab.world.reference]
    who = generator(lab.paper.seed, "kernel").permutation(np.unique(people))
    if len(who) < 3:
        raise FicganError(f"{len(who)} people in the reference are too few to estimate kernels on; give at least 3")
    wanted = np.array(lab.paper.estimator)
    ends = np.maximum(1, np.round(np.cumsum(wanted)[:2] / wanted.sum() * len(who))).astype(int)
    ends[0] = min(ends[0], len(who) - 2)
    ends[1] = min(max(ends[1], ends[0] + 1), len(who) - 1)
    parts = [rows[np.isin(people, some)] for some in np.split(who, ends)]
    return tuple(part[:most] for part, most in zip(parts, lab.paper.estimator, strict=True))  # type: ignore[return-value]
