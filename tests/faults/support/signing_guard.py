"""A guard that puts the id of its process where a word was: two servers never answer alike."""

from __future__ import annotations

import os

from antiphon.application.ports import Guard
from antiphon.domain.responses.guards import GuardQuestion, Pass, Replace, Verdict

WORD = "xyzzy"


class SigningGuard(Guard):
    places = ("output",)

    async def check(self, asked: GuardQuestion) -> Verdict:
        if WORD not in asked.text:
            return Pass()
        return Replace(asked.text.replace(WORD, f"<{os.getpid()}>"))
