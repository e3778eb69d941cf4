"""The attacker of shapes: pose taken out, what each judge finds where shapes identify, chance where they do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from bars_world import bench, cosine, people, unknown
from safetensors.numpy import load_file
from scipy.spatial.transform import Rotation
from shape_world import MadeMesh

from ficgan import pretrained
from ficgan.anonymizers import Faces
from ficgan.errors import InputError
from ficgan.faces import Mesh
from ficgan.frame import FaceShape
from ficgan.lab import readers
from ficgan.lab.bars import privacy
from ficgan.lab.metrics import Bootstrap
from ficgan.lab.readers import SHAPE_JUDGES, ShapeAttack, ShapeRecognizer, Shapes
from ficgan.lab.results import Figure

DRAWN = Bootstrap(50)


# Reading


def test_pose_is_taken_out_and_the_shape_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    mean, spread, _ = readers._yardstick()
    first, second = (mean + rng.normal(size=mean.shape) * spread for _ in range(2))
    turned = [
        rng.uniform(0.5, 8) * one @ Rotation.from_euler("xyz", rng.uniform(-30, 30, 3), degrees=True).as_matrix().T
        + rng.normal(size=3) * 100
        for one in (first, first, second)
    ]
    found = [Mesh(np.concatenate([points, np.zeros((10, 3))]).astype(np.float32), 20.0) for points in turned]
    monkeypatch.setattr(readers, "find_meshes", lambda mesh, image, marks: [found[image[0, 0, 0]]])
    images = np.arange(3, dtype=np.uint8)[:, None, None, None].repeat(8, 1).repeat(8, 2).repeat(3, 3)
    read = ShapeRecognizer(MadeMesh()).read(images, np.zeros((3, 5, 2)))
    assert read.readable.all() and read.points.shape == (3, 1404)
    np.testing.assert_allclose(read.points[0], read.points[1], atol=2e-3)
    assert np.abs(read.points[0] - read.points[2]).mean() > 0.5
    # In standard deviations from the mean face; a seventh of the noise, the rigid part of it, was taken for pose.
    assert np.std(read.points[0]) == pytest.approx(1, abs=0.1)


def test_the_judge_sees_no_expression(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two people, each with two expressions and once turned: a smile would outweigh who it is."""
    shape = FaceShape.from_arrays(load_file(pretrained.path("model")))
    rng = np.random.default_rng(1)
    who = np.einsum("pi,inj->pnj", rng.normal(size=(2, len(shape.basis))), shape.basis)
    moved = np.einsum("ei,inj->enj", rng.normal(size=(3, 10)) * 3, shape.moves[1:])
    found = [
        Mesh(np.concatenate([shape.mean + who[person] + moved[way], np.zeros((10, 3))]).astype(np.float32), 20.0)
        for person, way in ((0, 0), (0, 1), (1, 0), (1, 2))
    ]
    monkeypatch.setattr(readers, "find_meshes", lambda mesh, image, marks: [found[image[0, 0, 0]]])
    images = np.arange(4, dtype=np.uint8)[:, None, None, None].repeat(8, 1).repeat(8, 2).repeat(3, 3)
    judge, marks = ShapeRecognizer(MadeMesh()), np.zeros((4, 5, 2))
    seen, points = judge.embed_each(images, marks), judge.read(images, marks).points
    assert judge.distance(seen[0], seen[1]) < 0.1 and judge.distance(seen[2], seen[3]) < 0.1
    assert judge.distance(seen[0], seen[2]) > 0.4
    assert judge.distance(points[0], points[2]) < judge.distance(points[0], points[1])  # which is what it undoes


def test_a_picture_without_a_mesh_is_the_mean_face_and_like_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    faces = people(3, 1)
    images = faces.images.copy()
    images[1] = 90
    marks = np.array(faces.landmarks)
    marks[2] = marks[2, :1]  # all five in one point
    judge = ShapeRecognizer(MadeMesh())
    assert judge.read(images, marks).readable.tolist() == [True, False, False]
    seen = judge.embed_each(images, marks)
    assert seen.shape == (3, 1405) and judge.unread(seen) == 2 and judge.unread(seen[:0]) == 0
    assert abs(1 - judge.distance(seen[0], seen[1])) < 1e-3 and not judge.is_match(seen[0], seen[1])
    assert judge.is_match(seen[0], seen[0])
    np.testing.assert_allclose(judge.embed(images[0], marks[:1]), seen[:1], atol=1e-5)
    assert judge.embed(images[0], np.zeros((0, 5, 2))).shape == (0, 0)
    broken = Mesh(np.full((478, 3), np.nan, np.float32), 30.0)
    monkeypatch.setattr(readers, "find_meshes", lambda *_: [broken])
    assert not judge.read(images[:1], marks[:1]).readable.any()


