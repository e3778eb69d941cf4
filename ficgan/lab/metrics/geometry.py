"""Where the face is after anonymisation: detection, box, five landmarks, pose of the head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.faces import DetectAt, FaceDetector

Floats = NDArray[np.floating[Any]]

POSE_NAMES = ("yaw", "pitch", "roll")
_LOOK_AT = 160  # Side at which crops are searched: one pass there finds as many faces of CelebA as the pyramid of sizes

# A generic head in units of its eye distance: x to the viewer's right, y down, z towards the viewer, pupils at z = 0.
# Depths: a nose tip stands 26 mm, corners of the mouth 4 mm before the pupils, at a distance of 63 mm between these.
_HEAD: NDArray[np.float64] = np.array(
    [[-0.5, 0.0, 0.0], [0.5, 0.0, 0.0], [0.0, 0.56, 0.42], [-0.4, 1.02, 0.06], [0.4, 1.02, 0.06]]
)


@dataclass(frozen=True)
class Detections:
    """The face found in each of N crops; NaN where none was found.

    Args:
        boxes: float32 [N,4], x0, y0, x1, y1 in pixels.
        landmarks: float32 [N,5,2], pixels.
    """

    boxes: NDArray[np.float32]
    landmarks: NDArray[np.float32]

    @property
    def found(self) -> NDArray[np.bool_]:
        """bool [N]."""
        return np.isfinite(self.boxes[:, 0])


def quick(detector: FaceDetector) -> FaceDetector:
    """The detector in one pass at a size that suits crops; one without a method `once` as it is at that size."""
    once = getattr(detector, "once", None)
    return DetectAt(once() if once else detector, (_LOOK_AT, _LOOK_AT))


def detect_faces(detector: FaceDetector, images: NDArray[np.uint8], landmarks: Floats) -> Detections:
    """The face of each crop [N,S,S,3] uint8 RGB; of several faces the one nearest to the crop's landmarks [N,5,2]."""
    boxes = np.full((len(images), 4), np.nan, np.float32)
    points = np.full((len(images), 5, 2), np.nan, np.float32)
    for index, (image, marks) in enumerate(zip(images, landmarks, strict=True)):
        faces = detector.detect(image)
        if faces:
            face = min(faces, key=lambda each: float(np.linalg.norm(each.landmarks.mean(0) - marks.mean(0))))
            boxes[index], points[index] = face.box, face.landmarks
    return Detections(boxes, points)


def box_iou(a: Floats, b: Floats) -> NDArray[np.float64]:
    """Intersection over union of boxes [N,4] (x0, y0, x1, y1) one by one: [N]; NaN where one is missing."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    sides = np.minimum(a[:, 2:], b[:, 2:]) - np.maximum(a[:, :2], b[:, :2])
    common = sides.clip(0).prod(1)
    union = (a[:, 2:] - a[:, :2]).prod(1) + (b[:, 2:] - b[:, :2]).prod(1) - common
    return np.divide(common, union, out=np.where(np.isnan(union), np.nan, 0.0), where=union > 0)


def overlaps(a: Floats, b: Floats) -> NDArray[np.float64]:
    """Intersection over union of every box of a [M,4] with every one of b [N,4]: [M,N]."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    sides = np.minimum(a[:, None, 2:], b[None, :, 2:]) - np.maximum(a[:, None, :2], b[None, :, :2])
    common = sides.clip(0).prod(2)
    union = (a[:, 2:] - a[:, :2]).prod(1)[:, None] + (b[:, 2:] - b[:, :2]).prod(1)[None] - common
    return np.divide(common, union, out=np.zeros_like(common), where=union > 0)


def eye_distance(landmarks: Floats) -> NDArray[np.float64]:
    """Distance of the eyes, pixels: landmarks [N,5,2] → [N]."""
    return np.linalg.norm(np.asarray(landmarks, np.float64)[:, 1] - landmarks[:, 0], axis=1)


def landmark_distance(a: Floats, b: Floats) -> NDArray[np.float64]:
    """Mean distance of the five landmarks [N,5,2] to the same of the other, pixels: [N]; NaN where one is missing."""
    return np.linalg.norm(np.asarray(a, np.float64) - b, axis=2).mean(1)


def mouth_width(landmarks: Floats) -> NDArray[np.float64]:
    """Width of the mouth in eye distances, which a smile widens: landmarks [N,5,2] → [N]; NaN where there are none."""
    marks = np.asarray(landmarks, np.float64)
    return np.linalg.norm(marks[:, 4] - marks[:, 3], axis=1) / eye_distance(marks).clip(1e-9)


def head_pose(landmarks: Floats) -> NDArray[np.float64]:
    """Pose [N,3], degrees, of landmarks [N,5,2]: yaw (positive: to the viewer's right), pitch (up), roll (clockwise).

    The nearest rotation (Higham 1986) to the best affine map of a generic head (Tomasi and Kanade 1992). NaN without a
    face.
    """
    points = np.asarray(landmarks, np.float64)
    out = np.full((len(points), 3), np.nan)
    seen = np.isfinite(points).all((1, 2))
    head = _HEAD - _HEAD.mean(0)
    rows = np.swapaxes(np.linalg.pinv(head) @ (points[seen] - points[seen].mean(1, keepdims=True)), 1, 2)  # [M,2,3]
    u, _, v = np.linalg.svd(rows, full_matrices=False)
    x, y = np.moveaxis(u @ v, 1, 0)  # the picture's axes in the head's frame, each [M,3]
    z = np.cross(x, y)
    # [x, y, z] = Ry(yaw) Rx(pitch) Rz(roll): its last column is where the face looks, its second row knows no yaw.
    out[seen] = np.degrees(
        np.stack([np.arctan2(x[:, 2], z[:, 2]), np.arcsin(-y[:, 2].clip(-1, 1)), np.arctan2(y[:, 0], y[:, 1])], 1)
    )
    return out
