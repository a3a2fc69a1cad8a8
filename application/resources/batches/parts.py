"""The parts and the limits that all batches of a server share."""

from __future__ import annotations

from msgspec import Struct

from antiphon.application.ports import AnswerRequest, Batches, Clock, FileStore, NewId
from antiphon.application.resources.batches.output_files import WriteFile
from antiphon.application.support.fair_queue import FairQueue

MAX_EXTEND_EVERY_S = 2.0
"""Seconds between two extensions of a claim, which also find out that a batch was cancelled."""

EXTENSIONS = 4
"""Of a claim, before it would end."""


class WorkLimits(Struct, frozen=True, kw_only=True):
    """`line_bytes` limits a line of the input, `file_bytes` the output file.

    `lines` of a batch are in work at a time, those that wait to be sent again included. `claim_s`:
    the seconds after which another server goes on with the batch of one that was killed.
    """

    line_bytes: int
    file_bytes: int
    lines: int = 16
    claim_s: float = 20.0

    @property
    def extend_every_s(self) -> float:
        return min(MAX_EXTEND_EVERY_S, self.claim_s / EXTENSIONS)


class BatchParts(Struct, frozen=True, kw_only=True):
    """The parts that all batches of a server share; `slots` are those of the lines that run."""

    batches: Batches
    files: FileStore
    answer: AnswerRequest
    write_file: WriteFile
    slots: FairQueue
    limits: WorkLimits
    new_id: NewId
    now: Clock
