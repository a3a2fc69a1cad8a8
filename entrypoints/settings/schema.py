"""What can be set: a setting is one field of `Settings`.

Its type, limits, default and explanation stand in one place. The options of the command line, its
help, the names of environment variables and every error sentence are made from that field, so that
none of them can be forgotten or differ.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.settings.about import (
    ACCESS,
    ADDRESS,
    BACKGROUND,
    CODE,
    KEPT,
    LOGS,
    REQUESTS,
    SERVED,
    STREAMS,
    TOOLS,
    WEB,
    WEBHOOKS,
    about,
)
from antiphon.entrypoints.settings.sections import (
    STAND_IN,
    TOOL_CLASS,
    Code,
    EmbeddingEngine,
    Fetch,
    McpServer,
    Scripted,
    Tools,
    WebSearch,
)

SCRIPTED_MODELS = ("scripted-chat", "scripted-harmony", "scripted", "gpt-4.1-scripted")


def _default_data_dir() -> Path:
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "antiphon"
    if xdg := os.environ.get("XDG_DATA_HOME"):
        return Path(xdg) / "antiphon"
    try:
        return Path.home() / ".local" / "share" / "antiphon"
    except RuntimeError:  # a container may run under a user id that has no home
        return Path(".antiphon").absolute()


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of one server, checked. `engine` is never `auto` here: it has been chosen."""

    model: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        about(
            SERVED,
            "The model: a folder with its weights, or a name that the engine knows. "
            "Without one, the scripted models are served, which need no GPU and no weights.",
            shown_default="the scripted models",
        ),
    ] = None
    engine: Annotated[
        Literal["auto", "scripted", "vllm"],
        about(
            SERVED,
            "What generates the tokens: vLLM, or a script that the request carries. "
            "auto takes vllm when a model is given, scripted for the scripted models.",
        ),
    ] = "auto"
    format: Annotated[
        str,
        about(
            SERVED,
            "How the model writes: harmony (gpt-oss), or the chat template of a family of models, "
            "chat:hermes for example. auto finds it from the model.",
            allowed="auto, harmony or chat:FAMILY",
            pattern=r"^(auto|harmony|chat:[A-Za-z0-9_.-]+)$",
        ),
    ] = "auto"
    served_model_name: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        about(
            SERVED,
            "The name that clients ask for. Repeat it for more names.",
            shown_default="the name of the model's folder, and the model as it was given",
        ),
    ] = ()
    engine_options: Annotated[
        tuple[str, ...],
        about(
            SERVED,
            "Options for vLLM itself, in its own spelling. On the command line: all after `--`.",
            shown_default="none",
        ),
    ] = ()

    prompts_dir: Annotated[
        Path | None,
        about(
            SERVED,
            "The folder of the prompt templates that requests name in `prompt`: "
            "NAME/VERSION.toml in it.",
            shown_default="none",
        ),
    ] = None

    store: Annotated[
        str,
        about(
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
        about(
            KEPT,
            "The folder of the store and of the server's key; it is made when it is missing.",
            shown_default="~/.local/share/antiphon",
        ),
    ] = msgspec.field(default_factory=_default_data_dir)
    seal_key_file: Annotated[
        Path | None,
        about(
            KEPT,
            "The key that seals encrypted reasoning and the requests that wait in the store, and "
            "salts cached prompts; it is made when it is missing. Servers that share clients or a "
            "store must share it.",
            shown_default="seal.key in the data folder",
        ),
    ] = None
    keep_days: Annotated[
        float,
        about(
            KEPT,
            "Days for which a response is kept; 0 keeps it until it is deleted, as one that is in "
            "a conversation always is.",
            ge=0,
        ),
    ] = 30.0
    keep_responses: Annotated[
        int,
        about(
            KEPT, "Responses that the store memory keeps; past them, the oldest are deleted.", ge=1
        ),
    ] = 10_000
    keep_events: Annotated[
        int,
        about(
            KEPT,
            "Events of finished responses that stay in memory, all in all, so that their streams "
            "can be read again.",
            ge=0,
        ),
    ] = 20_000
    keep_events_s: Annotated[
        float, about(KEPT, "Seconds for which those events stay at the most.", ge=0)
    ] = 600.0
    quota_responses: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        about(
            KEPT,
            "Responses that may be kept for each tenant; past them, only `store: false` works.",
            shown_default="no limit",
        ),
    ] = None
    quota_bytes: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        about(
            KEPT,
            "Bytes that may be kept for each tenant: texts, items and logs, about.",
            shown_default="no limit",
        ),
    ] = None
    sweep_s: Annotated[
        float, about(KEPT, "Seconds between the searches for what is past its time.", gt=0)
    ] = 60.0
    keep_file_bytes: Annotated[
        int, about(KEPT, "The bytes that all uploaded files may have together.", ge=0)
    ] = 4 * 1024 * 1024 * 1024
    keep_vector_bytes: Annotated[
        int,
        about(
            KEPT,
            "The bytes that the vector stores of a tenant may take together, texts and vectors.",
            ge=0,
        ),
    ] = 16 * 1024 * 1024 * 1024

    background_runs: Annotated[
        int,
        about(
            BACKGROUND,
            "Responses in the background that this server runs at a time; more wait in the store "
            "for a server that has room.",
            ge=1,
        ),
    ] = 64
    max_waiting: Annotated[
        int, about(BACKGROUND, "How many of them may wait, of one tenant.", ge=0)
    ] = 1000
    lease_s: Annotated[
        float,
        about(
            BACKGROUND,
            "Seconds after which a server that gives no sign of life counts as dead: others then "
            "take what it ran.",
            ge=1,
        ),
    ] = 15.0
    store_retry_s: Annotated[
        float,
        about(
            BACKGROUND,
            "Seconds for which a store that fails is asked again, before a response fails of it.",
            ge=0,
        ),
    ] = 10.0

    host: Annotated[
        str,
        about(
            ADDRESS,
            "The address to listen on; 0.0.0.0 opens it to the network, for those who "
            "have an API key.",
            min_length=1,
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int, about(ADDRESS, "The port to listen on; 0 takes a free one.", ge=0, le=65_535)
    ] = 8000
    graceful_shutdown_s: Annotated[
        int,
        about(ADDRESS, "Seconds that running responses get to end when the server stops.", ge=0),
    ] = 25
    drain_delay_s: Annotated[
        float,
        about(
            ADDRESS,
            "Seconds for which a server that was told to stop still answers, so that those who "
            "send it requests notice. 5 on Kubernetes.",
            ge=0,
        ),
    ] = 0.0

    auth: Annotated[
        Literal["auto", "on", "off"],
        about(
            ACCESS,
            "Whether each request needs an API key (`antiphon keys create`). auto asks for one "
            "unless the host is this machine alone; behind a proxy on the same machine, say on.",
        ),
    ] = "auto"
    keys_file: Annotated[
        Path | None,
        about(
            ACCESS,
            "A TOML file with hashes of API keys, besides those in the store. It is read again "
            "when it changes.",
            shown_default="none",
        ),
    ] = None

    max_body_bytes: Annotated[
        int,
        about(REQUESTS, "The longest request body. Images arrive inside it as data URLs.", ge=1024),
    ] = 32 * 1024 * 1024
    max_depth: Annotated[
        int, about(REQUESTS, "How deep lists and objects of a body may nest.", ge=8, le=200)
    ] = 64
    max_json_nodes: Annotated[
        int, about(REQUESTS, "How many values a body may have in total.", ge=100)
    ] = 200_000
    arrival_s: Annotated[
        float,
        about(REQUESTS, "Seconds that a request may take to arrive, its body included.", gt=0),
    ] = 60.0
    max_media: Annotated[
        int,
        about(REQUESTS, "Images and files of one request, its history included.", ge=1, le=10_000),
    ] = 100
    max_media_bytes: Annotated[
        int, about(REQUESTS, "The bytes of those images and files, all together.", ge=1)
    ] = 64 * 1024 * 1024
    max_image_pixels: Annotated[
        int,
        about(
            REQUESTS,
            "Pixels that an image may have, width times height; all images of a request may have "
            "eight times as many.",
            ge=1,
        ),
    ] = 50_000_000
    max_file_bytes: Annotated[
        int, about(REQUESTS, "The largest file that can be uploaded.", ge=1)
    ] = 64 * 1024 * 1024
    strict: Annotated[
        bool,
        about(
            REQUESTS,
            "Refuse a request of which something would have no effect: a mistyped tool or label, a "
            "tool that this server does not run, a field that it does not know or does nothing "
            "with. Else the header x-antiphon-ignored names it.",
        ),
    ] = False
    strict_unknown_fields: Annotated[
        bool,
        about(REQUESTS, "Refuse a request that has a field which the server does not know."),
    ] = False

    keepalive_s: Annotated[
        float,
        about(
            STREAMS,
            "Seconds of silence after which a stream gets a comment line, and between the pings "
            "of a WebSocket, so that no proxy closes it. 0 sends none.",
            ge=0,
        ),
    ] = 15.0
    dialect: Annotated[
        Literal["openai", "open-responses"],
        about(
            STREAMS,
            "Whose names events and errors bear where the two specifications differ; "
            "open-responses also ends streams with `data: [DONE]`. A request may choose by its "
            "header x-antiphon-dialect.",
        ),
    ] = "openai"

    response_s: Annotated[
        float,
        about(
            SERVED,
            "Seconds that one response may run, its tools included; then it ends as incomplete, "
            "with what there is.",
            gt=0,
        ),
    ] = 3600.0

    websocket_s: Annotated[
        float,
        about(
            STREAMS,
            "Seconds that a WebSocket connection may last; what runs then still ends.",
            gt=0,
        ),
    ] = 3600.0

    webhooks: Annotated[
        Path | None,
        about(
            WEBHOOKS,
            "A TOML file of endpoints that are told when a background response ends: "
            "[[endpoint]] tables with url, secret, and at will events, tenant and name.",
            shown_default="none",
        ),
    ] = None
    webhook_url: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        about(
            WEBHOOKS,
            "The one endpoint, where a file would be too much. It needs webhook_secret.",
            shown_default="none",
            is_secret=True,
        ),
    ] = None
    webhook_secret: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        about(
            WEBHOOKS,
            "What signs its webhooks: whsec_ and 24 to 64 bytes in Base64. Set it as a variable: "
            "others can see a command line.",
            shown_default="none",
            is_secret=True,
        ),
    ] = None

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        about(LOGS, "The least important line that is still logged."),
    ] = "info"
    log_requests: Annotated[
        bool, about(LOGS, "Log what clients send. Their prompts are then in your logs.")
    ] = False
    log_outputs: Annotated[
        bool, about(LOGS, "Log what the model answers. Its texts are then in your logs.")
    ] = False
    error_stacks: Annotated[
        bool, about(LOGS, "Log the stack of every error that a client is answered with.")
    ] = False

    tool: Annotated[
        tuple[Annotated[str, Meta(pattern=TOOL_CLASS)], ...],
        about(
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
        about(
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
        about(
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
        about(
            CODE,
            "Run the Python that models write for the tool code_interpreter, each container in a "
            "sandbox of bubblewrap without files, network or processes of this machine. The server "
            "tests the sandbox first, and does not start if anything gets out.",
        ),
    ] = False

    web_search: Annotated[
        Literal["off", "searxng", "brave", "tavily", "corpus"],
        about(
            WEB,
            "What searches the web for models: a SearXNG of yours, a search service that needs a "
            "key, or a folder of pages. Models may then read the pages of any public http(s) URL "
            "that fetch.hosts allows, with fetch.urls or without; of corpus, only its own.",
        ),
    ] = "off"

    shell: Annotated[
        bool,
        about(
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
