"""Redact made films in which every pixel of every face is known, and count the faces that are left uncovered.

    python tools/stress_films.py --frames 10000 --log films.jsonl    a night; the same command goes on after an end
    python tools/stress_films.py --frames 300 --seed 3
    python tools/stress_films.py --frames 10000 --length 150 --kinds street,call,dissolve,shots --heads PHOTOS

The heads are the astronaut's and new ones generated from it, or those of the people in a folder, a photo each. Each
film is drawn at random: ways and speeds, motion blur, bars before faces, cuts, flashes, a face that enters in the last
frame, 1 to 60 frames a second, turned and interlaced pictures. Then some faces of the result are uncovered again, and
the second look is asked to find them. Prints a line of JSON a kind of film and one for all: `named` are films of which
the account names places to review, `bare` films with an uncovered face, `unnamed` those of them of which it names none.

In streets, calls, dissolves and shots people get new faces. There `others` counts faces on which another person's new
face lies, `covered` is the share of faces that have a cover (`covered_24` of those of 24 px and more), `changes` how
often a second of its time one sees a head change from a face to a cover or back or to another face, `bend` the second
differences of the new faces' places, in sizes of the face, and `bend_true` those of the faces themselves. Ends with 1
where a face was left uncovered or lies on another person.
"""

# ruff: noqa: E402 (the drawing of films belongs to the tests)
from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT), str(ROOT / "tests" / "video")]
from clips import make_clip
from compositor import Actor, Area, Bar, Head, Image, Scene, astronaut, changed, uncovered
from streets import STREETS, Played

from ficgan import Deidentifier
from ficgan.cli.main import handle_errors
from ficgan.errors import stop_asked
from ficgan.faces import get_detector
from ficgan.images.read import read_image
from ficgan.video import film as films_module
from ficgan.video.decided import Appearance
from ficgan.video.film import check_frames
from ficgan.video.found import independent_detector
from ficgan.video.identities import FilmFace
from ficgan.video.read import open_video
from ficgan.video.rendered import Renderer, face_area
from ficgan.video.source import Frame

RATES = (1, 2, 5, 10, 15, 24, 25, 30, 50, 60)
KINDS = ("steady", "fast", "occluded", "cuts", "flashes", "last frame", "turned", "interlaced")
SIZE = (640, 360)
# Figures of a film that are added up.
FIGURES = (
    *("frames", "faces", "seconds", "uncovered", "opened", "found", "reported", "others", "covered", "faces_24"),
    *("covered_24", "changes", "bends", "bend", "bend_true"),
)
# Height in pixels of the heads' photos.
HEAD = 360
# Share of a new face's pixels that must differ from the source.
CHANGED = 0.5
# Grey levels by which what one sees may differ from what was drawn, by the encoder.
SAME = 12.0


def heads(count: int, folder: Path | None) -> list[Head]:
    """People of a folder's photos; else the astronaut, and people who do not exist, generated from it."""
    if folder is not None:
        return [photographed(path) for path in sorted(folder.iterdir()) if path.suffix in (".jpg", ".png")]
    first = astronaut()
    deid = Deidentifier.from_pretrained(seed=0, verify=False, psi=1.0)
    made = [deid(first.image, key=str(number)).image for number in range(count - 1)]
    return [first, *(Head.of(image, (85, 54, 185, 180)) for image in made)]


def photographed(path: Path) -> Head:
    import cv2

    photo = read_image(path).rgb
    size = round(HEAD * photo.shape[1] / photo.shape[0]), HEAD
    small = np.asarray(cv2.resize(photo, size, interpolation=cv2.INTER_AREA), np.uint8)
    return Head.of(small, get_detector().detect(small)[0].box.tolist())


