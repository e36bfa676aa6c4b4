"""Dense or compressed, and how: measured, predicted and chosen while a training runs."""

from .controller import Controller
from .samples import Sample
from .settings import ActiveScheme, Auto, AutoSchedule, read_auto
from .step_timer import StepTimer
from .trial import measure_codecs, measure_network, probe, survey

__all__ = [
    "ActiveScheme", "Auto", "AutoSchedule", "Controller", "Sample", "StepTimer", "measure_codecs", "measure_network",
    "probe", "read_auto", "survey",
]  # fmt: skip
