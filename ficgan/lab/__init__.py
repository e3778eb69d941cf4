"""What proves a de-identification and attacks it; all anonymisers are known here, those of the model, too."""

from __future__ import annotations

from copy import copy
from dataclasses import field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ficgan.anonymizers import ANONYMIZERS, Anonymizer, Faces, Images, Traits
from ficgan.deidentify import load_face_model
from ficgan.errors import InputError, UsageError
from ficgan.face_model import read_kinds
from ficgan.faces import Face, cover_face
from ficgan.policy import Attempt
from ficgan.registry import param

if TYPE_CHECKING:
    from ficgan.face_model import FaceModel, FaceReading


@ANONYMIZERS.add
class Ficgan(Anonymizer):
    """Manifold k-same faces of the embedded model or of a given one."""

    name = "ficgan"
    traits = Traits(
        title="FICGAN",
        family="synthesis",
        source="FICGAN, Manifold k-Same Algorithm and eq. 5",
        strength="layer",
        stochastic=True,
        needs=frozenset({"model"}),
    )

    k: int = param(3000, "people averaged", low=2)
    layer: int = param(0, "i: style layers 1…i keep the source's code", low=0)
    band: str = param("", "FIRST-LAST: only these style layers take the new code, in place of layer")
    psi: float = param(1.0, "diversity of the variance-restored mean; 0 is the plain mean", low=0, high=1)
    alpha: float = param(0.0, "share of the other person's code, eq. 5; 1 is a swap", low=0, high=1)
    attributes: str = param("", "average only people with these attributes; + between them, -NAME for without")
    add: str = param("", "attribute directions such as Female=0.7; + between them")
    keep_kind: str = param("ethnicity+gender+age", "parts of the source's kind that stay; none for none of them")
    same: str = param("image", "what shares one draw", choices=("image", "person", "all"))
    checkpoint: str = param("", "model file; the embedded one if not given")
    bank: str = param("", "bank built with it")
    device: str = param("cpu", "cpu, cuda or cuda:N")
    seed: int = 0
    """Of the k-same draws."""

    def settings(self) -> dict[str, Any]:
        """The controls and the digests of model and bank, without folders of this machine."""
        files = ("checkpoint", "bank", "device")
        settings = {name: value for name, value in super().settings().items() if name not in files}
        model, digest = self._loaded()
        return settings | {"checkpoint_sha256": digest, "bank_digest": model.bank.digest}

    def _loaded(self) -> tuple[FaceModel, str]:
        return _load(Ficgan(**{name: getattr(self, name) for name in _CONTROLS}))

    @property
    def face_model(self) -> FaceModel:
        """The networks with these controls, loaded once."""
        return self._loaded()[0]

    def readings(self, faces: Faces) -> list[FaceReading]:
        """Readings of the faces by the model."""
        return self.face_model.see([(image, face) for image, face in zip(faces.images, _faces(faces), strict=True)])

    def __call__(self, faces: Faces) -> Images:
        model, out = self.face_model, faces.images.copy()
        if not len(faces):
            return out
        readings, attempt, keys = self.readings(faces), Attempt(self.layer, model.band), self._keys(faces)
        model = copy(model)
        model.seed = self.seed
        if self.alpha:
            codes = model.latent(np.stack([reading.z_id for reading in readings]))
            targets = codes[_others(faces)]
        kinds = read_kinds(list(faces.images), list(faces.landmarks)) if model.keeps_kind else [None] * len(readings)
        first = dict(zip(reversed(keys), reversed(range(len(keys))), strict=True))
        drawn = {key: model.draw(key, attempt, self.psi, readings[n].z_id, kinds[n]) for key, n in first.items()}
        rows = [n for n, reading in enumerate(readings) if not reading.problem]
        styles = []
        for n in rows:
            if self.alpha:
                model.target, model.alpha, model.swap = targets[n], self.alpha, False
            styles.append(model.styles(readings[n].z_id[None], [drawn[keys[n]]], attempt))
        made = model.render(np.concatenate(styles), [readings[n] for n in rows]) if rows else []
        pastes = dict(zip(rows, made, strict=True))
        for n, (image, face) in enumerate(zip(out, _faces(faces), strict=True)):
            # A face that the model cannot make is covered.
            paste = model.paste(image, readings[n], pastes[n]) if n in pastes else cover_face(image, face, "black")
            paste.onto(image)
        return out

    def _keys(self, faces: Faces) -> list[str]:
        if self.same == "all":
            return ["all"] * len(faces)
        if self.same == "image":
            return list(faces.names)
        if faces.people is None or (faces.people < 0).any():
            raise InputError(f"{self.name} with same=person needs to know the person of every face; give labels")
        return [f"person {person}" for person in faces.people]


@ANONYMIZERS.add
class KSameAppearance(Ficgan):
    """Model-based k-same, the classical way: the embedded linear model of shape and texture, and a mean of k codes."""

    name = "k-same-appearance"
    traits = Traits(
        title="k-Same-Appearance (k-Same-M)",
        family="synthesis",
        source="Gross et al. 2006, Model-based face de-identification",
        strength="layer",
        stochastic=True,
        needs=frozenset({"model"}),
    )

    layer: int = param(0, "i: bands 1…i of the code keep the source's; light comes first, then the face", low=0)
    psi: float = param(0.0, "diversity of the variance-restored mean; 0 is the plain mean", low=0, high=1)
    # What the classical method has not.
    band: str = field(default="", init=False)
    alpha: float = field(default=0.0, init=False)
    attributes: str = field(default="", init=False)
    add: str = field(default="", init=False)
    keep_kind: str = field(default=Ficgan.keep_kind, init=False)
    checkpoint: str = field(default="", init=False)
    bank: str = field(default="", init=False)
    device: str = field(default="cpu", init=False)


def _others(faces: Faces) -> list[int]:
    """For each face the row of another person's: the next one in the order given, as a target w_t."""
    known = faces.people is not None and (faces.people >= 0).all()
    people = faces.people if faces.people is not None and known else np.arange(len(faces))
    if len(np.unique(people)) < 2:
        raise UsageError("ficgan with alpha above 0 takes its targets from the other people, and there is one person")
    following = [np.roll(np.arange(len(faces)), -row - 1).tolist() for row in range(len(faces))]
    return [next(other for other in rows if people[other] != people[row]) for row, rows in enumerate(following)]


def _faces(faces: Faces) -> list[Face]:
    """Each crop's face, with the box that its landmarks span."""
    out = []
    for marks in faces.landmarks:
        low, high = marks.min(0), marks.max(0)
        margin = 0.6 * float((high - low).max())
        box = np.concatenate([low - margin, high + margin]).clip(0, faces.images.shape[1])
        out.append(Face(box.astype(np.float32), np.asarray(marks, np.float32), 1.0))
    return out


# What a model is made by; draws take the seed of their own.
_CONTROLS = ("checkpoint", "bank", "k", "layer", "band", "psi", "attributes", "add", "keep_kind", "device")


@lru_cache(maxsize=4)
def _load(given: Ficgan) -> tuple[FaceModel, str]:
    """A model ready for use and the digest of its file; the networks are loaded once for each setting."""
    model, _, digest = load_face_model(
        given.checkpoint or None,
        given.bank or None,
        device=given.device,
        k=given.k,
        band=given.band or None,
        seed=0,
        attributes=given.attributes.replace("+", ",") or None,
        add=[part for part in given.add.split("+") if part],
        keep_kind=given.keep_kind.replace("+", ","),
    )
    if model.band is None:
        model.check_layer(given.layer)
    model.check_draws(Attempt(given.layer), given.psi)
    return model, digest
