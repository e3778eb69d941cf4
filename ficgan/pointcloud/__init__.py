"""Point clouds of faces (thesis): one scan placed, prepared, anonymised, and put back where and as it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud.cloud import (
    Cloud,
    closest,
    farthest_point_sample,
    merged,
    read_cloud,
    without_outliers,
    write_cloud,
)
from ficgan.pointcloud.face import FaceLandmarks
from ficgan.pointcloud.frame import FEWEST, Placed, canonical, has_other_face
from ficgan.pointcloud.geometry import project
from ficgan.pointcloud.methods import CLOUD_ANONYMIZERS, CloudAnonymizer, Merge2Faces

__all__ = ["CLOUD_ANONYMIZERS", "Cloud", "CloudAnonymizer", "anonymise_scan", "project", "read_cloud", "write_cloud"]

Rest = Literal["head", "keep", "drop"]

# Metres along x, y and z of the canonical frame that hold a face (thesis, equation 4.1, which misprints the top).
# Its front is 0; 5 mm are added for what leans forward.
BOX = np.array([[-0.16, 0.005], [-0.13, 0.17], [-0.12, 0.12]])
RADIUS = 0.14  # metres: of the sphere about the nose tip that holds the part that is anonymised (thesis, §4.1.4.2)
FIRST, POINTS = 10_500, 10_352  # points of the first and of the last sampling (thesis, §4.1.4.2)
UNCHANGED = 0.001  # millimetres: a face no point of which lies farther from the clear one was not anonymised
HARDLY = 0.2  # millimetres: where half of the points lie within, the face is hardly changed, and the result says so
NEARLY_TARGET = 0.9  # weight of the target above which the result shows the target's face, and a caution says so
_FEW_DUPLICATES = 0.01  # share of duplicate points without a warning; scanners write some


def segmented(cloud: Cloud) -> tuple[Cloud, Cloud]:
    """A face in the canonical frame: within the box, what is inside the sphere and what is not, which may be empty."""
    boxed = ((cloud.points >= BOX[:, 0]) & (cloud.points <= BOX[:, 1])).all(axis=1)
    near = np.linalg.norm(cloud.points, axis=1) <= RADIUS
    return cloud.take(boxed & near), cloud.take(boxed & ~near)


@dataclass(frozen=True)
class PreparedFace:
    """A face ready for anonymisers, in the canonical frame."""

    inner: Cloud  # the part that is anonymised
    outer: Cloud  # the part that is merged back, untouched, before projection; may be empty
    counts: dict[str, int]  # points after each stage: scan, box, inner, first sampling, outliers, last sampling


def prepare(placed: Placed, points: int = POINTS) -> PreparedFace:
    """From a scan in the canonical frame to a face of so many points: parts, sampling, outliers, sampling.

    A scan of fewer points keeps all that are no outliers.
    """
    if points < FEWEST:
        raise UsageError(f"a face of {points} points was asked for; give at least {FEWEST}")
    inner, outer = segmented(placed.cloud)
    inner.need(FEWEST, "a face within its sphere")
    first = _sampled(inner, max(FIRST, points))
    while len(kept := without_outliers(first)) < points and len(first) < len(inner):
        first = _sampled(inner, len(first) + 2 * (points - len(kept)))
    kept.need(FEWEST, "a face without its outliers")
    last = _sampled(kept, points)
    counts = {
        "scan": len(placed.cloud) + placed.duplicates,
        "box": len(inner) + len(outer),
        "inner": len(inner),
        "first sampling": len(first),
        "outliers": len(kept),
        "last sampling": len(last),
    }
    return PreparedFace(last, outer, counts)


def _sampled(cloud: Cloud, count: int) -> Cloud:
    return cloud if len(cloud) <= count else cloud.take(np.sort(farthest_point_sample(cloud.points, count)))


@dataclass(frozen=True)
class AnonymisedScan:
    """A scan whose face was replaced."""

    cloud: Cloud  # anonymised face first, then the rest; in the scan's own frame
    record: dict[str, Any]  # JSON-ready account of what was done
    warnings: tuple[str, ...]  # sentences about what the result does not hold, or may not


def anonymise_scan(
    cloud: Cloud,
    method: CloudAnonymizer,
    *,
    landmarks: FaceLandmarks | None = None,
    points: int = POINTS,
    rest: Rest = "head",
    name: str = "",
) -> AnonymisedScan:
    """Replace the face in a scan, metres, in any orientation (thesis, §4.1.4.2 and §4.3.2).

    What lies within 14 cm of the nose tip is anonymised or left out. Of the rest, which may still tell something,
    `rest` keeps the thesis' box ("head"), all ("keep") or nothing ("drop"); `points` are the face's.
    """
    placed = canonical(cloud, landmarks)
    if rest == "keep" and has_other_face(placed):
        raise InputError(
            "the scan holds another face, which would stay as it is; keep the head alone (rest: head), or cut the scan"
        )
    prepared = prepare(placed, points)
    inner = method(prepared.inner, name=name)
    moved = 1e3 * closest(prepared.inner.points, inner.points)[0]
    if moved.max() < UNCHANGED:
        raise InputError(f"{method.name} left every point of the face where it was; use a higher strength")
    left = prepared.outer
    if rest == "keep":
        left = placed.cloud.take(np.linalg.norm(placed.cloud.points, axis=1) > RADIUS)
    whole = inner if rest == "drop" else merged(inner, left)
    median = float(np.median(moved))
    warnings = list(placed.doubts)
    if median < HARDLY:
        warnings.append(f"half of the points lie within {median:.2g} mm of the clear face: it is hardly changed")
    if placed.duplicates > _FEW_DUPLICATES * prepared.counts["scan"]:
        warnings.append(f"{placed.duplicates:,} points lay exactly on others and were left out")
    if (count := len(prepared.inner)) < points:
        warnings.append(f"the face has {count} points where {points} were wanted: a strength does more than it would")
    counts = {"duplicates": placed.duplicates, "wanted": points, "anonymised": len(inner), "written": len(whole)}
    record = {
        "points": {**prepared.counts, **counts},
        "frame": placed.how,
        "likeness": round(placed.likeness, 3),
        "size": round(placed.size, 2),
        "doubtful": bool(placed.doubts),
        "hardly_changed": median < HARDLY,
        "from_clear_mm": {"median": round(median, 3), "largest": round(float(moved.max()), 3)},
        "colours": _colours(prepared.inner, inner),
        "reversible_by": method.reversible_by or None,
        "warnings": [*warnings, *cautions(method)],
    }
    if isinstance(method, Merge2Faces):
        lain = method.registered(prepared.inner)  # cached since the method was called
        record["registration"] = {"fitness": round(lain.fitness, 4), "rmse_mm": round(1e3 * lain.rmse, 4)}
    return AnonymisedScan(whole.moved(np.linalg.inv(placed.transform)), record, tuple(warnings))


def cautions(method: CloudAnonymizer) -> list[str]:
    """Sentences about what holds of every result of a method."""
    found = []
    if method.reversible_by:
        found.append(f"{method.name} can be undone by {method.reversible_by}")
    if isinstance(method, Merge2Faces) and method.weight > NEARLY_TARGET:
        found.append(
            "the result is nearly the target's own face: it shows who that is, and with it weaker results can be "
            "undone; take a made head as the target, or a person who consents to both"
        )
    return found


def _colours(before: Cloud, after: Cloud) -> str:
    if before.colors is None or after.colors is None:
        return "none" if before.colors is None else "dropped"
    return "unchanged" if np.array_equal(before.colors, after.colors) else "changed"
