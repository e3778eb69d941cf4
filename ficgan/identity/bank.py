"""The bank of identity codes that k-same draws from: one code per person, with a table of attributes."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ficgan.errors import FicganError, InputError, UsageError
from ficgan.files import atomic_write
from ficgan.identity import ksame
from ficgan.identity.build import average_people
from ficgan.identity.kind import Kind, KindCodes, KindGroup, Showing, cells_of
from ficgan.identity.ksame import CHUNK, KSameCode, distances_to, mean_of, means_of

# Version of the file layout: 1 holds codes in 16 bits, 2 in 8, 3 in either and `Showing`.
SCHEMA = 3
# Attribute groups remembered at once; at a million codes each takes up to 8 MB.
GROUPS = 32
# Numbers of a bank that is kept as float32 (32 MiB).
_SMALL = 1 << 23
# Files up to this many bytes are read whole (some 60 ms with their digest); larger ones are mapped: of a million codes
# (1 GB) a draw needs a few MB.
IN_MEMORY = 64 * 2**20


@dataclass(frozen=True, eq=False)
class IdentityBank:
    """Identity codes of N different people.

    The digest of the bank goes into the key of every draw and into every audit. A file states its digest. `load` reads
    a small file whole and checks it; a larger one (`IN_MEMORY`) is mapped, and its digest is believed until `verify`
    (`ficgan bank show --check`) is called. `verified`, and every audit, state whether it was.

    Args:
        codes: float16 [N,D], the intermediate latent w of each person (D is 512).
        attributes: uint8 [N,A], 1 where a person has the attribute.
        names: A attribute names, different from each other.
        provenance: where the codes come from (JSON): `checkpoint` digest, `data` name and licence, counts of images.
        stated: digest that a file states of these codes, which are then not read. None: it is computed.
        showing: how new faces of a kind show it; None where nobody has looked.
    """

    codes: NDArray[np.float16]
    attributes: NDArray[np.uint8]
    names: tuple[str, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)
    stated: str | None = None
    showing: Showing | None = None
    _checked: set[str] = field(default_factory=set, init=False, repr=False)  # the digest, once it was compared
    _groups: dict[str, _DrawGroup] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.codes.dtype != np.float16 or self.codes.ndim != 2 or not self.codes.size:
            raise UsageError(f"bank codes are {self.codes.dtype} {list(self.codes.shape)}; they must be float16 [N,D]")
        if self.attributes.dtype != np.uint8 or self.attributes.shape != (len(self.codes), len(self.names)):
            shape = list(self.attributes.shape)
            raise UsageError(
                f"the attribute table is {self.attributes.dtype} {shape}; {len(self.codes)} people and "
                f"{len(self.names)} names need uint8 [{len(self.codes)},{len(self.names)}]"
            )
        if len({fold(name) for name in self.names}) < len(self.names):
            raise UsageError("two attributes of the bank have the same name; upper and lower case do not count")
        if self.stated is None and not self._finite():
            raise UsageError("bank codes are not finite; check the checkpoint they were made with")

    def __len__(self) -> int:
        return len(self.codes)

    @cached_property
    def _at_hand(self) -> NDArray[np.floating]:
        """The codes; of a small bank widened once, since half of a draw's time would go into that."""
        return self.codes.astype(np.float32) if self.codes.size <= _SMALL else self.codes

    @cached_property
    def digest(self) -> str:
        """sha256, hexadecimal, over shapes, codes, attributes, names and `showing`; provenance is no part of it."""
        return self.stated or self._computed_digest()

    @property
    def verified(self) -> bool:
        """Whether the digest was computed from these codes, and not only read."""
        return self.stated is None or self.digest in self._checked

    def verify(self) -> None:
        """Read all codes: a FicganError where one is not finite, or they do not have the stated digest."""
        self._checked.clear()  # the file may have changed since
        if not self._finite():
            raise FicganError("the bank has codes that are not finite; fetch or build it again")
        if self._computed_digest() != self.digest:
            raise FicganError("the codes of the bank do not have the digest it states; fetch or build it again")
        self._checked.add(self.digest)

    def _finite(self) -> bool:
        return all(np.isfinite(self.codes[begin : begin + CHUNK]).all() for begin in range(0, len(self), CHUNK))

    def _computed_digest(self) -> str:
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
        """Average the codes of every person's images, so that k counts people and not pictures.

        Args:
            codes: float [M,D], one per image.
            people: [M] who is in the image: numbers or strings. A negative number or "" is somebody unknown, who counts
                as a person of their own; None: all are unknown. Known people come first, in ascending order.
            attributes: [M,A], not 0 where an image shows the attribute; see `majority`.
            names: A attribute names.
            provenance: where the codes come from; the counts of images and people are added.
            columns: A names, alike for attributes that exclude each other, such as Female and Male.
        """
        means, table, record = average_people(codes, people, attributes, names, columns)
        return cls(means, table, tuple(names), {**(provenance or {}), **record})

    def save(self, path: str | Path, *, small: bool = False) -> IdentityBank:
        """Write the bank as safetensors with a JSON header, whole or not at all; it is verified before.

        Args:
            path: the file; replaced.
            small: keep codes in 8 bits, each number in 255 equal steps of its range over all people. The digest is
                then another one.

        Returns:
            The bank as the file has it.
        """
        from safetensors.numpy import save

        if not self.verified:
            self.verify()
        bank, arrays = self, dict[str, NDArray[Any]](codes=self.codes, attributes=self.attributes)
        if small:
            low = self.codes.min(0).astype(np.float32)
            step = np.maximum((self.codes.max(0).astype(np.float32) - low) / 255, 1e-12)
            arrays["scale"] = np.stack([low, step])
            arrays["codes"] = np.rint((self.codes.astype(np.float32) - low) / step).astype(np.uint8)
            bank = replace(self, codes=_whole(arrays["codes"], arrays["scale"]), stated=None)
        arrays |= {} if self.showing is None else vars(self.showing)
        version = 3 if self.showing else 2 if small else 1
        header = {"schema_version": version, "names": list(self.names), "digest": bank.digest}
        text = json.dumps({**header, "provenance": self.provenance}, sort_keys=True)
        data = save(
            {name: np.ascontiguousarray(array) for name, array in arrays.items()},
            metadata={"format": "ficgan", "kind": "bank", "header": text},
        )
        try:
            with atomic_write(path, overwrite=True) as file:
                file.write(data)
        except (InputError, OSError) as error:
            raise FicganError(str(error) if isinstance(error, InputError) else f"{path}: {error.strerror}") from None
        return bank

    @classmethod
    def load(cls, path: str | Path) -> IdentityBank:
        """Open a bank: a small file is read and its digest computed, a large one mapped and its digest believed.

        To replace a bank that may be in use, move the new file to its name, as `save` does. Overwriting it in place
        changes it under its users, and cutting it ends their process.
        """
        from safetensors import SafetensorError

        path = Path(path)
        if not path.is_file():
            raise FicganError(f"{path} does not exist or is not a file; give the path of a ficgan bank (.safetensors)")
        try:
            arrays, metadata, mapped = _read(path)
            if metadata.get("format") != "ficgan":
                raise FicganError(f"{path} was not written by ficgan; give a ficgan bank")
            if metadata.get("kind") != "bank":
                raise FicganError(f"{path} holds a ficgan {metadata.get('kind')}, not a bank; give a ficgan bank")
            header = json.loads(metadata["header"])
            version, stated, showing = header.get("schema_version"), header["digest"], None
            if not isinstance(version, int) or version > SCHEMA:
                raise FicganError(f"{path} has schema {version}, this ficgan reads up to {SCHEMA}; upgrade ficgan")
            if not re.fullmatch("[0-9a-f]{64}", stated):
                raise ValueError(f"its digest is {stated!r}")
            codes = arrays["codes"]
            if "scale" in arrays:
                codes, mapped = _whole(codes, arrays["scale"]), False
            if "reads" in arrays:
                showing = Showing(*(arrays[name] for name in ("reads", "wanted", "gains")))
                showing.check(codes.shape[-1])
            bank = cls(codes, arrays["attributes"], tuple(header["names"]), dict(header["provenance"]), stated, showing)
            if not mapped:
                bank.verify()
        except FicganError as error:
            if str(error).startswith(str(path)):
                raise
            raise FicganError(f"{path} is damaged: {error}") from None
        except (OSError, SafetensorError, KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise FicganError(f"{path} is a damaged bank ({error}); fetch or build it again") from None
        return bank

    def query(self, text: str) -> NDArray[np.int64]:
        """People of an attribute group: int64 [M], ascending indices; may be empty.

        In "Female,-White" the comma is and, a leading minus is not; case does not matter; "" is everybody.
        """
        return self._members(self._wanted(text))

    def eligible(self, attributes: str | None) -> int:
        """Number of people of an attribute group; see `query`."""
        return self._group(attributes).size

    def direction(self, name: str) -> NDArray[np.float32]:
        """Attribute direction, mean(with) − mean(without): float32 [D], computed in float64."""
        index = self._index(name)
        column = self.attributes[:, index] != 0
        with_it, without = np.flatnonzero(column), np.flatnonzero(~column)
        if not len(with_it) or not len(without):
            raise UsageError(
                f"{self.names[index]} has no direction in this bank: {len(with_it)} of {len(column)} people have it"
            )
        return (mean_of(self.codes, with_it) - mean_of(self.codes, without)).astype(np.float32)

    def k_same(
        self,
        k: int,
        key: str,
        *,
        seed: int | str = 0,
        attributes: str | None = None,
        psi: float = 0.0,
        kind: Kind | None = None,
    ) -> KSameCode:
        """Draw k people for one face and average them.

        ψ = 0 is the paper's mean w_m of the k. ψ > 0 restores the variance that averaging took away,
        w = w̄ + ψ·√k·(w_m − w̄), where w̄ is the mean of everybody who could have been drawn; see `restore_variance`.

        Args:
            k: people to average, 2 … the number of those who have the attributes.
            key: of the person, track or file; the same key gives the same face, others another one.
            seed: of all draws; a long one where the draws must stay secret.
            attributes: group to draw from, such as "Female,-White"; None is the whole bank.
            psi: ψ ≥ 0; at 1 the codes spread as real people do.
            kind: group of people that the new identity belongs to; see `ficgan.identity.kind`. Where the bank holds
                fewer than 2k of them it is widened, and members of other groups are moved by attribute vectors.

        Raises:
            UsageError: k too small or too large for the group, ψ out of range, or an unknown attribute.
            FicganError: a code drawn is not finite, which only a damaged file that was not verified can have.

        Source: FICGAN, "Manifold k-Same Algorithm" and "Controllability on Facial Attributes" (w'_m).
        """
        return self.k_same_of_each(k, [key], seed=seed, attributes=attributes, psi=psi, kind=kind)[0]

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
        """The draws of several keys, each as `k_same` makes it, in much less time than one by one."""
        psi = ksame.check_psi(psi)
        group = self._group(attributes) if kind is None else self._kind_group(attributes, kind, k)
        whom = attributes if kind is None else f"{attributes or 'the source'} and the kind that is kept"
        ksame.check_k(k, group.size, len(self), whom)
        draws = []
        for key in keys:
            rng = ksame.keyed_generator(seed, self.digest, key, k, group.name)
            chosen = ksame.draw_members(group.size, k, rng)
            draws.append(chosen if group.index is None else group.index[chosen])
        means = means_of(self._at_hand, draws)
        if not np.isfinite(means).all():
            raise FicganError("the bank is damaged: it has codes that are not finite; fetch or build it again")
        promise, found = ksame.commitment(seed, self.digest), []
        for w_m, chosen in zip(means, draws, strict=True):
            if group.of_kind is not None:
                w_m = w_m + group.of_kind.moved(chosen)
            centre, cap = group.spread if psi > 0 else (w_m, math.inf)
            w = ksame.restore_variance(w_m, centre, k, psi, cap, group.size)
            if kind is not None and self.showing is not None:
                w = self.showing.moved(w, self.kind_within(kind, attributes))
            members = ksame.members_digest(self.digest, chosen)
            record = None if group.of_kind is None else group.of_kind.record
            found.append(KSameCode(w, int(k), psi, promise, members, attributes or None, record))
        return found

    def _group(self, attributes: str | None) -> _DrawGroup:
        wanted = self._wanted(attributes or "")
        name = ",".join(sorted(("" if present else "-") + self.names[i] for i, present in wanted.items()))
        return self._kept(name, lambda: _DrawGroup(name, self._members(wanted) if wanted else None, self._at_hand))

    def _kept(self, name: str, make: Callable[[], _DrawGroup]) -> _DrawGroup:
        group = self._groups.get(name)
        if group is None:
            group = make()
            for oldest in list(self._groups)[: 1 - GROUPS]:
                self._groups.pop(oldest, None)
            self._groups[name] = group
        return group

    def _kind_group(self, attributes: str | None, kind: Kind, k: int) -> _DrawGroup:
        """The people of a kind, or of the least widened one that holds 2k of them."""
        known = self.kinds
        if known is None:
            raise UsageError("this bank does not know its people's ethnic group, gender and decade: keep no kind")
        kind = self.kind_within(kind, attributes)
        name = f"{self._group(attributes).name}|{kind.name}|{k}"

        def made() -> _DrawGroup:
            found = known.group(kind, 2 * k, self._group(attributes).index)
            return _DrawGroup(name, found.index, self._at_hand, found)

        return self._kept(name, made)

    def kind_within(self, kind: Kind, attributes: str | None) -> Kind:
        """A kind with what the attributes of a draw change of it."""
        return kind.within({self.names[index]: there for index, there in self._wanted(attributes or "").items()})

    @cached_property
    def kinds(self) -> KindCodes | None:
        """Its people by their kinds; None where the table of attributes does not know these."""
        cell = cells_of(self.attributes, self.names)
        return None if cell is None else KindCodes(self._at_hand, cell)

    def usual(self, kind: Kind) -> NDArray[Any]:
        """Code [D] that the draws of a kind have in common."""
        assert self.kinds is not None
        mean = self.kinds.mean(kind)
        return mean if self.showing is None else self.showing.moved(mean, kind)

    def _index(self, name: str) -> int:
        known = {fold(n): i for i, n in enumerate(self.names)}
        if fold(name) in known:
            return known[fold(name)]
        if not self.names:
            raise UsageError(
                f"attribute {name!r} was asked for, but this bank has no attribute table; build one with labels"
            )
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
                raise UsageError(
                    f"attributes {text!r} wants {self.names[index]} both there and not there; nobody has that"
                )
        return wanted

    def _members(self, wanted: dict[int, bool]) -> NDArray[np.int64]:
        keep = np.ones(len(self), bool)
        for index, present in wanted.items():
            keep &= (self.attributes[:, index] != 0) == present
        return np.flatnonzero(keep).astype(np.int64)


class _DrawGroup:
    """People to draw from, and how they spread; computed once per bank. `of_kind` are those of a kind, moved to it."""

    def __init__(
        self, name: str, index: NDArray[np.int64] | None, codes: NDArray[np.floating], of_kind: KindGroup | None = None
    ) -> None:
        self.name, self.index, self.codes, self.of_kind = name, index, codes, of_kind
        self.size = len(codes) if index is None else len(index)

    @cached_property
    def spread(self) -> tuple[NDArray[np.float64], float]:
        """Centre w̄ [D] and the distance from it within which CAP_PERCENTILE per cent of the group lie."""
        if self.of_kind is not None:
            return self.of_kind.spread
        centre = mean_of(self.codes, self.index)
        cap = np.percentile(distances_to(centre, self.codes, self.index), ksame.CAP_PERCENTILE)
        return centre, float(cap)


def fold(name: str) -> str:
    """The form in which attribute names are compared."""
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


def _read(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str], bool]:
    """Read-only arrays and metadata of a safetensors file, and whether the arrays are mapped."""
    from safetensors import safe_open

    with safe_open(str(path), framework="numpy") as file:  # refuses a file whose header does not fit its length
        metadata, mapped = file.metadata() or {}, path.stat().st_size > IN_MEMORY
        arrays = {} if mapped else {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if mapped:  # the library copies what it reads
        with path.open("rb") as source:
            start = 8 + int.from_bytes(source.read(8), "little")
            entries = json.loads(source.read(start - 8))
        entries.pop("__metadata__", None)
        for name, entry in entries.items():
            kind, shape = np.dtype({"F16": "<f2", "F32": "<f4", "U8": "u1"}[entry["dtype"]]), tuple(entry["shape"])
            place = start + entry["data_offsets"][0]
            arrays[name] = np.memmap(path, kind, "r", place, shape) if math.prod(shape) else np.empty(shape, kind)
    for array in arrays.values():
        array.flags.writeable = False
    return arrays, metadata, mapped


def _whole(codes: NDArray[np.uint8], scale: NDArray[np.float32]) -> NDArray[np.float16]:
    """Codes of 8 bits as float16, read-only."""
    if codes.ndim != 2 or not codes.size or scale.shape != (2, codes.shape[1]) or not np.isfinite(scale).all():
        raise ValueError(f"its codes {list(codes.shape)} and scale {list(scale.shape)} do not fit, or are not finite")
    low, step = scale
    whole = np.empty(codes.shape, np.float16)
    with np.errstate(over="ignore"):  # a damaged scale; whoever opens the bank looks for what is not finite
        for begin in range(0, len(codes), CHUNK):
            whole[begin : begin + CHUNK] = codes[begin : begin + CHUNK] * step + low
    whole.flags.writeable = False
    return whole
