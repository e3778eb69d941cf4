"""The bank of identity codes that k-same draws from: one code per person, with a table of attributes."""

from __future__ import annotations

import difflib
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ficgan.arrays import read_arrays, write_arrays
from ficgan.errors import FicganError, UsageError
from ficgan.identity import ksame
from ficgan.identity.kind import ETHNICITIES, GENDERS, Kind, KindCodes, KindGroup, Showing, cells_of
from ficgan.identity.ksame import CAP_PERCENTILE, KSameCode, exemplar, mean_of, mix_layers, parse_band

__all__ = ["IdentityBank", "KSameCode", "audit", "exemplar", "mix_layers", "parse_band", "parse_direction"]


SCHEMA = 3  # version of the file layout: 1 holds codes in 16 bits, 2 in 8, 3 in either and `Showing`
GROUPS = 32  # attribute groups remembered at once
# Numbers of a bank that is kept as float32 (32 MiB): half of a draw's time would go into widening them.
_SMALL = 1 << 23
# Pictures from which on a person may be a chain of look-alikes, and the share of them that must agree on who it is.
_CHAIN, _AGREE = 20, 0.7


@dataclass(frozen=True, eq=False)
class IdentityBank:
    """Identity codes of N different people; its digest goes into the key of every draw and into every audit.

    Args:
        codes: float16 [N,D], the intermediate latent w of each person.
        attributes: uint8 [N,A], 1 where a person has the attribute.
        provenance: where the codes come from (JSON): `checkpoint` digest, `data` name and licence, counts of images.
        showing: how new faces of a kind show it; None where nobody has looked.
    """

    codes: NDArray[np.float16]
    attributes: NDArray[np.uint8]
    names: tuple[str, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)
    showing: Showing | None = None
    _groups: dict[str, _DrawGroup] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        codes, table, wanted = self.codes, self.attributes, (len(self.codes), len(self.names))
        if codes.dtype != np.float16 or codes.ndim != 2 or not codes.size:
            raise UsageError(f"bank codes are {codes.dtype} {list(codes.shape)}; they must be float16 [N,D]")
        if table.dtype != np.uint8 or table.shape != wanted:
            raise UsageError(f"attributes are {table.dtype} {list(table.shape)}; they must be uint8 {list(wanted)}")
        if len({fold(name) for name in self.names}) < len(self.names):
            raise UsageError("two attributes of the bank have the same name; upper and lower case do not count")
        if not np.isfinite(self.codes).all():
            raise UsageError("bank codes are not finite; check the checkpoint they were made with")

    def __len__(self) -> int:
        return len(self.codes)

    @cached_property
    def _at_hand(self) -> NDArray[np.floating]:
        return self.codes.astype(np.float32) if self.codes.size <= _SMALL else self.codes

    @cached_property
    def digest(self) -> str:
        """sha256, hexadecimal, over shapes, codes, attributes, names and `showing`; provenance is no part of it."""
        state = hashlib.sha256(repr((self.codes.shape, self.names)).encode())
        state.update(np.ascontiguousarray(self.codes, "<f2").data)
        state.update(np.ascontiguousarray(self.attributes).data)
        for array in {} if self.showing is None else vars(self.showing).values():
            state.update(np.ascontiguousarray(array, "<f4").data)
        return state.hexdigest()

    @cached_property
    def counts(self) -> dict[str, int]:
        return dict(zip(self.names, self.attributes.sum(0, dtype=np.int64).tolist(), strict=True))

    @classmethod
    def from_codes(
        cls,
        codes: NDArray[np.floating],
        people: ArrayLike | None,
        attributes: ArrayLike | None = None,
        names: Sequence[str] = (),
        provenance: Mapping[str, Any] | None = None,
        *,
        columns: Sequence[str] = (),
    ) -> IdentityBank:
        """Average the codes [M,D] of every person's images, so that k counts people and not pictures.

        Args:
            people: [M] who is in the image: numbers or strings. A negative number or "" is somebody unknown, who counts
                as a person of their own; None: all are unknown. Known people come first, in ascending order.
            attributes: [M,A], not 0 where an image shows the attribute; see `majority`.
            columns: A names, alike for attributes that exclude each other, such as Female and Male.
        """
        who = np.full(len(codes), -1) if people is None else np.asarray(people)
        table = np.zeros((len(codes), 0), np.uint8) if attributes is None else np.asarray(attributes)
        if codes.ndim != 2 or not codes.size or not len(codes) == len(who) == len(table) or table.ndim != 2:
            shapes = f"codes {list(codes.shape)}, people [{len(who)}] and attributes {list(table.shape)}"
            raise UsageError(f"{shapes} do not belong together; give one row each per image")
        if columns and len(columns) != table.shape[1]:
            raise UsageError(f"{len(columns)} columns were named for {table.shape[1]} attributes; name one for each")
        chained = _chains(_owners(who)[0], table, names)
        codes, table = codes[~chained], table[~chained]
        owner, unknown = _owners(who[~chained])
        pictures = np.bincount(owner)
        record = {
            **(provenance or {}),
            **({"images_of_chains": int(chained.sum())} if chained.any() else {}),
            "images": len(codes),
            "people": len(pictures),
            "images_per_person": [int(pictures.min()), int(pictures.max())],
            "identities_known": unknown < len(codes),
            "images_of_unknown_people": unknown,
        }
        starts = np.cumsum(pictures) - pictures
        total = np.add.reduceat(codes[np.argsort(owner, kind="stable")], starts, axis=0, dtype=np.float64)
        means = total / pictures[:, None]
        if not np.abs(means).max() <= np.finfo(np.float16).max:  # also false for NaN
            raise UsageError("some codes are not finite or too large for float16; check the checkpoint that made them")
        return cls(means.astype(np.float16), majority(table, owner, len(pictures), columns), tuple(names), record)

    def save(self, path: str | Path, *, small: bool = False) -> IdentityBank:
        """Write the bank as safetensors with a JSON header, whole or not at all; returns it as the file has it.

        `small` keeps codes in 8 bits, each number in 255 equal steps of its range over all people; the digest is then
        another one.
        """
        bank, arrays = self, dict[str, NDArray[Any]](codes=self.codes, attributes=self.attributes)
        if small:
            low = self.codes.min(0).astype(np.float32)
            step = np.maximum((self.codes.max(0).astype(np.float32) - low) / 255, 1e-12)
            arrays["scale"] = np.stack([low, step])
            arrays["codes"] = np.rint((self.codes.astype(np.float32) - low) / step).astype(np.uint8)
            bank = replace(self, codes=_whole(arrays["codes"], arrays["scale"]))
        arrays |= {} if self.showing is None else vars(self.showing)
        version = 3 if self.showing else 2 if small else 1
        header = {"schema_version": version, "names": list(self.names), "digest": bank.digest}
        write_arrays(path, arrays, {**header, "provenance": self.provenance}, kind="bank")
        return bank

    @classmethod
    def load(cls, path: str | Path) -> IdentityBank:
        """Read a bank, and refuse codes that do not have the digest which the file states."""
        arrays, header = read_arrays(path, kind="bank")
        try:
            version, showing = header.get("schema_version"), None
            if not isinstance(version, int) or version > SCHEMA:
                raise FicganError(f"{path} has schema {version}, this ficgan reads up to {SCHEMA}; upgrade ficgan")
            codes = arrays["codes"]
            if "scale" in arrays:
                codes = _whole(codes, arrays["scale"])
            if "reads" in arrays:
                showing = Showing(*(arrays[name] for name in ("reads", "wanted", "gains")))
                showing.check(codes.shape[-1])
            for array in (codes, arrays["attributes"]):
                array.flags.writeable = False
            bank = cls(codes, arrays["attributes"], tuple(header["names"]), dict(header["provenance"]), showing)
            if bank.digest != header["digest"]:
                raise ValueError("its codes do not have the digest that it states")
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise FicganError(f"{path} is a damaged bank ({error}); fetch or build it again") from None
        return bank

    def query(self, text: str) -> NDArray[np.int64]:
        """People of an attribute group: int64 [M], ascending indices; may be empty.

        In "Female,-White" the comma is and, a leading minus is not; case does not matter; "" is everybody.
        """
        keep = np.ones(len(self), bool)
        for index, present in self._wanted(text).items():
            keep &= (self.attributes[:, index] != 0) == present
        return np.flatnonzero(keep).astype(np.int64)

    def eligible(self, attributes: str | None) -> int:
        return len(self._group(attributes).index)

    def direction(self, name: str) -> NDArray[np.float32]:
        """Attribute direction, mean(with) − mean(without): float32 [D], computed in float64."""
        index = self._index(name)
        column = self.attributes[:, index] != 0
        with_it, without = np.flatnonzero(column), np.flatnonzero(~column)
        if not len(with_it) or not len(without):
            name, count = self.names[index], len(with_it)
            raise UsageError(f"{name} has no direction in this bank: {count} of {len(column)} people have it")
        return (mean_of(self.codes, with_it) - mean_of(self.codes, without)).astype(np.float32)

    @cached_property
    def kinds(self) -> KindCodes | None:
        """Its people by their kinds; None where the table of attributes does not know these."""
        cell = cells_of(self.attributes, self.names)
        return None if cell is None else KindCodes(self._at_hand, cell)

    def kind_within(self, kind: Kind, attributes: str | None) -> Kind:
        """A kind with what the attributes of a draw change of it."""
        return kind.within({self.names[index]: there for index, there in self._wanted(attributes or "").items()})

    def usual(self, kind: Kind) -> NDArray[Any]:
        """Code [D] that the draws of a kind have in common."""
        assert self.kinds is not None
        mean = self.kinds.mean(kind)
        return mean if self.showing is None else self.showing.moved(mean, kind)

    def k_same(self, k: int, key: str, **options: Any) -> KSameCode:
        """The draw of one key, see `k_same_of_each`."""
        return self.k_same_of_each(k, [key], **options)[0]

    def k_same_of_each(
        self,
        k: int,
        keys: Sequence[str],
        *,
        seed: int | str = 0,
        attributes: str | None = None,
        psi: float = 0.0,
        kind: Kind | None = None,
    ) -> list[KSameCode]:
        """Draw k people for each of several keys and average them: a key always gives the same face.

        ψ = 0 is the paper's mean w_m of the k. ψ > 0 restores the variance that averaging took away,
        w = w̄ + ψ·√k·(w_m − w̄), where w̄ is the mean of everybody who could have been drawn; see `restore_variance`.

        Args:
            seed: of all draws; a long one where the draws must stay secret.
            attributes: group to draw from, such as "Female,-White"; None is the whole bank.
            kind: group that the new identity belongs to; see `ficgan.identity.kind`. Where the bank holds fewer than 2k
                of them it is widened, and members of other groups are moved by attribute vectors.

        Source: FICGAN, "Manifold k-Same Algorithm" and "Controllability on Facial Attributes" (w'_m).
        """
        psi = ksame.check_psi(psi)
        group = self._group(attributes, kind, k)
        whom = attributes if kind is None else f"{attributes or 'the source'} and the kind that is kept"
        people = len(group.index)
        ksame.check_k(k, people, len(self), whom)
        draws, codes = [], []
        for key in keys:
            rng = ksame.keyed_generator(seed, self.digest, key, k, group.name)
            chosen = ksame.draw_members(people, k, rng)
            draws.append(group.index[chosen])
        for w_m, chosen in zip(ksame.means_of(self._at_hand, draws), draws, strict=True):
            if group.of_kind is not None:
                w_m = w_m + group.of_kind.moved(chosen)
            centre, cap = group.spread if psi > 0 else (w_m, math.inf)
            codes.append(ksame.restore_variance(w_m, centre, k, psi, cap, people))
        if kind is not None and self.showing is not None:
            codes = [*self.showing.moved(np.stack(codes), self.kind_within(kind, attributes))]
        promise, record = ksame.commitment(seed, self.digest), None if group.of_kind is None else group.of_kind.record
        return [
            KSameCode(w, int(k), psi, promise, ksame.members_digest(self.digest, chosen), attributes or None, record)
            for w, chosen in zip(codes, draws, strict=True)
        ]

    def _group(self, attributes: str | None, kind: Kind | None = None, k: int = 0) -> _DrawGroup:
        """People with these attributes; with a kind those of it, or of the least widened one that holds 2k of them."""
        wanted, of_kind = self._wanted(attributes or ""), None
        name = ",".join(sorted(("" if present else "-") + self.names[i] for i, present in wanted.items()))
        if kind is not None:
            kind = self.kind_within(kind, attributes)
            name = f"{name}|{kind.name}|{k}"
        if name not in self._groups:
            index = self.query(attributes or "")
            if kind is not None:
                if self.kinds is None:
                    raise UsageError("this bank does not know its people's ethnic group, gender and age: keep no kind")
                of_kind = self.kinds.group(kind, 2 * k, index)
                index = of_kind.index
            for oldest in list(self._groups)[: 1 - GROUPS]:
                self._groups.pop(oldest, None)
            self._groups[name] = _DrawGroup(name, index, self._at_hand, of_kind)
        return self._groups[name]

    def _index(self, name: str) -> int:
        known = {fold(n): i for i, n in enumerate(self.names)}
        if fold(name) in known:
            return known[fold(name)]
        if not self.names:
            raise UsageError(f"attribute {name!r}: this bank has no attribute table; build one with labels")
        near = difflib.get_close_matches(fold(name), known, n=1, cutoff=0.6)
        guess = f"did you mean {self.names[known[near[0]]]}? This" if near else "this"
        listed = ", ".join(f"{n} ({number})" for n, number in self.counts.items())
        raise UsageError(f"unknown attribute {name!r}; {guess} bank has {listed}")

    def _wanted(self, text: str) -> dict[int, bool]:
        wanted: dict[int, bool] = {}
        for item in map(str.strip, text.split(",") if text.strip() else ()):
            present, name = not item.startswith("-"), item.removeprefix("-")
            if not name.strip():
                raise UsageError(f"attributes {text!r} has an empty name; write for example Female,-White")
            index = self._index(name)
            if wanted.setdefault(index, present) != present:
                raise UsageError(f"attributes {text!r} wants {self.names[index]} both there and not there")
        return wanted


