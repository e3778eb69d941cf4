"""The work of `ficgan-attack run`: which attacker, which faces, where the guesses go."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces
from ficgan.cli._trees import mirrored
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.images import READABLE_SUFFIXES, atomic_write, read_image

if TYPE_CHECKING:
    from ficgan.cli._progress import Progress
    from ficgan.lab.attacks import Reverser

__all__ = ["Finder", "attacker_of", "guess_all", "plan_inputs"]

Image = NDArray[np.uint8]
Planned = list[tuple[Path, Path]]
"""(input, name of its guesses below the output folder, without suffix)."""


def attacker_of(text: str, *, candidates: int = 1, seed: int | None = None, device: str = "auto") -> Reverser:
    """An attacker that can be put to work: from its file, or by name.

    Raises:
        UsageError: one that must learn first, several candidates of one that gives one, a seed where nothing is drawn.
        FicganError: the file cannot be read.
    """
    from ficgan.lab.attacks import REVERSERS, Learned, load_attacker
    from ficgan.registry import parse_spec

    made: Reverser
    if text.endswith(".safetensors") or Path(text).is_file():
        made = load_attacker(text, device=device)
    else:
        name, parameters = parse_spec(text)
        made = REVERSERS.make(name, **parameters)
        if isinstance(made, Learned):
            raise UsageError(f"{name} must be trained: `ficgan-attack train`, then give its attacker.safetensors")
        lacks = made.traits.knowledge & {"pairs", "background", "key"}
        if lacks:
            raise UsageError(
                f"{name} needs {' and '.join(sorted(lacks))} and keeps no file; it is put to work by `ficgan-eval run`"
            )
    if candidates > 1 and not made.traits.several:
        raise UsageError(f"{made.name} has one guess at a face; leave out --candidates")
    if seed is None:
        return made
    seeded = any(field.name == "seed" for field in dataclasses.fields(made))
    if not seeded or (isinstance(made, Learned) and made.deterministic):
        raise UsageError(f"{made.name} draws nothing; leave out --seed")
    drawing: Any = made
    return cast("Reverser", dataclasses.replace(drawing, seed=seed))


def plan_inputs(inputs: Sequence[Path], out: Path) -> Planned:
    """Every image with the name of its guesses; trees are mirrored.

    Raises:
        UsageError: an input is not there or a folder holds no image, two would have one name, or a result exists.
    """
    files = mirrored(inputs, READABLE_SUFFIXES, what="image", advice="give anonymised faces, or folders of them")
    found = [(path, place.with_suffix("")) for path, place in files]
    names: dict[Path, Path] = {}
    for path, name in found:
        if name in names:
            raise UsageError(f"the guesses at {path} and {names[name]} would have one name; give them in two commands")
        names[name] = path
        marks = ("", "-01", "-f1", "-f1-01")
        taken = [here for mark in marks if (here := out / name.parent / f"{name.name}{mark}.png").exists()]
        if taken:
            raise UsageError(f"{taken[0]} exists; choose another output folder")
    return found


@dataclass(frozen=True)
class Finder:
    """Cuts the anonymised faces out of an image.

    Args:
        aligned: the image is a face crop.
        box: x0, y0, x1, y1 of the face in every image; None: a detector finds the faces.
        detector: its name.
        size: side of the crops of faces that are detected, pixels.
    """

    aligned: bool = False
    box: tuple[float, float, float, float] | None = None
    detector: str = "auto"
    size: int = 224

    def __post_init__(self) -> None:
        if self.aligned and self.box is not None:
            raise UsageError("--aligned and --box contradict each other; give one of them")

    @cached_property
    def _finds(self) -> Any:
        from ficgan.faces import get_detector

        return get_detector(self.detector)

    def crops(self, image: Image) -> Iterator[Image]:
        """Square crops [S,S,3].

        Raises:
            InputError: a crop that is not square, a box outside the image, or no face.
        """
        if self.aligned:
            if image.shape[0] != image.shape[1]:
                raise InputError(f"it has {image.shape[1]}×{image.shape[0]} pixels, and an aligned crop is square")
            yield image
        elif self.box is not None:
            yield _square(image, self.box)
        else:
            yield from self._detected(image)

    def _detected(self, image: Image) -> Iterator[Image]:
        from ficgan.faces import Alignment, crop

        faces = self._finds.detect(image)
        if not faces:
            raise InputError("no face was found in it; give --aligned for face crops, or --box where the face is")
        for face in faces:
            yield crop(image, Alignment().matrix(face.landmarks, self.size), self.size)


def guess_all(
    attacker: Reverser, plan: Planned, out: Path, finder: Finder, candidates: int, told: Progress
) -> dict[str, Any]:
    """Guess at every face of every image; what cannot be used is said, and the others go on.

    Returns:
        Counts for the last line.
    """
    faces = written = failed = 0
    for number, (path, name) in enumerate(plan):
        told(number, len(plan), str(path))
        try:
            crops = list(finder.crops(read_image(path).rgb))
            for index, crop in enumerate(crops):
                label = name.name if len(crops) == 1 else f"{name.name}-f{index + 1}"
                guesses = attacker.reverse(Faces(crop[None], (str(name.parent / label),)), candidates)[0]
                written += _write(out / name.parent, label, guesses)
                faces += 1
        except UsageError:
            raise
        except FicganError as error:
            failed += 1
            text = str(error)
            told.error(text if str(path) in text else f"{path}: {text}")
    told(len(plan), len(plan), "")
    return {"inputs": len(plan), "faces": faces, "written": written, "failed": failed, "output": str(out)}


def _write(folder: Path, label: str, guesses: NDArray[np.uint8]) -> int:
    from PIL import Image as Pillow

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FicganError(f"{folder} cannot be made ({error.strerror}); choose another output folder") from None
    for index, guess in enumerate(guesses):
        data = io.BytesIO()
        Pillow.fromarray(guess).save(data, format="PNG")
        name = label if len(guesses) == 1 else f"{label}-{index + 1:02d}"
        with atomic_write(folder / f"{name}.png") as file:
            file.write(data.getvalue())
    return len(guesses)


def _square(image: Image, box: tuple[float, float, float, float]) -> Image:
    """The square around a box, at the image's own resolution; beyond the image its edge pixels are repeated."""
    x0, y0, x1, y1 = box
    height, width = image.shape[:2]
    if x0 >= width or y0 >= height or x1 <= 0 or y1 <= 0:
        raise InputError(f"the box lies outside its {width}×{height} pixels; give another --box")
    side = max(2, round(max(x1 - x0, y1 - y0)))
    left, top = round((x0 + x1 - side) / 2), round((y0 + y1 - side) / 2)
    rows, columns = (np.arange(start, start + side) for start in (top, left))
    return np.ascontiguousarray(image[rows.clip(0, height - 1)[:, None], columns.clip(0, width - 1)])
