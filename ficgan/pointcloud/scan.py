"""One scan from beginning to end: placed, prepared, anonymised, and put back where and as it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError
from ficgan.pointcloud.base import CloudAnonymizer
from ficgan.pointcloud.cloud import Cloud, merged
from ficgan.pointcloud.frame import Placed, canonical, other_faces
from ficgan.pointcloud.landmarks import FaceLandmarks
from ficgan.pointcloud.neighbours import search
from ficgan.pointcloud.prepare import PreparationConfig, Prepared, prepare_placed
from ficgan.pointcloud.segments import segmented

__all__ = ["AnonymisedScan", "Rest", "anonymise_scan", "cautions", "compare_scans", "rest_of"]

Rest = Literal["head", "keep", "drop"]

UNCHANGED = 0.001
"""Millimetres: a face no point of which lies farther from the clear one was not anonymised."""
_FEW_DOUBLES = 0.01
"""Share of points that lie on others of which nobody is told; scanners write some."""
HARDLY = 0.2
"""Millimetres: where half of the points lie within, whoever anonymises is told."""
PARROT = 0.9
"""Weight of the target from which on a result is said to be the target's face."""
UNTOUCHED = 1e-6
"""Metres from a clear point within which a point outside the sphere is taken for it; single precision costs less."""


@dataclass(frozen=True)
class AnonymisedScan:
    """A scan whose face was replaced.

    Args:
        cloud: anonymised face first, then the rest; in the scan's own frame.
        canonical: the same in the canonical frame.
        face: how many points of it are the anonymised face.
        prepared: what it was made from.
        record: JSON-ready account of what was done.
        warnings: sentences about what the result does not hold, or may not.
        doubtful: the frame or the scale may be wrong, and with them what was taken for the face.
        hardly: half of the face is where it was, within `HARDLY`.
    """

    cloud: Cloud
    canonical: Cloud
    face: int
    prepared: Prepared
    record: dict[str, Any]
    warnings: tuple[str, ...]
    doubtful: bool
    hardly: bool


def anonymise_scan(
    cloud: Cloud,
    method: CloudAnonymizer,
    *,
    landmarks: FaceLandmarks | None = None,
    config: PreparationConfig | None = None,
    rest: Rest = "head",
    name: str = "",
) -> AnonymisedScan:
    """Replace the face in a scan.

    What lies within 14 cm of the nose tip is anonymised or left out. What lies farther away is not touched, and may
    still tell something: ears, hair, the outline of the head.

    Args:
        cloud: metres, in any orientation.
        method: of `CLOUD_ANONYMIZERS`; one that needs a target has it.
        landmarks: in the scan's frame; None: the face is looked for.
        config: numbers of the preparation; None: the thesis', which the degrees were chosen for.
        rest: what of the scan outside the face is kept: "head" what lies in the thesis' box, "keep" all, or "drop".
        name: of the scan; what is drawn with a seed depends on the seed and this, without one on chance.

    Raises:
        InputError: no face was found, the method cannot work on it or leaves it as it was, or another face would stay.
        UsageError: the method lacks a target.

    Source:
        Point-cloud thesis, §4.1.4.2 and §4.3.2 (the anonymised inner part is merged with the outer one).
    """
    placed = canonical(cloud, landmarks)
    if rest == "keep" and (others := placed.others or other_faces(cloud, placed)):
        raise InputError(
            f"the scan holds {others + 1} faces, and all but one would stay as they are; keep the head alone "
            "(rest: head), or cut the scan"
        )
    prepared = prepare_placed(placed, config)
    inner = method(prepared.inner, name=name)
    if not len(inner):
        raise InputError(f"{method.name} left no point of the face; use a lower degree")
    moved = 1e3 * search(prepared.inner.points, inner.points)[0][:, 0]
    if moved.max() < UNCHANGED:
        raise InputError(
            f"{method.name} left every point of the face where it was; use a higher degree"
            + (", or another target than the scan itself" if method.traits.needs_target else "")
        )
    left = rest_of(placed, prepared, config, rest)
    whole = inner if left is None else merged(inner, left)
    median = float(np.median(moved))
    said = _warnings(prepared, placed, median)
    record = {
        "points": {
            **prepared.counts, "duplicates": prepared.duplicates, "wanted": prepared.wanted, "anonymised": len(inner),
            "written": len(whole),
        },
        "frame": placed.how,
        "likeness": None if placed.likeness is None else round(float(placed.likeness), 3),
        "size": None if placed.size is None else round(placed.size, 2),
        "doubtful": placed.doubtful,
        "hardly_changed": median < HARDLY,
        "from_clear_mm": {"median": round(median, 3), "largest": round(float(moved.max()), 3)},
        "colours": _colours(prepared.inner, inner),
        "reversible_by": method.traits.reversible_by or None,
        **_registration(method, prepared.inner),
        "warnings": [*said, *cautions(method)],
    }  # fmt: skip
    back = whole.moved(_inverse(prepared.transform))
    return AnonymisedScan(back, whole, len(inner), prepared, record, said, placed.doubtful, median < HARDLY)