@dataclass(frozen=True, eq=False)
class _DrawGroup:
    """People to draw from; `of_kind` are those of a kind, moved to it."""

    name: str
    index: NDArray[np.int64]
    codes: NDArray[np.floating]
    of_kind: KindGroup | None = None

    @cached_property
    def spread(self) -> tuple[NDArray[np.float64], float]:
        """Centre w̄ [D] and the distance from it within which CAP_PERCENTILE per cent of the group lie."""
        if self.of_kind is not None:
            return self.of_kind.spread
        centre = mean_of(self.codes, self.index)
        return centre, float(np.percentile(ksame.distances_to(centre, self.codes, self.index), CAP_PERCENTILE))


def fold(name: str) -> str:
    return name.strip().casefold().replace(" ", "_")


def parse_direction(text: str) -> tuple[str, float]:
    """Read "Female=0.7": an attribute and how far to go, in distances of the means with and without it."""
    name, equals, amount = text.partition("=")
    try:
        value = float(amount)
    except ValueError:
        value = math.nan
    if not equals or not name.strip() or not math.isfinite(value):
        raise UsageError(f"attribute direction {text!r} cannot be read; write a name and a number, such as Female=0.7")
    return name.strip(), value


def _whole(codes: NDArray[np.uint8], scale: NDArray[np.float32]) -> NDArray[np.float16]:
    if codes.ndim != 2 or not codes.size or scale.shape != (2, codes.shape[1]):
        raise ValueError(f"its codes {list(codes.shape)} and scale {list(scale.shape)} do not fit")
    with np.errstate(over="ignore", invalid="ignore"):  # a damaged scale; the bank refuses what is not finite
        return (codes * scale[1] + scale[0]).astype(np.float16)


