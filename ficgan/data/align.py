"""Turning raw photos into an aligned set: find, cut upright, write whole or not at all, say what came from where."""

from __future__ import annotations

import csv
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from ficgan.data import ALIGNMENT, Blob, alignment_name, decode_rgb, list_blobs
from ficgan.errors import InputError

if TYPE_CHECKING:
    from ficgan.faces import Alignment, Face, FaceDetector

COLUMNS = ("file", "source", "face", "box", "score", ALIGNMENT)
TABLE = "faces.csv"
_QUALITY: dict[str, dict[str, int]] = {"webp": {"quality": 95, "method": 4}}  # of Pillow, by format


@dataclass
class AlignReport:
    """How many photos were read and crops written, and why others were not; `failed` are (photo, reason)."""

    photos: int = 0
    written: int = 0
    without_face: int = 0
    too_small: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)


def find_photos(inputs: Sequence[Path]) -> list[tuple[str, Path | Blob]]:
    """Photos as (name, where): files as named, folders and archives searched, in a locked order."""
    from ficgan.images import READABLE_SUFFIXES

    found: list[tuple[str, Path | Blob]] = []
    for path in inputs:
        if path.is_dir():
            files = [file for file in path.rglob("*") if file.suffix.lower() in READABLE_SUFFIXES and file.is_file()]
            if not files:
                raise InputError(f"{path} holds no photo; name a folder of photos, or the photos themselves.")
            found += [(file.relative_to(path).as_posix(), file) for file in files]
        elif path.suffix.lower() in (".tar", ".zip"):
            found += [(blob.name, blob) for blob in list_blobs(path)]
        else:
            found.append((path.name, path))
    return sorted(found, key=lambda item: (item[0], str(_where(item[1]))))


def align_photos(
    photos: Sequence[tuple[str, Path | Blob]],
    out: Path,
    *,
    detector: FaceDetector,
    alignment: Alignment,
    resolution: int,
    every_face: bool = False,
    min_size: float = 0.0,
    person_folders: bool = False,
    format: str = "webp",
    on_photo: Callable[[AlignReport], None] | None = None,
) -> AlignReport:
    """Write an aligned crop per face into a tar or folder, and a CSV of where each came from.

    Args:
        out: a .tar, with its table beside it as .csv, or else a folder, with `faces.csv` in it; whole or not at all.
        min_size: smallest side of a face's box to be used, pixels.
        person_folders: each folder shows one person: the table gets a `person` column, empty for photos in no folder.
    """
    from ficgan.faces import crop
    from ficgan.images.read import read_image

    report = AlignReport()
    placed = alignment_name(alignment)
    rows: list[tuple[object, ...]] = []
    used: set[str] = set()
    with _output(out) as folder:
        for name, where in photos:
            report.photos += 1
            try:
                image = np.array(decode_rgb(where)) if isinstance(where, Blob) else read_image(where).rgb
                faces = detector.detect(image)
                large = [face for face in faces if _size(face) >= min_size]
                report.too_small += len(faces) - len(large)
                report.without_face += not large
                large.sort(key=_size, reverse=True)
                for number, face in enumerate(large if every_face else large[:1]):
                    square = crop(image, alignment.matrix(face.landmarks, resolution), resolution)
                    file = _name(name, number, format, used)
                    (folder / file).parent.mkdir(parents=True, exist_ok=True)
                    Image.fromarray(square).save(folder / file, format.upper(), **_QUALITY.get(format, {}))
                    box = " ".join(f"{value:.1f}" for value in face.box)
                    person = (PurePosixPath(name).parent.as_posix().removeprefix("."),) if person_folders else ()
                    rows.append((file, str(_where(where)), number, box, f"{face.score:.4f}", placed, *person))
                    report.written += 1
            except InputError as error:
                said = str(error)
                report.failed.append((name, said if str(_where(where)) in said else f"{_where(where)}: {said}"))
            if on_photo is not None:
                on_photo(report)
        if not rows:
            why = f"; the first that failed: {report.failed[0][1]}" if report.failed else ""
            found = f"No face was found in {report.photos} photos ({report.too_small} were too small)"
            raise InputError(f"{found}, so nothing was written{why}.")
        with open(folder / TABLE, "w", encoding="utf-8", newline="") as table:
            columns = (*COLUMNS, *(("person",) if person_folders else ()))
            csv.writer(table, lineterminator="\n").writerows([columns, *rows])
    return report


def _size(face: Face) -> float:
    x0, y0, x1, y1 = (float(value) for value in face.box)
    return min(x1 - x0, y1 - y0)


def _where(photo: Path | Blob) -> Path | str:
    return photo.where if isinstance(photo, Blob) else photo


def _name(photo: str, number: int, format: str, used: set[str]) -> str:
    """`people/ann.jpg` → `people/ann.webp`, its second face `people/ann_2.webp`; never a name twice."""
    path = PurePosixPath(photo)
    tail = "" if number == 0 else f"_{number + 1}"
    copies = [path.stem, path.name, *(f"{path.stem}~{i}" for i in range(2, 10_000))]
    name = next(n for n in (str(path.with_name(f"{c}{tail}.{format}")) for c in copies) if n.casefold() not in used)
    used.add(name.casefold())
    return name


@contextmanager
def _output(out: Path) -> Iterator[Path]:
    """A folder for the crops and their table, which becomes the folder or tar that was asked for at the end."""
    is_tar = out.suffix.lower() == ".tar"
    for taken in (out, out.with_suffix(".csv")) if is_tar else (out,):
        if taken.exists() and (is_tar or not taken.is_dir() or any(taken.iterdir())):
            raise InputError(f"{taken} exists already; choose another output, nothing is overwritten.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", suffix=".part", dir=out.parent) as temporary:
            folder, archive = Path(temporary, "set"), Path(temporary, "set.tar")
            folder.mkdir()
            yield folder
            if is_tar:
                table = (folder / TABLE).replace(Path(temporary, TABLE))
                with tarfile.open(archive, "w") as packed:
                    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
                        # Without times and owners: the same photos give the same bytes.
                        info = tarfile.TarInfo(path.relative_to(folder).as_posix())
                        info.size = path.stat().st_size
                        with path.open("rb") as file:
                            packed.addfile(info, file)
                table.replace(out.with_suffix(".csv"))
                archive.replace(out)
            else:
                folder.replace(out)  # onto nothing, or onto an empty folder
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror}); choose another output.") from error
