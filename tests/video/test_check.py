"""The second look finds what is still recognisable, and nothing that a rule keeps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from stand_ins import Fixed, face
from worlds import Reader

from ficgan.video.film import check_frames
from ficgan.video.source import Frame

Image = NDArray[np.uint8]


@dataclass
class MeanColour(Reader):
    """Embeds a face as the mean colour around its nose."""

    match_threshold: float = 10.0

    def embed(self, image: Image, landmarks: ArrayLike) -> NDArray[np.float32]:
        points = np.asarray(landmarks)[:, 2].astype(int)
        return np.stack([image[y - 3 : y + 4, x - 3 : x + 4].mean((0, 1)) for x, y in points]).astype(np.float32)


def frame(index: int, image: Image) -> Frame:
    return Frame(index, index, index / 10, image)


def test_a_face_left_as_it_was_is_found_and_a_covered_one_is_not() -> None:
    source = np.random.default_rng(0).integers(0, 256, (80, 200, 3), dtype=np.uint8)
    result = source.copy()
    result[20:60, 20:60] = 0
    nobody = np.zeros((0, 4))
    detector = Fixed([face(20, 20, 40), face(120, 20, 40)])
    report = check_frames([(frame(4, source), frame(4, result))], lambda index: nobody, detector, MeanColour())
    assert (report.frames, report.faces, report.exempt) == (1, 2, 0)
    (finding,) = report.findings
    assert finding.frame == 4 and finding.time == 0.4 and finding.box[0] == 120 and finding.distance == 0
    assert report.to_dict()["findings"][0]["frame"] == 4


def test_kept_faces_are_exempt_but_not_their_neighbours_nor_a_face_inside_a_larger_box() -> None:
    source = np.full((80, 200, 3), 90, np.uint8)
    for kept, exempt in (([18, 22, 60, 58], 1), ([0, 0, 199, 79], 0), ([100, 20, 119, 60], 0)):
        boxes = np.array([kept], np.float32)
        report = check_frames(
            [(frame(0, source), frame(0, source))],
            lambda index, boxes=boxes: boxes,  # type: ignore[misc]
            Fixed([face(20, 20, 40)]),
            MeanColour(),
        )
        assert (report.exempt, len(report.findings)) == (exempt, 1 - exempt), kept
