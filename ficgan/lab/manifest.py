"""Whom a trained attacker learnt from: a file beside its weights, and refusing to test it on any of them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ficgan.arrays import content_key
from ficgan.errors import InputError, UsageError
from ficgan.lab.attacks import REVERSERS
from ficgan.lab.attacks.learned import Trained, read_header
from ficgan.lab.matrix_config import SetConfig
from ficgan.lab.sets import FaceSet, Prepared, Split, open_set
from ficgan.lab.stored import write_file
from ficgan.registry import parse_spec

__all__ = ["MANIFEST", "Manifest", "photo_keys", "refuse_the_known"]

MANIFEST = "manifest.json"
SCHEMA = 2
_WITHOUT_PHOTOS = 1  # Manifests of this version know crops only, which differ where the faces are cut in another way


@dataclass(frozen=True)
class Manifest:
    """Whom an attacker learnt from, and how the set was divided: hashes of crops (`learnt`) and of image files
    (`photos`); `withheld` parameters are not written.
    """

    config: dict[str, Any]
    data: dict[str, Any]
    split: dict[str, Any]
    learnt: tuple[str, ...]
    photos: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    version: str = ""

    def write(self, path: Path) -> None:
        tree = {"schema": SCHEMA, **dataclasses.asdict(self)}
        write_file(path, json.dumps(tree, indent=1))

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """The manifest in a file."""
        try:
            tree = json.loads(path.read_text(encoding="utf-8"))
            schema = tree.pop("schema")
            if schema not in (SCHEMA, _WITHOUT_PHOTOS):
                raise UsageError(f"{path} is of version {schema}, and {SCHEMA} can be read; train the attacker again")
            lists = {key: tuple(tree.get(key, ())) for key in ("learnt", "photos", "withheld")}
            return cls(**{**tree, **lists})
        except FileNotFoundError:
            raise UsageError(
                f"there is no {path}, so nobody can tell whom the attacker beside it learnt from; put back the one of "
                "its training, or train with `ficgan-attack train`"
            ) from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"{path} cannot be read as an attacker's manifest; train the attacker again") from None


def photo_keys(one: SetConfig, names: Set[str]) -> tuple[str, ...]:
    """Hashes of the image files of a set, sorted: of their bytes, so that folders, archives and crops do not matter."""
    faces = _all_of(one)
    return tuple(sorted(_keys(faces, [row for row, name in enumerate(faces.names) if name in names])))


def refuse_the_known(specs: Sequence[str], one: SetConfig, prepared: Prepared, split: Split) -> None:
    """Refuse trained attackers that learnt from any photo of a person who is to be tested."""
    files = [Path(given["file"]) for text in specs for given in [_trained(text)] if given.get("file")]
    if not files:
        return
    manifests = [_manifest_of(file) for file in files]
    tested = np.concatenate([split.gallery, split.probe])
    people = prepared.faces.people
    assert people is not None
    found = {content_key(prepared.faces.images[row]): prepared.faces.names[row]
             for row in np.flatnonzero(np.isin(people, people[tested]))}  # fmt: skip
    faces = _all_of(one)
    mine = {prepared.faces.names[row] for row in tested}
    who = faces.people[[row for row, name in enumerate(faces.names) if name in mine]]
    found |= _keys(faces, np.flatnonzero(np.isin(faces.people, who)).tolist())
    person = dict(zip(faces.names, faces.people.tolist(), strict=True))
    for file, manifest in zip(files, manifests, strict=True):
        known = sorted(name for key, name in found.items() if key in {*manifest.learnt, *manifest.photos})
        if known:
            count = len({person[name] for name in known})
            raise UsageError(
                f"{file.name} learnt from {count} of the {len(np.unique(who))} people it would be tested on, such as "
                f"from {known[0]} of {one.name}; give the set, the options and the split it was trained with, or other "
                "people"
            )


def _trained(spec: str) -> dict[str, str]:
    name, given = parse_spec(spec)
    return given if name in REVERSERS and issubclass(REVERSERS[name], Trained) else {}


def _manifest_of(file: Path) -> Manifest:
    path = file.parent / MANIFEST
    manifest, header = Manifest.read(path), read_header(file)
    if header["about"].get("split_sha256") != manifest.split.get("sha256"):
        raise UsageError(f"{path} is of another training than {file.name} beside it; put back its own")
    if not manifest.photos:
        raise UsageError(
            f"{path} does not say from which photos was learnt; give the same `ficgan-attack train` command once more, "
            "which trains nothing again and writes it down"
        )
    return manifest


def _all_of(one: SetConfig) -> FaceSet:
    return open_set(one.path, layout=one.layout, labels=one.labels, identity=one.identity, name=one.name)


def _keys(faces: FaceSet, rows: Sequence[int]) -> dict[str, str]:
    """Hash of the bytes → name; unreadable files are neither learnt from nor tested."""
    out = {}
    for row in rows:
        try:
            out[hashlib.blake2b(faces.blobs[row].read(), digest_size=16).hexdigest()] = faces.names[row]
        except InputError:
            continue
    return out