def cautions(method: CloudAnonymizer) -> tuple[str, ...]:
    """Sentences about what holds of every result of a method."""
    found = []
    if method.traits.reversible_by:
        found.append(f"{method.name} can be taken back by {method.traits.reversible_by}")
    if method.traits.needs_target and getattr(method, method.traits.strength) > PARROT:
        found.append(
            "the result is nearly the target's own face: it shows whoever that is, and serves as the target to take "
            "weaker results back; let the target be a made head, or a person who consents to both"
        )
    return tuple(found)


def _warnings(prepared: Prepared, placed: Placed, moved: float) -> tuple[str, ...]:
    """Sentences about what a result does not hold, or may not."""
    found = list(placed.doubts)
    if moved < HARDLY:
        found.append(f"half of the points lie within {moved:.2g} mm of the clear face: it is hardly changed")
    if prepared.duplicates > _FEW_DOUBLES * prepared.counts["scan"]:
        found.append(f"{prepared.duplicates:,} points lay exactly on others and were left out")
    if prepared.sparse:
        found.append(
            f"the face has {len(prepared.inner)} points where {prepared.wanted} were wanted: "
            "a degree does more than it would"
        )
    return tuple(found)


def _colours(before: Cloud, after: Cloud) -> str:
    """What became of the colours: "none", "dropped", "unchanged" or "changed"."""
    if before.colors is None or after.colors is None:
        return "none" if before.colors is None else "dropped"
    return "unchanged" if np.array_equal(before.colors, after.colors) else "changed"


def rest_of(placed: Placed, prepared: Prepared, config: PreparationConfig | None, rest: Rest) -> Cloud | None:
    """What of a scan stays as it was, canonical frame; None: nothing.

    Args:
        placed: the scan.
        prepared: its face.
        config: that it was prepared with.
        rest: see `anonymise_scan`.
    """
    if rest == "drop":
        return None
    if rest == "head":
        return prepared.outer if len(prepared.outer) else None
    radius = (config or PreparationConfig()).segmentation.radius
    far = np.linalg.norm(placed.cloud.points, axis=1) > radius
    return placed.cloud.take(far) if far.any() else None


def compare_scans(
    clear: Cloud,
    anonymised: Cloud,
    landmarks: FaceLandmarks | None = None,
    config: PreparationConfig | None = None,
    *,
    face: int | None = None,
) -> dict[str, Any]:
    """How far an anonymised face is from the clear one, in 3D.

    All points of the anonymised face count, also those that were moved out of the sphere which the clear one is cut by.

    Args:
        clear: metres, in any orientation.
        anonymised: in the same frame.
        landmarks: of the clear scan; None: its face is looked for.
        config: whose sphere says what the face is; None: the thesis'.
        face: so many points of `anonymised`, the first, are the face, as a record says; None: all but those outside the
            sphere that are the clear scan's.

    Returns:
        JSON-ready: millimetres, degrees, numbers of points (of the faces; of these outside the sphere), and warnings.

    Raises:
        InputError: no face in the clear scan, or none of the other cloud lies where it is.
    """
    from ficgan.pointcloud.geometry import cloud_distances, curvature_error, normal_error

    placed = canonical(clear, landmarks)
    numbers = (config or PreparationConfig()).segmentation
    source = segmented(placed.cloud, numbers).inner
    there = anonymised.moved(placed.transform)
    segmented(there, numbers)  # refuses a cloud of which nothing lies where the face is
    outside = np.linalg.norm(there.points, axis=1) > numbers.radius
    if face is None:
        untouched = outside & (search(placed.cloud.points, there.points)[0][:, 0] < UNTOUCHED)
    else:
        untouched = np.arange(len(there)) >= face
    result = there.take(~untouched)
    apart = cloud_distances(result, source)
    said = list(placed.doubts)
    if len(source) < len(result):
        said.append(
            f"the clear face has {len(source):,} points and the anonymised one {len(result):,}: if the two were "
            "exchanged, give the clear scan first"
        )
    return {
        "points": {"clear": len(source), "anonymised": len(result), "outside": int((outside & ~untouched).sum())},
        "frame": placed.how,
        "chamfer_mm": round(1e3 * apart.chamfer, 4),
        "hausdorff_mm": round(1e3 * apart.hausdorff, 3),
        "hausdorff_95_mm": round(1e3 * apart.hausdorff_95, 3),
        "normal_error_degrees": round(normal_error(result, source), 2),
        "curvature_error_per_m": round(curvature_error(result, source), 2),
        "warnings": said,
    }


def _registration(method: CloudAnonymizer, face: Cloud) -> dict[str, Any]:
    """Fitness and RMSE of the target's registration, for a method that has one."""
    registered = getattr(method, "registered", None)
    if registered is None:
        return {}
    found = registered(face)  # the method remembers it
    return {"registration": {"fitness": round(float(found.fitness), 4), "rmse_mm": round(1e3 * float(found.rmse), 4)}}


def _inverse(transform: NDArray[np.float64]) -> NDArray[np.float64]:
    back = np.eye(4)
    back[:3, :3] = transform[:3, :3].T
    back[:3, 3] = -transform[:3, :3].T @ transform[:3, 3]
    return back
