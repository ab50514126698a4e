"""What a calibration row is, and whether it is met."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

NEAR = 0.10


class Verdict(StrEnum):
    """How a simulated figure stands beside a measured one."""

    MET = "yes"
    EXPLAINED = "no: see below"  # off, and said to be so with a reason
    OFF = "NO"


@dataclass(frozen=True, slots=True)
class Row:
    """One measured figure and how to get it from the simulator.

    ``low`` and ``high`` are what operators measured (the same where they gave one number). ``counted`` says how the
    simulated figure is taken. ``reason`` tells why a row cannot be met beside the others. ``slow`` rows take seconds.
    """

    deployment: str
    figure: str
    unit: str
    low: float
    high: float
    simulate: Callable[[], float]
    counted: str
    reason: str = ""
    slow: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """A row with its simulated figure."""

    row: Row
    simulated: float

    @property
    def ratio(self) -> float:
        """Simulated over measured; over the nearer end of a range, and 1 within it."""
        if self.row.low <= self.simulated <= self.row.high:
            return 1.0
        nearest = self.row.low if self.simulated < self.row.low else self.row.high
        return self.simulated / nearest if nearest else math.inf

    @property
    def verdict(self) -> Verdict:
        """Whether it is within a tenth."""
        if abs(self.ratio - 1) <= NEAR:
            return Verdict.MET
        return Verdict.EXPLAINED if self.row.reason else Verdict.OFF
