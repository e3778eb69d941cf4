"""Finds that nothing confirms: leaves, hands and cloth that the detector takes for a face.

A weak find is confirmed by a stronger one of its track, by a mesh, or by the detector of the check. A track none of
whose finds is confirmed, and which no motion joins to one that is, is dropped and named.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ficgan.faces import DetectAt, Face, FaceDetector, detector_missing, get_detector
from ficgan.faces.detection import overlaps
from ficgan.faces.mesh import MediaPipeMesh, find_meshes
from ficgan.video.association import WEAK, Chain
from ficgan.video.tracks import UNCONFIRMED, Tracklet

# Presence of a mesh from which on there is a face. Of 608 finds on annotated faces of groups and crowds, at three
# sizes, 9 had less, a score below `CenterFace.sure` and no second detector: all of 17 px or less.
PRESENCE = 0.0
# Shorter side in pixels under which neither a mesh nor the other detector can tell.
LEAST = 24.0
# Overlap of two finds of one face.
SAME = 0.3
# Detectors for checks, the best first.
_CHECKERS = ("insightface", "yunet", "centerface")


def independent_detector(used: str, size: int) -> FaceDetector:
    """A detector of another kind than `used`, that searches at a longest side of `size` pixels; two are embedded."""
    other = next(name for name in _CHECKERS if not used.startswith(name) and detector_missing(name) is None)
    return DetectAt(get_detector(other, scale=1.0), (size, size), enlarge=False)


class FindConfirmer:
    """Looks a second time at weak finds, until one of their track is confirmed.

    Args:
        detector: that found them; one that has no `sure` score is believed.
        size: longest side in pixels at which frames are searched.
    """

    def __init__(self, detector: FaceDetector, size: int) -> None:
        self._sure, self._mesh = float(getattr(detector, "sure", 0.0)), MediaPipeMesh()
        self._other = independent_detector(detector.name, size) if self._sure else None
        self._confirmed: set[int] = set()

    def __call__(self, image: NDArray[np.uint8], faces: Sequence[Face], ids: Sequence[int]) -> None:
        """Take the finds of a frame; `ids` are their tracklets, 0 for none."""
        weak: list[tuple[Face, int]] = []
        for face, number in zip(faces, ids, strict=True):
            if face.score >= self._sure or float((face.box[2:] - face.box[:2]).min()) < LEAST:
                self._confirmed.add(number)
            elif number and number not in self._confirmed:
                weak.append((face, number))
        if not weak or self._other is None:
            return
        meshes = find_meshes(self._mesh, image, [face for face, _ in weak])
        self._confirmed |= {number for (_, number), mesh in zip(weak, meshes, strict=True) if mesh.presence >= PRESENCE}
        rest = [(face, number) for face, number in weak if number not in self._confirmed]
        boxes = np.array([face.box for face in self._other.detect(image)] if rest else []).reshape(-1, 4)
        self._confirmed |= {number for face, number in rest if overlaps(face.box, boxes).max(initial=0.0) >= SAME}

    def mark(self, tracklets: Sequence[Tracklet]) -> None:
        """Note of the tracklets that nothing confirms."""
        for tracklet in tracklets:
            if tracklet.id not in self._confirmed:
                tracklet.notes.append(UNCONFIRMED)


def is_unconfirmed(chain: Chain) -> bool:
    """Whether a chain holds faces, and none of them is confirmed."""
    notes = [owner.notes for owner in chain.owners if WEAK not in owner.notes]
    return bool(notes) and all(UNCONFIRMED in note for note in notes)
