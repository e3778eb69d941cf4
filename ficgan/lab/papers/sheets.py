"""Sheets of FICGAN's controls on a user's photos: Figures 3, 5, 6, 9 and A of the paper."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.deidentify import Deidentifier
from ficgan.errors import InputError, Progress, UsageError
from ficgan.faces import get_detector
from ficgan.images.read import as_photo

Image = NDArray[np.uint8]

# Side of a picture of the sheet, pixels; height of its titles.
SIDE, TITLE = 256, 22
# Side of what is shown of a photo, of the longer side of the face's box.
CONTEXT = 1.6
# Values of α in eq. 5, as in Figure 5.
ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class SheetOptions:
    """What the sheets of one call have in common."""

    exemplars: tuple[Path, ...] = ()  # Photos of the people whose codes are w_t; none: the next of the photos
    attributes: tuple[str, ...] = ()  # Groups of the bank, as `--attributes` of `ficgan-deid` takes them
    model: Mapping[str, Any] = field(default_factory=dict)  # Arguments of `Deidentifier.from_pretrained`

    def deidentifier(self, **controls: Any) -> Deidentifier:
        """A model with these controls whose first attempts are shown: no check, nothing drawn again."""
        return Deidentifier.from_pretrained(verify=False, **{**self.model, **controls})


@dataclass(frozen=True)
class _Shown:
    """A photo, and the square x0, y0, side of it that the sheet shows."""

    photo: Image
    square: tuple[int, int, int]

    @classmethod
    def read(cls, path: Path, detector: Any) -> _Shown:
        photo = as_photo(path).rgb
        faces = detector.detect(photo)
        if not faces:
            raise InputError(f"no face was found in {path}; leave it out, or give a clearer photo")
        box = max((np.asarray(face.box) for face in faces), key=lambda box: float(np.prod(box[2:] - box[:2])))
        side = min(int(CONTEXT * (box[2:] - box[:2]).max()), *photo.shape[:2])
        corner = np.clip((box[:2] + box[2:]) / 2 - side / 2, 0, np.array(photo.shape[1::-1]) - side).astype(int)
        return cls(photo, (int(corner[0]), int(corner[1]), side))

    def cut(self, photo: Image) -> Image:
        """The square of the photo or of its result, uint8 [SIDE,SIDE,3]."""
        import cv2

        x, y, side = self.square
        shown: Any = cv2.resize(photo[y : y + side, x : x + side], (SIDE, SIDE), interpolation=cv2.INTER_AREA)
        return shown


# One column of a sheet: its title, and its picture in each row.
Column = tuple[str, list[Image]]


def _columns(deid: Deidentifier, title: str, photos: Sequence[_Shown], layer: int | None = None) -> Column:
    return title, [shown.cut(deid(shown.photo, layer=layer).image) for shown in photos]


def _degrees(options: SheetOptions, photos: Sequence[_Shown], others: Sequence[_Shown]) -> list[Column]:
    deid = options.deidentifier()
    return [_columns(deid, f"i = {layer}", photos, layer) for layer in reversed(range(deid.model.num_layers))]


def _exemplars(options: SheetOptions, photos: Sequence[_Shown], others: Sequence[_Shown]) -> list[Column]:
    rows: dict[float, list[Image]] = {alpha: [] for alpha in ALPHAS}
    for shown, other in zip(photos, others, strict=True):
        for alpha in ALPHAS:
            deid = options.deidentifier(exemplar=other.photo, alpha=alpha)
            rows[alpha].append(shown.cut(deid(shown.photo).image))
    return [_of(others, "w_t"), *((f"alpha = {alpha:g}", images) for alpha, images in rows.items())]


def _attributes(options: SheetOptions, photos: Sequence[_Shown], others: Sequence[_Shown]) -> list[Column]:
    if not options.attributes:
        raise UsageError("name the groups of the sheet, such as --group Male; `ficgan bank show` lists them")
    made = [options.deidentifier(attributes=group) for group in options.attributes]
    named = zip(options.attributes, made, strict=True)
    return [_columns(options.deidentifier(), "any", photos), *(_columns(deid, name, photos) for name, deid in named)]


def _swaps(options: SheetOptions, photos: Sequence[_Shown], others: Sequence[_Shown]) -> list[Column]:
    made = [
        shown.cut(options.deidentifier(exemplar=other.photo, swap=True)(shown.photo).image)
        for shown, other in zip(photos, others, strict=True)
    ]
    return [_of(others, "x_t"), ("swap", made)]


def _bands(options: SheetOptions, photos: Sequence[_Shown], others: Sequence[_Shown]) -> list[Column]:
    deid = options.deidentifier()
    layers = deid.model.num_layers
    ends = [round(part * layers / 3) for part in range(4)]
    thirds = [(f"layers {a + 1}-{b}", f"{a + 1}-{b}") for a, b in itertools.pairwise(ends)]
    parts = [_columns(options.deidentifier(band=band), title, photos) for title, band in thirds]
    return [_columns(deid, f"layers 1-{layers}", photos), *parts]


def _of(photos: Sequence[_Shown], title: str) -> Column:
    return title, [shown.cut(shown.photo) for shown in photos]


# Name → what makes its columns. They are Figures 3, 5, 6, 9 and A of the paper.
SHEETS: dict[str, Callable[[SheetOptions, Sequence[_Shown], Sequence[_Shown]], list[Column]]] = {
    "degrees": _degrees,
    "exemplar": _exemplars,
    "attributes": _attributes,
    "swaps": _swaps,
    "bands": _bands,
}


def control_sheet(name: str, photos: Sequence[Path], options: SheetOptions, progress: Progress | None = None) -> Image:
    """A sheet of `SHEETS`, uint8 [H,W,3]: a row for each photo, the source first."""
    needs_other = name in ("exemplar", "swaps")
    if needs_other and not options.exemplars and len(photos) < 2:
        raise UsageError(f"the sheet {name} shows two people; give a second photo, or --exemplar")
    detector = get_detector("auto")
    sources = [_Shown.read(path, detector) for path in photos]
    given = [_Shown.read(path, detector) for path in options.exemplars] or [*sources[1:], sources[0]]
    others = [given[row % len(given)] for row in range(len(sources))]
    if progress is not None:
        progress(0, len(sources), f"the sheet {name}")
    return _laid_out([_of(sources, "source"), *SHEETS[name](options, sources, others)])


def _laid_out(columns: Sequence[Column]) -> Image:
    """The columns side by side under their titles."""
    from PIL import Image as Pillow
    from PIL import ImageDraw, ImageFont

    rows = len(columns[0][1])
    sheet = Pillow.new("RGB", (SIDE * len(columns), TITLE + SIDE * rows), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=14)
    for number, (title, images) in enumerate(columns):
        draw.text((SIDE * number + SIDE // 2, TITLE // 2), title, "black", font, anchor="mm")
        for row, image in enumerate(images):
            sheet.paste(Pillow.fromarray(image), (SIDE * number, TITLE + SIDE * row))
    return np.asarray(sheet)
