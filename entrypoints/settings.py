"""What can be set, and which source wins: defaults < TOML file < environment < command line.

A setting is one field of `Settings`: its type, limits, default and explanation stand in one place.
The options of the command line, its help, the names of environment variables and every error
sentence are made from that field, so that none of them can be forgotten or differ.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct
from msgspec import inspect as mi
from msgspec.structs import fields, force_setattr

from antiphon.domain.errors import SettingsError

DEFAULT_FILE = Path("antiphon.toml")
PREFIX = "ANTIPHON_"
CONFIG_VARIABLE = "ANTIPHON_CONFIG"
SCRIPTED_MODELS = ("scripted-chat", "scripted-harmony", "scripted", "gpt-4.1-scripted")

STAND_IN = r"^(web_search|code_interpreter|file_search|image_generation)=[A-Za-z0-9_-]{1,64}$"
TOOL_CLASS = r"^([A-Za-z0-9_-]{1,64}=)?[A-Za-z_][\w.]*:[A-Za-z_]\w*$"

SERVED = "What is served"
KEPT = "What is kept"
BACKGROUND = "What runs in the background"
ADDRESS = "Where it listens"
ACCESS = "Who may ask"
REQUESTS = "What a request may be"
STREAMS = "Streams"
LOGS = "Logs and errors"
WEBHOOKS = "Webhooks"
FETCHED = "What is fetched"
TOOLS = "Tools that the server runs"
CODE = "The code interpreter"
WEB = "Web search"
FILE_SEARCH = "File search"
SCRIPTED = "The scripted engine"


def _default_data_dir() -> Path:
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "antiphon"
    if xdg := os.environ.get("XDG_DATA_HOME"):
        return Path(xdg) / "antiphon"
    try:
        return Path.home() / ".local" / "share" / "antiphon"
    except RuntimeError:  # a container may run under a user id that has no home
        return Path(".antiphon").absolute()


def _about(
    group: str,
    text: str,
    *,
    allowed: str = "",
    shown_default: str = "",
    is_secret: bool = False,
    **limits: Any,
) -> Meta:
    """Explain a setting; `allowed` and `shown_default` where type and default do not say it.

    No sentence repeats a value that `is_secret`.
    """
    extra = {
        "group": group,
        "allowed": allowed,
        "shown_default": shown_default,
        "is_secret": is_secret,
    }
    return Meta(description=text, extra=extra, **limits)


class Scripted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the scripted engine plays."""

    tokens_per_s: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        _about(
            SCRIPTED,
            "How fast one response is written, in tokens a second.",
            shown_default="as fast as possible",
        ),
    ] = None
    step_tokens: Annotated[
        int, _about(SCRIPTED, "Tokens that the engine gives in one step.", ge=1, le=4096)
    ] = 1
    context_length: Annotated[
        int, _about(SCRIPTED, "Tokens that prompt and output may have together.", ge=16)
    ] = 131_072


