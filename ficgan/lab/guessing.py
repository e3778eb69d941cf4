"""An attacker tried on images: the clear faces that it guesses behind anonymised ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.faces import Alignment, crop, get_detector
from ficgan.files import atomic_write
from ficgan.images.read import read_image
from ficgan.lab.attacks import Learned, Reverser, load_attacker, reverser_of
from ficgan.lab.pages import png
from ficgan.lab.run import Progress

__all__ = ["Guesses", "attacker_of", "face_crops", "guess_all"]

Image = NDArray[np.uint8]


def attacker_of(text: str, *, device: str = "auto") -> Reverser:
    """A trained attacker from its file, or by name one that learns nothing, such as `wiener:radius=4`."""
    if text.endswith(".safetensors") or Path(text).is_file():
        return load_attacker(text, device=device)
    made = reverser_of(text)
    if isinstance(made, Learned):
        raise UsageError(f"{made.name} must be trained: `ficgan attack train`, then give its attacker.safetensors")
    if "pairs" in made.traits.knowledge:
        raise UsageError(f"{made.name} needs pairs and keeps no file; `ficgan eval run` applies it")
    return made


def face_crops(size: int, *, aligned: bool, detector: str = "auto") -> Callable[[Image], list[Image]]:
    """A function from an image [H,W,3] to the square crops [S,S,3] of its faces; an aligned image is a crop itself."""
    finder = None if aligned else get_detector(detector)

    def crops(image: Image) -> list[Image]:
        height, width = image.shape[:2]
        if finder is None:
            if height != width:
                raise InputError(f"it has {width}×{height} pixels, and an aligned crop is square")
            return [image]
        faces = finder.detect(image)
        if not faces:
            raise InputError("no face was found in it; give face crops, and say that they are aligned")
        return [crop(image, Alignment().matrix(face.landmarks, size), size) for face in faces]

    return crops


class Guesses:
    """What `guess_all` made: counts, and for each unusable image why."""

    def __init__(self) -> None:
        self.faces = self.written = 0
        self.failed: list[str] = []


def guess_all(
    attacker: Reverser,
    files: Sequence[tuple[Path, Path]],
    out: Path,
    crops: Callable[[Image], list[Image]],
    candidates: int = 1,
    progress: Progress | None = None,
) -> Guesses:
    """Guess at every face of every image. An unusable image is a failure, and the others go on.

    Args:
        files: images, and the names of their guesses below `out`, where nothing is overwritten.
        crops: finds the faces in an image, see `face_crops`.
        candidates: guesses at each face, NAME-01.png, …
    """
    names = [place.with_suffix("") for _, place in files]
    for (path, _), name in zip(files, names, strict=True):
        if names.count(name) > 1:
            raise UsageError(f"the guesses at {path} and another image would have one name; give them in two commands")
        if (out / f"{name}.png").exists():
            raise UsageError(f"{out / f'{name}.png'} exists; choose another output folder")
    made = Guesses()
    for number, ((path, _), name) in enumerate(zip(files, names, strict=True)):
        if progress is not None:
            progress(number, len(files), str(path))
        try:
            found = crops(read_image(path).rgb)
            for index, face in enumerate(found):
                label = name if len(found) == 1 else name.with_name(f"{name.name}-f{index + 1}")
                guesses = attacker.reverse(Faces(face[None], (str(label),)), candidates)[0]
                (out / label).parent.mkdir(parents=True, exist_ok=True)
                for place, guess in enumerate(guesses):
                    mark = "" if len(guesses) == 1 else f"-{place + 1:02d}"
                    with atomic_write(out / label.with_name(f"{label.name}{mark}.png")) as file:
                        file.write(png(guess))
                made.faces += 1
                made.written += len(guesses)
        except UsageError:
            raise
        except OSError as error:
            raise FicganError(f"{out} cannot be made ({error.strerror}); choose another output folder") from None
        except FicganError as error:
            made.failed.append(str(error) if str(path) in str(error) else f"{path}: {error}")
    return made
