"""Options of a pool of servers of one model."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from antiphon.adapters.upstreams.options import UpstreamOptions

SERVER_URL = r"^https?://[^/@\s?#]+(/[^\s?#]*)?\Z"

ServerUrl = Annotated[str, Meta(pattern=SERVER_URL)]
SOURCES = ("url", "urls", "urls_file", "dns")


class PoolOptions(UpstreamOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of the options of each engine on a pool. One of `SOURCES` names the servers."""

    url: Annotated[
        ServerUrl | None, Meta(description="The URL of the only server: http://10.0.0.5:8000.")
    ] = None
    urls: Annotated[
        tuple[ServerUrl, ...], Meta(description="The URLs of the servers, which are a pool.")
    ] = ()
    urls_file: Annotated[
        str | None,
        Meta(
            description="A file with the URL of a server on each line. It is read again every "
            "`probe_s` seconds: servers may come and go."
        ),
    ] = None
    dns: Annotated[
        Annotated[str, Meta(pattern=r"^[^\s:/@]+:[0-9]{1,5}\Z")] | None,
        Meta(
            description="A host name with a port, whose addresses are the servers: "
            "models.default.svc:8000. It is resolved again every `probe_s` seconds."
        ),
    ] = None
    probe_s: Annotated[
        float, Meta(gt=0, description="Seconds between two health checks of each server.")
    ] = 5.0
    probe_timeout_s: Annotated[
        float, Meta(gt=0, description="Seconds that a server has to answer a health check.")
    ] = 5.0
    index_mb: Annotated[
        float,
        Meta(
            gt=0,
            description="Megabytes to remember which prompts a server has seen, for each server. "
            "16 MB are about a million tokens.",
        ),
    ] = 16.0

    def check_sources(self) -> None:
        """Raises: ValueError if the servers are named twice, or not at all."""
        if sum(bool(getattr(self, source)) for source in SOURCES) != 1:
            raise ValueError(f"set exactly one of {', '.join(f'`{name}`' for name in SOURCES)}")
