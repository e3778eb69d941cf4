"""Make the embedded default from a fitted model and its bank: copies in pretrained/ and the manifest of what is there.

    ficgan fit-appearance faces/*.tar --labels faces.csv -o model.safetensors --bank bank.safetensors
    python tools/make_embedded.py model.safetensors bank.safetensors [--lenders faces/] [--measured measured.json]
                                  [--detail runs/detail/network.safetensors]

The numbers of making faces are those of the code. The detail network is taken from another file. Large faces get the
detail of the faces of `--lenders`, aligned, 256². The manifest names those of SFHQ and SFHQ-T2I that lend theirs:
frontal ones, chosen by eye, without glasses, beards and paint. The bank's codes depend on neither. The measured file is
the output of `ficgan measure` on faces and photos that took no part in the fit.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ficgan.cli.main import handle_errors
from ficgan.data import open_faces
from ficgan.errors import UsageError
from ficgan.faces import MediaPipeMesh
from ficgan.files import file_digest
from ficgan.frame.file import FrameConfig, load_appearance, save_appearance
from ficgan.frame.learn import lend
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
LICENCE = "Apache-2.0; made from FairFace (Kärkkäinen & Joo 2021, CC BY 4.0), see NOTICE"


def make(
    model: Path, bank: Path, measured: Path | None = None, detail: Path | None = None, lenders: Sequence[Path] = ()
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("bank", type=Path)
    parser.add_argument("--detail", type=Path, help="file of a run of configs/detail.yaml")
    parser.add_argument("--lenders", type=Path, nargs="+", default=[], help="aligned faces of nobody, 256²")
    parser.add_argument("--measured", type=Path, help="JSON: output of `ficgan measure`")
    options = parser.parse_args()
    size = make(options.model, options.bank, options.measured, options.detail, options.lenders)
    print(f"{size / 2**20:.1f} MiB in {FOLDER}")


if __name__ == "__main__":
    handle_errors(main)()
