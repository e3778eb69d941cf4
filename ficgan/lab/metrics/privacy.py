"""All privacy metrics of one score matrix."""

from __future__ import annotations

from collections.abc import Sequence

from ficgan.lab.results import Figure

from . import identification as ident
from . import verification as verif
from .identification import FAILURES, chance, cmc
from .info import Metric
from .intervals import Bootstrap
from .linkability import linkability
from .reversibility import reversibility
from .scores import Scores
from .verification import det, roc

__all__ = ["FARS", "KS", "PRIVACY", "chance", "privacy_curves", "privacy_figures", "reversibility"]

KS = (1, 5, 10)
FARS = (1e-1, 1e-2, 1e-3, 1e-4)


def privacy_figures(
    scores: Scores,
    *,
    threshold: float | None,
    seed: int = 0,
    resamples: int = 1000,
    ks: Sequence[int] = KS,
    fars: Sequence[float] = FARS,
) -> tuple[Figure, ...]:
    """Every metric of `PRIVACY` that one score matrix has, in that order; only `reversibility` needs three.

    Args:
        threshold: the recogniser's own, as a similarity (`similarity_threshold`); None: the figures that need it have
            no value.
        seed, resamples: of the bootstrap over identities.
        ks: ranks; those above the number of enrolled people are left out.
        fars: false accept rates.
    """
    bootstrap = Bootstrap(resamples, seed)
    ranks = [k for k in ks if k <= max(1, scores.enrolled)]
    both = (False, True)
    return (
        *(ident.rank(scores, k, failures=failures, bootstrap=bootstrap) for failures in both for k in ranks),
        ident.rank_per_probe(scores, bootstrap=bootstrap),
        ident.people_found(scores, bootstrap=bootstrap),
        verif.auc(scores, bootstrap=bootstrap),
        verif.leak(scores, bootstrap=bootstrap),
        verif.eer(scores, bootstrap=bootstrap),
        *(verif.tar_at_far(scores, far, failures=failures, bootstrap=bootstrap) for failures in both for far in fars),
        verif.genuine_similarity(scores, bootstrap=bootstrap),
        verif.match_rate(scores, threshold, bootstrap=bootstrap),
        verif.match_rate(scores, threshold, failures=True, bootstrap=bootstrap),
        verif.false_match_rate(scores, threshold, bootstrap=bootstrap),
        linkability(scores, bootstrap=bootstrap),
        ident.singling_out(scores, threshold, bootstrap=bootstrap),
        ident.singling_out(scores, threshold, anyone=True, bootstrap=bootstrap),
        ident.identification(scores, threshold, bootstrap=bootstrap),
        ident.false_identification(scores, threshold, bootstrap=bootstrap),
        ident.failures_to_acquire(scores, bootstrap=bootstrap),
    )


def privacy_curves(scores: Scores) -> dict[str, list[list[float]]]:
    """ "cmc", "roc" and "det" as lists of [x, y], at most 200 each, x rising; empty without genuine scores."""
    return {"cmc": cmc(scores), "roc": roc(scores), "det": det(scores)}


_FANTOMAS = "Todt et al., Fantômas (2024), §7"
_ISO = "ISO/IEC 19795-1:2021"
_WP216 = "WP216 (2014), §2.2"
_BOTH = (("", "", ""), (FAILURES, ", unfound faces count as misses", ", unfound faces count as rejected"))


def _lower(name: str, title: str, source: str = "") -> Metric:
    return Metric(name, title, "privacy", "low", source)


def _near(name: str, title: str, source: str) -> Metric:
    return Metric(name, title, "privacy", "near", source)


PRIVACY: tuple[Metric, ...] = (
    *(
        _lower(f"rank-{k}{suffix}", f"mean over identities: right person among the {k} most similar{missed}", _FANTOMAS)
        for suffix, missed, _ in _BOTH
        for k in KS
    ),
    _lower("rank-1 (per probe)", "share of probes whose most similar person is the right one", _ISO),
    _lower("people found", "share of people of whom at least one probe ranks first"),
    _near("AUC", "area under the ROC; ½ is chance, less leaks as well", "Hanley and McNeil (1982)"),
    _lower("leak", "2·|AUC − ½|"),
    _near("EER", "equal error rate; ½ is chance", _ISO),
    *(
        _lower(f"TAR@FAR={far:g}{suffix}", f"genuine pairs accepted where {far:g} of strangers are{rejected}", _ISO)
        for suffix, _, rejected in _BOTH
        for far in FARS
    ),
    _lower("ID cosine", "mean cosine of genuine pairs", "FICGAN, Table 1"),
    Metric("ID distance", "mean Euclidean distance of genuine pairs", "privacy", "high", "FICGAN, Table 1"),
    _lower("match rate", "genuine pairs above the recogniser's own threshold", _ISO),
    _lower(f"match rate{FAILURES}", "the same, unfound faces count as misses", _ISO),
    _near("false match rate", "strangers above the same threshold: what the match rate is worth", _ISO),
    _lower("D_sys", "linkability: how surely a score tells one person's images", "Gomez-Barrero et al. (2018)"),
    _lower("singling-out", "probes that match exactly one enrolled person, the right one", _WP216),
    _lower("singling-out (anyone)", "probes that match exactly one enrolled person, right or wrong", _WP216),
    _lower("TPIR", "open set: probes that rank first and above the threshold", _ISO),
    _lower("FPIR", "open set: probes of people not enrolled that match somebody", _ISO),
    _near("failures to acquire", "probes without a found face: no privacy, another detector may find it", _ISO),
    _lower("reversibility", "(acc_deanon − acc_naive) / acc_clear", _FANTOMAS),
)
"""The privacy metrics, in the order in which `privacy_figures` gives them; `reversibility` last."""
