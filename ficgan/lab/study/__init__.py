"""What obfuscated faces cost a classifier: the task study of "A Study of Face Obfuscation in ImageNet" (Yang et al.).

`run_study` trains and evaluates the grid, compares, and fine-tunes on other tasks; `grad_cam` and `panel` show where a
network looks.
"""

from ficgan.lab.study.config import VARIANTS, StudyConfig, TransferConfig
from ficgan.lab.study.networks import grad_cam, panel
from ficgan.lab.study.run import StudyResult, run_obfuscation, run_study
from ficgan.lab.study.scenes import Scene, Scenes, open_scenes

__all__ = [
    "VARIANTS", "Scene", "Scenes", "StudyConfig", "StudyResult", "TransferConfig", "grad_cam", "open_scenes", "panel",
    "run_obfuscation", "run_study",
]  # fmt: skip
