"""One method at many degrees on one cloud, with what the degrees have in common computed once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.methods import CLOUD_ANONYMIZERS, CloudAnonymizer, Drawn

__all__ = ["alone", "anonymiser", "drawn_as", "sweep"]

Swept = Iterator[tuple[int, Cloud | None]]


def anonymiser(method: str, degree: int, *, seed: int = 0, target: Cloud | None = None) -> CloudAnonymizer:
    """A method at a degree, ready to be used."""
    import ficgan.pointcloud.methods  # noqa: F401  # fills the registry

    made = CLOUD_ANONYMIZERS[method].of_degree(degree, seed=seed)
    return made if target is None else made.with_target(target)


def drawn_as(method: str, degree: int) -> Drawn:
    """Point size and order with which the thesis draws a method's result at a degree (§4.3.3)."""
    return anonymiser(method, degree).drawn_with()


def sweep(
    method: str, degrees: Sequence[int], cloud: Cloud, *, seed: int = 0, target: Cloud | None = None, name: str = ""
) -> Swept:
    """(degree, anonymised cloud) for each degree, as the method gives it up to rounding of the last digit.

    The degrees of smooth-knn share one search for neighbours, those of merge-2-faces one registration and one search,
    those of pmp one tetrahedralisation.

    Args:
        method: of `CLOUD_ANONYMIZERS`.
        degrees: ascending or not; results come ascending.
        cloud: inner part of a face.
        seed: of what is drawn.
        target: of merge-2-faces.
        name: of the cloud.

    Returns:
        None in place of a cloud where the method cannot work at this degree.
    """
    shared = {"smooth-knn": _smoothed, "merge-2-faces": _merged}.get(method)
    made = {degree: anonymiser(method, degree, seed=seed, target=target) for degree in sorted(degrees)}
    if shared is not None:
        try:
            yield from shared(made, cloud)
        except InputError:
            yield from ((degree, None) for degree in made)
        return
    for degree, one in made.items():
        try:
            yield degree, one(cloud, name=name)
        except InputError:
            yield degree, None


def alone(
    method: str, degree: int, cloud: Cloud, *, seed: int = 0, target: Cloud | None = None, name: str = ""
) -> float:
    """Seconds of one anonymisation from nothing; NaN where the method cannot work.

    Methods remember what several degrees share (a registration, a tetrahedralisation) by the cloud's contents, so the
    points are given in another order each time.
    """
    one = anonymiser(method, degree, seed=seed, target=target)
    fresh = cloud.take(np.roll(np.arange(len(cloud)), degree))
    begun = time.perf_counter()
    try:
        one(fresh, name=name)
    except InputError:
        return float("nan")
    return time.perf_counter() - begun


def _smoothed(made: dict[int, CloudAnonymizer], cloud: Cloud) -> Swept:
    """Means over the first k of the neighbours of the largest k; which of equally far ones count is left open."""
    from ficgan.pointcloud.cloud import rounded_colors
    from ficgan.pointcloud.neighbours import nearest

    sizes: dict[int, int] = {degree: one.settings()["k"] for degree, one in made.items()}
    most = max((k for k in sizes.values() if k <= len(cloud)), default=0)
    # About their middle, where sums of many lose fewer digits.
    centre = np.zeros(3) if not len(cloud) else cloud.points.mean(axis=0)
    values = cloud.points - centre
    if cloud.colors is not None:
        values = np.hstack([values, cloud.colors])
    rows: NDArray[np.intp] = nearest(cloud.points, cloud.points, most)[1] if most else np.zeros((0, 0), np.intp)
    sums, begin = np.zeros_like(values), 0
    for degree, k in sizes.items():
        if k > most:
            yield degree, None
            continue
        for column in range(begin, k):
            sums += values[rows[:, column]]
        begin = k
        colors = None if cloud.colors is None else rounded_colors(sums[:, 3:] / k)
        yield degree, cloud.with_points(sums[:, :3] / k + centre, colors)


def _merged(made: dict[int, CloudAnonymizer], cloud: Cloud) -> Swept:
    """At weight 1 every point lies on the target's nearest: all other weights lie between the two clouds."""
    from dataclasses import replace

    from ficgan.pointcloud.cloud import rounded_colors

    weights: dict[int, float] = {degree: one.settings()["weight"] for degree, one in made.items()}
    there = replace(next(iter(made.values())), weight=1.0)(cloud)  # type: ignore[call-arg]
    for degree, weight in weights.items():
        points = (1 - weight) * cloud.points + weight * there.points
        if cloud.colors is None or there.colors is None:
            yield degree, Cloud(points)
        else:
            yield degree, cloud.with_points(points, rounded_colors((1 - weight) * cloud.colors + weight * there.colors))
