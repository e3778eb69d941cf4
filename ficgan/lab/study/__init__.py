"""What obfuscated faces cost a classifier: the study of "A Study of Face Obfuscation in ImageNet" (Yang et al.)."""

from ficgan.lab.study.run import StudyResult, run_obfuscation, run_study
from ficgan.lab.study.scenes import VARIANTS, Scene, Scenes, StudyConfig, TransferConfig, open_scenes

__all__ = [
    "VARIANTS", "Scene", "Scenes", "StudyConfig", "StudyResult", "TransferConfig", "open_scenes", "run_obfuscation",
    "run_study",
]  # fmt: skip
