"""Make the embedded default from a fitted model and its bank: copies in pretrained/ and the manifest of what is there.

    ficgan fit-appearance faces/*.tar --labels faces.csv -o model.safetensors --bank bank.safetensors
    python tools/make_embedded.py model.safetensors bank.safetensors [--lenders faces/] [--measured measured.json]
                                  [--detail runs/detail/network.safetensors]
    python tools/make_embedded.py model.safetensors bank.safetensors --portraits crisp.tar --labels crisp.csv

The numbers of making faces are those of the code. The detail network is taken from another file. New faces get light,
shade and fine detail of the faces of `--lenders`, aligned, 256². The manifest names those of SFHQ and SFHQ-T2I that
lend: frontal ones in soft light, chosen by eye, without glasses, beards, frowns and paint. `--portraits` measures the
bias of what is embedded now: the mean difference of its new faces to these photos. The bank's codes depend on none of
these. The measured file is the output of `ficgan measure` on faces and photos that took no part in the fit.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ficgan import Deidentifier
from ficgan.cli.main import handle_errors
from ficgan.data import FaceData, open_faces
from ficgan.errors import UsageError
from ficgan.faces import MediaPipeMesh
from ficgan.faces.mesh import LEFT_EYE, LIPS_INNER, RIGHT_EYE
from ficgan.files import file_digest
from ficgan.frame.beards import hidden
from ficgan.frame.colours import fit_bias
from ficgan.frame.file import FrameConfig, load_appearance, save_appearance
from ficgan.frame.glasses import UNSURE
from ficgan.frame.learn import images_of, lend
from ficgan.frame.render import NewFace, Place, Row
from ficgan.identity import IdentityBank

FOLDER = Path(__file__).resolve().parent.parent / "pretrained"
MODEL, LINEAR, BANK = "appearance.safetensors", "linear.safetensors", "bank.safetensors"
NETWORKS = {
    "mesh": "face_mesh.onnx",
    "gate": "gate.onnx",
    "detector": "detector.onnx",
    "check": "yunet.onnx",
    "kind": "kind.safetensors",
    "glasses": "glasses.safetensors",
    "beards": "beards.safetensors",
}
# Of the draws whose bias is measured.
_SEED = 77
LICENCE = "Apache-2.0; made from FairFace (Kärkkäinen & Joo 2021, CC BY 4.0), see NOTICE"


def make(
    model: Path,
    bank: Path,
    measured: Path | None = None,
    detail: Path | None = None,
    lenders: Sequence[Path] = (),
    portraits: Sequence[Path] = (),
    labels: Path | None = None,
) -> int:
    """Copy the files into pretrained/, the manifest last; returns the bytes of all embedded files."""
    (appearance, _, info, network), people = load_appearance(model), IdentityBank.load(bank)
    if people.provenance.get("checkpoint") != file_digest(model):
        raise UsageError(f"{bank} was not built with {model}; build it anew")
    with tempfile.TemporaryDirectory(prefix=".making-", dir=FOLDER) as folder:
        stage = Path(folder)
        if detail is not None:
            other, _, of_detail, _ = load_appearance(detail)
            appearance = replace(appearance, detail_network=other.detail_network)
            info = replace(info, training={**info.training, "detail": of_detail.training["detail"]})
        if lenders:
            faces, teeth = open_faces(lenders, resolution=2 * appearance.size), appearance.teeth
            lent, names = lend(appearance, faces, MediaPipeMesh())
            appearance = replace(lent, teeth=teeth, teeth_openings=appearance.teeth_openings)
            info = replace(info, training={**info.training, "lenders": names})
        if portraits:
            bias, count = measured_bias(open_faces(portraits, resolution=256, labels=labels, split=labels and "train"))
            appearance = replace(appearance, bias=bias)
            info = replace(info, training={**info.training, "bias": count})
        save_appearance(stage / MODEL, appearance, FrameConfig(), info, network=network, linear=LINEAR)
        people = replace(people, provenance={**people.provenance, "checkpoint": file_digest(stage / MODEL)})
        people = people.save(stage / BANK, small=True)
        roles = [("model", stage / MODEL), ("linear", stage / LINEAR), ("bank", stage / BANK)]
        roles += [(role, FOLDER / name) for role, name in NETWORKS.items()]
        files: dict[str, Any] = {
            path.name: {"role": role, "sha256": file_digest(path), "bytes": path.stat().st_size} for role, path in roles
        }
        manifest = {
            "files": files,
            "licence": LICENCE,
            "data": info.data,
            "training": info.training,
            "bank": {"people": len(people), "digest": people.digest, "attributes": people.counts},
            "measured": None if measured is None else json.loads(measured.read_text(encoding="utf-8")),
        }
        text = json.dumps(manifest, indent=1, ensure_ascii=False)
        (stage / "manifest.json").write_text(text + "\n", encoding="utf-8")
        for name in (LINEAR, MODEL, BANK, "manifest.json"):
            os.replace(stage / name, FOLDER / name)
    return sum(entry["bytes"] for entry in files.values())


def measured_bias(faces: FaceData) -> tuple[NDArray[np.int8], int]:
    """The bias of the embedded model's faces in the place of portraits, and how many took part."""
    deidentifier = Deidentifier.from_pretrained(seed=_SEED, verify=False)
    model, renderer = deidentifier.face_model.model, deidentifier.face_model.renderer
    renderer.model = replace(model, bias=model.bias[:0])
    make, drawn = renderer.made, []

    def made(row: Row, place: Place) -> NewFace:
        face = make(row, place)
        drawn.append((row, place, face))
        return face

    renderer.made = made
    inner = model.drawn((LEFT_EYE, 1.0), (RIGHT_EYE, 1.0), (LIPS_INNER, 1.0), soft=1.0)
    found = []
    for number, image in enumerate(images_of(faces)):
        drawn.clear()
        deidentifier(image)
        print(f"portraits: {number + 1} of {len(faces)}", end="\r", file=sys.stderr)
        if len(drawn) != 1 or drawn[0][1].glasses[0] > UNSURE or drawn[0][1].cloth is not None:
            continue
        row, place, face = drawn[0]
        small = cv2.resize(face.texture, place.texture.shape[1::-1], interpolation=cv2.INTER_AREA)
        weight = model.mask * (1 - inner) * (1 - place.hair) * (1 - hidden(place.beard, model.size))
        new, seen = (np.rint(255 * np.clip(one, 0, 1)).astype(np.uint8) for one in (small, weight))
        found.append((new, place.texture, row.kind, seen))
    if not found:
        raise UsageError("no portrait shows a face without glasses; give aligned ones of 256²")
    return fit_bias(*(np.stack(column) for column in zip(*found, strict=True)), model.pixels), len(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("bank", type=Path)
    parser.add_argument("--detail", type=Path, help="file of a run of configs/detail.yaml")
    parser.add_argument("--lenders", type=Path, nargs="+", default=[], help="aligned faces of nobody, 256²")
    parser.add_argument("--portraits", type=Path, nargs="+", default=[], help="sharp aligned faces, 256²")
    parser.add_argument("--labels", type=Path, help="of the portraits; those of split `train` count")
    parser.add_argument("--measured", type=Path, help="JSON: output of `ficgan measure`")
    options = parser.parse_args()
    size = make(**vars(options))
    print(f"{size / 2**20:.1f} MiB in {FOLDER}")


if __name__ == "__main__":
    handle_errors(main)()
