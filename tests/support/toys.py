"""Registers the toy codecs, one file each: every slot that training needs can be filled from outside."""

from __future__ import annotations

from toy_exchange import SumOfAll
from toy_memory import Told
from toy_transform import Haar

import sparsewire as sw

for toy in (SumOfAll, Told, Haar):
    sw.register(toy)
