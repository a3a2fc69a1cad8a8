"""The settings that have a table of their own in the file."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.settings.about import (
    CODE,
    FETCHED,
    FILE_SEARCH,
    SCRIPTED,
    TOOLS,
    WEB,
    about,
)

STAND_IN = r"^(web_search|code_interpreter|file_search|image_generation)=[A-Za-z0-9_-]{1,64}$"
TOOL_CLASS = r"^([A-Za-z0-9_-]{1,64}=)?[A-Za-z_][\w.]*:[A-Za-z_]\w*$"


class Scripted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the scripted engine plays."""

    tokens_per_s: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        about(
            SCRIPTED,
            "How fast one response is written, in tokens a second.",
            shown_default="as fast as possible",
        ),
    ] = None
    step_tokens: Annotated[
        int, about(SCRIPTED, "Tokens that the engine gives in one step.", ge=1, le=4096)
    ] = 1
    context_length: Annotated[
        int, about(SCRIPTED, "Tokens that prompt and output may have together.", ge=16)
    ] = 131_072


class Fetch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What this server may fetch when a request names a URL."""

    urls: Annotated[
        bool,
        about(
            FETCHED,
            "Fetch the images and files whose http(s) URLs requests name, and call the MCP servers "
            "that they name. Only public addresses are reached, also by redirects.",
        ),
    ] = False
    hosts: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        about(
            FETCHED,
            "A host to fetch from: NAME, *.NAME for all below it, either with :PORT for another "
            "port than 80 and 443, :* for any. Repeat it for more; all others are then refused.",
            shown_default="any public host",
        ),
    ] = ()
    private: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        about(
            FETCHED,
            "A network that may be reached although it is not public, 10.1.0.0/16 for example. "
            "Whoever may send requests can then read what it serves over HTTP.",
            allowed="a list of networks",
            shown_default="none",
        ),
    ] = ()
    max_bytes: Annotated[
        int, about(FETCHED, "The most that is read from one URL, unpacked.", ge=1)
    ] = 20 * 1024 * 1024
    timeout_s: Annotated[
        float, about(FETCHED, "Seconds for one URL, its redirects included.", gt=0)
    ] = 15.0
    redirects: Annotated[
        int, about(FETCHED, "Redirects that are followed from one URL.", ge=0, le=20)
    ] = 3

    def __post_init__(self) -> None:
        for text in self.private:
            try:
                ipaddress.ip_network(text)
            except ValueError as error:
                raise SettingsError(
                    f"fetch.private must be networks like 10.1.0.0/16, not {text!r}: {error}."
                ) from None


class Tools(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How tools are called. Which servers requests may name by a URL: see Fetch."""

    timeout_s: Annotated[
        float, about(TOOLS, "Seconds for one call of a tool, or for a server's list.", gt=0)
    ] = 60.0
    max_bytes: Annotated[
        int, about(TOOLS, "The most that is read of one answer of a tool's server.", ge=1)
    ] = 1024 * 1024
    keep_lists_s: Annotated[
        float,
        about(
            TOOLS,
            "Seconds for which what a server of yours lists is not asked for again.",
            ge=0,
        ),
    ] = 60.0
    max_turns: Annotated[
        int,
        about(
            TOOLS,
            "Turns that a model may have in one response; then it ends as incomplete, with what "
            "was called and written until then.",
            ge=1,
        ),
    ] = 100
    call_s: Annotated[
        float,
        about(
            TOOLS,
            "Seconds for any call, whatever runs it; also where its own limit is longer.",
            gt=0,
        ),
    ] = 600.0
    call_bytes: Annotated[
        int, about(TOOLS, "The most that any call may give, its pictures included.", ge=1)
    ] = 16 * 1024 * 1024


