"""From records to results: one score matrix for each attacker, method and degree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ficgan.lab.clouds.figures import Rules, trial, utility
from ficgan.lab.clouds.inverses import INVERSES, degrees_of, inverses
from ficgan.lab.clouds.lab import Lab
from ficgan.lab.clouds.labels import CLEAR, CONSTANT, SURROUNDINGS, label, parrot_of
from ficgan.lab.clouds.reading import Record, Template
from ficgan.lab.clouds.space import add_space
from ficgan.lab.metrics.intervals import Bootstrap
from ficgan.lab.metrics.scores import Scores
from ficgan.lab.results import Figure, Results, Trial
from ficgan.pointcloud.methods import CLOUD_ANONYMIZERS

if TYPE_CHECKING:
    from ficgan.lab.clouds.attack import Reversed
    from ficgan.lab.readers import Reader

__all__ = ["Collected", "collect"]


@dataclass
class Collected:
    """What was read.

    Args:
        clear: [P] of the probes' clear projections.
        gallery: recogniser → [G,D].
        gallery_lost: gallery images in which no face was found.
        made: method → [P,degrees].
        inverted: attacker → [P,degrees that it tries], a method after its inverse.
        enrolled: method, or attacker whose inverse the gallery is read after → [G,costly degrees] of the anonymised
            gallery; empty where there are no parrots.
        around: [P] of the probes without their faces, and [G] of the gallery.
        reversed: the auto-encoder's guesses.
        space: rows whose clouds were compared in space.
    """

    clear: Record
    gallery: dict[str, NDArray[np.float32]]
    gallery_lost: int
    made: dict[str, Record]
    around: tuple[Record, Record | None]
    inverted: dict[str, Record] = field(default_factory=dict)
    enrolled: dict[str, Record] = field(default_factory=dict)
    reversed: Reversed | None = None
    space: tuple[int, ...] = ()
    template: Template | None = field(default=None)

    @classmethod
    def read(cls, lab: Lab, template: Template | None, timed: Sequence[int]) -> Collected:
        """From the store, where everything is by now."""
        clouds, config = lab.clouds, lab.config
        gallery, lost = _gallery(lab, template)
        made = {}
        for method in config.methods:
            made[method] = np.stack([lab.anonymised(row, method, template) for row in clouds.probes])
            made[method]["seconds"] = np.nan
            for place, row in enumerate(clouds.probes):
                if row in timed:
                    made[method]["seconds"][place] = lab.seconds(row, method)
        inverted = {
            attacker: np.stack([lab.inverted(row, attacker, template) for row in clouds.probes])
            for attacker in inverses(config)
        }
        enrolled: dict[str, Record] = {}
        around = [np.concatenate([lab.surroundings(row, template) for row in clouds.probes])]
        if lab.parrots:
            rows, degrees = lab.parrots, config.costly_degrees
            for method in config.methods:
                enrolled[method] = np.stack([lab.anonymised(row, method, template, degrees) for row in rows])
            for attacker in inverses(config):
                if INVERSES[attacker].alike:
                    enrolled[attacker] = np.stack([lab.inverted(row, attacker, template) for row in rows])
            around.append(np.concatenate([lab.surroundings(row, template) for row in rows]))
        clear = np.concatenate([_clear(lab, row, template) for row in clouds.probes])
        return cls(
            clear, gallery, lost, made, (around[0], around[1] if lab.parrots else None), inverted, enrolled,
            template=template,
        )  # fmt: skip


def _clear(lab: Lab, row: int, template: Template | None) -> Record:
    record = lab.clear(row)
    return record if template is None or record["found"][0] else lab.clear(row, template)


def _gallery(lab: Lab, template: Template | None) -> tuple[dict[str, NDArray[np.float32]], int]:
    if lab.clouds.photos:
        photos = [lab.photo(index) for index in range(len(lab.clouds.photos))]
    else:
        photos = [_clear(lab, row, template) for row in lab.clouds.gallery]
    found = {r.name: np.concatenate([one[f"by {r.name}"] for one in photos]) for r in lab.eyes.readers}
    return found, sum(not one["found"][0] for one in photos)


def collect(lab: Lab, found: Collected) -> Results:
    """Trials, utilities and controls of a study.

    Args:
        lab: of the study.
        found: everything that was read.
    """
    clouds, config = lab.clouds, lab.config
    results = Results(config.title, sets={clouds.name: clouds.facts()})
    bench = _Bench(lab, found)
    for reader in lab.eyes.readers:
        results.trials.append(bench.trial(reader, found.clear, CLEAR, "clear", control="ceiling"))
        results.trials.append(bench.constant(reader))
        results.trials += bench.surroundings(reader)
    degrees = sorted(config.degrees)
    for method in config.methods:
        for place, degree in enumerate(degrees):
            name, record = label(method, degree), found.made[method][:, place]
            results.methods[name] = _facts(method, degree, config.seed)
            results.trials += [bench.trial(reader, record, name, "naive") for reader in lab.eyes.readers]
            results.trials += bench.inverted(method, degree) + bench.parroted(method, degree)
            results.utilities.append(
                utility(found.clear, record, bench.people, bench.rules, name=clouds.name, method=name)
            )
    if found.reversed is not None:
        results.trials += bench.reversed(found.reversed)
        results.provenance["thesis_autoencoder"] = found.reversed.record
    if found.space:
        add_space(lab, found.space, results, bench.rules.bootstrap)
    return results


class _Bench:
    """Probes, gallery and rules of a study."""

    def __init__(self, lab: Lab, found: Collected) -> None:
        clouds, config = lab.clouds, lab.config
        self.lab, self.found = lab, found
        self.people = clouds.numbers([clouds.scans[row] for row in clouds.probes])
        self.enrolled = clouds.numbers(clouds.photos or [clouds.scans[row] for row in clouds.gallery])
        self.rules = Rules(config.iou, config.miss, Bootstrap(config.resamples, config.seed))

    def trial(
        self, reader: Reader, record: Record, method: str, scenario: str, *, attacker: str = "", control: str = "",
        probes: NDArray[np.intp] | None = None, gallery: Record | None = None,
    ) -> Trial:  # fmt: skip
        """One attacker's figures.

        Args:
            probes: places of those in `record`; None: all.
            gallery: enrolled in place of the clear one.
        """
        people = self.people if probes is None else self.people[probes]
        faces, enrolled = self.found.gallery[reader.name], self.enrolled
        if gallery is not None:  # of a cloud of which nothing could be made nothing is enrolled
            kept = gallery["made"]
            faces, enrolled = gallery[f"by {reader.name}"][kept], enrolled[kept]
        scores = Scores.compare(
            record[f"by {reader.name}"], faces, people, enrolled, metric=reader.metric, acquired=record["made"],
        )  # fmt: skip
        where = {
            "set": self.lab.clouds.name, "method": method, "scenario": scenario, "recogniser": reader.name,
            "attacker": attacker,
        }  # fmt: skip
        return trial(scores, record["found"], self.rules.bootstrap, where=where, control=control)

    def constant(self, reader: Reader) -> Trial:
        """Every probe is the same grey image: chance."""
        grey = np.full_like(self.lab.picture(self.lab.clouds.probes[0]), 127)
        one = self.lab.eyes.read([grey], template=self.found.template, perception=False)
        return self.trial(reader, np.repeat(one, len(self.people)), CONSTANT, "constant", control="negative")

    def surroundings(self, reader: Reader) -> list[Trial]:
        """What hair, neck and ears tell where the face is left out, of clear faces and among each other."""
        probes, gallery = self.found.around
        lots = [("", None)] + ([("parrot", gallery)] if gallery is not None else [])
        return [
            self.trial(
                reader, probes, SURROUNDINGS, "surroundings", attacker=name, control="surroundings", gallery=enrolled
            )
            for name, enrolled in lots
        ]

    def inverted(self, method: str, degree: int) -> list[Trial]:
        """Of whoever takes the method back first."""
        config = self.lab.config
        out: list[Trial] = []
        for attacker, back in self.found.inverted.items():
            if inverses(config)[attacker] == method and degree in degrees_of(config, attacker):
                record = back[:, degrees_of(config, attacker).index(degree)]
                out += [
                    self.trial(reader, record, label(method, degree), "inverse", attacker=attacker)
                    for reader in self.lab.eyes.readers
                ]
        return out

    def parroted(self, method: str, degree: int) -> list[Trial]:
        """Of whoever enrols anonymised faces too."""
        config = self.lab.config
        out: list[Trial] = []
        if degree not in config.costly_degrees:
            return out
        place = config.costly_degrees.index(degree)
        probes = {method: self.found.made[method][:, sorted(config.degrees).index(degree)]}
        alike = [name for name, whose in inverses(config).items() if whose == method and INVERSES[name].alike]
        probes |= {name: self.found.inverted[name][:, place] for name in alike}
        for name, record in probes.items():
            if name in self.found.enrolled and self.found.enrolled[name][:, place]["made"].sum() > 1:
                where = parrot_of("" if name == method else name)
                gallery = self.found.enrolled[name][:, place]
                out += [
                    self.trial(
                        reader, record, label(method, degree), where["scenario"], attacker=where["attacker"],
                        gallery=gallery,
                    )
                    for reader in self.lab.eyes.readers
                ]  # fmt: skip
        return out

    def reversed(self, guesses: Reversed) -> list[Trial]:
        """The auto-encoder's, on the people it did not learn from, against the whole gallery."""
        out = []
        for (method, degree), record in guesses.records.items():
            for reader in self.lab.eyes.readers:
                one = self.trial(
                    reader, record, label(method, degree), "reversed", attacker="thesis-autoencoder",
                    probes=guesses.probes,
                )  # fmt: skip
                before = self.found.made[method][guesses.probes, sorted(self.lab.config.degrees).index(degree)]["ssim"]
                likeness = (
                    Figure("ssim of the guess", float(record["ssim"].mean()), n=len(record), unit="clouds"),
                    Figure("ssim before", float(before.mean()), n=len(record), unit="clouds"),
                )
                out.append(Trial(**{**_fields(one), "figures": one.figures + likeness}))
        return out


def _fields(one: Trial) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__dataclass_fields__}


def _facts(method: str, degree: int, seed: int) -> dict[str, Any]:
    traits = CLOUD_ANONYMIZERS[method].traits
    value = traits.of_degree(degree)
    return {
        "name": method, "title": traits.title, "family": traits.family, "source": traits.source, "keyed": False,
        "stochastic": traits.stochastic, "domain": "cloud", "strength": traits.strength,
        "parameter": f"{traits.strength} = {value:.4g}",
        "settings": {"degree": degree, traits.strength: value, "seed": seed},
    }  # fmt: skip
