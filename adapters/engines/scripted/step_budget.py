"""The work that may be done for what a client wrote."""

from __future__ import annotations

CHARS_OF_A_STEP = 20
"""Characters that are copied or compared in a step."""


class OutOfSteps(Exception):
    """The work takes more steps than it may."""


class StepBudget:
    """A number of steps of half a microsecond or so; whoever loops or copies pays for it first."""

    def __init__(self, count: int = 40_000) -> None:
        self._left = count

    def spend(self, count: int = 1) -> None:
        """Pay for steps. Raises: OutOfSteps."""
        self._left -= count
        if self._left < 0:
            raise OutOfSteps

    def spend_on_text(self, length: int) -> None:
        """Pay for copying or comparing that many characters. Raises: OutOfSteps."""
        self.spend(1 + length // CHARS_OF_A_STEP)
