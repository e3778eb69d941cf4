"""Loading a model with its identity bank and the controls that belong to it."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ficgan.errors import FicganError, UsageError
from ficgan.face_model import FaceModel, ModelInfo
from ficgan.faces.models import check_onnx_device
from ficgan.identity import IdentityBank
from ficgan.identity.file import file_digest, file_header

__all__ = ["ENGINES", "Engine", "load_face_model", "refuse_trainer"]

Engine = Literal["auto", "onnx", "torch"]
ENGINES: tuple[Engine, ...] = ("auto", "onnx", "torch")

log = logging.getLogger(__name__)


def load_face_model(
    checkpoint: str | Path | None = None, bank: str | Path | None = None, *, device: str = "cpu",
    engine: Engine = "auto", **controls: Any,
) -> tuple[FaceModel, ModelInfo, str]:  # fmt: skip
    """The embedded default model, or the given files, ready for use.

    Args:
        checkpoint: appearance model or network; None: the embedded one.
        bank: identity bank made with it; None: the embedded one (or, for another checkpoint, an error).
        device: what computes: "cpu", "cuda", "cuda:N", "auto"; onnxruntime also on "openvino", "coreml", "dml".
        engine: "onnx" or "torch", an error where the model needs the other; "auto": what it needs.
        k: people per k-same code.
        band: "first-last": put the k-same code into just these style layers.
        seed: of the k-same draws; the same seed and bank give the same faces. None: a random one that is not kept.
        alpha: how far towards the exemplar, w_d = w_m + α·(w_t − w_m); 1 is a swap, which is not anonymous.
        attributes: "Female,-White": average only people with and without these.
        add: ["Female=0.7", …]: move along attribute directions.
        swap: put the exemplar's own code in place of w_m (identity swap; not anonymous).
        precision: of a network: "float32", "bfloat16", "float16", or "auto": what this machine is faster in.
        compile: let torch.compile fuse a network; pays over many faces only.

    Returns:
        The model, what its header says, and the sha256 of its file.

    Raises:
        FicganError: missing or damaged files, or a bank of another model.
        UsageError: a value that cannot work.
    """
    from ficgan import pretrained

    if checkpoint is not None and bank is None:
        raise UsageError("a checkpoint of your own needs the bank built with it; give --bank (see `ficgan bank`)")
    try:
        checkpoint = Path(checkpoint) if checkpoint is not None else pretrained.path("model")
        bank = Path(bank) if bank is not None else pretrained.path("bank")
    except (FileNotFoundError, KeyError):
        raise FicganError("this copy of ficgan holds no embedded model; give --checkpoint and --bank") from None
    for file in (checkpoint, bank):
        if file.parent == pretrained.FOLDER and (wrong := pretrained.check(file.name)):
            raise FicganError(f"the embedded file {file.name} is {wrong}: install ficgan again")
    precision, compile = controls.pop("precision", "auto"), controls.pop("compile", False)
    kind = file_header(checkpoint)[0]
    if kind == "appearance" and (compile or precision not in ("auto", "float32")):
        raise UsageError(f"{checkpoint.name} computes in float32; precision and compile are for networks on crops")
    needs = "onnx" if kind == "appearance" else "torch"
    if engine not in ENGINES:
        raise UsageError(f"engine {engine!r} is unknown; it is one of {', '.join(ENGINES)}")
    if engine not in ("auto", needs):
        why = "is computed without torch" if needs == "onnx" else "is a network on crops, which torch computes"
        raise UsageError(f"{checkpoint.name} {why}; use engine {needs} or auto")
    if needs == "onnx":
        check_onnx_device(device)
    loaded, digest = IdentityBank.load(bank), file_digest(checkpoint)
    if loaded.provenance.get("checkpoint") not in (None, digest):
        raise UsageError(
            f"the bank {bank} was built with another model than {checkpoint}; build one with `ficgan bank`"
        )
    log.info("model %s (%s), bank of %d codes", checkpoint.name, kind, len(loaded))
    if kind == "appearance":
        from ficgan.faces import MediaPipeMesh
        from ficgan.frame.file import load_appearance
        from ficgan.frame_model import FrameModel

        appearance, config, info, network = load_appearance(checkpoint)
        _ = appearance.warp  # made once, before several threads want it
        mesh = MediaPipeMesh(device)
        network = None if network is None else replace(network, device=device)
        made = FrameModel(
            appearance, config, loaded, network=network, mesh=mesh, sha256=digest, device=device, **controls
        )
        return made, info, digest
    from ficgan.face_model import CropModel
    from ficgan.models import load_checkpoint

    trained, header = load_checkpoint(checkpoint)
    info = ModelInfo(header.alignment, header.data, header.training)
    crops = CropModel(trained, info, loaded, device=device, precision=precision, compile=compile, **controls)
    return crops, info, digest


def refuse_trainer(header: ModelInfo | None, recognizer: str) -> None:
    """A UsageError where a recogniser is the network V that the model was trained against: it would only flatter.

    Args:
        header: of the checkpoint; its training record holds V's sha256; None: no network was trained.
        recognizer: name for `get_recognizer`, such as "onnx:PATH".
    """
    if header is None:
        return
    kind, _, path = recognizer.partition(":")
    trainer = header.training.get("verifier_sha256")
    if kind == "onnx" and trainer and Path(path).is_file() and file_digest(path) == trainer:
        raise UsageError(f"recogniser {recognizer} is the network this model was trained against; take another one")