def _owners(who: NDArray[Any]) -> tuple[NDArray[np.int64], int]:
    unknown = who < 0 if np.issubdtype(who.dtype, np.number) else who == ""
    owner = np.empty(len(who), np.int64)
    known, owner[~unknown] = np.unique(who[~unknown], return_inverse=True)
    owner[unknown] = len(known) + np.arange(unknown.sum())
    return owner, int(unknown.sum())


def _chains(owner: NDArray[np.int64], table: NDArray[Any], names: Sequence[str]) -> NDArray[np.bool_]:
    """Images [M] of people whose pictures disagree about ethnic group or gender: a recogniser joined look-alikes."""
    odd = np.zeros(owner.max() + 1, bool)
    pictures = np.bincount(owner)
    for group in (ETHNICITIES, GENDERS):
        index = [names.index(name) for name in group if name in names]
        if len(index) == len(group):
            shown = np.stack([np.bincount(owner[table[:, i] != 0], minlength=len(odd)) for i in index], 1)
            odd |= (pictures >= _CHAIN) & (shown.max(1) < _AGREE * pictures)
    return np.asarray(odd[owner])


def majority(
    values: NDArray[np.uint8], owner: NDArray[np.int64], people: int, columns: Sequence[str] = ()
) -> NDArray[np.uint8]:
    """Attributes uint8 [N,A] of N people from those of M images [M,A]; `owner` [M] says whose each image is.

    A person has an attribute that more than half of the images show. Of attributes of one column (Female and Male, the
    ages), a person has the one that most images show, and none where two are level.
    """
    pictures = np.bincount(owner, minlength=people)[:, None]
    shown = np.zeros((people, values.shape[1]), np.int64)
    np.add.at(shown, owner, values != 0)
    has = 2 * shown > pictures
    column_of = np.array(columns or range(values.shape[1]))
    for column in np.unique(column_of):
        group = np.flatnonzero(column_of == column)
        if len(group) > 1:
            most = shown[:, group].max(1, keepdims=True)
            ours = (shown[:, group] == most) & (most > 0)
            has[:, group] = ours & (ours.sum(1, keepdims=True) == 1)
    return has.astype(np.uint8)


