"""Replay a bundle: play what the models wrote through today's code, and compare."""

from antiphon.entrypoints.replay.replay import Difference, Replay, replay
from antiphon.entrypoints.replay.script import script_of

__all__ = ["Difference", "Replay", "replay", "script_of"]