class Fetch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What this server may fetch when a request names a URL."""

    urls: Annotated[
        bool,
        _about(
            FETCHED,
            "Fetch the images and files whose http(s) URLs requests name, and call the MCP servers "
            "that they name. Only public addresses are reached, also by redirects.",
        ),
    ] = False
    hosts: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        _about(
            FETCHED,
            "A host to fetch from: NAME, *.NAME for all below it, either with :PORT for another "
            "port than 80 and 443, :* for any. Repeat it for more; all others are then refused.",
            shown_default="any public host",
        ),
    ] = ()
    private: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        _about(
            FETCHED,
            "A network that may be reached although it is not public, 10.1.0.0/16 for example. "
            "Whoever may send requests can then read what it serves over HTTP.",
            allowed="a list of networks",
            shown_default="none",
        ),
    ] = ()
    max_bytes: Annotated[
        int, _about(FETCHED, "The most that is read from one URL, unpacked.", ge=1)
    ] = 20 * 1024 * 1024
    timeout_s: Annotated[
        float, _about(FETCHED, "Seconds for one URL, its redirects included.", gt=0)
    ] = 15.0
    redirects: Annotated[
        int, _about(FETCHED, "Redirects that are followed from one URL.", ge=0, le=20)
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
        float, _about(TOOLS, "Seconds for one call of a tool, or for a server's list.", gt=0)
    ] = 60.0
    max_bytes: Annotated[
        int, _about(TOOLS, "The most that is read of one answer of a tool's server.", ge=1)
    ] = 1024 * 1024
    keep_lists_s: Annotated[
        float,
        _about(
            TOOLS,
            "Seconds for which what a server of yours lists is not asked for again.",
            ge=0,
        ),
    ] = 60.0
    max_turns: Annotated[
        int,
        _about(
            TOOLS,
            "Turns that a model may have in one response; then it ends as incomplete, with what "
            "was called and written until then.",
            ge=1,
        ),
    ] = 100
    call_s: Annotated[
        float,
        _about(
            TOOLS,
            "Seconds for any call, whatever runs it; also where its own limit is longer.",
            gt=0,
        ),
    ] = 600.0
    call_bytes: Annotated[
        int, _about(TOOLS, "The most that any call may give, its pictures included.", ge=1)
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
        _about(
            CODE,
            "The Python that runs the code; what is installed beside it can be imported.",
            min_length=1,
        ),
    ] = "/usr/bin/python3"
    memory_mb: Annotated[
        int, _about(CODE, "Megabytes of memory of a container.", ge=64, le=262_144)
    ] = 1024
    disk_mb: Annotated[
        int,
        _about(CODE, "Megabytes of a container's files, which are in memory too.", ge=1, le=65_536),
    ] = 256
    cpu_s: Annotated[
        int, _about(CODE, "Seconds of a processor that a container may use in its life.", ge=1)
    ] = 600
    timeout_s: Annotated[float, _about(CODE, "Seconds for one call; then it is stopped.", gt=0)] = (
        120.0
    )
    idle_s: Annotated[
        float, _about(CODE, "Seconds without a call after which a container is closed.", gt=0)
    ] = 1200.0
    per_tenant: Annotated[
        int,
        _about(
            CODE,
            "Containers that one tenant may have at a time; for one more, its container that was "
            "idle longest is closed.",
            ge=1,
        ),
    ] = 8
    most: Annotated[int, _about(CODE, "Containers of all tenants, in the same way.", ge=1)] = 32
    cgroup: Annotated[
        Literal["auto", "required", "off"],
        _about(
            CODE,
            "Limit the memory and the processes of a container by a cgroup too: where this server "
            "may make one (auto), or else not start (required).",
        ),
    ] = "auto"


class WebSearch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the web is searched and read. Which addresses pages may have: see Fetch."""

    url: Annotated[
        Annotated[str, Meta(pattern=r"^https?://[^/@\s?#]+(/[^\s?#]*)?\Z")] | None,
        _about(
            WEB,
            "The address of your SearXNG, https://search.example.org; for brave and tavily, of a "
            "proxy of yours that stands for theirs. It may be in a private network.",
            allowed="an http(s) URL without user, query and fragment",
            shown_default="the search service's own",
        ),
    ] = None
    key: Annotated[
        Annotated[str, Meta(pattern=r"^[!-~]+\Z")] | None,
        _about(
            WEB,
            "Your key for brave or tavily. Set it as a variable: others can see a command line.",
            allowed="a text without spaces",
            shown_default="none",
            is_secret=True,
        ),
    ] = None
    folder: Annotated[
        Path | None,
        _about(
            WEB,
            "The folder that corpus searches: its .html, .md and .txt files, as they are when the "
            "server starts.",
            shown_default="none",
        ),
    ] = None
    folder_url: Annotated[
        str,
        _about(
            WEB,
            "The address under which the folder's pages are known and cited. It is never asked.",
            allowed="an http(s) URL that ends with a slash",
            pattern=r"^https?://[^/@\s?#]+/([^\s?#]*/)?\Z",
        ),
    ] = "https://corpus.invalid/"
    results: Annotated[int, _about(WEB, "The most pages that one search shows.", ge=1, le=20)] = 10
    max_page_kb: Annotated[
        int,
        _about(WEB, "The most that is read of one page; its text has 1 MB at most.", ge=1),
    ] = 5 * 1024
    timeout_s: Annotated[
        float, _about(WEB, "Seconds for one search, or for reading one page.", gt=0)
    ] = 20.0

    def __repr__(self) -> str:
        return f"WebSearch({self.url!r})"  # without the key


