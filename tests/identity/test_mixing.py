"""Layer mixing per layer, exemplars, and what the audit says about them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ficgan.errors import UsageError
from ficgan.identity import IdentityBank, audit, mix_layers, parse_band

W_S, W_M = torch.full((2, 8), 1.0), torch.full((2, 8), 2.0)


def test_layer_by_layer():
    for layer in range(12):
        w = mix_layers(W_S, W_M, num_layers=12, layer=layer)
        assert torch.equal(w[:, :layer], W_S[:, None].expand(-1, layer, -1)) and (w[:, layer:] == 2).all()


@given(st.integers(1, 18).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n), st.integers(1, n))))
def test_band(numbers):
    total, first, last = numbers[0], min(numbers[1:]), max(numbers[1:])
    w = mix_layers(W_S, W_M, num_layers=total, band=(first, last))
    for n in range(1, total + 1):
        assert torch.equal(w[:, n - 1], W_M if first <= n <= last else W_S)
    assert parse_band(f"{first}-{last}", total) == (first, last) == parse_band((first, last), num_layers=total)


@pytest.mark.parametrize(
    "where",
    [
        *({"layer": n} for n in (10, -1)),
        *({"band": b} for b in ((0, 3), (3, 11), (5, 4))),
        {},
        {"layer": 1, "band": (1, 2)},
        *({"text": t} for t in ("", "a-b", "5-", "-5", "8-5", "0-3", "5-13", "５-８")),
    ],
)
def test_refusals(where):
    with pytest.raises(UsageError):
        parse_band(where["text"], 12) if "text" in where else mix_layers(W_S, W_M, num_layers=10, **where)


def test_audit_is_honest():
    bank = IdentityBank.from_codes(
        np.eye(6), range(6), np.ones((6, 1)), ("Female",), {"data": {"licence": "CC BY 4.0"}}
    )
    plain = audit(bank, k=3, psi=[0.6], num_layers=10, layer=4, seed=7 << 80)
    assert plain["layers"] == {"total": 10, "k_same": [5, 6, 7, 8, 9, 10], "exemplar": [], "source": [1, 2, 3, 4]}
    assert "z_non and style layers 1-4 come from the source" in plain["not_covered"]
    assert plain["k"] == 3 and plain["alpha"] is None and plain["bank"]["digest"] == bank.digest
    text = json.dumps(plain)
    assert "seed_commitment" in text and '"seed"' not in text

    band = audit(bank, k=3, psi=0.0, num_layers=10, band=(5, 8), seed=7 << 80)
    assert band["layers"]["source"] == [1, 2, 3, 4, 9, 10] and "layers 1-4, 9-10" in band["not_covered"]
    strong = audit(bank, k=3, psi=0.0, num_layers=10, layer=0, seed=7 << 80)
    assert strong["layers"]["source"] == [] and "z_non comes from the source" in strong["not_covered"]
    towards = audit(bank, k=3, psi=0.0, num_layers=10, layer=4, seed=7 << 80, alpha=0.5, target="exemplar")
    assert towards["alpha"] == 0.5 and "does not protect that person" in towards["not_covered"]
    swap = audit(bank, k=3, psi=0.0, num_layers=10, layer=4, seed=7 << 80, target="swap")
    assert swap["k"] is None and swap["layers"]["k_same"] == [] and "no k-anonymity" in swap["not_covered"]
    assert audit(bank, k=3, psi=0, num_layers=10, layer=4, seed=8 << 80)["seed_commitment"] != plain["seed_commitment"]


def test_audit_says_what_k_counts():
    for people, words in (
        ([1, 2, 3, 4, 5, 6], ""),
        (None, "pictures, not people"),
        ([1, 2, 3, 4, -1, -1], "2 pictures"),
    ):
        said = audit(IdentityBank.from_codes(np.eye(6), people), k=3, psi=0.0, num_layers=8, layer=4, seed=7)
        assert ("k counts" in said["not_covered"]) == bool(words) and words in said["not_covered"]
