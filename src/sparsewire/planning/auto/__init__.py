"""Dense or compressed, and how: measured, predicted and chosen while a training runs."""

from .pilot import Pilot
from .samples import Sample
from .settings import Auto, Steered, Wheel, read_auto
from .times import Times
from .trial import measure_codecs, measure_link, probe, survey

__all__ = [
    "Auto", "Pilot", "Sample", "Steered", "Times", "Wheel", "measure_codecs", "measure_link", "probe", "read_auto",
    "survey",
]  # fmt: skip
