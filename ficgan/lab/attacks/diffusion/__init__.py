"""The diffusion attacker of Revelio: a U-Net that takes noise away from a guess, beside the anonymised face."""

from ficgan.lab.attacks.diffusion.fine_tune import fine_tune
from ficgan.lab.attacks.diffusion.revelio import Revelio
from ficgan.lab.attacks.diffusion.schedule import SCHEDULES, Schedule

__all__ = ["SCHEDULES", "Revelio", "Schedule", "fine_tune"]