def way(rng: np.random.Generator, frames: int, rate: int, *, fast: bool) -> Callable[[int], tuple[float, float, float]]:
    """To and fro in the picture; `fast`: up to .45 of a face's height a frame."""
    size = float(rng.uniform(60, 150))
    x, y = rng.uniform(0.3, 0.7) * SIZE[0], rng.uniform(0.4, 0.6) * SIZE[1]
    reach = min(x, SIZE[0] - x) - 0.4 * size, min(y, SIZE[1] - y) - 0.5 * size
    speed = (0.45 if fast else min(0.3, 2.0 / rate)) * size
    turns = [max(0.0, speed / max(side, 1.0)) for side in reach]
    phase, swell = rng.uniform(0, 6.28, 3), rng.uniform(0, 0.25)
    return lambda n: (
        x + max(0.0, reach[0]) * float(np.sin(n * turns[0] + phase[0])),
        y + max(0.0, reach[1]) * float(np.sin(n * turns[1] * 0.3 + phase[1])),
        size * (1 + swell * float(np.sin(2 * n / rate + phase[2]))),
    )


def scene(kind: str, rng: np.random.Generator, people: list[Head], frames: int) -> Scene:
    rate = int(rng.choice(RATES))
    chosen = rng.permutation(len(people))[: int(rng.integers(1, 4))]
    blurred = 9 if kind in ("fast", "last frame") or rng.random() < 0.3 else 1
    actors = [Actor(people[n], way(rng, frames, rate, fast=kind == "fast"), blurred) for n in chosen]
    bars, cuts = [], []
    if kind == "occluded":
        path, begin = actors[0].path, int(rng.integers(frames // 4, frames // 2))

        def bar(n: int) -> tuple[float, float, float, float]:
            x, y, size = path(n) or (0.0, 0.0, 1.0)
            return x - 0.7 * size, y - 0.45 * size, x + 0.7 * size, y + 0.1 * size

        bars = [Bar(begin, begin + int(rng.integers(3, 20)), bar)]
    if kind == "cuts":
        cuts = sorted(int(n) for n in rng.choice(np.arange(2, frames - 2), 4, replace=False))
        ways = [[way(rng, frames, rate, fast=False) for _ in actors] for _ in range(5)]

        def shot(index: int) -> Callable[[int], tuple[float, float, float]]:
            return lambda n: ways[sum(cut <= n for cut in cuts)][index](n)

        actors = [Actor(actor.head, shot(index)) for index, actor in enumerate(actors)]
    if kind == "last frame":
        path = actors[0].path
        actors[0] = Actor(actors[0].head, lambda n: path(n) if n == frames - 1 else None)
    return Scene(frames, actors, size=SIZE, bars=bars, cuts=cuts, rate=rate, seed=int(rng.integers(1 << 30)))


def write(path: Path, kind: str, shown: Scene, rng: np.random.Generator) -> tuple[list[Image], list[list[Area]]]:
    """The film's file; its pictures as they should be read, and the faces in each."""
    images, areas = shown.play()
    options: dict[str, Any] = {}
    if kind == "flashes":
        for number in rng.choice(shown.frames, max(2, shown.frames // 12), replace=False):
            light = float(rng.choice([0.25, 1.8, 3.0]))
            images[number] = np.clip(images[number] * light, 0, 255).astype(np.uint8)
    stored = images
    if kind == "interlaced":  # odd rows are those of the next moment
        stored = [image.copy() for image in images]
        for now, then in zip(stored, images[1:], strict=False):
            now[1::2] = then[1::2]
    if kind == "turned":
        turns = int(rng.integers(1, 4))
        stored = [np.ascontiguousarray(np.rot90(image, -turns)) for image in images]
        options["turn"] = (90.0 * turns, False, False)
    height, width = stored[0].shape[:2]
    make_clip(path, shown.frames, size=(width, height), time_base=Fraction(1, shown.rate), pictures=stored, **options)
    return images, areas


def pictures(path: Path) -> list[Image]:
    with open_video(path) as film:
        return [frame.image for frame in film.frames()]


def second_look(
    deid: Deidentifier, source: list[Image], result: list[Image], areas: list[list[Area]], rng: np.random.Generator
) -> tuple[int, int]:
    """How many faces were uncovered again, and how many of them the second look found."""
    rows = [n for n, shown in enumerate(areas) if shown]
    chosen = sorted(int(n) for n in rng.choice(rows, min(len(rows), 6), replace=False))
    targets: dict[int, tuple[float, float]] = {}

    def pairs() -> Iterator[tuple[Frame, Frame]]:
        for n in chosen:
            area = areas[n][int(rng.integers(len(areas[n])))]
            height, width = area.mask.shape
            y0, x0 = max(0, area.y0 - height // 8), max(0, area.x0 - width // 8)
            opened = result[n].copy()
            part = np.s_[y0 : area.y0 + height + height // 8, x0 : area.x0 + width + width // 8]
            opened[part] = source[n][part]
            ys, xs = np.nonzero(area.mask)
            targets[n] = float(area.x0 + xs.mean()), float(area.y0 + ys.mean())
            yield Frame(n, n, float(n), source[n]), Frame(n, n, float(n), opened)

    settings = deid.video_settings()
    tools = deid.video_tools(settings)
    assert tools.gate is not None
    detector = independent_detector(tools.detector.name, settings.detect_size)
    report = check_frames(pairs(), lambda _: np.zeros((0, 4)), detector, tools.gate)

    def holds(box: Any, x: float, y: float) -> bool:
        return bool(box[0] <= x <= box[2] and box[1] <= y <= box[3])

    hits = {found.frame for found in report.findings if holds(found.box, *targets[found.frame])}
    return len(chosen), len(hits)


class LoggedRenderer(Renderer):
    """Logs for each frame what was done to its faces: the appearance, what, and the new face."""

    log: ClassVar[dict[int, list[tuple[Appearance, str, FilmFace | None]]]] = {}

    def note(self, frame: int, appearance: Appearance, done: str, made: FilmFace | None = None) -> None:
        super().note(frame, appearance, done, made)
        self.log.setdefault(frame, []).append((appearance, done, made))

    def restart(self) -> None:
        super().restart()
        self.log.clear()


def treatment(area: Area, done: list[tuple[Appearance, str, FilmFace | None]], result: Image) -> tuple[str, Any]:
    """What one sees on a face: the key of a person for a new face, "cover", "" for neither; and its place."""
    ys, xs = np.nonzero(area.mask)
    middle = np.array([area.x0 + xs.mean(), area.y0 + ys.mean()])
    x, y = np.rint(middle).astype(int)

    def covers(appearance: Appearance) -> bool:
        box = appearance.face.box
        return bool((box[:2] <= middle).all() and (middle <= box[2:]).all())

    def seen(made: FilmFace) -> bool:
        assert made.paste is not None
        paste = made.paste
        part = np.s_[max(y - 2, 0) : y + 3, max(x - 2, 0) : x + 3]
        if not paste.mask[part].min() > 0.5:
            return False
        return bool(np.abs(paste.image[part].astype(float) - result[part]).mean() < SAME)

    drawn = [(appearance, made) for appearance, _, made in done if made is not None and made.paste is not None]
    here = [(appearance, made) for appearance, made in drawn if seen(made)]
    if not here:
        rest = [appearance for appearance, _, made in done if made is None or made.paste is None]
        return ("cover", None) if any(map(covers, rest)) else ("", None)
    face, made = max(here, key=lambda one: face_area(one[0].face))
    return face.person, None if made.reading.landmarks is None else made.reading.landmarks.mean(0)


def people_film(number: int, kind: str, given: argparse.Namespace, people: list[Head]) -> dict[str, Any]:
    """Draw, redact and compare one film whose people get new faces."""
    rng = np.random.default_rng([given.seed, number])
    rate = int(rng.choice([12, 24, 25, 30]))
    count = int(rng.choice([2, 4])) if kind == "call" else int(rng.integers(3, 7))
    shown = STREETS[kind]([people[n] for n in rng.permutation(len(people))[:count]], rng, given.length, rate)
    deid = Deidentifier.from_pretrained(seed=number)
    LoggedRenderer.log.clear()
    with tempfile.TemporaryDirectory() as folder:
        clip, out = Path(folder, "in.mp4"), Path(folder, "out.mp4")
        make_clip(clip, given.length, size=SIZE, time_base=Fraction(1, rate), pictures=shown.images)
        report = deid.process_video(clip, out, settings=deid.video_settings(), overwrite=True)
        source, result = pictures(clip), pictures(out)
        if given.films is not None:
            given.films.mkdir(exist_ok=True)
            for path in (clip, out):
                shutil.copy(path, given.films / f"{number}-{path.name}")
    return {
        **_people_figures(shown, source, result),
        "film": number,
        "kind": kind,
        "rate": rate,
        "review": [place["frame"] for place in report.review],
    }


def _people_figures(shown: Played, source: list[Image], result: list[Image]) -> dict[str, Any]:
    seen: dict[int, dict[int, tuple[str, Any, Area]]] = {}  # actor → frame → what one sees
    left = []
    for n, areas in enumerate(shown.areas):
        for area in areas:
            if changed(source[n], result[n], area) < CHANGED:
                left.append((n, area.actor))
            seen.setdefault(area.actor, {})[n] = *treatment(area, LoggedRenderer.log.get(n, []), result[n]), area
    owners: dict[str, Counter[int]] = {}
    for actor, rows in seen.items():
        for what, _, _ in rows.values():
            if what not in ("", "cover"):
                owners.setdefault(what, Counter())[actor] += 1
    others = [
        (n, actor)
        for actor, rows in seen.items()
        for n, (what, _, _) in rows.items()
        if what in owners and owners[what].most_common(1)[0][0] != actor
    ]
    changes, bends, true_bends = list[tuple[int, int]](), list[float](), list[float]()
    rows24 = covered = covered24 = 0
    for actor, rows in seen.items():
        for n, (what, place, area) in rows.items():
            size = _size(area)
            covered += what == "cover"
            rows24 += size >= 24
            covered24 += what == "cover" and size >= 24
            if n - 1 in rows and n not in shown.cuts:
                before = rows[n - 1][0]
                if what != before:
                    changes.append((n, actor))
                if n - 2 in rows and n - 1 not in shown.cuts and place is not None:
                    line = [rows[n - 2][1], rows[n - 1][1], place]
                    if all(one is not None for one in line) and what == before == rows[n - 2][0]:
                        bends.append(float(np.linalg.norm(line[0] - 2 * line[1] + line[2])) / size)
                        true = [_middle(rows[m][2]) for m in (n - 2, n - 1, n)]
                        true_bends.append(float(np.linalg.norm(true[0] - 2 * true[1] + true[2])) / size)
    faces = sum(map(len, shown.areas))
    return {
        "frames": len(source),
        "faces": faces,
        "seconds": faces / shown.rate,
        "uncovered": len(left),
        "others": len(others),
        "covered": covered,
        "faces_24": rows24,
        "covered_24": covered24,
        "changes": len(changes),
        "bends": len(bends),
        "bend": sum(np.square(bends)),
        "bend_true": sum(np.square(true_bends)),
        "left": left,
        "on_others": others,
        "changed": changes,
    }


def _size(area: Area) -> float:
    """Shorter side in pixels that a detector's box of this face has, about: its inner ellipse is .72 of it."""
    return float(2 * np.sqrt(area.full / np.pi) / 0.72 * 0.86)


def _middle(area: Area) -> Any:
    ys, xs = np.nonzero(area.mask)
    return np.array([area.x0 + xs.mean(), area.y0 + ys.mean()])


def one_film(
    number: int, kind: str, given: argparse.Namespace, people: list[Head], deid: Deidentifier
) -> dict[str, Any]:
    """Draw, redact and compare one film."""
    rng = np.random.default_rng([given.seed, number])
    shown = scene(kind, rng, people, given.length)
    with tempfile.TemporaryDirectory() as folder:
        clip, out = Path(folder, "in.mp4"), Path(folder, "out.mp4")
        _, areas = write(clip, kind, shown, rng)
        report = deid.process_video(clip, out, settings=deid.video_settings(), overwrite=True)
        source, result = pictures(clip), pictures(out)
    assert len(source) == len(result) == shown.frames, "a frame was lost"
    left = [
        (n, area.actor)
        for n, (before, after, faces) in enumerate(zip(source, result, areas, strict=True))
        for area in faces
        if uncovered(before, after, area)
    ]
    opened, found = second_look(deid, source, result, areas, rng)
    return {
        "film": number,
        "kind": kind,
        "rate": shown.rate,
        "frames": shown.frames,
        "faces": sum(map(len, areas)),
        "uncovered": len(left),
        "opened": opened,
        "found": found,
        "reported": 0 if report.check is None else len(report.check.findings),
        "left": left,
        "review": [place["frame"] for place in report.review],
    }


def stress(given: argparse.Namespace, asked: threading.Event) -> list[dict[str, Any]]:
    """A record of each film, until so many frames are done or an end is asked for."""
    films: list[dict[str, Any]] = []
    if given.log is not None and given.log.exists():
        films = [json.loads(line) for line in given.log.read_text().splitlines()]
    people = heads(7, given.heads)
    films_module.Renderer = LoggedRenderer  # type: ignore[misc]
    deid = Deidentifier.from_pretrained(mode="solid", seed=0)
    for number in range(-(-given.frames // given.length)):
        if any(film["film"] == number for film in films):
            continue
        if asked.is_set():
            break
        kind = given.kinds[number % len(given.kinds)]
        if kind in STREETS:
            film = people_film(number, kind, given, people)
        else:
            film = one_film(number, kind, given, people, deid)
        films.append(film)
        if given.log is not None:
            with given.log.open("a") as log:
                log.write(json.dumps(film) + "\n")
        for what in ("left", "on_others"):
            if film.get(what):
                about = f"film {number} of seed {given.seed} ({film['kind']}, {film['rate']} fps)"
                print(f"{about}: {what} {film[what][:12]}", file=sys.stderr)
    return films


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--frames", type=int, default=300, help="in all, at least")
    parser.add_argument("--length", type=int, default=50, help="frames of each film")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=KINDS, help="all but those of new faces")
    parser.add_argument("--heads", type=Path, help="folder of photos, a person each, whose heads are used")
    parser.add_argument("--films", type=Path, help="folder for the films and results of new faces")
    parser.add_argument("--log", type=Path, help="file with a line for each film; the same command goes on from it")
    given = parser.parse_args()
    began = time.monotonic()
    with stop_asked() as asked:
        films = stress(given, asked)
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in (*given.kinds, "all")}
    for film in films:
        numbers = {key: film[key] for key in FIGURES if key in film}
        for kind in (film["kind"], "all"):
            bare, named = film["uncovered"] > 0, bool(film["review"])
            counts[kind].update(films=1, bare=bare, unnamed=bare and not named, named=named, **numbers)
    total = counts["all"]
    for kind, one in counts.items():
        took = {"took": round(time.monotonic() - began)} if kind == "all" else {}
        print(json.dumps({"kind": kind, **one, **_shares(one), **took}))
    return 1 if total["uncovered"] or total["others"] else 0


def _shares(one: Counter[str]) -> dict[str, float | None]:
    def share(part: str, whole: str, root: float = 1.0) -> float | None:
        return round(float(one[part] / one[whole]) ** root, 4) if one[whole] else None

    return {
        "recall": share("found", "opened"),
        "covered": share("covered", "faces"),
        "covered_24": share("covered_24", "faces_24"),
        "changes": share("changes", "seconds"),
        "bend": share("bend", "bends", 0.5),
        "bend_true": share("bend_true", "bends", 0.5),
    }


if __name__ == "__main__":
    sys.exit(handle_errors(main)())
