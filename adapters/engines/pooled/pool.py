"""The members of the pool: health checks, failures, draining, and the choice of one for a run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from antiphon.adapters.engines.pooled.options import PoolOptions
from antiphon.adapters.engines.pooled.prefixes import PrefixIndex
from antiphon.adapters.engines.pooled.profile import ReadProfile, ServerProfile
from antiphon.adapters.engines.pooled.routing import Candidate, Choose, choose_by_prefix
from antiphon.adapters.engines.pooled.server_urls import ServerUrls
from antiphon.adapters.upstreams.client import UpstreamClient, UpstreamRefused
from antiphon.domain.errors import EngineDead, EngineError, SettingsError

MISSED_PROBES = 3
"""So many health checks in a row may time out: a busy server answers late. One that refuses the
connection, or answers with an error, is down at once."""

PROBE_PAUSE_S = 0.2
"""Between two rounds of health checks, however many runs fail."""

log = logging.getLogger("antiphon.engine")


class Member(Candidate):
    """One server. It gets runs while it `is_up` and the settings list it."""

    def __init__(self, client: UpstreamClient, prefixes: PrefixIndex) -> None:
        self.client = client
        self.prefixes = prefixes
        self.running = 0
        self.is_up = False
        self.is_listed = True
        self.missed_probes = 0
        self.down_because = ""
        self.profile: ServerProfile | None = None

    @property
    def takes_runs(self) -> bool:
        return self.is_up and self.is_listed


class Pool:
    """The servers that the options name. `start` may be called again after a failure."""

    def __init__(
        self,
        options: PoolOptions,
        read_profile: ReadProfile,
        *,
        choose: Choose = choose_by_prefix,
    ) -> None:
        self._options = options
        self._read = read_profile
        self._urls = ServerUrls(options)
        self._choose = choose
        self._members: dict[str, Member] = {}
        self._drained: set[Member] = set()
        self._prober: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()

    async def start(self) -> None:
        """Raises: EngineDead if no server answers; SettingsError."""
        await self.aclose()
        try:
            await self._list_members()
            await self._probe_first()
        except BaseException:
            await self.aclose()
            raise
        self._wake.clear()
        self._prober = asyncio.create_task(self._probe_for_ever(), name="pool probes")

    async def aclose(self) -> None:
        prober, self._prober = self._prober, None
        if prober is not None:
            prober.cancel()
            await asyncio.gather(prober, return_exceptions=True)
        members = [*self._members.values(), *self._drained]
        self._members.clear()
        self._drained.clear()
        for member in members:
            await member.client.aclose()

    def check(self) -> None:
        """Raises: EngineDead if no server takes runs."""
        if not any(member.takes_runs for member in self._members.values()):
            raise EngineDead("No model server is available.")

    @property
    def profiles(self) -> Sequence[ServerProfile]:
        """The profiles of the listed servers that have ever answered."""
        return [each.profile for each in self._members.values() if each.profile is not None]

    @property
    def health(self) -> Mapping[str, bool]:
        """Whether each server takes runs, by its URL."""
        return {url: member.takes_runs for url, member in self._members.items()}

    # --- runs -------------------------------------------------------------------------------------

    def acquire(self, hashes: Sequence[int], *, tried: Collection[Member]) -> Member | None:
        """Return the server for a run with these block hashes, None if all were tried.

        Whoever gets it calls `release` when the run is over.
        """
        members = [each for each in self._members.values() if each.takes_runs]
        members = [each for each in members if each not in tried]
        if not members:
            return None
        member = members[self._choose(members, hashes)]
        member.running += 1
        member.prefixes.add(hashes)
        return member

    def idlest(self, *, tried: Collection[Member]) -> Member | None:
        """Return the server with the fewest runs, for a question; None if all were tried."""
        members = [each for each in self._members.values() if each.takes_runs]
        members = [each for each in members if each not in tried]
        return min(members, key=lambda each: each.running, default=None)

    async def release(self, member: Member) -> None:
        member.running -= 1
        if member in self._drained:
            await self._close_if_idle(member)

    def report_failure(self, member: Member) -> None:
        """A run found the server unusable: it is down until a health check succeeds."""
        self._mark_down(member, "a run failed there")
        self._wake.set()

    def report_doubt(self) -> None:
        """A run was lost or refused for now. Its server may be ending: health is checked now."""
        self._wake.set()

    # --- health -----------------------------------------------------------------------------------

    async def _probe_first(self) -> None:
        results = await asyncio.gather(*map(self._probe, self._members.values()))
        if any(member.is_up for member in self._members.values()):
            return
        for error in results:
            if isinstance(error, SettingsError):
                raise error
        raise EngineDead("No model server answers.")

    async def probe(self) -> None:
        """Read the list of servers again, and check the health of each."""
        try:
            await self._list_members()
        except (SettingsError, EngineError) as error:
            log.warning("the list of model servers stays as it was: %s", error)
        await asyncio.gather(*map(self._probe, self._members.values()))

    async def _probe_for_ever(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._options.probe_s):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self.probe()
            except Exception:  # without health checks, no server would ever come back
                log.exception("the health checks of the model servers failed")
            await asyncio.sleep(PROBE_PAUSE_S)

    async def _probe(self, member: Member) -> Exception | None:
        """Check the server's health. Return why it is not usable, if it is not."""
        try:
            await member.client.get("/health", timeout_s=self._options.probe_timeout_s)
            if not member.is_up:  # it may have another model or other options now
                member.profile = await self._read_profile(member)
        except (EngineDead, UpstreamRefused, SettingsError) as error:
            self._mark_down(member, str(error))
            return error
        except EngineError as error:
            member.missed_probes += 1
            if member.missed_probes >= MISSED_PROBES or member.profile is None:
                self._mark_down(member, str(error))
            return error
        self._mark_up(member)
        return None

    async def _read_profile(self, member: Member) -> ServerProfile:
        profile = await self._read(member.client)
        for other in self._members.values():
            if other.takes_runs and other.profile is not None:
                _check_same_model(profile, other.profile)
        return profile

    def _mark_up(self, member: Member) -> None:
        member.missed_probes = 0
        if not member.is_up:
            member.is_up, member.down_because = True, ""
            log.info("model server %s is up", member.client.url)

    def _mark_down(self, member: Member, reason: str) -> None:
        if member.down_because != reason:
            log.warning("model server %s is down: %s", member.client.url, reason)
        if member.is_up:
            # A server that was down has probably lost what it had cached.
            member.prefixes.clear()
        member.is_up, member.down_because = False, reason

    # --- membership -------------------------------------------------------------------------------

    async def _list_members(self) -> None:
        """Raises: SettingsError, EngineDead; the members are then as before."""
        urls = await self._urls.read()
        for url in [url for url in self._members if url not in urls]:
            await self._drain(self._members.pop(url))
        for url in urls:
            if url not in self._members:
                self._members[url] = await self._open(url)

    async def _open(self, url: str) -> Member:
        client = UpstreamClient(url, self._options)
        await client.start()
        return Member(client, PrefixIndex(self._options.index_mb * 1_000_000))

    async def _drain(self, member: Member) -> None:
        """Give the server nothing new; its runs end normally, and then its connections close."""
        member.is_listed = False
        self._drained.add(member)
        log.info("model server %s is drained", member.client.url)
        await self._close_if_idle(member)

    async def _close_if_idle(self, member: Member) -> None:
        if not member.running:
            self._drained.discard(member)
            await member.client.aclose()


def _check_same_model(profile: ServerProfile, other: ServerProfile) -> None:
    """Raises: SettingsError."""
    if profile.model_name != other.model_name:
        raise SettingsError(
            f"The servers of a pool must serve the same model, but one serves "
            f"{profile.model_name!r} and another {other.model_name!r}. Set `model_name` if they "
            "have it in common."
        )
