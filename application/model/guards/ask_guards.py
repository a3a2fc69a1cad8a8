"""Ask the guards about a text: one after another, within a time limit, each verdict recorded.

Guards          all guards of the server, and what happens if one fails
ResponseGuards  those that apply to one response
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Sequence
from hashlib import sha256
from time import monotonic
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple, replace

from antiphon.application.ports import AuditLog, Guard, GuardRecord, Moderator
from antiphon.application.telemetry.recorder import RunRecorder
from antiphon.domain.access.callers import Caller
from antiphon.domain.access.limits import NO_GUARDS
from antiphon.domain.errors import GuardFailed, RequestError
from antiphon.domain.requests.request import ModerationParam
from antiphon.domain.responses.guards import (
    MAX_MESSAGE_CHARS,
    NAMES,
    GuardPlace,
    GuardQuestion,
    ModerationError,
    ModerationScores,
    Pass,
    Refuse,
    Replace,
    ResponseModeration,
    Stop,
    Verdict,
    VerdictName,
    rest_of,
)
from antiphon.domain.responses.held_deltas import WrittenText

logger = logging.getLogger("antiphon.guards")

MAX_FAILURES = 3
"""A guard that fails so often in one response is not asked again in it: with `open`, each of its
failures may take the whole time limit."""

STOPPED = "This was stopped by a guard of the server."

MODERATION = "moderation"
"""The name of the guard for which a request asks."""

_BY_NAME = {name: kind for kind, name in NAMES.items()}


class NamedGuard(Struct, frozen=True, kw_only=True):
    """A guard by the name that the operator gave it."""

    name: str
    guard: Guard
    places: Collection[GuardPlace] | None = None
    """Where it is asked, if not at all of its own places."""

    def is_asked(self, place: GuardPlace) -> bool:
        return place in (self.guard.places if self.places is None else self.places)


class GuardTerms(Struct, frozen=True, kw_only=True):
    """`window`: the characters after a text that guards must see before it is shown. `check_s`: the
    longest time for a verdict. `fails_open`: a text passes if a guard fails.
    """

    window: int = 0
    check_s: float = 5.0
    fails_open: bool = False


class Guards:
    """The guards of a server, in the order in which they are asked."""

    def __init__(
        self,
        guards: Sequence[NamedGuard] = (),
        terms: GuardTerms = GuardTerms(),  # noqa: B008 - frozen
        audit_log: AuditLog | None = None,
        moderator: Moderator | None = None,
    ) -> None:
        self.moderator = moderator
        self.guards = guards
        self.terms = terms
        self.audit_log = audit_log
        self._stuck: set[asyncio.Future[Any]] = set()

    @property
    def is_used(self) -> bool:
        """Whether there is anything to ask, for some request."""
        return bool(self.guards) or self.moderator is not None

    async def start(self) -> None:
        """Raises: SettingsError."""
        for each in self.guards:
            await each.guard.start()

    async def aclose(self) -> None:
        for each in self.guards:
            await each.guard.aclose()

    def open(
        self,
        caller: Caller,
        *,
        response_id: str,
        model: str,
        recorder: RunRecorder,
        moderation: ModerationParam | None = None,
    ) -> ResponseGuards | None:
        """Return the guards that apply to a response of this caller, or None if none does.

        `moderation` is what the request asks for. It has no effect without a moderator.
        Raises: GuardFailed if the caller's policy names a guard that this server does not have;
        RequestError for a moderation model that it does not have.
        """
        guards, chosen = self.guards, caller.policy.guards
        if chosen:
            known = {each.name for each in guards}
            if missing := [name for name in chosen if name not in known and name != NO_GUARDS]:
                raise GuardFailed(missing[0], "the key's policy names it, but there is none")
            guards = [each for each in guards if each.name in chosen]
        moderator = self.moderator if moderation is not None else None
        if moderator is not None and moderation is not None:
            guards = [*guards, *_requested(moderator, moderation, guards)]
        if not guards and moderator is None:
            return None
        asked = GuardQuestion(
            place="input",
            text="",
            tenant=caller.tenant,
            key_id=caller.key_id,
            response_id=response_id,
            model=model,
        )
        return ResponseGuards(self, guards, asked, recorder, moderator)

    async def check(self, named: NamedGuard, asked: GuardQuestion) -> Verdict:
        """Return one guard's verdict. Raises: GuardFailed."""
        # In a task of its own, since it might ignore its cancellation.
        task = asyncio.create_task(_check(named.guard, asked))
        try:
            await asyncio.wait({task}, timeout=self.terms.check_s)
        finally:
            if not task.done():
                task.cancel()
                self._stuck.add(task)  # the loop alone would not keep it
                task.add_done_callback(self._forget)
        if not task.done() or task.cancelled():
            raise GuardFailed(named.name, f"it gave no verdict in {self.terms.check_s:g} s")
        if (error := task.exception()) is not None:
            logger.error("the guard %r failed", named.name, exc_info=error)
            raise GuardFailed(named.name, "it had an error")
        verdict: object = task.result()
        if not isinstance(verdict, Verdict) or not _is_whole(verdict):
            logger.error("the guard %r returned no verdict: %r", named.name, type(verdict))
            raise GuardFailed(named.name, "it returned something that is no verdict")
        return verdict

    def _forget(self, task: asyncio.Future[Any]) -> None:
        self._stuck.discard(task)
        if not task.cancelled():
            task.exception()  # nobody waits for it


