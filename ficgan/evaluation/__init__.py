"""Measuring what a model and a de-identification achieve."""

from ficgan.evaluation.basics import Row, measure_aligned, measure_photos

__all__ = ["Row", "measure_aligned", "measure_photos"]
