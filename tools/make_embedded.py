"""Make the embedded default from a fitted model and its bank: copies in pretrained/ and the manifest of what is there.

    ficgan fit-appearance faces/*.tar --labels faces.csv -o model.safetensors --bank bank.safetensors
    python tools/make_embedded.py model.safetensors bank.safetensors [--lenders faces/] [--measured measured.json]
                                  [--detail runs/detail/network.safetensors]
    python tools/make_embedded.py model.safetensors bank.safetensors --portraits crisp.tar --labels crisp.csv

The numbers of making faces are those of the code. The detail network is taken from another file. New faces get light,
shade and fine detail of the faces of `--lenders`, aligned, 256². The manifest names those of SFHQ and SFHQ-T2I that
lend: frontal ones in soft light, chosen by eye, without glasses, beards, frowns and paint. `--portraits` measures what
is embedded now: the bias of its new faces, which is their mean difference to these photos, and what the gate sees of
its draws. The bank's codes depend on none of these. The measured file is the output of `ficgan measure` on faces and
photos that took no part in the fit.
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
from ficgan.face_model import read_kinds
from ficgan.faces import DlibRecognizer, MediaPipeMesh
from ficgan.faces.mesh import LEFT_EYE, LIPS_INNER, RIGHT_EYE
from ficgan.files import file_digest
from ficgan.frame.beards import hidden
from ficgan.frame.colours import fit_bias
from ficgan.frame.file import BESIDE, FrameConfig, load_appearance, save_appearance
from ficgan.frame.fit import gate_map
from ficgan.frame.glasses import UNSURE
from ficgan.frame.learn import images_of, lend
from ficgan.identity import IdentityBank
from ficgan.policy import Attempt

FOLDER = Path(__file__).resolve().parent.parent / "pretrained"
MODEL, BANK = "appearance.safetensors", "bank.safetensors"
NETWORKS = {
    "mesh": "face_mesh.onnx",
    "gate": "gate.onnx",
    "detector": "detector.onnx",
    "check": "yunet.onnx",
    "kind": "kind.safetensors",
    "glasses": "glasses.safetensors",
    "beards": "beards.safetensors",
}
# Seed of the draws that are measured, and how many there are for each portrait.
_SEED, _DRAWS = 77, 6
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
    if lenders and portraits:
        raise UsageError(
            "--portraits measures what is embedded now: embed the lenders first, and measure in a second run"
        )
    with tempfile.TemporaryDirectory(prefix=".making-", dir=FOLDER) as folder:
        stage = Path(folder)
        if detail is not None:
            other, _, of_detail, _ = load_appearance(detail)
            appearance = replace(appearance, detail_network=other.detail_network)
            info = replace(info, training={**info.training, "detail": of_detail.training["detail"]})
        if lenders:
            faces, teeth = open_faces(lenders, resolution=2 * appearance.size), appearance.teeth
            lent, names = lend(appearance, faces, MediaPipeMesh(), None)
            none = np.zeros((0, 0), np.float32)
            openings = appearance.teeth_openings
            appearance = replace(lent, teeth=teeth, teeth_openings=openings, gate=none, lent_gate=none)
            info = replace(info, training={**info.training, "lenders": names})
        if portraits:
            of_train = open_faces(portraits, resolution=256, labels=labels, split=labels and "train")
            (bias, gate, lent_gate), count = measured_on(of_train)
            appearance = replace(appearance, bias=bias, gate=gate, lent_gate=lent_gate)
            info = replace(info, training={**info.training, "bias": count})
        save_appearance(stage / MODEL, appearance, FrameConfig(), info, network=network, apart=True)
        people = replace(people, provenance={**people.provenance, "checkpoint": file_digest(stage / MODEL)})
        people = people.save(stage / BANK, small=True)
        roles = [("model", stage / MODEL), ("bank", stage / BANK)]
        roles += [(role, stage / name) for role, name in BESIDE.items()]
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
        for name in (*BESIDE.values(), MODEL, BANK, "manifest.json"):
            os.replace(stage / name, FOLDER / name)
    return sum(entry["bytes"] for entry in files.values())


def measured_on(faces: FaceData) -> tuple[tuple[NDArray[Any], ...], int]:
    """`fit_bias` and `gate_map` of the embedded model's faces in the place of portraits, and how many took part."""
    deidentifier, recognizer = Deidentifier.from_pretrained(seed=_SEED, verify=False), DlibRecognizer()
    whole, attempt = deidentifier.face_model, Attempt(0)
    model, size = whole.model, whole.model.code_size
    whole.renderer.model = replace(model, bias=model.bias[:0])
    inner = model.drawn((LEFT_EYE, 1.0), (RIGHT_EYE, 1.0), (LIPS_INNER, 1.0), soft=1.0)
    biased, seen = [], []
    for number, image in enumerate(images_of(faces)):
        print(f"portraits: {number + 1} of {len(faces)}", end="\r", file=sys.stderr)
        found = deidentifier.detector.detect(image)
        readings = whole.see([(image, face) for face in found])
        if len(readings) != 1 or readings[0].problem:
            continue
        (reading,), marks = readings, [found[0].landmarks] * (1 + _DRAWS)
        (kind,), place = read_kinds([image], marks[:1]), reading.place
        draws = [whole.draw(f"{number}/{n}", attempt, 1.0, None, kind) for n in range(_DRAWS)]
        styles = whole.styles(np.stack([reading.z_id] * _DRAWS), draws, attempt)
        new = whole.render(styles, [reading] * _DRAWS)
        finished = [whole.paste(image, reading, one).image for one in new]
        codes, lenders = np.split(np.stack([draw.w for draw in draws]), [size], axis=1)
        embeddings = recognizer.embed_each([image, *finished], marks)
        seen.append((codes, lenders[:, -1].astype(np.int64), embeddings[1:], embeddings[0]))
        if place.glasses[0] > UNSURE or place.cloth is not None:
            continue
        small = cv2.resize(new[0].texture, place.texture.shape[1::-1], interpolation=cv2.INTER_AREA)
        # The bias leaves noses out: each shines where its light comes from, and without the mean shine all are dull.
        bearded = hidden(place.beard, model.shape.front, model.size)
        weight = model.mask * (1 - inner) * (1 - place.hair) * (1 - bearded) * (1 - model.nose)
        textures = [np.rint(255 * np.clip(one, 0, 1)).astype(np.uint8) for one in (small, weight)]
        shown = whole.renderer.moment(whole.unpacked(styles[0]), place)
        numbers = [moment.numbers[0] for moment in (shown, place.moment)]
        biased.append((textures[0], place.texture, whole.kind_of(kind).reading, *numbers, textures[1]))
    if not biased:
        raise UsageError("no portrait shows a face without glasses; give aligned ones of 256²")
    bias = fit_bias(*(np.stack(column) for column in zip(*biased, strict=True)), model.pixels, model.on_brows)
    lights = np.s_[len(model.shape.basis) : len(model.shape.basis) + model.lights]
    columns = (np.stack(column) for column in zip(*seen, strict=True))
    return (bias, *gate_map(*columns, lights, len(model.lenders))), len(biased)


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