def _requested(
    moderator: Moderator, moderation: ModerationParam, guards: Sequence[NamedGuard]
) -> Sequence[NamedGuard]:
    """Return the guard that a request asks for, where it is not asked anyway."""
    if moderation.model != moderator.model:
        raise RequestError(
            f"This server has no moderation model {moderation.model[:100]!r}, only "
            f"{moderator.model!r}.",
            param="moderation.model",
            code="invalid_value",
        )
    own = [each for each in guards if each.guard is moderator]
    places = [place for place in moderation.blocks if not any(each.is_asked(place) for each in own)]
    return [NamedGuard(name=MODERATION, guard=moderator, places=places)] if places else []


async def _check(guard: Guard, asked: GuardQuestion) -> Verdict:
    try:
        return await guard.check(asked)
    except SystemExit as error:  # no guard ends the server
        raise RuntimeError("the guard wanted to end the server") from error


def _is_whole(verdict: Verdict) -> bool:
    return all(isinstance(value, str) for value in astuple(verdict))


class ResponseGuards:
    """The guards that apply to one response. What they have answered is recorded, so that another
    server that goes on with the response gets the same answers."""

    def __init__(
        self,
        guards: Guards,
        applying: Sequence[NamedGuard],
        asked: GuardQuestion,
        recorder: RunRecorder,
        moderator: Moderator | None = None,
    ) -> None:
        self._moderator = moderator
        self._guards = guards
        self._applying = applying
        self._asked = asked
        self._recorder = recorder
        self._failures: Counter[str] = Counter()
        self.written = WrittenText()
        """The output that has been let go."""
        self.input_texts: Sequence[str] = ()
        """The texts of the request, for its moderation."""
        self.has_stopped = False
        """Whether the response must end: a tool's result has been stopped."""

    @property
    def moderates(self) -> bool:
        """Whether the response shows the scores of its moderation."""
        return self._moderator is not None

    async def moderate(self, output_texts: Sequence[str]) -> ResponseModeration:
        """Return the moderation of the request's texts, and of these."""
        scored = [await self._scores_of(texts) for texts in (self.input_texts, output_texts)]
        return ResponseModeration(input=scored[0], output=scored[1])

    async def _scores_of(self, texts: Sequence[str]) -> ModerationScores | ModerationError:
        assert self._moderator is not None
        try:
            async with asyncio.timeout(self._guards.terms.check_s):
                return await self._moderator.moderate("\n".join(texts), tenant=self._asked.tenant)
        except Exception:  # whatever its server causes: the response is complete without
            logger.exception("response %s is not moderated", self._asked.response_id)
            return ModerationError(
                code="moderation_unavailable", message="The moderation model gave no result."
            )

    @property
    def window(self) -> int:
        return self._guards.terms.window

    def ask_at(self, place: GuardPlace) -> bool:
        """Whether any guard is asked there."""
        return any(each.is_asked(place) for each in self._applying)

    async def ask(
        self,
        text: str,
        *places: GuardPlace,
        start: int = 0,
        tool: str = "",
    ) -> str | Refuse | Stop:
        """Return the new part of the text, which begins at `start`, as it may pass.

        Each guard is asked for the first of the `places` that it has, and sees what those before it
        have replaced. Raises: GuardFailed.
        """
        for named in self._applying:
            place = next((each for each in places if named.is_asked(each)), None)
            if place is None:
                continue
            asked = replace(self._asked, place=place, text=text, start=start, tool=tool)
            verdict = await self._verdict_of(named, asked)
            if isinstance(verdict, Replace):
                text = text[:start] + rest_of(verdict.text, text, start)
            elif not isinstance(verdict, Pass):
                return verdict
        return text[start:]

    def refusal_of(self, verdict: Refuse | Stop) -> Refuse:
        """Return why a call or its result does not pass. A stop also ends the response, after the
        turn."""
        if isinstance(verdict, Stop):
            self.has_stopped = True
            return Refuse(STOPPED)
        return verdict

    async def ask_about_all(
        self, texts: Sequence[str], place: GuardPlace, *, tool: str = ""
    ) -> list[str] | Refuse | Stop:
        """Return several texts that are read together, as they may pass. Raises: GuardFailed.

        They are asked about as one. Only if that is replaced, each is asked about by itself; what
        they make up then must pass.
        """
        whole = "\n".join(texts)
        answer = await self.ask(whole, place, tool=tool)
        if not isinstance(answer, str):
            return answer
        if answer == whole:
            return [*texts]
        if len(texts) == 1:
            return [answer]
        replaced: list[str] = []
        for text in texts:
            answer = await self.ask(text, place, tool=tool)
            if not isinstance(answer, str):
                return answer
            replaced.append(answer)
        whole = "\n".join(replaced)
        answer = await self.ask(whole, place, tool=tool)
        if answer == whole:
            return replaced
        return answer if not isinstance(answer, str) else Refuse()

    async def _verdict_of(self, named: NamedGuard, asked: GuardQuestion) -> Verdict:
        """Return a guard's verdict, or the one that it has given on another server."""
        started_at = monotonic()
        progress = self._recorder.progress
        key = _key_of(named.name, asked) if progress is not None else ""
        if progress is not None and (known := progress.recall_verdict(key)) is not None:
            name, text = known
            self._record(named, asked, name, started_at)
            return _BY_NAME[name](text) if name not in ("pass", "failed") else Pass()
        name, verdict = await self._check(named, asked)
        if progress is not None:
            text = "" if isinstance(verdict, Pass) else astuple(verdict)[0]
            progress.note_verdict(key, name, text)
        self._record(named, asked, name, started_at)
        self._audit(named, asked, name)
        return verdict

    async def _check(self, named: NamedGuard, asked: GuardQuestion) -> tuple[VerdictName, Verdict]:
        if self._failures[named.name] >= MAX_FAILURES:
            return "failed", Pass()
        started_at = monotonic()
        try:
            verdict = await self._guards.check(named, asked)
        except GuardFailed as failure:
            logger.warning("response %s: %s", asked.response_id, failure)
            if not self._guards.terms.fails_open:
                self._record(named, asked, "failed", started_at)
                self._audit(named, asked, "failed")
                raise
            self._failures[named.name] += 1
            return "failed", Pass()
        if isinstance(verdict, Refuse):
            verdict = Refuse(verdict.message[:MAX_MESSAGE_CHARS])
        return NAMES[type(verdict)], verdict

    def _record(
        self, named: NamedGuard, asked: GuardQuestion, verdict: VerdictName, started_at: float
    ) -> None:
        self._recorder.count_verdict(
            named.name, asked.place, verdict, seconds=monotonic() - started_at
        )

    def _audit(self, named: NamedGuard, asked: GuardQuestion, verdict: VerdictName) -> None:
        log = self._guards.audit_log
        if log is None or verdict == "pass":
            return
        log.record_guard(
            GuardRecord(
                tenant=asked.tenant,
                key_id=asked.key_id,
                response_id=asked.response_id,
                guard=named.name,
                place=asked.place,
                verdict=verdict,
                tool=asked.tool,
                text_sha256=sha256(asked.new.encode("utf-8", "replace")).hexdigest(),
            )
        )


def _key_of(name: str, asked: GuardQuestion) -> str:
    """Return what the same question to the same guard has in common."""
    question = f"{name}\0{asked.place}\0{asked.tool}\0{asked.start}\0{asked.text}"
    return sha256(question.encode("utf-8", "surrogatepass")).hexdigest()[:32]
