"""Manifold k-same against exact arithmetic and plain loops, and the statistics of its draws."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ficgan.errors import UsageError
from ficgan.identity import IdentityBank, ksame
from ficgan.identity.ksame import commitment, distances_to, draw_members, keyed_generator, mean_of, members_digest


def make_bank(n: int = 400, d: int = 16, seed: int = 0) -> IdentityBank:
    rng = np.random.default_rng(seed)
    codes = (rng.normal(size=(n, d)) * np.linspace(0.5, 2, d) + 3).astype(np.float16)
    attributes = np.stack([np.arange(n) % 2, np.arange(n) % 5 == 0], 1).astype(np.uint8)
    return IdentityBank(codes, attributes, ("Female", "Eyeglasses"))


@settings(derandomize=True)
@given(n=st.integers(1, 3000), share=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_draw_is_without_replacement(n, share, seed):
    k = max(1, round(n * share))
    members = draw_members(n, k, np.random.default_rng(seed))
    assert len(members) == k and members.dtype == np.int64
    assert (np.diff(members) > 0).all() and members[0] >= 0 and members[-1] < n


@pytest.mark.parametrize("k", [2, 4])  # both branches: k up to n/2, and the complement above
def test_every_set_is_equally_likely(k):
    rng, trials = np.random.default_rng(1), 2000
    sets = list(combinations(range(6), k))
    seen = Counter(tuple(draw_members(6, k, rng).tolist()) for _ in range(trials))
    expected, degrees = trials / len(sets), len(sets) - 1
    chi2 = sum((seen[s] - expected) ** 2 / expected for s in sets)
    assert set(seen) == set(sets) and chi2 < degrees + 5 * math.sqrt(2 * degrees)  # five standard deviations


@pytest.mark.parametrize(
    ("k", "key", "attributes", "members", "w"),
    [
        (3000, "a", None, "b5ff6b5930182692", "bb9b55d9eb0e8911"),
        (100, "b", "Female,-White", "719dfa0cb1969648", "7d376f6151c30444"),
        (2, "c", "Eyeglasses", "80d5ec6e19ad0a06", ""),
        (2499, "d", "Female", "d5369db3a7329ffa", "839c3466e56e27be"),
        (5000, "e", None, "e864ec9fac347095", "299e69dd0f2a2527"),
        (1000, "f", "-White, Female", "c246f69902631b98", ""),
    ],
)
def test_a_draw_from_a_bank_never_changes(k, key, attributes, members, w):
    """Members, and the bits of their mean where given, as the first version made them; the bank is a formula."""
    people, number = np.arange(5000), np.arange(16)
    codes = ((people[:, None] * 7919 + number * 104729) % 2003 - 1001) / 512
    table = np.stack([people % 2, people % 5 == 0, people % 3 == 1], 1).astype(np.uint8)
    bank = IdentityBank(codes.astype(np.float16), table, ("Female", "Eyeglasses", "White"))
    assert bank.digest == "ae3bffc8a4062b8da8e65ad523733c4801b62c27e4b2f986f75c9cf3c6a3ed5e"
    drawn = bank.k_same(k, key, seed=7, attributes=attributes)
    assert drawn.members_digest.startswith(members)
    assert hashlib.sha256(drawn.w.astype("<f4").tobytes()).hexdigest().startswith(w)


@settings(derandomize=True)
@given(data=st.data(), n=st.integers(5, 300), psi=st.sampled_from([0.0, 0.6, 2.0]), seed=st.integers(0, 99))
def test_a_draw_from_a_group_equals_a_plain_loop(data, n, psi, seed):
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 2, (n, 3)).astype(np.uint8)
    table[:4] = 0, 1, 0  # four people at least for each of the groups below
    bank = IdentityBank(rng.normal(size=(n, 6)).astype(np.float16), table, ("A", "B", "C"))
    text = data.draw(st.sampled_from(["", "B", "-A", "B,-C", "-A,B", "-C,B,-A"]))
    group = []
    for person in range(n):
        conditions = [c for c in text.split(",") if c]
        if all(bool(table[person, "ABC".index(c[-1])]) == (len(c) == 1) for c in conditions):
            group.append(person)
    assert bank.query(text).tolist() == group and bank.eligible(text) == len(group)
    k = data.draw(st.integers(2, len(group)))
    drawn = bank.k_same(k, "x", seed=seed, attributes=text, psi=psi)

    name = ",".join(sorted(c for c in text.split(",") if c))
    places = draw_members(len(group), k, keyed_generator(seed, bank.digest, "x", k, name))
    chosen = [group[i] for i in places]
    assert drawn.members_digest == members_digest(bank.digest, np.array(chosen))
    codes = bank.codes.astype(np.float64)
    w = np.array([math.fsum(codes[i, j] for i in chosen) / k for j in range(6)])
    if psi:
        centre = np.array([math.fsum(codes[i, j] for i in group) / len(group) for j in range(6)])
        lengths = [math.sqrt(math.fsum((codes[i] - centre) ** 2)) for i in group]
        away = psi * math.sqrt(k / max((len(group) - k) / (len(group) - 1), 0.5)) * (w - centre)
        cap = np.percentile(lengths, 95)
        w = centre + away * min(1, cap / max(math.sqrt(math.fsum(away**2)), 1e-300))
    np.testing.assert_allclose(drawn.w, w, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("k", "psi", "left"), [(20, 1.0, 1), pytest.param(200, 0.6, 1, marks=pytest.mark.slow), (300, 1.0, 0.5)]
)
def test_restored_variance(k, psi, left):
    """Its variance is ψ² of the population's; of more than half of the people drawing takes more than is undone."""
    bank = make_bank(400)
    trials = 800
    w = np.stack([bank.k_same(k, str(t), seed=1, psi=psi).w for t in range(trials)]).astype(np.float64)
    population = bank.codes.astype(np.float64)
    expected = psi**2 * population.var(0).sum() * left
    # The total variance of 16 dimensions is known to about 3 % from 800 draws; the cap takes a little off the tails.
    assert expected * 0.85 < w.var(0).sum() < expected * 1.09
    np.testing.assert_allclose(w.mean(0), population.mean(0), atol=5 * psi * 2 / math.sqrt(trials))