class EmbeddingEngine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What makes vectors of texts, so that vector stores are searched by meaning too."""

    url: Annotated[
        Annotated[str, Meta(pattern=r"^https?://[^@\s?#]+\Z")] | None,
        _about(
            FILE_SEARCH,
            "The address of an OpenAI-compatible API, /embeddings left out, whose vectors let "
            "vector stores be searched by meaning. It is sent what is searched, and each query.",
            allowed="an http(s) URL",
            shown_default="vector stores are searched by words alone",
        ),
    ] = None
    model: Annotated[
        str, _about(FILE_SEARCH, "The model that makes the vectors.", min_length=1)
    ] = "default"
    api_key: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        _about(
            FILE_SEARCH,
            "The key for that API. Set it as a variable: others can see a command line.",
            shown_default="none",
            is_secret=True,
        ),
    ] = None
    timeout_s: Annotated[
        float, _about(FILE_SEARCH, "Seconds for one request to that API.", gt=0, le=60)
    ] = 30.0


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of one server, checked. `engine` is never `auto` here: it has been chosen."""

    model: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        _about(
            SERVED,
            "The model: a folder with its weights, or a name that the engine knows. "
            "Without one, the scripted models are served, which need no GPU and no weights.",
            shown_default="the scripted models",
        ),
    ] = None
    engine: Annotated[
        Literal["auto", "scripted", "vllm"],
        _about(
            SERVED,
            "What generates the tokens: vLLM, or a script that the request carries. "
            "auto takes vllm when a model is given, scripted for the scripted models.",
        ),
    ] = "auto"
    format: Annotated[
        str,
        _about(
            SERVED,
            "How the model writes: harmony (gpt-oss), or the chat template of a family of models, "
            "chat:hermes for example. auto finds it from the model.",
            allowed="auto, harmony or chat:FAMILY",
            pattern=r"^(auto|harmony|chat:[A-Za-z0-9_.-]+)$",
        ),
    ] = "auto"
    served_model_name: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        _about(
            SERVED,
            "The name that clients ask for. Repeat it for more names.",
            shown_default="the name of the model's folder, and the model as it was given",
        ),
    ] = ()
    engine_options: Annotated[
        tuple[str, ...],
        _about(
            SERVED,
            "Options for vLLM itself, in its own spelling. On the command line: all after `--`.",
            shown_default="none",
        ),
    ] = ()

    prompts_dir: Annotated[
        Path | None,
        _about(
            SERVED,
            "The folder of the prompt templates that requests name in `prompt`: "
            "NAME/VERSION.toml in it.",
            shown_default="none",
        ),
    ] = None

    store: Annotated[
        str,
        _about(
            KEPT,
            "Where responses are kept. memory forgets them at the end; sqlite is a file in the "
            "data folder; sqlite:///FILE is another file (four slashes for an absolute path); "
            "postgresql://… and redis://… are databases, which several servers can share; "
            "package.module:Class is a store of your own. Set an address with a password as a "
            "variable: others can see a command line.",
            allowed="memory, sqlite, sqlite:///FILE, postgresql://…, redis://… or "
            "package.module:Class",
            pattern=r"^(memory|sqlite|sqlite:///.+|(postgres(ql)?|rediss?)://.+"
            r"|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$",
        ),
    ] = "sqlite"
    data_dir: Annotated[
        Path,
        _about(
            KEPT,
            "The folder of the store and of the server's key; it is made when it is missing.",
            shown_default="~/.local/share/antiphon",
        ),
    ] = msgspec.field(default_factory=_default_data_dir)
    seal_key_file: Annotated[
        Path | None,
        _about(
            KEPT,
            "The key that seals encrypted reasoning and the requests that wait in the store, and "
            "salts cached prompts; it is made when it is missing. Servers that share clients or a "
            "store must share it.",
            shown_default="seal.key in the data folder",
        ),
    ] = None
    keep_days: Annotated[
        float,
        _about(
            KEPT,
            "Days for which a response is kept; 0 keeps it until it is deleted, as one that is in "
            "a conversation always is.",
            ge=0,
        ),
    ] = 30.0
    keep_responses: Annotated[
        int,
        _about(
            KEPT, "Responses that the store memory keeps; past them, the oldest are deleted.", ge=1
        ),
    ] = 10_000
    keep_events: Annotated[
        int,
        _about(
            KEPT,
            "Events of finished responses that stay in memory, all in all, so that their streams "
            "can be read again.",
            ge=0,
        ),
    ] = 20_000
    keep_events_s: Annotated[
        float, _about(KEPT, "Seconds for which those events stay at the most.", ge=0)
    ] = 600.0
    quota_responses: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        _about(
            KEPT,
            "Responses that may be kept for each tenant; past them, only `store: false` works.",
            shown_default="no limit",
        ),
    ] = None
    quota_bytes: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        _about(
            KEPT,
            "Bytes that may be kept for each tenant: texts, items and logs, about.",
            shown_default="no limit",
        ),
    ] = None
    sweep_s: Annotated[
        float, _about(KEPT, "Seconds between the searches for what is past its time.", gt=0)
    ] = 60.0
    keep_file_bytes: Annotated[
        int, _about(KEPT, "The bytes that all uploaded files may have together.", ge=0)
    ] = 4 * 1024 * 1024 * 1024
    keep_vector_bytes: Annotated[
        int,
        _about(
            KEPT,
            "The bytes that the vector stores of a tenant may take together, texts and vectors.",
            ge=0,
        ),
    ] = 16 * 1024 * 1024 * 1024

    background_runs: Annotated[
        int,
        _about(
            BACKGROUND,
            "Responses in the background that this server runs at a time; more wait in the store "
            "for a server that has room.",
            ge=1,
        ),
    ] = 64
    max_waiting: Annotated[
        int, _about(BACKGROUND, "How many of them may wait, of one tenant.", ge=0)
    ] = 1000
    lease_s: Annotated[
        float,
        _about(
            BACKGROUND,
            "Seconds after which a server that gives no sign of life counts as dead: others then "
            "take what it ran.",
            ge=1,
        ),
    ] = 15.0
    store_retry_s: Annotated[
        float,
        _about(
            BACKGROUND,
            "Seconds for which a store that fails is asked again, before a response fails of it.",
            ge=0,
        ),
    ] = 10.0

    host: Annotated[
        str,
        _about(
            ADDRESS,
            "The address to listen on; 0.0.0.0 opens it to the network, for those who "
            "have an API key.",
            min_length=1,
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int, _about(ADDRESS, "The port to listen on; 0 takes a free one.", ge=0, le=65_535)
    ] = 8000
    graceful_shutdown_s: Annotated[
        int,
        _about(ADDRESS, "Seconds that running responses get to end when the server stops.", ge=0),
    ] = 25
    drain_delay_s: Annotated[
        float,
        _about(
            ADDRESS,
            "Seconds for which a server that was told to stop still answers, so that those who "
            "send it requests notice. 5 on Kubernetes.",
            ge=0,
        ),
    ] = 0.0

    auth: Annotated[
        Literal["auto", "on", "off"],
        _about(
            ACCESS,
            "Whether each request needs an API key (`antiphon keys create`). auto asks for one "
            "unless the host is this machine alone; behind a proxy on the same machine, say on.",
        ),
    ] = "auto"
    keys_file: Annotated[
        Path | None,
        _about(
            ACCESS,
            "A TOML file with hashes of API keys, besides those in the store. It is read again "
            "when it changes.",
            shown_default="none",
        ),
    ] = None

    max_body_bytes: Annotated[
        int,
        _about(
            REQUESTS, "The longest request body. Images arrive inside it as data URLs.", ge=1024
        ),
    ] = 32 * 1024 * 1024
    max_depth: Annotated[
        int, _about(REQUESTS, "How deep lists and objects of a body may nest.", ge=8, le=200)
    ] = 64
    max_json_nodes: Annotated[
        int, _about(REQUESTS, "How many values a body may have in total.", ge=100)
    ] = 200_000
    arrival_s: Annotated[
        float,
        _about(REQUESTS, "Seconds that a request may take to arrive, its body included.", gt=0),
    ] = 60.0
    max_media: Annotated[
        int,
        _about(REQUESTS, "Images and files of one request, its history included.", ge=1, le=10_000),
    ] = 100
    max_media_bytes: Annotated[
        int, _about(REQUESTS, "The bytes of those images and files, all together.", ge=1)
    ] = 64 * 1024 * 1024
    max_image_pixels: Annotated[
        int,
        _about(
            REQUESTS,
            "Pixels that an image may have, width times height; all images of a request may have "
            "eight times as many.",
            ge=1,
        ),
    ] = 50_000_000
    max_file_bytes: Annotated[
        int, _about(REQUESTS, "The largest file that can be uploaded.", ge=1)
    ] = 64 * 1024 * 1024
    strict: Annotated[
        bool,
        _about(
            REQUESTS,
            "Refuse a request of which something would have no effect: a mistyped tool or label, a "
            "tool that this server does not run, a field that it does not know or does nothing "
            "with. Else the header x-antiphon-ignored names it.",
        ),
    ] = False
    strict_unknown_fields: Annotated[
        bool,
        _about(REQUESTS, "Refuse a request that has a field which the server does not know."),
    ] = False

    keepalive_s: Annotated[
        float,
        _about(
            STREAMS,
            "Seconds of silence after which a stream gets a comment line, and between the pings "
            "of a WebSocket, so that no proxy closes it. 0 sends none.",
            ge=0,
        ),
    ] = 15.0
    dialect: Annotated[
        Literal["openai", "open-responses"],
        _about(
            STREAMS,
            "Whose names events and errors bear where the two specifications differ; "
            "open-responses also ends streams with `data: [DONE]`. A request may choose by its "
            "header x-antiphon-dialect.",
        ),
    ] = "openai"

    response_s: Annotated[
        float,
        _about(
            SERVED,
            "Seconds that one response may run, its tools included; then it ends as incomplete, "
            "with what there is.",
            gt=0,
        ),
    ] = 3600.0

    websocket_s: Annotated[
        float,
        _about(
            STREAMS,
            "Seconds that a WebSocket connection may last; what runs then still ends.",
            gt=0,
        ),
    ] = 3600.0

    webhooks: Annotated[
        Path | None,
        _about(
            WEBHOOKS,
            "A TOML file of endpoints that are told when a background response ends: "
            "[[endpoint]] tables with url, secret, and at will events, tenant and name.",
            shown_default="none",
        ),
    ] = None
    webhook_url: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        _about(
            WEBHOOKS,
            "The one endpoint, where a file would be too much. It needs webhook_secret.",
            shown_default="none",
            is_secret=True,
        ),
    ] = None
    webhook_secret: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        _about(
            WEBHOOKS,
            "What signs its webhooks: whsec_ and 24 to 64 bytes in Base64. Set it as a variable: "
            "others can see a command line.",
            shown_default="none",
            is_secret=True,
        ),
    ] = None

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        _about(LOGS, "The least important line that is still logged."),
    ] = "info"
    log_requests: Annotated[
        bool, _about(LOGS, "Log what clients send. Their prompts are then in your logs.")
    ] = False
    log_outputs: Annotated[
        bool, _about(LOGS, "Log what the model answers. Its texts are then in your logs.")
    ] = False
    error_stacks: Annotated[
        bool, _about(LOGS, "Log the stack of every error that a client is answered with.")
    ] = False

    tool: Annotated[
        tuple[Annotated[str, Meta(pattern=TOOL_CLASS)], ...],
        _about(
            TOOLS,
            "A class of yours whose tools this server runs, [LABEL=]package.module:Class. Requests "
            "name its label. Repeat it for more.",
            allowed="a list of [LABEL=]package.module:Class",
            shown_default="none",
        ),
    ] = ()

    mcp_servers: tuple[McpServer, ...] = ()

    stand_in: Annotated[
        tuple[Annotated[str, Meta(pattern=STAND_IN)], ...],
        _about(
            TOOLS,
            "A server of yours whose tools a request gets that asks for a hosted tool, TYPE=LABEL: "
            "web_search=LABEL, or code_interpreter, file_search, image_generation. Repeat it for "
            "more.",
            allowed="a list of TYPE=LABEL",
            shown_default="none",
        ),
    ] = ()
    hosted_label: Annotated[
        tuple[Literal["code_interpreter", "container", "web_search_preview"], ...],
        _about(
            TOOLS,
            "A label by which requests may ask for a tool of this server as if it were an MCP "
            "server: code_interpreter, container (the shell) or web_search_preview, as clients of "
            "vLLM do. Repeat it for more.",
            allowed="a list of code_interpreter, container, web_search_preview",
            shown_default="none",
        ),
    ] = ()

    code_interpreter: Annotated[
        bool,
        _about(
            CODE,
            "Run the Python that models write for the tool code_interpreter, each container in a "
            "sandbox of bubblewrap without files, network or processes of this machine. The server "
            "tests the sandbox first, and does not start if anything gets out.",
        ),
    ] = False

    web_search: Annotated[
        Literal["off", "searxng", "brave", "tavily", "corpus"],
        _about(
            WEB,
            "What searches the web for models: a SearXNG of yours, a search service that needs a "
            "key, or a folder of pages. Models may then read the pages of any public http(s) URL "
            "that fetch.hosts allows, with fetch.urls or without; of corpus, only its own.",
        ),
    ] = "off"

    shell: Annotated[
        bool,
        _about(
            CODE,
            "Run the commands that models write for the tool shell with a container of the "
            "server's, in the same sandboxes. They can then read the programs of this machine "
            "(/usr/bin), and code can start processes too.",
        ),
    ] = False

    fetch: Fetch = Fetch()
    tools: Tools = Tools()
    code: Code = Code()
    web: WebSearch = WebSearch()
    embeddings: EmbeddingEngine = EmbeddingEngine()
    scripted: Scripted = Scripted()

    def __post_init__(self) -> None:
        if self.engine == "auto":
            is_scripted = self.model is None or self.model in SCRIPTED_MODELS
            # Chosen before anyone can see it, so that readers find two cases, not three.
            force_setattr(self, "engine", "scripted" if is_scripted else "vllm")
        if self.engine == "vllm" and self.model is None:
            raise SettingsError(
                "The engine vllm needs a model: antiphon serve MODEL --engine vllm."
            )
        if self.engine == "scripted" and self.engine_options:
            raise SettingsError(
                f"Engine options ({shlex.join(self.engine_options)}) are for the engine vllm, "
                "but the engine is scripted: leave them out, or name a model."
            )

    @property
    def sqlite_file(self) -> Path | None:
        """The file of the store, where the store is SQLite."""
        if self.store == "sqlite":
            return self.data_dir / "antiphon.db"
        if self.store.startswith("sqlite:///"):
            return Path(self.store.removeprefix("sqlite:///")).expanduser()
        return None

    @property
    def shown_store(self) -> str:
        """What people are told of the store: no password."""
        return without_password(self.store)

    @property
    def needs_keys(self) -> bool:
        """Whether a request without an API key is refused."""
        return self.auth == "on" or (self.auth == "auto" and not _is_loopback(self.host))

    @property
    def refuses_unknown_fields(self) -> bool:
        return self.strict or self.strict_unknown_fields

    @property
    def files_folder(self) -> Path:
        return self.data_dir / "files"

    @property
    def vector_stores_file(self) -> Path | None:
        """None where nothing is kept on the disk."""
        return None if self.store == "memory" else self.data_dir / "vector_stores.db"

    @property
    def seal_key_path(self) -> Path:
        return self.seal_key_file or self.data_dir / "seal.key"


