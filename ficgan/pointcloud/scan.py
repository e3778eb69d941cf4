"""One scan from beginning to end: placed, prepared, anonymised, and put back where and as it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError
from ficgan.pointcloud.base import CloudAnonymizer
from ficgan.pointcloud.cloud import Cloud, merged
from ficgan.pointcloud.frame import Placed, canonical
from ficgan.pointcloud.landmarks import FaceLandmarks
from ficgan.pointcloud.prepare import PreparationConfig, Prepared, prepare_placed
from ficgan.pointcloud.segments import segmented

__all__ = ["AnonymisedScan", "Rest", "anonymise_scan", "compare_scans", "rest_of"]

Rest = Literal["keep", "head", "drop"]


@dataclass(frozen=True)
class AnonymisedScan:
    """A scan whose face was replaced.

    Args:
        cloud: anonymised face first, then the rest; in the scan's own frame.
        face: how many points of it are the anonymised face.
        inner: the anonymised face, canonical frame.
        prepared: what it was made from.
        record: JSON-ready account of what was done.
    """

    cloud: Cloud
    face: int
    inner: Cloud
    prepared: Prepared
    record: dict[str, Any]


def anonymise_scan(
    cloud: Cloud,
    method: CloudAnonymizer,
    *,
    landmarks: FaceLandmarks | None = None,
    config: PreparationConfig | None = None,
    rest: Rest = "keep",
    name: str = "",
) -> AnonymisedScan:
    """Replace the face in a scan.

    What lies within 14 cm of the nose tip is anonymised or left out; nothing of it stays as it was. What lies farther
    away is not touched, and may still tell something: ears, hair, the outline of the head.

    Args:
        cloud: metres, in any orientation.
        method: of `CLOUD_ANONYMIZERS`; one that needs a target has it.
        landmarks: in the scan's frame; None: the face is looked for.
        config: numbers of the preparation; None: the thesis', which the degrees were chosen for.
        rest: what of the scan outside the face is kept: "keep" all, "head" what lies in the box, "drop" nothing.
        name: of the scan; what is drawn depends on the method's seed and this.

    Raises:
        InputError: no face was found, or the method cannot work on it.
        UsageError: the method lacks a target.

    Source:
        Point-cloud thesis, §4.1.4.2 and §4.3.2 (the anonymised inner part is merged with the outer one).
    """
    placed = canonical(cloud, landmarks)
    prepared = prepare_placed(placed, config)
    inner = method(prepared.inner, name=name)
    if not len(inner):
        raise InputError(f"{method.name} left no point of the face; use a lower degree")
    others = rest_of(placed, prepared, config, rest)
    whole = inner if others is None else merged(inner, others)
    record = {
        "points": {"scan": len(cloud), "face": len(prepared.inner), "anonymised": len(inner), "written": len(whole)},
        "frame": prepared.how,
        "likeness": round(float(prepared.likeness), 3),
        "sparse": prepared.sparse,
        **_moved(method, prepared.inner, inner),
        **_registration(method, prepared.inner),
    }
    return AnonymisedScan(whole.moved(_inverse(prepared.transform)), len(inner), inner, prepared, record)


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
    clear: Cloud, anonymised: Cloud, landmarks: FaceLandmarks | None = None, config: PreparationConfig | None = None
) -> dict[str, Any]:
    """How far an anonymised face is from the clear one, in 3D.

    Args:
        clear: metres, in any orientation.
        anonymised: in the same frame.
        landmarks: of the clear scan; None: its face is looked for.
        config: whose sphere says what the face is; None: the thesis'.

    Returns:
        JSON-ready: millimetres, degrees and numbers of points.

    Raises:
        InputError: no face in the clear scan, or none of the other cloud lies where it is.
    """
    from ficgan.pointcloud.geometry import cloud_distances, curvature_error, normal_error

    placed = canonical(clear, landmarks)
    numbers = (config or PreparationConfig()).segmentation
    source = segmented(placed.cloud, numbers).inner
    result = segmented(anonymised.moved(placed.transform), numbers).inner
    apart = cloud_distances(result, source)
    return {
        "points": {"clear": len(source), "anonymised": len(result)},
        "frame": placed.how,
        "chamfer_mm": round(1e3 * apart.chamfer, 4),
        "hausdorff_mm": round(1e3 * apart.hausdorff, 3),
        "hausdorff_95_mm": round(1e3 * apart.hausdorff_95, 3),
        "normal_error_degrees": round(normal_error(result, source), 2),
        "curvature_error_per_m": round(curvature_error(result, source), 2),
    }


def _moved(method: CloudAnonymizer, before: Cloud, after: Cloud) -> dict[str, Any]:
    """Millimetres by which the points moved, where the method keeps their order."""
    if not method.traits.keeps_order:
        return {}
    moved = np.linalg.norm(after.points - before.points, axis=1)
    return {"moved_mm": {"mean": round(1e3 * float(moved.mean()), 3), "largest": round(1e3 * float(moved.max()), 3)}}


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
