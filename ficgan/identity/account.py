"""What an audit may honestly say about the identities of a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ficgan.errors import UsageError

from .ksame import CAP_PERCENTILE, commitment
from .mixing import k_same_layers

if TYPE_CHECKING:
    from .bank import IdentityBank

TARGETS = ("bank", "exemplar", "swap")


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
    target: str = "bank",
) -> dict[str, Any]:
    """State, ready for JSON, what was drawn, which layers carry it, and what k does not cover.

    Args:
        bank: the bank drawn from.
        k: people averaged per face.
        psi: ψ of the draws, one or all that occurred.
        num_layers: L of the checkpoint.
        seed: of the draws; only its commitment is stated.
        alpha: share of the exemplar in eq. 5, None without one.
        layer, band: as of `mix_layers`.
        attributes: group drawn from.
        directions: attribute directions added, such as "Female=0.7".
        target: where the new identity comes from: "bank", "exemplar" (eq. 5) or "swap" (w_t itself).

    Returns:
        A dictionary.

    Raises:
        UsageError: layers out of range or an unknown target.
    """
    if target not in TARGETS:
        raise UsageError(f"audit: unknown target {target!r}; use one of {', '.join(TARGETS)}")
    first, last = k_same_layers(num_layers, layer, band)
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
        "layers": {
            "total": num_layers,
            "k_same": [] if swap else new,
            "exemplar": new if swap else [],
            "source": source,
        },
        "bank": {
            "people": len(bank),
            "k_counts": "pictures" if _only_pictures(bank) else "people",
            "eligible": bank.eligible(attributes),
            "digest": bank.digest,
            "digest_verified": bank.verified,
            "provenance": bank.provenance,
        },
        "seed_commitment": commitment(seed, bank.digest),
        "not_covered": _statement(new, source, target, alpha) + ("" if swap else _counted(bank)),
    }


def _statement(new: list[int], source: list[int], target: str, alpha: float | None) -> str:
    kept = f"the spatial code z_non and style layers {_span(source)}" if source else "the spatial code z_non"
    verb = "come" if source else "comes"
    sentences = []
    if target == "swap":
        sentences.append(
            f"Style layers {_span(new)} carry one person's code, the user's exemplar: this is no k-anonymity."
        )
    elif target == "exemplar" and alpha:
        sentences.append(
            f"Style layers {_span(new)} carry a k-same code moved by alpha = {alpha:g} towards one person, the user's "
            "exemplar: k does not protect that person."
        )
    else:
        sentences.append(f"Style layers {_span(new)} carry a k-same code, which holds nothing of the source.")
    sentences.append(f"Not covered by k: {kept} {verb} from the source and can leak its identity.")
    return " ".join(sentences)


def _only_pictures(bank: IdentityBank) -> bool:
    return bank.provenance.get("identities_known") is False


def _counted(bank: IdentityBank) -> str:
    """What k counts, where that is not people."""
    if _only_pictures(bank):
        return " k counts pictures, not people: the bank was built without identities."
    unknown = bank.provenance.get("images_of_unknown_people")
    if unknown:
        return f" k counts people, but {unknown} pictures of unknown people as a person each."
    return ""


def _span(layers: list[int]) -> str:
    """[1, 2, 3, 7] → "1-3, 7"."""
    runs: list[list[int]] = []
    for n in layers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
