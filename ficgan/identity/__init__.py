"""Identity codes: the bank, manifold k-same, layer mixing, exemplars, attribute directions."""

from ficgan.identity.bank import IdentityBank, audit, parse_direction
from ficgan.identity.ksame import KSameCode, exemplar, mix_layers, parse_band

__all__ = ["IdentityBank", "KSameCode", "audit", "exemplar", "mix_layers", "parse_band", "parse_direction"]