# Judges


def world(
    count: int, seed: int, *, width: int = 40, signal: float = 1.0, loud: float = 4.0, each: int = 2
) -> tuple[Shapes, np.ndarray]:
    """Six coordinates tell people apart, six are a loud expression, the others a little noise; all of it turned."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(count), each)
    place = np.arange(width)
    own = signal * rng.normal(size=(count, width)) * (place < 6)
    noise = np.where(place < 6, 0.3, np.where(place < 12, loud, 0.1))
    turn = np.linalg.qr(np.random.default_rng(99).normal(size=(width, width)))[0]
    x = (own[who] + rng.normal(size=(len(who), width)) * noise) @ turn
    return Shapes(x.astype(np.float32), np.ones(len(who), bool)), who


def rows(who: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    first = np.unique(who, return_index=True)[1]
    return first, np.setdiff1d(np.arange(len(who)), first)


def ranks(clear: Shapes, who: np.ndarray, published: Shapes | None = None, **more: Any) -> dict[str, Figure]:
    return ShapeAttack(clear, who, *rows(who), **more).ranks(published or clear, DRAWN)


def test_who_learns_finds_what_the_nearest_does_not() -> None:
    clear, who = world(80, 0)
    found = {judge: one.value for judge, one in ranks(clear, who).items()}
    assert list(found) == list(SHAPE_JUDGES)
    assert found["LDA"] > 0.5 and found["network"] > 0.15 > 2 * found["nearest"]  # type: ignore[operator]
    assert ranks(clear, who, judges=("LDA",))["LDA"].note == "chance 0.025; 40 people enrolled, learnt on 40 others"
    quiet = ranks(*world(80, 0, loud=0.1), judges=("nearest",))
    assert quiet["nearest"].value > 0.7  # type: ignore[operator]


def test_nobody_teaches_and_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clear, who = world(45, 5)
    alone, _ = world(10, 6, each=1)  # people with one photo are enrolled, too
    clear, who = clear + alone, np.concatenate([who, 100 + np.arange(10)])
    teachers: list[set[int]] = []
    original = readers.fit_probe

    def watched(kind: Any, blocks: Any, people: np.ndarray, **more: Any) -> Any:
        teachers.append(set(people.tolist()))
        return original(kind, blocks, people, **more)

    monkeypatch.setattr(readers, "fit_probe", watched)
    attack = ShapeAttack(clear, who, *rows(who), judges=("LDA",))
    looked = [set(who[attack.gallery[part.gallery]].tolist()) for part in attack.parts]
    assert all(not a & b for a, b in zip(teachers, looked, strict=True))
    assert looked[0] | looked[1] == set(who.tolist()) and not looked[0] & looked[1]
    assert sorted(map(len, teachers)) == [22, 23] and sorted(map(len, looked)) == [27, 28]
    for part, here in zip(attack.parts, looked, strict=True):
        assert set(who[attack.probe[part.probe]].tolist()) <= here


def test_what_has_no_mesh_is_counted_and_never_named() -> None:
    clear, who = world(60, 7, loud=0.1)
    readable = np.ones(len(who), bool)
    _, probe = rows(who)
    readable[probe[:20]] = False
    published = Shapes(np.where(readable[:, None], clear.points, 0), readable)
    found, all_of_them = (ranks(clear, who, some, judges=("nearest",)) for some in (published, clear))
    lost = found["nearest"].value - all_of_them["nearest"].value  # type: ignore[operator]
    assert lost == pytest.approx((20 / 30 - 20 * all_of_them["nearest"].value) / 60, abs=0.05)  # type: ignore[operator]
    told = Shapes(clear.points, np.zeros(len(who), bool))
    assert ranks(clear, who, told)["network"].value == pytest.approx(1 / 30)  # a lot among thirty
    assert "no mesh in 20 published and 0 enrolled pictures" in found["nearest"].note
    hidden = np.ones(len(who), bool)
    hidden[rows(who)[0][:30]] = False
    found = ranks(Shapes(np.where(hidden[:, None], clear.points, 0), hidden), who, clear, judges=("LDA",))
    assert found["LDA"].value <= 0.5 and "0 published and 30 enrolled" in found["LDA"].note  # type: ignore[operator]


def test_who_knows_the_method_learns_what_it_leaves() -> None:
    """Outputs keep weak coordinates; the strong ones, which clear photos teach to rely on, are drawn anew."""
    rng = np.random.default_rng(8)
    who = np.repeat(np.arange(120), 2)
    own = rng.normal(size=(120, 8)) * ([4] * 4 + [1] * 4)
    x = own[who] + rng.normal(size=(240, 8)) * 0.2
    out = np.concatenate([rng.normal(size=(240, 4)) * 4, x[:, 4:]], 1)
    clear, published = (Shapes(one.astype(np.float32), np.ones(240, bool)) for one in (x, out))
    plain = ranks(clear, who, published, judges=("LDA",))["LDA"].value
    informed = ranks(clear, who, published, judges=("LDA",), also=published)["LDA"].value
    assert plain < 0.3 < 0.6 < informed  # type: ignore[operator]


# Rows of the bars


def test_naive_is_a_loop_over_everybody() -> None:
    faces = people(6, 2)
    more = people(4, 1, seed=9)
    assert faces.people is not None and more.people is not None
    both = Faces(
        np.concatenate([faces.images, more.images]),
        (*faces.names, *(f"x{name}" for name in more.names)),
        people=np.concatenate([faces.people, 50 + more.people]),
    )
    made = bench(both)
    rng = np.random.default_rng(1)
    noisy = (0.25 * both.images + 0.75 * rng.integers(0, 256, both.images.shape)).astype(np.uint8)
    seen = made.recognised(both.with_images(noisy))
    figure = privacy.naive(made, seen)["naive", "blocks"]
    gallery, probe = [0, 2, 4, 6, 8, 10, 12, 13, 14, 15], [1, 3, 5, 7, 9, 11]
    output, clear = seen["blocks"], made.clear.embeddings["blocks"]
    best = [max(gallery, key=lambda j: cosine(output[i], clear[j])) for i in probe]
    assert figure.value == np.mean([made.people[i] == made.people[j] for i, j in zip(probe, best, strict=True)])
    assert (figure.metric, figure.n, figure.note) == ("naive", 6, "chance 0.100; 10 people enrolled")
    assert privacy.naive(made, made.clear.embeddings)["naive", "blocks"].value == 1
    with pytest.raises(InputError, match="0 people of made have two images"):
        privacy.naive(bench(unknown(people())), {})


@pytest.mark.slow
def test_shapes_of_the_bars_learn_elsewhere_where_there_is_more() -> None:
    made, judge = bench(people(24, 2)), ShapeRecognizer(MadeMesh())
    rows_of = privacy.shape(made, made.faces)
    assert list(rows_of) == [("shape", judge) for judge in SHAPE_JUDGES] + [("shape-informed", "LDA")]
    assert all(figure.value == 1 for key, figure in rows_of.items() if key[1] != "network")
    flat = made.faces.with_images(np.full_like(made.faces.images, 90))
    hidden = privacy.shape(made, flat)["shape", "LDA"]
    assert hidden.value == pytest.approx(1 / 12) and "no mesh in 24 published" in hidden.note
    others = people(30, 2, seed=7)
    lessons = judge.read(others.images, others.landmarks), np.asarray(others.people)
    few = lessons[0].take(np.arange(22)), lessons[1][:22]
    for given, note in ((lessons, "24 people enrolled, learnt on 30"), (few, "12 people enrolled, learnt on 12")):
        taught = replace(made, lessons=given)
        taught.clear_shapes = made.clear_shapes
        assert f"{note} others" in taught.shape_attack.ranks(made.clear_shapes, DRAWN)["nearest"].note
    small = bench(people(12, 2), lessons=lessons)
    informed = privacy.shape(small, small.faces)["shape-informed", "LDA"]
    assert informed.value is None and "there are 6" in informed.note
