"""Make pretrained/kind.safetensors, which reads ethnic group, gender and age from the gate's embedding.

    python tools/make_kind.py faces128-*.tar --labels faces128.csv --check faces128-val.tar

The faces are aligned as `ficgan align` does it. Labels as FairFace has them: columns race, gender, age. The table says
how often faces of --check, which the reader does not learn from, are read right, and what they are taken for.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from ficgan.cli.main import handle_errors
from ficgan.data import open_faces
from ficgan.errors import InputError
from ficgan.faces import Alignment, get_recognizer
from ficgan.frame.learn import SIDE, images_of
from ficgan.identity.kind import AGES, ETHNICITIES, GENDERS, YEARS, KindReader, cells_of

FOLDER = Path(__file__).resolve().parent.parent / "pretrained"
HIDDEN, DROPOUT, NOISE, EPOCHS, BATCH = 384, 0.4, 0.3, 24, 256
RATE, DECAY, SMOOTHING, YEARS_SOFT, YEARS_WEIGHT = 2e-3, 0.05, 0.05, 6.0, 0.03

Floats = NDArray[np.float32]


def read(paths: list[Path], labels: Path) -> tuple[Floats, NDArray[np.int64]]:
    """Embeddings [N,128] and cells [N] of the labelled faces."""
    faces = open_faces(paths, resolution=SIDE, labels=labels)
    marks = faces.labels
    cell = None if marks is None else cells_of(marks.attributes, marks.attribute_names)
    if cell is None:
        raise InputError(f"{labels} does not know race, gender and age as FairFace names them")
    gate, points = get_recognizer("dlib"), Alignment().points(SIDE)[None]
    found = np.concatenate([gate.embed(image, points) for image in images_of(faces)])
    return found[cell >= 0], cell[cell >= 0]


def fit(embeddings: Floats, cell: NDArray[np.int64], seed: int = 0) -> KindReader:
    """Train the reader: noise on the embeddings, labels smoothed, ages as a distribution over neighbouring bands."""
    torch.manual_seed(seed)
    mean, scale = embeddings.mean(0), embeddings.std(0)
    x = torch.from_numpy((embeddings - mean) / scale)
    group, male, age = (torch.from_numpy(part) for part in np.unravel_index(cell, (len(ETHNICITIES), 2, len(AGES))))
    years = torch.from_numpy(YEARS)
    soft = (-(years[age][:, None] - years).abs() / YEARS_SOFT).softmax(1)
    sizes = (x.shape[1], HIDDEN, HIDDEN, len(ETHNICITIES) + 1 + len(AGES))
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    network = nn.Sequential(
        layers[0], nn.SiLU(), nn.Dropout(DROPOUT), layers[1], nn.SiLU(), nn.Dropout(DROPOUT), layers[2]
    )
    steps = EPOCHS * (len(x) // BATCH)
    optimiser = torch.optim.AdamW(network.parameters(), RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=max(steps, 1))
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(BATCH):
            if len(rows) < BATCH:
                continue
            out = network(x[rows] + NOISE * torch.randn(BATCH, x.shape[1]))
            races, sex, ages = out.split([len(ETHNICITIES), 1, len(AGES)], 1)
            loss = F.cross_entropy(races, group[rows], label_smoothing=SMOOTHING)
            loss = loss + F.binary_cross_entropy_with_logits(sex[:, 0], male[rows].float())
            loss = loss + 0.5 * F.cross_entropy(ages, soft[rows])
            loss = loss + YEARS_WEIGHT * (ages.softmax(1) @ years - years[age[rows]]).abs().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    arrays = [
        tuple(part.detach().numpy().T.copy() for part in parts)
        for parts in ([layer.weight for layer in layers], [layer.bias for layer in layers])
    ]
    return KindReader(mean, scale, *arrays)


def table(reader: KindReader, embeddings: Floats, cell: NDArray[np.int64]) -> list[str]:
    """How often each group is read right, and what it is taken for."""
    found = reader.read(embeddings)
    group, male, age = np.unravel_index(cell, (len(ETHNICITIES), len(GENDERS), len(AGES)))
    read_as, sex, years = found[:, : len(ETHNICITIES)].argmax(1), found[:, -2] > 0.5, found[:, -1]

    def line(name: str, rows: Any) -> str:
        taken = np.bincount(read_as[rows], minlength=len(ETHNICITIES))
        right = [np.mean(read_as[rows] == group[rows]), np.mean(sex[rows] == male[rows])]
        error = np.abs(years[rows] - YEARS[age[rows]]).mean()
        return f"{name:16} {right[0]:.3f}  {right[1]:.3f}  {error:4.1f}  {' '.join(f'{count:4}' for count in taken)}"

    head = f"{'':16} group  gender age   taken for {', '.join(ETHNICITIES)}"
    lines = [head, line("all", np.ones(len(cell), bool))]
    lines += [line(name, group == n) for n, name in enumerate(ETHNICITIES) if (group == n).any()]
    return lines + [line(name, age == n) for n, name in enumerate(AGES) if (age == n).any()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faces", type=Path, nargs="+")
    parser.add_argument("--labels", type=Path, required=True)
    parser.add_argument("--check", type=Path, nargs="+", default=[])
    parser.add_argument("-o", "--out", type=Path, default=FOLDER / "kind.safetensors")
    options = parser.parse_args()
    reader = fit(*read(options.faces, options.labels))
    if options.check:
        print("\n".join(table(reader, *read(options.check, options.labels))))
    reader.save(options.out)
    print(f"{options.out}: {options.out.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    handle_errors(main)()
