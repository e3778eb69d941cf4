"""What `ficgan-eval list` says: every name with a line."""

from __future__ import annotations

from collections.abc import Iterator

from ficgan.errors import UsageError

__all__ = ["catalogue"]


def catalogue(what: str) -> Iterator[tuple[str, str]]:
    """(name, line) of everything of a kind.

    Args:
        what: anonymizers, scenarios, metrics, attackers or configs.

    Raises:
        UsageError: another kind.
    """
    if what == "anonymizers":
        from ficgan.anonymizers import ANONYMIZERS

        for name in ANONYMIZERS:
            cls = ANONYMIZERS[name]
            marks: list[str] = [cls.traits.family]
            marks += ["keyed"] if cls.traits.keyed else []
            marks += ["stochastic"] if cls.traits.stochastic else []
            marks += [f"needs {', '.join(sorted(cls.traits.needs))}"] if cls.traits.needs else []
            shown = [field for field, limits in cls.parameters() if not limits["secret"]]
            told = ", ".join(f"{field.name}={field.default}" for field in shown)
            yield name, f"{cls.traits.title} ({'; '.join(marks)}){f' [{told}]' if told else ''}"
    elif what == "attackers":
        from ficgan.lab.attacks import REVERSERS

        for name in REVERSERS:
            traits = REVERSERS[name].traits
            against = ", ".join(sorted(traits.against)) or "any method"
            yield name, f"{traits.title} (against {against}; knows {', '.join(sorted(traits.knowledge)) or 'nothing'})"
    elif what == "scenarios":
        from ficgan.lab.scenarios import SCENARIOS

        for scenario in SCENARIOS.values():
            yield scenario.name, f"{scenario.title} (attacker knows {scenario.knowledge})"
    elif what == "metrics":
        from ficgan.lab.metrics.privacy import PRIVACY
        from ficgan.lab.metrics.utility import UTILITY
        from ficgan.lab.retrieving import RETRIEVAL
        from ficgan.lab.reversal import REVERSAL

        for metric in (*PRIVACY, *REVERSAL, *RETRIEVAL, *UTILITY):
            yield metric.name, f"{metric.title} ({metric.kind}; {metric.better} is better)"
    elif what == "configs":
        from ficgan import configs

        for name in configs.names("eval"):
            first = configs.read(name, "eval").splitlines()[0].removeprefix("#").strip()
            yield name, first
    else:
        raise UsageError(f"there is no list of {what}; there are anonymizers, scenarios, metrics, attackers, configs")