def without_password(text: str) -> str:
    """Return a text in which the passwords of URLs are hidden.

    >>> without_password("postgresql://anna:secret@db/kept?sslpassword=secret&sslmode=require")
    'postgresql://anna:***@db/kept?sslpassword=***&sslmode=require'
    """
    text = re.sub(r"([?&]\w*password=)[^&]*", r"\1***", text, flags=re.IGNORECASE)
    return re.sub(r"(//[^/:@]*):.*@", r"\1:***@", text)


def _is_loopback(host: str) -> bool:
    """Say whether only this machine can connect: what is no address, and not this name, may lead
    anywhere.
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# --- the table of settings ------------------------------------------------------------------------


class Setting(NamedTuple):
    """One leaf of the tree: `path` is its name in TOML, dots between table and key."""

    path: str
    type: Any
    default: str
    group: str
    text: str
    allowed: str
    is_secret: bool

    @property
    def variable(self) -> str:
        return PREFIX + self.path.upper().replace(".", "__")

    @property
    def option(self) -> str:
        return "--" + self.path.replace(".", "-").replace("_", "-")

    @property
    def is_flag(self) -> bool:
        return isinstance(_bare(mi.type_info(self.type)), mi.BoolType)

    @property
    def is_list(self) -> bool:
        return isinstance(_bare(mi.type_info(self.type)), mi.VarTupleType)

    @property
    def choices(self) -> tuple[str, ...]:
        return _literals(self.type)


def _settings_of(struct: type[Struct], prefix: str = "") -> Iterator[Setting]:
    hints = get_type_hints(struct, include_extras=True)
    for field in fields(struct):
        hint = hints[field.name]
        if get_origin(hint) is tuple:  # tables of the file, which no option or variable can hold
            continue
        if get_origin(hint) is not Annotated:
            yield from _settings_of(hint, f"{prefix}{field.name}.")
            continue
        about = next(each for each in get_args(hint) if isinstance(each, Meta))
        extra = about.extra or {}
        yield Setting(
            path=prefix + field.name,
            type=hint,
            default=extra["shown_default"] or _shown(field.default),
            group=extra["group"],
            text=about.description or "",
            allowed=extra["allowed"] or _one_of(_literals(hint)) or _allowed(mi.type_info(hint)),
            is_secret=extra["is_secret"],
        )


def _shown(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def _literals(hint: Any) -> tuple[str, ...]:
    # Not from msgspec.inspect, which sorts them: log levels have an order of their own.
    bare = get_args(hint)[0]
    return get_args(bare) if get_origin(bare) is Literal else ()


def _one_of(names: tuple[str, ...]) -> str:
    return " or ".join((", ".join(names[:-1]), names[-1])) if names else ""


def _bare(kind: mi.Type) -> mi.Type:
    while isinstance(kind, mi.Metadata):
        kind = kind.type
    return kind


def _allowed(kind: mi.Type) -> str:
    """Say what a value of this type may be, to stand after "must be"."""
    match _bare(kind):
        case mi.BoolType():
            return "true or false"
        case mi.IntType(ge=low, le=high):
            return "a whole number" + _limits(low, high)
        case mi.FloatType(gt=above, ge=low, le=high):
            return "a number" + (f" above {above:g}" if above is not None else _limits(low, high))
        case mi.VarTupleType():
            return "a list of texts"
        case mi.UnionType(types=types):
            return next(_allowed(each) for each in types if not isinstance(each, mi.NoneType))
        case mi.CustomType(cls=cls) if cls is Path:
            return "a path"
        case mi.StrType(min_length=length):
            return "a text that is not empty" if length else "a text"
        case other:
            raise TypeError(f"no words for settings of type {other!r}")


def _limits(low: float | None, high: float | None) -> str:
    if low is None:
        return ""
    return f" from {low:g} to {high:g}" if high is not None else f" of at least {low:g}"


SETTINGS: Mapping[str, Setting] = {each.path: each for each in _settings_of(Settings)}
SECTIONS = frozenset(path.rpartition(".")[0] for path in SETTINGS) - {""}


# --- the sources ----------------------------------------------------------------------------------


class Found(NamedTuple):
    """A value as a source has it. `name` is what its reader wrote; `is_text` until converted."""

    setting: Setting
    name: str
    value: Any
    is_text: bool


def find_file(named: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the settings file: `named`, else ANTIPHON_CONFIG, else antiphon.toml if it exists.

    Raises: SettingsError when a file was named that does not exist.
    """
    if named is None and (from_environment := environ.get(CONFIG_VARIABLE)):
        named = Path(from_environment)
    if named is None:
        return DEFAULT_FILE if DEFAULT_FILE.is_file() else None
    if not named.expanduser().is_file():
        raise SettingsError(f"The settings file {str(named)!r} does not exist.")
    return named.expanduser()


