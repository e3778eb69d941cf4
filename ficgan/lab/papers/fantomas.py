"""Fantômas (Todt et al. 2024), experiments E1–E3: the matrix, and the table of what was reversed beside the claim."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ficgan.errors import UsageError
from ficgan.lab.matrix_config import MatrixConfig, MethodConfig
from ficgan.lab.papers.preset import with_data
from ficgan.lab.papers.published import (
    FANTOMAS_BY_ENROLMENT,
    FANTOMAS_CLAIMS,
    FANTOMAS_PARAMETERS,
    FANTOMAS_SPLIT,
)
from ficgan.lab.papers.reversible import RULE, Verdict, verdicts
from ficgan.lab.report.tables import spelled
from ficgan.lab.results import Results
from ficgan.registry import parse_spec

__all__ = ["fantomas_caveats", "fantomas_matrix", "fantomas_tables"]

PRESETS = {"fantomas": 224, "fantomas64": 64, "fantomas-full": 224}
"""Configuration → the side that its parameters in pixels are meant for."""
CONTROL = "Block Permutation"
# Parameters in pixels of 224, and the power of the side that they go with: DP-Pix's m counts pixels of an area, so that
# its noise, 255·m/(b²·ε), stays what it is.
_PIXELS = {
    "block-permutation": {"block": 1}, "pixel-relocation": {"steps": 1}, "k-rtio": {"block": 1},
    "dp-pix": {"block": 1, "m": 2},
}  # fmt: skip


def fantomas_matrix(
    data: Path | str,
    *,
    preset: str = "fantomas",
    people: int | None = None,
    size: int | None = None,
    only: Sequence[str] = (),
    extra: Sequence[str] = (),
    judges: Sequence[str] = ("dlib",),
    general: Sequence[str] = (),
    **more: Any,
) -> MatrixConfig:
    """The protocol on a face set: 200 + 4,500 + 300 people, 224 px, parameters of Table 3 as the program has them.

    Args:
        data: of faces with identities, several images of each; CelebA in the paper.
        preset: "fantomas" (linear attackers), "fantomas64" or "fantomas-full" (the learned ones, too).
        people: fewer in all; the split shrinks with them, see `scaled`.
        size: another side of the crops; parameters in pixels shrink with it.
        only: labels or names of the methods to run; block permutation, the positive control, is always run.
        extra: further methods as LABEL=NAME:PARAMETER=VALUE,…: Fawkes, DeepPrivacy and CIAGAN need something of their
            own, such as "Fawkes=fawkes:verifier=onnx:PATH" or "CIAGAN=external:folder=PATH".
        judges: recognisers; Facenet, VGG-Face2 and ArcFace in the paper.
        general: reversers that know nothing of the method; none: the preset's.
        more: as of `with_data`.

    Raises:
        UsageError: an unknown method, a value that cannot work, or a judge that a cloak was made against.
    """
    if preset not in PRESETS:
        raise UsageError(f"there is no configuration {preset!r} of this paper; there are {', '.join(PRESETS)}")
    config = with_data(preset, data, people=people, size=size, judges=judges, general=list(general) or None, **more)
    side = config.sets[0].size
    known = [_sized(method, side, PRESETS[preset]) for method in config.methods]
    chosen = _chosen([*known, *map(_extra, extra)], only)
    for method in chosen:
        method.make()
        against = set(str(method.parameters.get("verifier", "")).split("+"))
        if shared := sorted(against & set(config.recognisers)):
            raise UsageError(
                f"{method.title} is made against {shared[0]}, which cannot judge it too; take another judge"
            )
    try:
        return MatrixConfig.model_validate(
            {**config.model_dump(), "methods": [method.model_dump() for method in chosen]}
        )
    except ValueError as error:  # two of one label
        raise UsageError(f"{error.errors()[0]['msg'] if hasattr(error, 'errors') else error}") from None


def fantomas_tables(results: Results) -> list[dict[str, Any]]:
    """Tables for a page: what was reversed beside the paper's claim, and the parameters of Table 3 beside ours.

    Args:
        results: of `fantomas_matrix`, run.
    """
    found = verdicts(results)
    rows = [
        {
            "set": one.set, "method": one.method, "judge": one.judge, "clear": spelled(one.clear),
            "naive": spelled(one.naive), "parrot": spelled(one.parrot), "best reversal": spelled(one.best),
            "attacker": one.attacker,
            "reversibility, paired": spelled(one.gain), "reversible?": _word(one.reversible, one.why),
            "background known": spelled(one.known), "reversible then?": _word(one.reversible_known, one.why, none="–"),
            "paper": _claim(one.method), "paper says": _said(one.method),
        }
        for one in found
    ]  # fmt: skip
    claims = {
        "title": "Reversible? (Fantômas, Figures 7 and 14)",
        "note": f"rank-1, mean over people, with 95 % intervals. {RULE} “Reversibility, paired” is (best − naive) / "
        "clear over the same people: where its whole interval is above 0 there is a gain, though the stricter rule may "
        "say no. The paper prints no accuracy by method; its plots are not read off here. Its own reversers (an "
        "auto-encoder and Pix2Pix) were trained on 4,500 people.",
        "rows": rows,
    }
    parameters = {
        "title": "Parameters (Fantômas, Table 3)",
        "note": f"At another size than {FANTOMAS_SPLIT['size']} px, parameters in pixels are scaled with it. The "
        "paper's DP Snow replaces, and the program keeps, the share δ.",
        "rows": [
            {
                "method": label,
                "here": ", ".join(f"{key} {value}" for key, value in facts["settings"].items()),
                "paper": ", ".join(f"{key} {value}" for key, value in FANTOMAS_PARAMETERS.get(label, {}).items())
                or "–",
            }
            for label, facts in results.methods.items()
        ],
    }
    return [claims, _counts(found), parameters]


def fantomas_caveats(results: Results) -> list[str]:
    """What must be read with these tables, besides the results' own caveats."""
    out = []
    missing = [label for label in FANTOMAS_CLAIMS if label not in results.methods]
    if missing:
        out.append(f"{len(missing)} of the fifteen methods were not run: {', '.join(missing)}.")
    for name, facts in results.sets.items():
        parts = facts["split"]["parts"]
        asked = [FANTOMAS_SPLIT[part] for part in ("background", "attacker", "test")]
        here = [parts[part]["people"] for part in ("background", "attacker", "probe")]
        if here != asked or facts["size"] != FANTOMAS_SPLIT["size"]:
            out.append(
                f"{name}: background, attacker and test have {here[0]}, {here[1]} and {here[2]} people at "
                f"{facts['size']} px; the paper has {asked[0]}, {asked[1]} and {asked[2]} at "
                f"{FANTOMAS_SPLIT['size']} px. An attacker with fewer faces to learn from is weaker."
            )
    if any(facts["name"] == "k-rtio" for facts in results.methods.values()):
        out.append("k-RTIO lays the background's faces over a face here; the paper takes a set of overlay images.")
    out.append(
        "Crops are aligned to five points here; the paper cuts the smallest upright square around the face. Judges are "
        f"{', '.join(sorted({trial.recogniser for trial in results.trials if trial.recogniser}))}; the paper takes the "
        "mean of Facenet, VGG-Face2 and ArcFace."
    )
    return out


