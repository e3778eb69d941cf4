"""Identity codes: the bank, manifold k-same, layer mixing, exemplars, attribute directions."""

from ficgan.identity.bank import IdentityBank, parse_direction
from ficgan.identity.build import encode_faces
from ficgan.identity.ksame import KSameCode, audit, exemplar, mix_layers, parse_band

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
