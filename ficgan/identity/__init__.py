"""Identity codes: the bank, manifold k-same, layer mixing, exemplars, attribute directions."""

from .bank import IdentityBank, encode_faces, parse_direction
from .ksame import KSameCode
from .mixing import audit, exemplar, mix_layers, parse_band

__all__ = [
    "IdentityBank",
    "KSameCode",
    "audit",
    "encode_faces",
    "exemplar",
    "mix_layers",
    "parse_band",
    "parse_direction",
]