def _counts(found: Sequence[Verdict]) -> dict[str, Any]:
    """How many of the fifteen are reversible, by any judge."""
    decided: dict[str, bool] = {}
    for one in found:
        if one.method in FANTOMAS_CLAIMS and one.reversible is not None:
            decided[one.method] = decided.get(one.method, False) or one.reversible
    wanted = {label: claim.reversible for label, claim in FANTOMAS_CLAIMS.items()}
    agree = sum(wanted[label] == value for label, value in decided.items())
    both = FANTOMAS_BY_ENROLMENT
    return {
        "title": "How many are reversible (Fantômas, abstract and section 11)",
        "note": "A method counts once, by any judge. The paper also states, of its own reversed images and all fifteen "
        f"methods, {100 * both['clear']:.1f} % with clear and {100 * both['anonymised']:.1f} % with anonymised images "
        "enrolled (4.3).",
        "rows": [
            {"": "paper", "decided": len(wanted), "reversible": sum(wanted.values()), "agrees with the paper": "–"},
            {"": "here", "decided": len(decided), "reversible": sum(decided.values()),
             "agrees with the paper": f"{agree} of {len(decided)}"},
        ],
    }  # fmt: skip


def _sized(method: MethodConfig, size: int, of: int) -> MethodConfig:
    """The same in pixels of another crop."""
    factor = size / of
    changed = {
        key: max(1, round(method.parameters[key] * factor**power))
        for key, power in _PIXELS.get(method.method, {}).items()
    }
    return method.model_copy(update={"parameters": {**method.parameters, **changed}})


def _extra(text: str) -> MethodConfig:
    label, equals, spec = text.partition("=")
    if not (equals and label.strip() and spec.strip()) or ":" in label:
        raise UsageError(f"the method {text!r} is not of the form LABEL=NAME:PARAMETER=VALUE,…")
    name, parameters = parse_spec(spec)
    return MethodConfig.model_validate({"method": name, "label": label.strip(), "parameters": parameters})


def _chosen(methods: Sequence[MethodConfig], only: Sequence[str]) -> list[MethodConfig]:
    if not only:
        return list(methods)
    wanted = {_plain(name) for name in only}
    for name in only:
        if not any(_plain(name) in _names(method) for method in methods):
            raise UsageError(f"there is no method {name!r} here; there are {', '.join(m.title for m in methods)}")
    return [method for method in methods if wanted & _names(method) or method.label == CONTROL]


def _names(method: MethodConfig) -> set[str]:
    return {_plain(method.title), _plain(method.method)}


def _plain(text: str) -> str:
    return text.strip().lower().replace(" ", "-")


def _word(value: bool | None, why: str, none: str = "") -> str:
    if value is None:
        return none or f"undecided: {why}"
    return "yes" if value else "no"


def _claim(method: str) -> str:
    claim = FANTOMAS_CLAIMS.get(method)
    return "–" if claim is None else "reversible" if claim.reversible else "not reversible"


def _said(method: str) -> str:
    claim = FANTOMAS_CLAIMS.get(method)
    return "" if claim is None else claim.said
