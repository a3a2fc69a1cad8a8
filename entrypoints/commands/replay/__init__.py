"""Replay a bundle: play what the models wrote through today's code, and compare."""

from antiphon.entrypoints.commands.replay.replay import Difference, Replay, replay
from antiphon.entrypoints.commands.replay.script import script_of

__all__ = ["Difference", "Replay", "replay", "script_of"]
