"""How well anonymised face point clouds hide and what they are still good for (thesis, chapters 4.2 and 5.3)."""

from ficgan.lab.clouds.report import write_cloud_report
from ficgan.lab.clouds.run import run_cloud_study
from ficgan.lab.clouds.sets import CloudSet, CloudStudyConfig, open_clouds

__all__ = ["CloudSet", "CloudStudyConfig", "open_clouds", "run_cloud_study", "write_cloud_report"]
