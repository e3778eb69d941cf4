"""An exported pair in onnxruntime, with the calls of the torch model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from ficgan.errors import FicganError

from .networks import DIGEST, KINDS

__all__ = ["Encoded", "Runner"]

Array = NDArray[np.float32]


class Encoded(NamedTuple):
    """What the encoder file returns."""

    z_id: Array
    """Identity code [B,id_dim]."""
    z_non: Array
    """Spatial code [B,C,4,4]."""
    w: Array
    """Intermediate latent [B,w_dim], which k-same averages."""


class Runner:
    """Encoder and generator in onnxruntime on the CPU.

    Args:
        models: "encoder" and "generator" as ONNX models or the bytes of such files.
        threads: of onnxruntime; 0 takes all cores. They do not spin while they wait, so that others get the cores.

    Raises:
        FicganError: one is missing, is not what its name says, onnxruntime cannot load it, or they are not from one
            checkpoint.
    """

    def __init__(self, models: Mapping[str, onnx.ModelProto | bytes], *, threads: int = 0) -> None:
        self.encoder, self.generator = (_session(models, kind, threads) for kind in KINDS)
        made_from = {
            session.get_modelmeta().custom_metadata_map.get(DIGEST) for session in (self.encoder, self.generator)
        }
        if len(made_from) > 1:
            raise FicganError("encoder and generator were exported from different checkpoints; give both of one export")
        self.num_layers: int = self.generator.get_inputs()[0].shape[1]
        """Number of style layers L."""

    def encode(self, image: Array) -> Encoded:
        """Codes of images [B,3,R,R] in [−1, 1]."""
        return Encoded(*self.encoder.run(list(Encoded._fields), {"image": image}))

    def generate(self, w: Array, z_non: Array) -> Array:
        """Images [B,3,R,R] from w [B,w_dim] or [B,L,w_dim] and z_non [B,C,4,4]."""
        if w.ndim == 2:
            w = np.repeat(w[:, None], self.num_layers, 1)
        image: Array = self.generator.run(["image"], {"w": w, "z_non": z_non})[0]
        return image


def _session(models: Mapping[str, onnx.ModelProto | bytes], kind: str, threads: int) -> Any:
    import onnxruntime

    if kind not in models:
        raise FicganError(f"there is no {kind} among {', '.join(models) or 'no models'}; give both of an export")
    model = models[kind]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    data = model if isinstance(model, bytes) else model.SerializeToString()
    try:
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own classes share no base
        first = str(error).splitlines()[0]
        raise FicganError(f"onnxruntime cannot load the {kind} ({first}); export it again") from None
    found = session.get_modelmeta().custom_metadata_map.get("kind")
    if found != kind:
        raise FicganError(f"the file given as {kind} is {found or 'not from ficgan'}; give the one that export wrote")
    return session
