"""Parrot recognisers: judges that have learnt from anonymised faces of people who are in no gallery and no probe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces
from ficgan.errors import UsageError
from ficgan.lab.readers import Embeddings, Reader

__all__ = ["discriminant", "retrain_head", "retrain_network"]

Embed = Callable[[Faces], Embeddings]
LEAST_PEOPLE = 10
"""People with two images or more; fewer teach nothing."""


def discriminant(
    embeddings: NDArray[np.floating], people: NDArray[np.integer], *, shrinkage: float = 0.1
) -> NDArray[np.float64]:
    """Fisher's linear discriminant: the map under which one person's embeddings have unit covariance.

    Args:
        embeddings: [N,D], normalised or not.
        people: [N]; those with one image count for nothing.
        shrinkage: share of the mean variance mixed into the within-person covariance, 0 to 1.

    Returns:
        [D,K] float64 M: compare x @ M; K is D, or less where there are fewer images. Directions in which people do not
        differ more than one person does from image to image are weakened in proportion (Wiener), so that noise does
        not grow.

    Raises:
        UsageError: too few people with two images.

    Source: Fisher 1936; PLDA's two-covariance form (Ioffe 2006).
    """
    x = np.asarray(embeddings, np.float64)
    values, index, counts = np.unique(people, return_inverse=True, return_counts=True)
    several = counts[index] > 1
    if (counts > 1).sum() < LEAST_PEOPLE:
        raise UsageError(
            f"retraining needs {LEAST_PEOPLE} people with two images among the attacker's, and there are "
            f"{(counts > 1).sum()}"
        )
    x, index, size = x[several], index[several], x.shape[1]
    basis = None
    if len(x) < size:  # all that can be learnt lies in the span of the images: elsewhere the gain is 0
        _, spans, vectors = np.linalg.svd(x - x.mean(0), full_matrices=False)
        basis = vectors[spans > 1e-10 * spans[0]].T
        x = x @ basis
    means = np.zeros((len(values), x.shape[1]))
    np.add.at(means, index, x)
    means = means[counts > 1] / counts[counts > 1, None]
    lookup = np.cumsum(counts > 1) - 1
    inside = x - means[lookup[index]]
    within = inside.T @ inside / (len(x) - len(means))
    if np.trace(within) <= 1e-12 * max(1.0, float((x**2).sum(1).mean())):
        return np.eye(size)  # one person's embeddings are all alike: there is nothing to weigh
    within += shrinkage * np.trace(within) / size * np.eye(len(within))
    spread = means - means.mean(0)
    between = spread.T @ spread / (len(means) - 1) - within / counts[counts > 1].mean()
    values_w, vectors_w = np.linalg.eigh(within)
    whiten = vectors_w / np.sqrt(values_w.clip(1e-9 * values_w[-1]))
    strength, directions = np.linalg.eigh(whiten.T @ between @ whiten)
    gain = np.sqrt((strength / (1 + strength)).clip(0))
    matrix = whiten @ directions * gain
    return matrix if basis is None else basis @ matrix


def retrain_head(seen: Embeddings, people: NDArray[np.integer]) -> tuple[Callable[[Embeddings], Embeddings], str]:
    """What re-weights a judge's embeddings by what tells people apart after anonymisation.

    Args:
        seen: [N,D] embeddings of the attacker's anonymised faces.
        people: [N] who they are.

    Returns:
        A function of embeddings [M,D] (compare its results by cosine), and a note for the table.
    """
    matrix, mean = discriminant(seen, people), seen.mean(0)
    return lambda embeddings: ((embeddings - mean) @ matrix).astype(np.float32), (
        "Linear head retrained on anonymised faces, network fixed."
    )


def retrain_network(
    reader: Reader, anonymised: Faces, *, epochs: int = 5, batch: int = 64, rate: float = 0.01, seed: int = 0,
    device: str = "cpu",
) -> tuple[Embed, str]:  # fmt: skip
    """The judge's whole network fine-tuned on anonymised faces with an additive angular margin.

    Args:
        reader: a judge made of an ONNX file.
        anonymised: the attacker's anonymised faces with their people.
        epochs, batch, rate: of SGD with momentum .9, weight decay 5e-4 and a cosine schedule.
        seed: of order and classifier.
        device: where it trains.

    Returns:
        A function faces → embeddings [N,D] (compare by cosine), and a note for the table.

    Raises:
        UsageError: the judge is no ONNX network, or there are too few people.

    Source: McPherson et al. 2016 (retraining on protected faces); Deng et al. 2019 (margin .5, scale 64).
    """
    import torch
    from torch.nn import functional as F

    from ficgan.verification.verifier import load_onnx

    kind, colon, path = reader.given.partition(":")
    if kind != "onnx" or not colon:
        raise UsageError(f"{reader.name} cannot be retrained as a network; give onnx:PATH, or retrain: head")
    if anonymised.people is None or len(np.unique(anonymised.people)) < LEAST_PEOPLE:
        raise UsageError(f"retraining needs {LEAST_PEOPLE} people among the attacker's faces")
    network, _, mean, scale = load_onnx(Path(path))
    network.to(device).requires_grad_(True)
    chips = _chips(reader, anonymised)
    people = torch.from_numpy(np.unique(anonymised.people, return_inverse=True)[1])
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        width = network(_input(chips[:1], mean, scale, device))[0].shape[1]
    centres = torch.randn(int(people.max()) + 1, width, generator=generator).to(device).requires_grad_(True)
    optimiser = torch.optim.SGD([*network.parameters(), centres], lr=rate, momentum=0.9, weight_decay=5e-4)
    steps = max(1, epochs * -(-len(chips) // batch))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(chips), generator=generator).split(batch):
            x = _input(chips[rows.numpy()], mean, scale, device)
            flip = torch.rand(len(rows), generator=generator).to(device) < 0.5
            x = torch.where(flip[:, None, None, None], x.flip(3), x)
            cosine = F.linear(F.normalize(network(x)[0]), F.normalize(centres)).clamp(-1 + 1e-6, 1 - 1e-6)
            target = people[rows].to(device)
            margin = F.one_hot(target, cosine.shape[1]).bool()
            logits = 64 * torch.where(margin, torch.cos(torch.acos(cosine) + 0.5), cosine)
            loss = F.cross_entropy(logits, target)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    network.requires_grad_(False)

    def embed(faces: Faces) -> Embeddings:
        crops = _chips(reader, faces)
        with torch.inference_mode():
            parts = [
                network(_input(crops[begin : begin + batch], mean, scale, device))[0].float().cpu().numpy()
                for begin in range(0, len(crops), batch)
            ]
        return np.concatenate(parts)

    return embed, f"Whole network retrained on anonymised faces, {epochs} epochs."


def _chips(reader: Reader, faces: Faces) -> NDArray[np.uint8]:
    """[N,112,112,3] crops in the ArcFace template."""
    from ficgan.faces.alignment import ARCFACE_POINTS, similarity
    from ficgan.faces.blend import crop

    pairs = zip(faces.images, faces.landmarks, strict=True)
    return np.stack([crop(image, similarity(marks, ARCFACE_POINTS), 112) for image, marks in pairs])


def _input(chips: NDArray[np.uint8], mean: float, scale: float, device: str):  # type: ignore[no-untyped-def]
    import torch

    x = torch.from_numpy(np.ascontiguousarray(chips)).to(device).permute(0, 3, 1, 2).float()
    return (x - mean) / scale