def test_repeats_and_differs():
    bank, other = make_bank(), make_bank(seed=1)
    one = bank.k_same(30, "person 1", seed=7, psi=0.6)
    again = make_bank().k_same(30, "person 1", seed=7, psi=0.6)
    assert np.array_equal(one.w, again.w) and one.members_digest == again.members_digest
    changes = [{"key": "person 2"}, {"seed": 8}, {"attributes": "Female"}]
    different = [bank.k_same(30, **{"key": "person 1", "seed": 7, "psi": 0.6, **change}) for change in changes]
    different.append(other.k_same(30, "person 1", seed=7, psi=0.6))
    assert len({one.members_digest, *(d.members_digest for d in different)}) == 5


def test_commitment_binds_seed_and_bank():
    long = 7 << 80
    seen = {commitment(seed, digest) for seed in (long, long + 1, "a secret of many words") for digest in ("a", "b")}
    assert len(seen) == 6 and commitment(long, "a") == commitment(str(long), "a")
    assert all(c is not None and len(c) == 64 and c != str(long) for c in seen)


@pytest.mark.parametrize(
    ("k", "attributes", "psi"),
    [(1, None, 0), (401, None, 0), (200, "Female,Eyeglasses", 0), (2, None, -0.1), (2, None, math.nan)],
)
def test_refusals(k, attributes, psi):
    with pytest.raises(UsageError):
        make_bank().k_same(k, "x", attributes=attributes, psi=psi)


halves = hnp.arrays(
    np.float16, st.tuples(st.integers(1, 40), st.integers(1, 4)), elements=st.floats(-65504, 65504, width=16)
)


@settings(derandomize=True)
@given(codes=halves, data=st.data())
def test_mean_is_the_exact_sum_divided_once(codes, data):
    chosen = data.draw(st.lists(st.sampled_from(range(len(codes))), min_size=1, unique=True))
    sums = [sum(Fraction(float(codes[i, j])) for i in chosen) for j in range(codes.shape[1])]
    assert mean_of(codes, np.array(chosen)).tolist() == [float(s) / len(chosen) for s in sums]
    assert mean_of(codes, np.array(chosen)).tolist() == mean_of(codes, np.array(chosen[::-1])).tolist()


@pytest.mark.parametrize("chunk", [7, 5000])
def test_pieces_do_not_matter(rng, monkeypatch, chunk):
    codes = (rng.normal(size=(3000, 5)) * 10.0 ** rng.integers(-6, 4, (3000, 5))).astype(np.float16)
    index = np.sort(rng.choice(3000, 1700, replace=False))
    mean = mean_of(codes, index)
    away = distances_to(mean, codes, index)
    monkeypatch.setattr(ksame, "CHUNK", chunk)
    assert np.array_equal(mean_of(codes, index), mean) and np.array_equal(distances_to(mean, codes, index), away)
    np.testing.assert_allclose(away, np.linalg.norm(codes[index].astype(np.float64) - mean, axis=1), rtol=1e-13)
