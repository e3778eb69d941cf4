"""The network in the frame, run by onnxruntime: no torch is needed to use it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import FicganError

__all__ = ["FrameNetwork"]

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class FrameNetwork:
    """What reads faces and what writes them, as ONNX files in memory.

    Args:
        reader: texture, code → w, z_non.
        writer: w, moment, z_non, linear → texture, shape.
        w_dim: length of w.
        num_layers: L.
        z_non_size: numbers of z_non.
        threads: most that a session computes with; 0: all cores.
    """

    reader: bytes
    writer: bytes
    w_dim: int
    num_layers: int
    z_non_size: int
    threads: int = 0

    def read(self, textures: NDArray[np.uint8], codes: Floats) -> tuple[Floats, Floats]:
        """Codes of source faces.

        Args:
            textures: uint8 [B,R,R,3] in the frame.
            codes: float32 [B,C], identity codes of the linear model.

        Returns:
            w [B,w_dim] and z_non [B,S,4,4].
        """
        x = textures.astype(np.float32).transpose(0, 3, 1, 2) / np.float32(127.5) - 1
        w, z_non = self._sessions[0].run(["w", "z_non"], {"texture": x, "code": codes})
        return w, z_non

    def write(self, w: Floats, moment: Floats, z_non: Floats, linear: Floats) -> tuple[Floats, Floats]:
        """What is added to the linear model.

        Args:
            w: float32 [B,L,w_dim].
            moment: float32 [B,M], see `AppearanceModel.moment_vector`.
            z_non: float32 [B,S,4,4].
            linear: float32 [B,R,R,3] in [0,1], texture of the linear model.

        Returns:
            Texture [B,R,R,3], in units of the linear model's contrast, and shape [B,I], in standard deviations.
        """
        x = np.ascontiguousarray(linear.transpose(0, 3, 1, 2) * 2 - 1, np.float32)
        given = {"w": w, "moment": moment, "z_non": z_non, "linear": x}
        texture, shape = self._sessions[1].run(["texture", "shape"], given)
        return texture.transpose(0, 2, 3, 1), shape

    @cached_property
    def _sessions(self) -> tuple[Any, Any]:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.log_severity_level = 3
        try:
            pair = [
                onnxruntime.InferenceSession(part, options, providers=["CPUExecutionProvider"])
                for part in (self.reader, self.writer)
            ]
        except Exception as error:  # onnxruntime's errors have no common base
            first = str(error).splitlines()[0]
            raise FicganError(f"the network in the model's file cannot be run ({first}); fetch it again") from None
        return pair[0], pair[1]