def load(
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    given: Mapping[str, Any] | None = None,
) -> Settings:
    """Return the settings of all sources. `given` is the command line, by the paths of settings.

    Every value of every source is checked, even one that a later source replaces.
    Raises: SettingsError, one sentence with the name as it was written and what is allowed.
    """
    in_file = _table(file)
    tree: dict[str, Any] = {"mcp_servers": _mcp_servers(in_file.pop("mcp_servers", []), file)}
    of_file = _in_table(in_file, file)
    for source in (of_file, _in_environment(environ or {}), _on_command_line(given or {})):
        for found in source:
            *sections, key = found.setting.path.split(".")
            table = tree
            for section in sections:
                table = table.setdefault(section, {})
            table[key] = _converted(found)
    return msgspec.convert(tree, Settings, dec_hook=_path)


def _table(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"The settings file {str(file)!r} cannot be read: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"The settings file {str(file)!r} is not TOML: {error}.") from None


def _mcp_servers(tables: Any, file: Path | None) -> list[McpServer]:
    """Return the servers of the file. What is wrong is named, but no value: it may be a secret."""
    if not isinstance(tables, list):
        raise SettingsError(f"mcp_servers in {file} must be tables: [[mcp_servers]].")
    found: list[McpServer] = []
    for position, each in enumerate(tables):
        try:
            found.append(msgspec.convert(each, McpServer))
        except msgspec.ValidationError as error:
            raise SettingsError(f"mcp_servers[{position}] in {file} is wrong: {error}.") from None
    return found


def _in_table(table: Mapping[str, Any], file: Path | None) -> Iterator[Found]:
    for path, value in _leaves(table):
        if path in SECTIONS:
            raise SettingsError(f"{path} in {file} must be a table, not {value!r}.")
        yield Found(_setting(path, f"{path} in {file}"), f"{path} in {file}", value, is_text=False)


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        path = prefix + key
        if path in SECTIONS and isinstance(value, dict):
            yield from _leaves(value, f"{path}.")
        else:
            yield path, value


# A Kubernetes Service named "antiphon" puts variables of these names into every pod beside it.
_OF_KUBERNETES = re.compile(r"ANTIPHON_(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP)(_\w+)?)")


def _in_environment(environ: Mapping[str, str]) -> Iterator[Found]:
    """Yield the variables that are set; an empty one counts as not set, as compose files need."""
    for name in sorted(environ):
        value = environ[name]
        if not name.startswith(PREFIX) or name == CONFIG_VARIABLE or not value:
            continue
        if _OF_KUBERNETES.fullmatch(name) or (name == "ANTIPHON_PORT" and "://" in value):
            continue
        path = name.removeprefix(PREFIX).lower().replace("__", ".")
        yield Found(_setting(path, f"The variable {name}"), name, value, is_text=True)


def _on_command_line(given: Mapping[str, Any]) -> Iterator[Found]:
    for path, value in given.items():
        setting = SETTINGS[path]
        name = "MODEL" if path == "model" else setting.option
        yield Found(setting, name, value, is_text=isinstance(value, str))


def _setting(path: str, name: str) -> Setting:
    if path in SETTINGS:
        return SETTINGS[path]
    likely = difflib.get_close_matches(path, SETTINGS, n=1)
    # A variable is answered with a variable, a key with a key.
    names = [SETTINGS[each].variable if PREFIX in name else each for each in likely]
    advice = f"did you mean {names[0]}?" if names else "`antiphon serve --help` lists them all."
    raise SettingsError(f"{name} is not a setting; {advice}")


def _converted(found: Found) -> Any:
    setting, value = found.setting, found.value
    try:
        if found.is_text and setting.is_list:
            value = shlex.split(value)
        return msgspec.convert(value, setting.type, strict=not found.is_text, dec_hook=_path)
    except (msgspec.ValidationError, ValueError):
        shown = "" if setting.is_secret else f", not {without_password(repr(found.value))}"
        raise SettingsError(f"{found.name} must be {setting.allowed}{shown}.") from None


def _path(kind: type, value: Any) -> Any:
    if kind is Path and isinstance(value, str | Path) and value:
        return Path(value).expanduser()
    raise ValueError(f"not a path: {value!r}")
