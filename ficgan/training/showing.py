"""How a bank's new faces show their kind: made, read by the embedded reader, and learnt from."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ficgan.data import FaceData
from ficgan.faces import Alignment, Face, get_recognizer
from ficgan.frame.fit import images_of
from ficgan.frame_model import FrameModel
from ficgan.identity.kind import CELLS, Kind, Showing, kind_reader
from ficgan.policy import Attempt

# Faces of a set in whose place new ones are made, and new ones without which nothing is learnt.
FACES, LEAST = 600, 500
# k of the draws, at most an eighth of the bank's people.
MOST_K = 3000
# Faces that are made in, and for each of them the draws of its own kind, and of any.
OWN, OTHERS = 3, 2


def learn_showing(
    model: FrameModel, data: FaceData, progress: Callable[[str, int, int], None] | None = None
) -> Showing | None:
    """Learn it from faces made in the places of some of a set.

    None where the bank does not know its people's kinds, or too few of the faces are clear.

    Args:
        model: with a bank that has none yet.
        data: aligned faces, 128².
        progress: called as progress(stage, done, total).
    """
    known = model.bank.kinds
    if known is None:
        return None
    rng, first, gate, reader = np.random.default_rng(0), Attempt(0), get_recognizer("dlib"), kind_reader()
    points = Alignment().points(data.resolution).astype(np.float32)
    place = Face(np.array([0, 0, data.resolution, data.resolution], np.float32), points, 1.0)
    middle = known.means.mean(0)
    rows = np.linspace(0, len(data) - 1, min(FACES, len(data))).astype(int)
    codes, kinds, found, own_kinds, own = [], [], [], [], []
    for number, image in enumerate(images_of(data.subset(rows))):
        if progress is not None:
            progress("looking at new faces", number + 1, len(rows))
        sight = model.see([(image, place)])[0]
        if sight.problem:
            continue
        reading = reader.read(gate.embed(image, points[None]))[0]
        groups = [Kind.of(reading)] * OWN + [Kind.of_cell(int(cell)) for cell in rng.integers(CELLS, size=OTHERS)]
        draws = [model.draw(f"{number}/{n}", first, 1.0, sight.z_id, one.reading) for n, one in enumerate(groups)]
        for draw, group in zip(draws, groups, strict=True):  # from weakly to very clearly of their kind
            draw.w[: len(middle)] += rng.uniform(-1, 1) * (known.usual(group) - middle).astype(np.float32)
        made = model.render(model.styles(np.stack([sight.z_id] * len(draws)), draws, first), [sight] * len(draws))
        results = [model.paste(image, sight, one).image for one in made]
        codes += [draw.w[: model.code_size] for draw in draws]
        kinds += [group.reading for group in groups]
        found += [reader.read(gate.embed(result, points[None]))[0] for result in results]
        own_kinds.append(groups[0].reading)
        own.append(reading)
    if len(codes) < LEAST:
        return None
    free = np.ones(model.code_size, bool)
    free[model.model.code_size : model.model.code_size + len(model.model.names)] = False  # attributes are the group's
    parts = [np.stack(part) for part in (codes, kinds, found, own_kinds, own)]
    return Showing.fit(parts[0], parts[1], parts[2], parts[3], parts[4], known, free)
