"""From a raw scan to the face that anonymisers work on: frame, segmentation, sampling, outliers, sampling."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.frame import FEWEST, Placed, canonical
from ficgan.pointcloud.landmarks import FaceLandmarks
from ficgan.pointcloud.outliers import NEIGHBOURS, RATIO, without_outliers
from ficgan.pointcloud.sampling import farthest_point_sample, without_duplicates
from ficgan.pointcloud.segments import Segmentation, segmented

__all__ = ["PreparationConfig", "Prepared", "prepare", "prepare_placed"]


@dataclass(frozen=True)
class PreparationConfig:
    """Numbers of the preparation.

    Args:
        segmentation: box and sphere.
        first: points of the first standardisation. Where the removal of outliers leaves fewer than `last` of them, and
            the scan has more, more are taken, so that all clouds have as many points.
        neighbours, ratio: of the removal of outliers.
        last: points of the second standardisation.

    Raises:
        UsageError: numbers that cannot work together.

    Source:
        Point-cloud thesis, §4.1.4.2.
    """

    segmentation: Segmentation = field(default_factory=Segmentation)
    first: int = 10_500
    neighbours: int = NEIGHBOURS
    ratio: float = RATIO
    last: int = 10_352

    def __post_init__(self) -> None:
        if not FEWEST <= self.last <= self.first:
            raise UsageError(
                f"preparation to {self.first} and then {self.last} points; give at least {FEWEST}, and no more at last "
                "than at first"
            )


@dataclass(frozen=True)
class Prepared:
    """A face ready for anonymisers.

    Args:
        inner: the part that is anonymised, canonical frame.
        outer: the part that is merged back, untouched, before projection; may be empty.
        transform: [4,4], from the scan's frame to the canonical one.
        how, likeness: how the frame was found, as in `ficgan.pointcloud.frame.Placed`.
        counts: points after each stage: scan, box, inner, first sampling, outliers, last sampling.
        wanted: points the last sampling should have left.
        duplicates: points of the scan that lay exactly on others and were left out before all else.
    """

    inner: Cloud
    outer: Cloud
    transform: NDArray[np.float64]
    how: str
    likeness: float | None
    counts: dict[str, int]
    wanted: int
    duplicates: int = 0

    @property
    def sparse(self) -> bool:
        """The scan had fewer points than wanted; all that were no outliers were kept."""
        return len(self.inner) < self.wanted


def prepare(cloud: Cloud, landmarks: FaceLandmarks | None = None, config: PreparationConfig | None = None) -> Prepared:
    """All stages, on a scan in any orientation.

    Args:
        cloud: metres.
        landmarks: in the scan's frame; None: the face is looked for.
        config: numbers; None: the thesis'.

    Raises:
        InputError: no face, or too little of one.

    Source:
        Point-cloud thesis, §4.1.4.2.
    """
    return prepare_placed(canonical(cloud, landmarks), config)


def prepare_placed(placed: Placed, config: PreparationConfig | None = None) -> Prepared:
    """The stages after the frame.

    Args:
        placed: a scan in the canonical frame.
        config: numbers; None: the thesis'.

    Raises:
        InputError: too few points near the nose tip.
    """
    config = config or PreparationConfig()
    cloud, duplicates = without_duplicates(placed.cloud)
    duplicates += placed.duplicates
    parts = segmented(cloud, config.segmentation)
    parts.inner.need(FEWEST, "a face within its sphere")
    first, kept = _cleaned(parts.inner, config.first, config)
    while len(kept) < config.last and len(first) < len(parts.inner):
        first, kept = _cleaned(parts.inner, len(first) + 2 * (config.last - len(kept)), config)
    if len(kept) < FEWEST:
        raise InputError(
            f"{len(kept)} of {len(first)} points are left without outliers; give a cloud that is a surface"
        )
    inner = _standardised(kept, config.last)
    counts = {
        "scan": len(cloud) + duplicates,
        "box": len(parts.inner) + len(parts.outer),
        "inner": len(parts.inner),
        "first sampling": len(first),
        "outliers": len(kept),
        "last sampling": len(inner),
    }
    return Prepared(inner, parts.outer, placed.transform, placed.how, placed.likeness, counts, config.last, duplicates)


def _cleaned(cloud: Cloud, count: int, config: PreparationConfig) -> tuple[Cloud, Cloud]:
    """The first sampling, and what of it is no outlier."""
    first = _standardised(cloud, count)
    return first, without_outliers(first, neighbours=config.neighbours, ratio=config.ratio)


def _standardised(cloud: Cloud, count: int) -> Cloud:
    """At most `count` points, in the order they had: a sample's own order would tell of nothing but the sampling."""
    if len(cloud) <= count:
        return cloud
    return cloud.take(np.sort(farthest_point_sample(cloud.points, count)))
