"""People across gaps, cuts and films, against SciPy's average linkage and worlds with known people."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist
from stand_ins import Reader
from worlds import box_at, face_at

from ficgan.faces import Alignment
from ficgan.video import people as module
from ficgan.video.people import EmbeddingReader, People, frontality, link_tracklets
from ficgan.video.tracks import PADDED, Reading, Sighting, Tracklet, fill_tracks

TIMES = np.arange(1000) / 25.0


def tracklet(
    id: int,
    first: int,
    last: int,
    embeddings: NDArray | None = None,
    x: float = 100.0,
    speed: float = 0.0,
    scene: int = 0,
    quality: NDArray | None = None,
) -> Tracklet:
    """A face 50 px large that moves to the right, `speed` px a frame."""
    frames = range(first, last + 1)
    sightings = [Sighting(frame, face_at(box_at(x + speed * (frame - first), 200, 50))) for frame in frames]
    known = [] if embeddings is None else list(embeddings)
    weights = np.ones(len(known)) if quality is None else quality
    return Tracklet(id, sightings, scene, [Reading(first, *one) for one in zip(known, weights, strict=True)])


def looks(person: int, count: int = 3, spread: float = 0.1, width: int = 64, seed: int = 0) -> NDArray[np.float32]:
    """Unit embeddings of one person; two people are about √2 apart."""
    centre = np.random.default_rng([7, person]).normal(size=width)
    centre /= np.linalg.norm(centre)
    noise = np.random.default_rng([person, seed, 1]).normal(size=(count, width)) * spread / np.sqrt(width)
    x = centre + noise
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def numbered_people(threshold: float = 0.67, metric: str = "cosine", **options: Any) -> People:
    reader = Reader()
    reader.metric, reader.match_threshold = metric, threshold
    return People(reader, **options)


def same_partition(a: list[int], b: list[int]) -> bool:
    """Whether two numberings put the same things together."""
    return len(set(zip(a, b, strict=True))) == len(set(a)) == len(set(b))


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("seed", range(3))
def test_without_overlap_it_is_average_linkage_of_squared_distances(metric: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(8, 5))
    x = centres[rng.integers(0, 8, 40)] + rng.normal(size=(40, 5)) * 0.45
    tracklets = [tracklet(i + 1, 10 * i, 10 * i + 5, x[i : i + 1].astype(np.float32)) for i in range(40)]
    threshold = 1.6 if metric == "euclidean" else 0.4
    people = numbered_people(threshold, metric, strictness=1.0)
    # The oracle works on the distances, not on sums: 1 - cosine, or the squared Euclidean distance.
    x = x.astype(np.float32).astype(np.float64)
    tree = linkage(pdist(x, "cosine" if metric == "cosine" else "sqeuclidean"), "average")
    limit = threshold if metric == "cosine" else threshold**2
    expected = fcluster(tree, limit, "distance").tolist()
    assert 2 < len(set(expected)) < 35
    assert same_partition(people.assign(tracklets), expected)


@given(st.integers(0, 10_000), st.integers(2, 7))
def test_never_links_what_overlaps_and_batches_change_little(seed: int, batch: int) -> None:
    rng = np.random.default_rng(seed)
    tracklets = []
    for i in range(20):
        first = int(rng.integers(0, 200))
        tracklets.append(
            tracklet(i + 1, first, first + int(rng.integers(0, 60)), looks(int(rng.integers(0, 5)), seed=i))
        )
    for size in (1000, batch):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "BATCH", size)
            people = numbered_people()
            numbers, again = people.assign(tracklets), people.assign(tracklets)
        assert set(numbers) == set(range(1, max(numbers) + 1))
        for i, a in enumerate(tracklets):
            for b, number in zip(tracklets[:i], numbers[:i], strict=True):
                assert number != numbers[i] or a.first > b.last or b.first > a.last
        assert numbers == again  # a film does not know the film before


def test_links() -> None:
    one = [tracklet(1, 0, 9, looks(1)), tracklet(2, 20, 29, looks(2)), tracklet(3, 40, 49, looks(1, seed=5))]
    two = [tracklet(1, 0, 9, looks(3)), tracklet(2, 5, 9, looks(2, seed=9)), tracklet(3, 30, 39, looks(1, seed=8))]
    none, file, job = numbered_people(link="none"), numbered_people(link="file"), numbered_people(link="job")
    assert none.assign(one) == [1, 2, 3]
    assert file.assign(one) == [1, 2, 1] == job.assign(one)
    assert file.assign(two) == [1, 2, 3]
    assert job.assign(two) == [3, 2, 1]
    assert job.assign(two) == [3, 2, 1]


def test_job_numbers_never_change_and_known_people_stay_apart() -> None:
    """Two people known as two stay two, even where a later view lies between them."""
    a, b = np.eye(4, dtype=np.float32)[:2]
    job = numbered_people(1.0, "euclidean", link="job", strictness=1.0)
    assert job.assign([tracklet(1, 0, 5, a[None]), tracklet(2, 0, 5, b[None])]) == [1, 2]
    assert job.assign([tracklet(1, 0, 5, (a * 0.6 + b * 0.4)[None])]) == [1]
    assert job.assign([tracklet(1, 0, 5, b[None])]) == [2]


def test_unknown_people_have_number_0() -> None:
    bad = np.full((2, 64), np.nan, np.float32)
    given = [
        tracklet(1, 0, 5),
        tracklet(2, 0, 5, bad),
        tracklet(3, 0, 5, looks(1), quality=np.zeros(3)),
        tracklet(4, 0, 5, np.zeros((1, 64), np.float32)),
        tracklet(5, 0, 5, looks(1)),
    ]
    assert numbered_people().assign(given) == [0, 0, 0, 0, 1]
    assert numbered_people().assign([]) == []


def test_what_confirms_one_part_of_a_track_confirms_the_other() -> None:
    for confirmed in ((False, False), (True, False), (False, True)):
        parts = [tracklet(1, 0, 0, looks(1)), tracklet(2, 10, 10, looks(1, seed=1))]
        for part, known in zip(parts, confirmed, strict=True):
            part.confirmed = known
        (joined,) = link_tracklets(parts, numbered_people(), TIMES)
        assert joined.confirmed == any(confirmed) and [len(part.sightings) for part in parts] == [1, 1]


@pytest.mark.parametrize(
    ("second", "joined"),
    [
        ({}, True),
        ({"first": 70}, False),  # 49 frames of 25 a second later
        ({"x": 330.0}, False),  # 3 sizes from where it was expected
        ({"scene": 1}, False),
        ({"person": 2}, False),
    ],
)
def test_a_gap_in_one_persons_way_is_closed(second: dict, joined: bool) -> None:
    """A face that goes 2 px a frame and is not seen for 20 frames; and four cases in which it must not be joined."""
    first = second.get("first", 40)
    a = tracklet(1, 0, 19, looks(1), speed=2.0)
    b = tracklet(
        2,
        first,
        first + 20,
        looks(second.get("person", 1), seed=1),
        second.get("x", 180.0),
        2.0,
        second.get("scene", 0),
    )
    for link in ("none", "file"):
        result = link_tracklets([a, b], numbered_people(link=link), TIMES)
        assert len(result) == (1 if joined else 2)
        assert sum(len(one.sightings) for one in result) == len(a.sightings) + len(b.sightings)
        if joined:
            assert result[0].id == 1 and len(result[0].readings) == 6
            frames = [one.frame for one in result[0].sightings]
            assert frames == sorted(frames)


def test_frontality_is_about_one_from_the_front_and_falls_with_the_turn() -> None:
    front = Alignment().points(100)
    side = front.copy()
    side[:, 0] = 50 + (front[:, 0] - 50) * 0.3
    assert 0.9 < frontality(front) < 1.1 and frontality(side) == pytest.approx(0.3 * frontality(front))
    assert np.isfinite(frontality(np.zeros((5, 2))))


class ByColour(Reader):
    """Knows people by the colour of their face: two colours are a mixture of two people."""

    match_threshold = 0.6

    def embed(self, image: NDArray, landmarks: NDArray) -> NDArray[np.float32]:
        x, y = landmarks[0].mean(0).astype(int)
        return image[y - 2 : y + 3, x - 2 : x + 3].mean((0, 1))[None].astype(np.float32) / 255


@pytest.mark.parametrize("dissolve", [0, 20])
def test_where_another_person_goes_on_the_track_ends_and_nobody_gets_a_face_between(dissolve: int) -> None:
    """A red face is followed by a blue one in the same place, at once or over 20 frames; every fifth is looked at."""
    reader, face, change, frames = EmbeddingReader(ByColour()), face_at(box_at(100, 100, 60)), 62, range(0, 151, 5)  # type: ignore[arg-type]

    def share(frame: int) -> float:
        return float(np.clip((frame - change) / dissolve, 0, 1)) if dissolve else float(frame >= change)

    for frame in frames:
        image = np.zeros((200, 200, 3), np.uint8)
        image[:] = [255 * (1 - share(frame)), 0, 255 * share(frame)]
        reader(frame, image, [face], [1])
    followed = [Tracklet(1, [Sighting(frame, face) for frame in frames])]
    parts = link_tracklets(reader.hand_over(followed), numbered_people(0.6, "euclidean"), np.arange(151) / 25)
    assert sorted(part.person for part in parts) == [1, 2]
    first, second = fill_tracks(parts, (), np.arange(151) / 25, 0.3)
    faces = [{track.first + row for row in np.flatnonzero(track.origin < PADDED)} for track in (first, second)]
    assert all(share(frame) < 0.5 for frame in faces[0]) and all(share(frame) > 0.5 for frame in faces[1])
    assert min(faces[0]) == 0 and max(faces[1]) == 150 and len(faces[0]) > 40 and len(faces[1]) > 50
    covered = {frame for track in (first, second) for frame in range(track.first, track.last + 1)}
    assert covered == set(range(151))


def test_a_person_whose_face_turns_or_is_lit_otherwise_stays_one() -> None:
    reader, face = EmbeddingReader(ByColour()), face_at(box_at(100, 100, 60))  # type: ignore[arg-type]
    for number in range(60):
        image = np.full((200, 200, 3), 120 + 60 * np.sin(number / 7), np.uint8)
        if number == 31:  # a single odd reading, as a hand before the face gives
            image[:] = [255, 0, 0]
        reader(5 * number, image, [face], [1])
    followed = [Tracklet(1, [Sighting(5 * number, face) for number in range(60)])]
    assert len(reader.hand_over(followed)) == 1


@pytest.mark.parametrize("moment", ["", "lost", "touched"])
def test_after_a_moment_of_doubt_a_face_that_is_just_no_match_is_another_person(moment: str) -> None:
    """The two are 1.05 match thresholds apart: without a reason to doubt that may be one person turning the head."""
    reader = EmbeddingReader(ByColour())  # type: ignore[arg-type]
    face, beside = face_at(box_at(100, 100, 60)), face_at(box_at(130, 100, 60))
    angle = 2 * np.arcsin(1.05 * ByColour.match_threshold / 2)
    for number in range(60):
        image = np.zeros((200, 200, 3), np.uint8)
        image[:] = [255, 0, 0] if number < 30 else [255 * np.cos(angle), 0, 255 * np.sin(angle)]
        there = [] if moment == "lost" and number == 30 else [face]
        neighbour = [beside] if moment == "touched" and number == 30 else []
        reader(number, image, [*there, *neighbour], [1] * len(there) + [2] * len(neighbour))
    followed = [Tracklet(1, [Sighting(number, face) for number in range(60)])]
    assert len(reader.hand_over(followed)) == (2 if moment else 1)


@pytest.mark.parametrize("moved", [True, False])
def test_where_the_surroundings_change_at_once_even_people_who_look_alike_are_two(
    moved: bool, rng: np.random.Generator
) -> None:
    """The two are .95 match thresholds apart, and the tiles that show them change places before frame 152."""
    reader, face, angle = EmbeddingReader(ByColour()), face_at(box_at(200, 100, 60)), 2 * np.arcsin(0.95 * 0.6 / 2)  # type: ignore[arg-type]
    places = [cv2.resize(rng.integers(0, 255, (12, 16, 3), np.uint8), (400, 300)) for _ in range(2)]
    for number in range(60):
        later = 5 * number >= 152
        image = places[later and moved].copy()
        image[70:130, 170:230] = [255 * np.cos(later * angle), 0, 255 * np.sin(later * angle)]
        reader(5 * number, image, [face], [1])
    parts = reader.hand_over([Tracklet(1, [Sighting(5 * number, face) for number in range(60)])])
    assert [part.first for part in parts] == ([0, 155] if moved else [0])
    if moved:
        assert parts[0].sure == 145  # its last reading


@pytest.mark.parametrize("corner", [(0, 0), (-3, -5), (150, 130)])
def test_a_face_in_a_corner_of_the_picture_is_read(corner: tuple[int, int]) -> None:
    reader = EmbeddingReader(ByColour())  # type: ignore[arg-type]
    face = face_at(box_at(corner[0] + 30, corner[1] + 30, 60))
    for number in range(12):
        reader(number, np.full((210, 220, 3), 90, np.uint8), [face], [1])
    parts = reader.hand_over([Tracklet(1, [Sighting(number, face) for number in range(12)])])
    assert len(parts) == 1 and parts[0].readings