class McpServer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An MCP server of the operator's: a table `[[mcp_servers]]` of the settings file, where alone
    it can stand, since it can name a command. Either `command` or `url` is set.
    """

    label: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    command: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    env: dict[str, str] = {}
    url: Annotated[str, Meta(pattern=r"^https?://[^/@\s]+(/[^\s]*)?$")] | None = None
    headers: dict[str, str] = {}
    timeout_s: Annotated[float, Meta(gt=0)] | None = None
    allowed_tools: tuple[str, ...] | None = None
    require_approval: Literal["always", "never"] | dict[str, Any] = "never"

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise ValueError("it needs either `command` or `url`")
        if self.env and not self.command:
            raise ValueError("`env` is for a `command`")
        if self.headers and not self.url:
            raise ValueError("`headers` are for a `url`")

    def __repr__(self) -> str:
        return f"McpServer({self.label!r})"  # the rest may be secret


class Code(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the code interpreter's containers may use of this machine."""

    python: Annotated[
        str,
        about(
            CODE,
            "The Python that runs the code; what is installed beside it can be imported.",
            min_length=1,
        ),
    ] = "/usr/bin/python3"
    memory_mb: Annotated[
        int, about(CODE, "Megabytes of memory of a container.", ge=64, le=262_144)
    ] = 1024
    disk_mb: Annotated[
        int,
        about(CODE, "Megabytes of a container's files, which are in memory too.", ge=1, le=65_536),
    ] = 256
    cpu_s: Annotated[
        int, about(CODE, "Seconds of a processor that a container may use in its life.", ge=1)
    ] = 600
    timeout_s: Annotated[float, about(CODE, "Seconds for one call; then it is stopped.", gt=0)] = (
        120.0
    )
    idle_s: Annotated[
        float, about(CODE, "Seconds without a call after which a container is closed.", gt=0)
    ] = 1200.0
    per_tenant: Annotated[
        int,
        about(
            CODE,
            "Containers that one tenant may have at a time; for one more, its container that was "
            "idle longest is closed.",
            ge=1,
        ),
    ] = 8
    most: Annotated[int, about(CODE, "Containers of all tenants, in the same way.", ge=1)] = 32
    cgroup: Annotated[
        Literal["auto", "required", "off"],
        about(
            CODE,
            "Limit the memory and the processes of a container by a cgroup too: where this server "
            "may make one (auto), or else not start (required).",
        ),
    ] = "auto"


class WebSearch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the web is searched and read. Which addresses pages may have: see Fetch."""

    url: Annotated[
        Annotated[str, Meta(pattern=r"^https?://[^/@\s?#]+(/[^\s?#]*)?\Z")] | None,
        about(
            WEB,
            "The address of your SearXNG, https://search.example.org; for brave and tavily, of a "
            "proxy of yours that stands for theirs. It may be in a private network.",
            allowed="an http(s) URL without user, query and fragment",
            shown_default="the search service's own",
        ),
    ] = None
    key: Annotated[
        Annotated[str, Meta(pattern=r"^[!-~]+\Z")] | None,
        about(
            WEB,
            "Your key for brave or tavily. Set it as a variable: others can see a command line.",
            allowed="a text without spaces",
            shown_default="none",
            is_secret=True,
        ),
    ] = None
    folder: Annotated[
        Path | None,
        about(
            WEB,
            "The folder that corpus searches: its .html, .md and .txt files, as they are when the "
            "server starts.",
            shown_default="none",
        ),
    ] = None
    folder_url: Annotated[
        str,
        about(
            WEB,
            "The address under which the folder's pages are known and cited. It is never asked.",
            allowed="an http(s) URL that ends with a slash",
            pattern=r"^https?://[^/@\s?#]+/([^\s?#]*/)?\Z",
        ),
    ] = "https://corpus.invalid/"
    results: Annotated[int, about(WEB, "The most pages that one search shows.", ge=1, le=20)] = 10
    max_page_kb: Annotated[
        int,
        about(WEB, "The most that is read of one page; its text has 1 MB at most.", ge=1),
    ] = 5 * 1024
    timeout_s: Annotated[
        float, about(WEB, "Seconds for one search, or for reading one page.", gt=0)
    ] = 20.0

    def __repr__(self) -> str:
        return f"WebSearch({self.url!r})"  # without the key


class EmbeddingEngine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What makes vectors of texts, so that vector stores are searched by meaning too."""

    url: Annotated[
        Annotated[str, Meta(pattern=r"^https?://[^@\s?#]+\Z")] | None,
        about(
            FILE_SEARCH,
            "The address of an OpenAI-compatible API, /embeddings left out, whose vectors let "
            "vector stores be searched by meaning. It is sent what is searched, and each query.",
            allowed="an http(s) URL",
            shown_default="vector stores are searched by words alone",
        ),
    ] = None
    model: Annotated[str, about(FILE_SEARCH, "The model that makes the vectors.", min_length=1)] = (
        "default"
    )
    api_key: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        about(
            FILE_SEARCH,
            "The key for that API. Set it as a variable: others can see a command line.",
            shown_default="none",
            is_secret=True,
        ),
    ] = None
    timeout_s: Annotated[
        float, about(FILE_SEARCH, "Seconds for one request to that API.", gt=0, le=60)
    ] = 30.0
