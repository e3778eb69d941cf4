"""Sheets of FICGAN's controls on a user's photos: Figures 3, 5, 6, 9 and A of the paper."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
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


# One column of a sheet: its title, the layer index, and controls of the model; None: what the controls say.
Column = tuple[str, int | None, dict[str, Any]]
# Name → title of the column of other people, for sheets that show some
OTHERS = {"exemplar": "w_t", "swaps": "x_t"}


def _columns(name: str, options: SheetOptions, layers: int) -> list[Column]:
    """Of Figures 3, 5, 6, 9 and A of the paper, for a model of so many layers."""
    if name == "degrees":
        return [(f"i = {layer}", layer, {}) for layer in reversed(range(layers))]
    if name == "exemplar":
        return [(f"alpha = {alpha:g}", None, {"alpha": alpha}) for alpha in ALPHAS]
    if name == "attributes":
        return [("any", None, {}), *((group, None, {"attributes": group}) for group in options.attributes)]
    if name == "swaps":
        return [("swap", None, {"swap": True})]
    ends = [round(part * layers / 3) for part in range(4)]
    bands = [f"{a + 1}-{b}" for a, b in itertools.pairwise(ends)]
    return [(f"layers 1-{layers}", None, {}), *((f"layers {band}", None, {"band": band}) for band in bands)]


def control_sheet(name: str, photos: Sequence[Path], options: SheetOptions, progress: Progress | None = None) -> Image:
    """A sheet, uint8 [H,W,3]: a row for each photo, the source first. `name`: as of `ficgan-eval sheet`."""
    if name in OTHERS and not options.exemplars and len(photos) < 2:
        raise UsageError(f"the sheet {name} shows two people; give a second photo, or --exemplar")
    if name == "attributes" and not options.attributes:
        raise UsageError("name the groups of the sheet, such as --group Male; `ficgan bank show` lists them")
    detector = get_detector("auto")
    sources = [_Shown.read(path, detector) for path in photos]
    given = [_Shown.read(path, detector) for path in options.exemplars] or [*sources[1:], sources[0]]
    others = [given[row % len(given)] for row in range(len(sources))]
    if progress is not None:
        progress(0, len(sources), f"the sheet {name}")
    plain = None if name in OTHERS else options.deidentifier()
    layers = 0 if plain is None else plain.model.num_layers
    columns = {"source": [shown.cut(shown.photo) for shown in sources]}
    if name in OTHERS:
        columns[OTHERS[name]] = [shown.cut(shown.photo) for shown in others]
    for title, layer, controls in _columns(name, options, layers):
        made = options.deidentifier(**controls) if plain and controls else plain
        columns[title] = []
        for shown, other in zip(sources, others, strict=True):
            deid = made or options.deidentifier(**controls, exemplar=other.photo)
            columns[title].append(shown.cut(deid(shown.photo, layer=layer).image))
    return _laid_out(columns)


def _laid_out(columns: Mapping[str, Sequence[Image]]) -> Image:
    """The columns side by side under their titles."""
    from PIL import Image as Pillow
    from PIL import ImageDraw, ImageFont

    rows = len(columns["source"])
    sheet = Pillow.new("RGB", (SIDE * len(columns), TITLE + SIDE * rows), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=14)
    for number, (title, images) in enumerate(columns.items()):
        draw.text((SIDE * number + SIDE // 2, TITLE // 2), title, "black", font, anchor="mm")
        for row, image in enumerate(images):
            sheet.paste(Pillow.fromarray(image), (SIDE * number, TITLE + SIDE * row))
    return np.asarray(sheet)
