"""Options of a pool of vLLM servers."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from antiphon.adapters.upstreams.options import UpstreamOptions

SERVER_URL = r"^https?://[^/@\s?#]+(/[^\s?#]*)?\Z"

ServerUrl = Annotated[str, Meta(pattern=SERVER_URL)]
SOURCES = ("url", "urls", "urls_file", "dns")


class VllmHttpOptions(UpstreamOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of `engine = "vllm_http"`. Exactly one of `SOURCES` names the servers."""

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
            "vllm.default.svc:8000. It is resolved again every `probe_s` seconds."
        ),
    ] = None
    model: Annotated[
        str | None,
        Meta(
            description="A folder with the model's tokenizer and chat template, or the model's "
            "name on a hub. By default, what the servers name."
        ),
    ] = None
    model_name: Annotated[
        str | None,
        Meta(description="The servers' name of the model or LoRA adapter, if not their first."),
    ] = None
    priority: Annotated[
        bool,
        Meta(description="Whether the servers were started with --scheduling-policy priority."),
    ] = False
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if sum(bool(getattr(self, source)) for source in SOURCES) != 1:
            raise ValueError(f"set exactly one of {', '.join(f'`{name}`' for name in SOURCES)}")
