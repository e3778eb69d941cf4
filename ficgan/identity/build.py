"""From the codes of images to those of people, for a bank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ficgan.errors import UsageError
from ficgan.identity.kind import ETHNICITIES, GENDERS
from ficgan.identity.ksame import CHUNK

if TYPE_CHECKING:
    import torch

    from ficgan.models import FICGAN


def average_people(
    codes: NDArray[np.floating],
    people: ArrayLike | None,
    attributes: ArrayLike | None,
    names: Sequence[str],
    columns: Sequence[str],
) -> tuple[NDArray[np.float16], NDArray[np.uint8], dict[str, Any]]:
    """Codes [N,D] and attributes [N,A] of people, and counts for the provenance; see `IdentityBank.from_codes`."""
    owner, unknown = _owners(people, len(codes))
    table = np.zeros((len(codes), 0), np.uint8) if attributes is None else np.asarray(attributes)
    if codes.ndim != 2 or not codes.size or not len(codes) == len(owner) == len(table) or table.ndim != 2:
        raise UsageError(
            f"codes {list(codes.shape)}, people [{len(owner)}] and attributes {list(table.shape)} "
            "do not belong together; give one row each per image"
        )
    if columns and len(columns) != table.shape[1]:
        raise UsageError(f"{len(columns)} columns were named for {table.shape[1]} attributes; name one for each")
    if (chained := _chains(owner, table, names)).any():
        kept, people = ~chained, None if people is None else np.asarray(people)[~chained]
        means, table, record = average_people(codes[kept], people, table[kept], names, columns)
        return means, table, {"images_of_chains": int(chained.sum()), **record}
    per_person = np.bincount(owner)
    record = {
        "images": len(codes),
        "people": len(per_person),
        "images_per_person": [int(per_person.min()), int(per_person.max())],
        "identities_known": unknown < len(codes),
        "images_of_unknown_people": unknown,
    }
    return _means(codes, owner, per_person), majority(table, owner, len(per_person), columns), record


def _owners(people: ArrayLike | None, images: int) -> tuple[NDArray[np.int64], int]:
    who = np.full(images, -1) if people is None else np.asarray(people)
    unknown = who < 0 if np.issubdtype(who.dtype, np.number) else who == ""
    owner = np.empty(len(who), np.int64)
    known, owner[~unknown] = np.unique(who[~unknown], return_inverse=True)
    owner[unknown] = len(known) + np.arange(unknown.sum())
    return owner, int(unknown.sum())


# Pictures from which on a person may be a chain of look-alikes, and the share of them that must agree on who it is.
_CHAIN, _AGREE = 20, 0.7


def _chains(owner: NDArray[np.int64], table: NDArray[Any], names: Sequence[str]) -> NDArray[np.bool_]:
    """bool [M], images of people whose pictures disagree about ethnic group or gender: a recogniser that joined them
    took one toddler for the next.
    """
    odd = np.zeros(owner.max() + 1, bool)
    pictures = np.bincount(owner)
    for group in (ETHNICITIES, GENDERS):
        index = [names.index(name) for name in group if name in names]
        if len(index) == len(group):
            shown = np.stack([np.bincount(owner[table[:, i] != 0], minlength=len(odd)) for i in index], 1)
            odd |= (pictures >= _CHAIN) & (shown.max(1) < _AGREE * pictures)
    return np.asarray(odd[owner])


def _means(codes: NDArray[np.floating], owner: NDArray[np.int64], per_person: NDArray[np.int64]) -> NDArray[np.float16]:
    order = np.argsort(owner, kind="stable")
    ends = np.cumsum(per_person)
    means = np.empty((len(per_person), codes.shape[1]), np.float16)
    for first in range(0, len(means), CHUNK):
        people = slice(first, first + CHUNK)
        starts = ends[people] - per_person[people]
        images = order[starts[0] : ends[people][-1]]
        total = np.add.reduceat(codes[images].astype(np.float64), starts - starts[0], axis=0)
        mean = total / per_person[people, None]
        if not np.abs(mean).max() <= np.finfo(np.float16).max:  # also false for NaN
            raise UsageError("some codes are not finite or too large for float16; check the checkpoint that made them")
        means[people] = mean
    return means


def majority(
    values: NDArray[np.uint8], owner: NDArray[np.int64], people: int, columns: Sequence[str] = ()
) -> NDArray[np.uint8]:
    """Attributes uint8 [N,A] of N people from those of M images [M,A]; `owner` [M] says whose each image is.

    A person has an attribute that more than half of the images show. Of attributes that exclude each other, which have
    alike names in `columns` (Female and Male, the ages), a person has the one that most images show, and none where two
    are level.
    """
    pictures = np.bincount(owner, minlength=people)
    has = np.zeros((people, values.shape[1]), np.uint8)
    together: dict[str, list[int]] = {}
    for index, column in enumerate(columns or map(str, range(values.shape[1]))):
        together.setdefault(column, []).append(index)
    for group in together.values():
        shown = np.stack([np.bincount(owner[values[:, i] != 0], minlength=people) for i in group], 1)
        if len(group) == 1:
            has[:, group] = 2 * shown > pictures[:, None]
        else:
            most = shown.max(1, keepdims=True)
            has[:, group] = (shown == most) & (most > 0) & ((shown == most).sum(1, keepdims=True) == 1)
    return has


def encode_faces(
    model: FICGAN,
    images: torch.Tensor,
    *,
    batch: int = 64,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> NDArray[np.float32]:
    """Intermediate latents w, float32 [N,w_dim], of aligned faces uint8 [N,3,R,R], `batch` at once."""
    import torch

    found = np.empty((len(images), model.config.w_dim), np.float32)
    with torch.inference_mode():
        for begin in range(0, len(images), batch):
            x = images[begin : begin + batch].to(device).float().div_(127.5).sub_(1)
            codes = model.encode(x.contiguous(memory_format=torch.channels_last))
            found[begin : begin + batch] = model.map(codes.z_id).float().cpu().numpy()
            if progress:
                progress(min(begin + batch, len(images)), len(images))
    return found
