"""The settings that form tables in the settings file."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.settings.about import (
    AGENTS,
    BASE_URL,
    CODE,
    FETCHING,
    FILE_SEARCH,
    IMAGES,
    SCRIPTED,
    SECRET_WORD,
    TOOLS,
    WEB,
    about,
)
from antiphon.entrypoints.settings.options import OWN_CLASS

STAND_IN = r"^(web_search|code_interpreter|file_search|image_generation)=[A-Za-z0-9_-]{1,64}$"
TOOL_CLASS = rf"^([A-Za-z0-9_-]{{1,64}}=)?{OWN_CLASS}$"


class Scripted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the scripted engine plays scripts."""

    tokens_per_s: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        about(
            SCRIPTED,
            "Speed of each response in tokens per second.",
            shown_default="as fast as possible",
        ),
    ] = None
    slots: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        about(
            SCRIPTED,
            "Turns that the engine generates at the same time. Others wait in the engine, by "
            "their priority.",
            shown_default="no limit",
        ),
    ] = None
    step_tokens: Annotated[int, about(SCRIPTED, "Tokens per engine step.", ge=1, le=4096)] = 1
    context_length: Annotated[
        int, about(SCRIPTED, "Maximum number of tokens in prompt and output.", ge=16)
    ] = 131_072


class Fetch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of what the server fetches when a request contains a URL."""

    urls: Annotated[
        bool,
        about(
            FETCHING,
            "Fetch the images and files that requests name by http(s) URL, and call the MCP "
            "servers that they name. Only public addresses are allowed, also after redirects.",
        ),
    ] = False
    hosts: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        about(
            FETCHING,
            "A host to allow: NAME, or *.NAME for all of its subdomains. Add :PORT for a port "
            "other than 80 and 443, or :* for any port. Repeat the option to add hosts. All other "
            "hosts are then refused.",
            shown_default="any public host",
        ),
    ] = ()
    private: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        about(
            FETCHING,
            "A private network to allow, for example 10.1.0.0/16. Anyone who can send requests "
            "can then read what it serves over HTTP.",
            allowed="a list of networks",
            shown_default="none",
        ),
    ] = ()
    max_bytes: Annotated[
        int, about(FETCHING, "Maximum bytes to read from one URL, after decompression.", ge=1)
    ] = 20 * 1024 * 1024
    timeout_s: Annotated[
        float, about(FETCHING, "Seconds to fetch one URL, including redirects.", gt=0)
    ] = 15.0
    redirects: Annotated[
        int, about(FETCHING, "Maximum number of redirects to follow.", ge=0, le=20)
    ] = 3

    def __post_init__(self) -> None:
        for text in self.private:
            try:
                ipaddress.ip_network(text)
            except ValueError as error:
                raise SettingsError(
                    f"fetch.private must list networks like 10.1.0.0/16, not {text!r}: {error}."
                ) from None


class Agents(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The bounds of a tree of sub-agents (`multi_agent`)."""

    total: Annotated[
        int,
        about(
            AGENTS,
            "Sub-agents that one response may start, with those that they start. 0: none, so that "
            "requests with 'multi_agent' are refused.",
            ge=0,
            le=1024,
        ),
    ] = 64
    concurrent: Annotated[
        int,
        about(
            AGENTS,
            "The highest 'max_concurrent_subagents' of a request: how many of one response may "
            "work at the same time.",
            ge=1,
            le=1024,
        ),
    ] = 16
    depth: Annotated[
        int,
        about(AGENTS, "Sub-agents one under another.", ge=1, le=16),
    ] = 4


