"""Identity codes: the bank, manifold k-same, layer mixing, exemplars, attribute directions."""

from .account import audit
from .attributes import parse_direction
from .bank import IdentityBank
from .build import encode_faces
from .ksame import KSameCode, manifold_k_same
from .mixing import exemplar, mix_layers, parse_band

__all__ = [
    "IdentityBank",
    "KSameCode",
    "audit",
    "encode_faces",
    "exemplar",
    "manifold_k_same",
    "mix_layers",
    "parse_band",
    "parse_direction",
]
