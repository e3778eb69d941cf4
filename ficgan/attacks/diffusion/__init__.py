"""The diffusion attacker of Revelio: a U-Net that takes noise away from a guess, beside the anonymised face."""

from ficgan.attacks.diffusion.fine_tune import fine_tune
from ficgan.attacks.diffusion.revelio import Revelio
from ficgan.attacks.diffusion.schedule import SCHEDULES, Schedule

__all__ = ["SCHEDULES", "Revelio", "Schedule", "fine_tune"]