class Tools(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How tools are called. `Fetch` limits the servers that requests may name by URL."""

    timeout_s: Annotated[
        float, about(TOOLS, "Seconds for one tool call, or for listing a server's tools.", gt=0)
    ] = 60.0
    max_bytes: Annotated[
        int, about(TOOLS, "Maximum bytes to read from one reply of a tool server.", ge=1)
    ] = 1024 * 1024
    keep_lists_s: Annotated[
        float,
        about(
            TOOLS,
            "Seconds to cache the tool list of one of your servers.",
            ge=0,
        ),
    ] = 60.0
    approval: Annotated[
        Literal["request", "always"],
        about(
            TOOLS,
            "Whether calls of the MCP servers that requests name by URL need an approval: as the "
            "request says, or always.",
        ),
    ] = "request"
    max_turns: Annotated[
        int,
        about(
            TOOLS,
            "Maximum number of model turns in one response. It then ends as incomplete, with the "
            "output and calls so far.",
            ge=1,
        ),
    ] = 100
    call_s: Annotated[
        float,
        about(
            TOOLS,
            "Seconds for any tool call, whatever runs it. It also caps longer limits.",
            gt=0,
        ),
    ] = 600.0
    call_bytes: Annotated[
        int, about(TOOLS, "Maximum bytes of any tool call's output, including images.", ge=1)
    ] = 16 * 1024 * 1024
    shown_chars: Annotated[
        Annotated[int, Meta(ge=100)] | None,
        about(
            TOOLS,
            "Maximum characters of an MCP tool's output that the model is shown, from "
            "its beginning and its end. The item keeps all of it.",
            shown_default="one for each token of the model's context",
        ),
    ] = None
    response_bytes: Annotated[
        int,
        about(
            TOOLS,
            "Maximum bytes that all tool calls of one response return together. The calls after "
            "them do not run, and the model reads why.",
            ge=1,
        ),
    ] = 16 * 1024 * 1024


class McpOauth(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Client credentials for an MCP server: `oauth` in its table."""

    token_url: Annotated[str, Meta(pattern=r"^https?://[^/@\s]+(/[^\s#]*)?$")]
    client_id: Annotated[str, Meta(min_length=1)]
    client_secret: Annotated[str, Meta(min_length=1)] | None = None
    client_secret_env: Annotated[str, Meta(min_length=1)] | None = None
    scopes: tuple[Annotated[str, Meta(pattern=r"^[!#-\[\]-~]+$")], ...] = ()
    audience: Annotated[str, Meta(min_length=1)] | None = None
    auth: Literal["basic", "post"] = "basic"

    def __post_init__(self) -> None:
        if (self.client_secret is None) == (self.client_secret_env is None):
            raise ValueError("set either `client_secret` or `client_secret_env`")

    def __repr__(self) -> str:
        return "McpOauth()"  # the secret


class McpServer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the operator's MCP servers: a table `[[mcp_servers]]` in the settings file. It cannot
    be set anywhere else, since it can name a command. Either `command` or `url` is set.
    """

    label: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    command: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    env: dict[str, str] = {}
    url: Annotated[str, Meta(pattern=r"^https?://[^/@\s]+(/[^\s]*)?$")] | None = None
    headers: dict[str, str] = {}
    oauth: McpOauth | None = None
    tenant_authorization: bool = False
    timeout_s: Annotated[float, Meta(gt=0)] | None = None
    allowed_tools: tuple[str, ...] | None = None
    require_approval: Literal["always", "never"] | dict[str, Any] = "never"

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise ValueError("set either `command` or `url`")
        if self.env and not self.command:
            raise ValueError("`env` needs a `command`")
        if self.headers and not self.url:
            raise ValueError("`headers` needs a `url`")
        if self.oauth is not None and not self.url:
            raise ValueError("`oauth` needs a `url`")
        if self.tenant_authorization and not self.url:
            raise ValueError("`tenant_authorization` needs a `url`")
        credentials = {
            "`oauth`": self.oauth is not None,
            "the header `authorization`": any(n.lower() == "authorization" for n in self.headers),
            "`tenant_authorization`": self.tenant_authorization,
        }
        if len(both := [name for name, is_set in credentials.items() if is_set]) > 1:
            raise ValueError(f"{' and '.join(both)} are two credentials: set one")

    def __repr__(self) -> str:
        return f"McpServer({self.label!r})"  # the other fields may be secret


class Code(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The resources that code interpreter containers and programs may use."""

    python: Annotated[
        str,
        about(
            CODE,
            "The Python that runs the code. Code can import the packages installed for it.",
            min_length=1,
        ),
    ] = "/usr/bin/python3"
    memory_mb: Annotated[
        int, about(CODE, "Memory of a container in megabytes.", ge=64, le=262_144)
    ] = 1024
    disk_mb: Annotated[
        int,
        about(
            CODE,
            "Disk space of a container in megabytes. Its files are in memory too.",
            ge=1,
            le=65_536,
        ),
    ] = 256
    cpu_s: Annotated[int, about(CODE, "CPU seconds that a container may use in total.", ge=1)] = 600
    timeout_s: Annotated[float, about(CODE, "Seconds for one call. It is then stopped.", gt=0)] = (
        120.0
    )
    idle_s: Annotated[
        float, about(CODE, "Seconds without a call before a container is closed.", gt=0)
    ] = 1200.0
    per_tenant: Annotated[
        int,
        about(
            CODE,
            "Maximum number of containers per tenant. Opening one more closes the tenant's "
            "container that has been idle longest.",
            ge=1,
        ),
    ] = 8
    max_containers: Annotated[
        int,
        about(
            CODE,
            "Maximum number of containers of all tenants. Opening one more closes the one that has "
            "been idle longest.",
            ge=1,
        ),
    ] = 32
    skills_dir: Annotated[
        Path | None,
        about(
            CODE,
            "A folder with skills of your own, a subfolder with a SKILL.md for each. Every tenant "
            "may use them in containers, by their names.",
            shown_default="none",
        ),
    ] = None
    cgroup: Annotated[
        Literal["auto", "required", "off"],
        about(
            CODE,
            "Also limit the memory and processes of a container with a cgroup. auto does so if the "
            "server may create one, and refuses to start the shell otherwise; required never "
            "starts without one; off never creates one, so that the processes of a container may "
            "together use two or three times its memory until the server ends them.",
        ),
    ] = "auto"
    program_memory_mb: Annotated[
        int, about(CODE, "Memory of a program in megabytes.", ge=8, le=4096)
    ] = 64
    program_cpu_s: Annotated[
        int, about(CODE, "CPU seconds that a program may use.", ge=1, le=600)
    ] = 10
    program_calls: Annotated[
        int, about(CODE, "Calls of tools that a program may make.", ge=1, le=100_000)
    ] = 1000
    max_programs: Annotated[
        int,
        about(
            CODE,
            "How many programs compute at the same time. Others wait for their turn, and those "
            "that wait for results of tools do not count.",
            ge=2,
            le=1024,
        ),
    ] = 8


class WebSearchSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the web is searched and read. `Fetch` limits the addresses of pages."""

    url: Annotated[
        Annotated[str, Meta(pattern=BASE_URL)] | None,
        about(
            WEB,
            "The address of your SearXNG, for example https://search.example.org; for brave and "
            "tavily, the address of your own proxy to them. It may be in a private network.",
            allowed="an http(s) URL without user, query, and fragment",
            shown_default="the search service's own address",
        ),
    ] = None
    key: Annotated[
        Annotated[str, Meta(pattern=SECRET_WORD)] | None,
        about(
            WEB,
            "Your key for brave or tavily. Set it as an environment variable: other users can see "
            "the command line.",
            allowed="a string without spaces",
            shown_default="none",
            is_secret=True,
        ),
    ] = None
    folder: Annotated[
        Path | None,
        about(
            WEB,
            "The folder that corpus searches: its .html, .md, and .txt files, read when the "
            "server starts.",
            shown_default="none",
        ),
    ] = None
    folder_url: Annotated[
        str,
        about(
            WEB,
            "The base URL for the folder's pages in citations. Nothing is fetched from it.",
            allowed="an http(s) URL that ends with a slash",
            pattern=r"^https?://[^/@\s?#]+/([^\s?#]*/)?\Z",
        ),
    ] = "https://corpus.invalid/"
    results: Annotated[int, about(WEB, "Maximum number of pages per search.", ge=1, le=20)] = 10
    max_page_kb: Annotated[
        int,
        about(
            WEB,
            "Maximum kilobytes to read from one page. Its text is limited to 1 MB.",
            ge=1,
        ),
    ] = 5 * 1024
    timeout_s: Annotated[
        float, about(WEB, "Seconds to run one search, or to read one page.", gt=0)
    ] = 20.0

    def __repr__(self) -> str:
        return f"WebSearchSettings({self.url!r})"  # without the key


class EmbeddingEngine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The embeddings API for semantic search in vector stores."""

    url: Annotated[
        Annotated[str, Meta(pattern=r"^https?://[^@\s?#]+\Z")] | None,
        about(
            FILE_SEARCH,
            "The base URL of an OpenAI-compatible embeddings API, without /embeddings, for "
            "semantic search in vector stores. It receives the files' texts and each query.",
            allowed="an http(s) URL",
            shown_default="search by words only",
        ),
    ] = None
    model: Annotated[str, about(FILE_SEARCH, "The embedding model.", min_length=1)] = "default"
    api_key: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        about(
            FILE_SEARCH,
            "The key for that API. Set it as an environment variable: other users can see the "
            "command line.",
            shown_default="none",
            is_secret=True,
        ),
    ] = None
    timeout_s: Annotated[
        float, about(FILE_SEARCH, "Seconds for one request to that API.", gt=0, le=60)
    ] = 30.0


class ImageServer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The server that makes images."""

    url: Annotated[
        Annotated[str, Meta(pattern=BASE_URL)] | None,
        about(
            IMAGES,
            "The base URL of a server of OpenAI's images API, without /images/generations, for "
            "the image_generation tool. It receives the prompts that models write and, for edits, "
            "the images of the conversation. It may be in a private network.",
            allowed="an http(s) URL without user, query, and fragment",
            shown_default="no image generation",
        ),
    ] = None
    model: Annotated[str, about(IMAGES, "The image model.", min_length=1)] = "default"
    api_key: Annotated[
        Annotated[str, Meta(pattern=SECRET_WORD)] | None,
        about(
            IMAGES,
            "The key for that API. Set it as an environment variable: other users can see the "
            "command line.",
            allowed="a string without spaces",
            shown_default="none",
            is_secret=True,
        ),
    ] = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"  # without the key


class ImageSettings(ImageServer, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The server that makes images, and the limits of each image, whatever makes it."""

    timeout_s: Annotated[float, about(IMAGES, "Seconds to make one image.", gt=0)] = 180.0
    max_bytes: Annotated[int, about(IMAGES, "Maximum bytes of one image, as a file.", ge=1)] = (
        8 * 1024 * 1024
    )