def audit(
    bank: IdentityBank,
    *,
    k: int,
    psi: float | Sequence[float],
    num_layers: int,
    seed: int | str,
    alpha: float | None = None,
    layer: int | None = None,
    band: tuple[int, int] | None = None,
    attributes: str | None = None,
    directions: Sequence[str] = (),
    target: Literal["bank", "exemplar", "swap"] = "bank",
    kept: Sequence[str] = (),
) -> dict[str, Any]:
    """State, ready for JSON, what was drawn, which layers carry it, and what k does not cover.

    Args:
        psi: ψ of the draws, one or all that occurred.
        seed: of the draws; only its commitment is stated.
        alpha: share of the exemplar in eq. 5, None without one.
        layer, band: as of `mix_layers`.
        kept: parts of the source's kind that the new identity has, too; which kind it is stands nowhere.
        target: where the new identity comes from: "bank", "exemplar" (eq. 5) or "swap" (w_t itself).
    """
    first, last = ksame.k_same_layers(num_layers, layer, band)
    new = list(range(first, last + 1))
    source = [n for n in range(1, num_layers + 1) if n not in new]
    swap = target == "swap"
    return {
        "k": None if swap else k,
        "psi": None if swap else psi if isinstance(psi, int | float) else list(psi),
        "psi_cap_percentile": CAP_PERCENTILE,
        "alpha": alpha if target == "exemplar" else None,
        "w_t": None if target == "bank" else "an image supplied by the user, not a member of the bank",
        "target": target,
        "attributes": attributes or None,
        "directions": list(directions),
        "keep_kind": list(kept),
        "layers": {
            "total": num_layers,
            "k_same": [] if swap else new,
            "exemplar": new if swap else [],
            "source": source,
        },
        "bank": {
            "people": len(bank),
            "k_counts": "pictures" if bank.provenance.get("identities_known") is False else "people",
            "eligible": bank.eligible(attributes),
            "digest": bank.digest,
            "digest_verified": True,  # a bank is checked when it is opened
            "provenance": bank.provenance,
        },
        "seed_commitment": ksame.commitment(seed, bank.digest),
        "not_covered": _statement(bank, new, source, target, alpha),
    }


def _statement(bank: IdentityBank, new: list[int], source: list[int], target: str, alpha: float | None) -> str:
    carried, counted = "a k-same code, which holds nothing of the source", ""
    if target == "swap":
        carried = "one person's code, the user's exemplar: this is no k-anonymity"
    elif target == "exemplar" and alpha:
        carried = f"a k-same code moved by alpha = {alpha:g} towards one person, the user's exemplar: k does not "
        carried += "protect that person"
    if target != "swap" and bank.provenance.get("identities_known") is False:
        counted = " k counts pictures, not people: the bank was built without identities."
    elif target != "swap" and (unknown := bank.provenance.get("images_of_unknown_people")):
        counted = f" k counts people, but {unknown} pictures of unknown people as a person each."
    kept = f"the spatial code z_non and style layers {_span(source)} come" if source else "the spatial code z_non comes"
    layers = f"Style layers {_span(new)} carry {carried}."
    return f"{layers} Not covered by k: {kept} from the source and can leak its identity.{counted}"


def _span(layers: list[int]) -> str:
    """[1, 2, 3, 7] → "1-3, 7"."""
    starts = [n for n in layers if n - 1 not in layers]
    ends = [n for n in layers if n + 1 not in layers]
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))
