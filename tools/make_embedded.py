"""Make the embedded default: model, identity bank and manifest in pretrained/.

    python tools/make_embedded.py RUN/network.safetensors --data faces/*.tar --labels faces.csv \
        --record record.json [--measured measured.json]

The record states how the model was trained, the measured file is the output of `ficgan measure` on faces and photos
that took no part in it; both are copied into the manifest as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ficgan.data import check_alignment, open_faces
from ficgan.faces import Alignment
from ficgan.identity import IdentityBank, encode_faces
from ficgan.models import load_checkpoint
from ficgan.models.io import file_digest, load_tensors, save_tensors

FOLDER = Path(__file__).resolve().parent.parent / "pretrained"


def build_bank(checkpoint: Path, data: list[Path], labels: Path, out: Path) -> IdentityBank:
    """One code per person of the labelled training faces."""
    model, header = load_checkpoint(checkpoint)
    faces = open_faces(data, resolution=model.resolution, labels=labels)
    marks = faces.labels
    if marks is None or marks.people is None:
        raise SystemExit(f"{labels} has no person column; k must count people")
    check_alignment(faces, Alignment.from_dict(header.alignment), str(checkpoint))
    codes = encode_faces(model, faces.resident())
    provenance = {
        "checkpoint": file_digest(checkpoint),
        "data": {"licence": header.data["licence"], "fingerprint": faces.fingerprint},
        "alignment": header.alignment,
    }
    bank = IdentityBank.from_codes(
        codes, marks.people, marks.attributes, marks.attribute_names, provenance, columns=marks.attribute_columns
    )
    bank.save(out)
    return bank


def without_paths(training: dict[str, Any]) -> dict[str, Any]:
    """The training record with the names of files but not their folders: `onnx:/home/me/v.onnx` → `onnx:v.onnx`."""
    clean: dict[str, Any] = json.loads(json.dumps(training))
    verifier = clean.get("config", {}).get("verifier", {})
    if "spec" in verifier:
        kind, colon, file = verifier["spec"].partition(":")
        verifier["spec"] = kind + colon + Path(file).name
    return clean


def write_model(source: Path, out: Path) -> None:
    """The checkpoint, its weights bit for bit, without paths of this machine in its header."""
    tensors, header = load_tensors(source, kind="model")
    save_tensors(out, tensors, {**header, "training": without_paths(header.get("training", {}))}, kind="model")


def read(path: Path | None) -> Any:
    return None if path is None else json.loads(path.read_text(encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="the training faces")
    parser.add_argument("--labels", type=Path, required=True, help="CSV with file, person, age, gender, race")
    parser.add_argument("--record", type=Path, required=True, help="JSON: how the model was trained")
    parser.add_argument("--measured", type=Path, help="JSON: output of `ficgan measure`")
    parser.add_argument("--name", default="faces64", help="stem of the files")
    options = parser.parse_args()
    stage = Path(tempfile.mkdtemp(prefix=".making-", dir=FOLDER))
    try:
        people, size = make(options, stage)
        for file in sorted(stage.iterdir(), key=lambda file: file.suffix == ".json"):  # the manifest last
            os.replace(file, FOLDER / file.name)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    print(f"{people} people, {size / 2**20:.1f} MiB in {FOLDER}")


def make(options: argparse.Namespace, folder: Path) -> tuple[int, int]:
    """Write model, bank and manifest into `folder`.

    Returns:
        People of the bank, and bytes of model and bank.
    """
    model_file, bank_file = folder / f"{options.name}.safetensors", folder / f"{options.name}-bank.safetensors"
    write_model(options.checkpoint, model_file)
    bank = build_bank(model_file, options.data, options.labels, bank_file)
    _, header = load_checkpoint(model_file)
    files = {
        path.name: {"role": role, "sha256": file_digest(path), "bytes": path.stat().st_size}
        for role, path in (("model", model_file), ("bank", bank_file))
    }
    manifest = {
        "files": files,
        "licence": "Apache-2.0; made from FairFace (Kärkkäinen & Joo 2021, CC BY 4.0), see NOTICE",
        "data": header.data,
        "training": {**header.training, "record": read(options.record)},
        "bank": {"people": len(bank), "digest": bank.digest, "attributes": bank.counts},
        "measured": read(options.measured),
    }
    text = json.dumps(manifest, indent=1, ensure_ascii=False, default=lambda value: np.asarray(value).tolist())
    (folder / "manifest.json").write_text(text + "\n", encoding="utf-8")
    return len(bank), sum(entry["bytes"] for entry in files.values())


if __name__ == "__main__":
    main()
