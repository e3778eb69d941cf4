"""Measuring what a model and a de-identification achieve."""

from ficgan.lab.bars.bench import Row, measure_aligned, measure_photos

__all__ = ["Row", "measure_aligned", "measure_photos"]
