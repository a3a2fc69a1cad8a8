"""The schema of the settings: each setting is one field of `Settings`.

The field holds the setting's type, limits, default, and explanation. The command-line option, its
help, the environment variable, and the error messages are all derived from it, so they always
agree.
"""

from __future__ import annotations

import ipaddress
import shlex
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta
from msgspec.structs import fields, force_setattr

from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.settings.about import (
    ACCESS,
    CODE,
    MODELS,
    NETWORK,
    REQUESTS,
    STREAMS,
    TOOLS,
    WEBHOOKS,
    about,
)
from antiphon.entrypoints.settings.access import Oidc, TrustedProxy
from antiphon.entrypoints.settings.guards import GuardSettings, ModerationSettings
from antiphon.entrypoints.settings.models import ModelTable
from antiphon.entrypoints.settings.options import OWN_CLASSES, check_used
from antiphon.entrypoints.settings.outgoing import Outgoing
from antiphon.entrypoints.settings.sections import (
    STAND_IN,
    TOOL_CLASS,
    Agents,
    Code,
    EmbeddingEngine,
    Fetch,
    ImageSettings,
    McpServer,
    Scripted,
    Tools,
    WebSearchSettings,
)
from antiphon.entrypoints.settings.telemetry import TelemetrySettings
from antiphon.entrypoints.settings.workers import check_workers

CORS_ORIGIN = r"^https?://[^/@\s?#*,]+\Z"
HOST_NAME = r"^\*\Z|^[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?\Z"
SCRIPTED_MODELS = ("scripted-chat", "scripted-harmony", "scripted", "gpt-4.1-scripted")


SINGLE_MODEL_SETTINGS = (
    "model",
    "engine",
    "format",
    "chat_template",
    "served_model_name",
    "engine_options",
)

DEFAULT_QUOTAS = (100_000, 2 * 2**30)
"""The most responses and bytes of each tenant, where there may be several."""


class Settings(TelemetrySettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of one server, validated. `engine` is resolved: it is `auto` only if `models`
    have engines of their own. Workers get a copy, which is validated again.
    """

    model: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        about(
            MODELS,
            "The model: a folder with its weights, a GGUF file, or a name that the engine knows. "
            "The default is the scripted models, which need no GPU and no weights.",
            shown_default="the scripted models",
        ),
    ] = None
    engine: Annotated[
        Literal["auto", "scripted", "vllm", "llama"],
        about(
            MODELS,
            "The engine that generates tokens: vLLM, llama.cpp, or a script in the request. auto "
            "uses scripted for the scripted models, llama for a GGUF file, and vllm for any other "
            "model.",
        ),
    ] = "auto"
    format: Annotated[
        str,
        about(
            MODELS,
            "The model's output format: harmony (gpt-oss), or the chat template of a model "
            "family, for example chat:hermes (`antiphon formats` lists them). A family of your own "
            "is a TOML file or a value in a module. auto detects the format from the model.",
            allowed="auto, harmony, chat:FAMILY, FILE.toml or package.module:NAME",
            pattern=r"^(auto|harmony|chat:[A-Za-z0-9_.-]+|.+\.toml|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$",
        ),
    ] = "auto"
    chat_template: Annotated[
        Path | None,
        about(
            MODELS,
            "A file with the Jinja chat template to use instead of the model's own.",
            shown_default="the model's",
        ),
    ] = None
    served_model_name: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        about(
            MODELS,
            "The name that clients use for the model. Repeat the option to add names.",
            shown_default="the name of the model's folder, and MODEL as written",
        ),
    ] = ()
    engine_options: Annotated[
        tuple[str, ...],
        about(
            MODELS,
            "Options for vLLM, as vLLM spells them. On the command line, put them after `--`.",
            shown_default="none",
        ),
    ] = ()

    models: tuple[ModelTable, ...] = ()

    prompts_dir: Annotated[
        Path | None,
        about(
            MODELS,
            "The folder of the prompt templates that requests name in `prompt`. It contains "
            "NAME/VERSION.toml files.",
            shown_default="none",
        ),
    ] = None

    host: Annotated[
        str,
        about(
            NETWORK,
            "The address to listen on. 0.0.0.0 opens the server to the network; clients then need "
            "an API key.",
            min_length=1,
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int, about(NETWORK, "The port to listen on. 0 picks a free one.", ge=0, le=65_535)
    ] = 8000
    workers: Annotated[
        int,
        about(
            NETWORK,
            "Processes that accept connections on the port. They share the store; each has a "
            "processor, memory, and the limits of a server of its own. More than one need a store "
            "that processes can share: any but memory.",
            ge=1,
            le=64,
        ),
    ] = 1
    advertise_url: Annotated[
        Annotated[str, Meta(pattern=r"^https?://[^/?#@\s]+\Z")] | None,
        about(
            NETWORK,
            "The URL at which the other servers of the store reach this one, such as "
            "http://10.0.0.7:8000. With it, requests for a container, and responses that use it, "
            "reach the server that has it, whichever server gets them.",
            allowed="http://HOST:PORT or https://HOST:PORT",
            shown_default="containers are found at their server alone",
        ),
    ] = None
    graceful_shutdown_s: Annotated[
        int,
        about(NETWORK, "Seconds that running responses have to finish at shutdown.", ge=0),
    ] = 25
    drain_delay_s: Annotated[
        float,
        about(
            NETWORK,
            "Seconds to keep accepting requests after shutdown starts, so that load balancers "
            "notice. Use 5 on Kubernetes.",
            ge=0,
        ),
    ] = 0.0

    tls_cert: Annotated[
        Path | None,
        about(
            NETWORK,
            "The server's certificate and those that sign it, in PEM. The server then speaks "
            "HTTPS only. It needs tls_key. Both files are read again when they change.",
            shown_default="none",
        ),
    ] = None
    tls_key: Annotated[
        Path | None,
        about(
            NETWORK,
            "The private key of the certificate, in PEM, unencrypted.",
            shown_default="none",
        ),
    ] = None
    cors_origin: Annotated[
        tuple[Annotated[str, Meta(pattern=CORS_ORIGIN)], ...],
        about(
            NETWORK,
            "A web site whose pages may call this server from a browser, for example "
            "https://chat.example.org. Repeat the option to add sites.",
            allowed="a list of origins: http(s)://HOST or http(s)://HOST:PORT",
            shown_default="none",
        ),
    ] = ()
    allowed_host: Annotated[
        tuple[Annotated[str, Meta(pattern=HOST_NAME)], ...],
        about(
            NETWORK,
            "A name of this server in the header Host, besides localhost and addresses. Without "
            "keys, requests to other names are refused, since a web page's own name may mean this "
            "machine. With keys, all names are accepted if none is set. * accepts all. Repeat the "
            "option to add names.",
            allowed="a list of host names, without ports, or *",
            shown_default="none",
        ),
    ] = ()
    max_connections: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        about(
            NETWORK,
            "Maximum number of open connections. Beyond it, those without a request are closed, "
            "and new ones are refused with 503 if there is none.",
            shown_default="10000, or as many as the limit of open files allows",
        ),
    ] = None
    max_connections_per_address: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        about(
            NETWORK,
            "Maximum number of open connections from one address. Do not set it behind a proxy, "
            "whose clients share an address.",
            shown_default="no limit",
        ),
    ] = None
    write_stall_s: Annotated[
        float,
        about(
            NETWORK,
            "Seconds after which a client that reads nothing is disconnected. Its response runs "
            "on as if the client had left.",
            gt=0,
        ),
    ] = 60.0

    auth: Annotated[
        Literal["auto", "on", "off"],
        about(
            ACCESS,
            "Whether each request needs an API key (`antiphon keys create`), or what takes its "
            "place: a token (oidc) or the header of a proxy (trusted_proxy). auto requires one "
            "unless the host is a loopback address and neither is set. Behind any other proxy on "
            "the same machine, use on.",
        ),
    ] = "auto"
    keys_file: Annotated[
        Path | None,
        about(
            ACCESS,
            "A TOML file with hashes of API keys, in addition to those in the store. It is "
            "reloaded when it changes.",
            shown_default="none",
        ),
    ] = None
    default_limit: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        about(
            ACCESS,
            "A limit for each API key that has none of this kind, for example requests/min=600. "
            "Repeat the option to add limits; `antiphon keys create --help` explains them.",
            shown_default="none",
        ),
    ] = ()

    oidc: Oidc = Oidc()
    trusted_proxy: TrustedProxy = TrustedProxy()

    max_body_bytes: Annotated[
        Annotated[int, Meta(ge=1024)] | None,
        about(
            REQUESTS,
            "Maximum size of a request body in bytes, including images in data URLs.",
            shown_default="33554432 if a model reads images, otherwise 8388608",
        ),
    ] = None
    max_work_bytes: Annotated[
        int,
        about(
            REQUESTS,
            "Maximum bytes in work: of all request bodies and WebSocket messages that are arriving "
            "or being decoded, of the output of tools, and of events that clients have not read. "
            "Each tenant may use half of them. What has under 64 KB does not count.",
            ge=65_536,
        ),
    ] = 128 * 1024 * 1024
    max_depth: Annotated[
        int, about(REQUESTS, "Maximum nesting depth of a JSON body.", ge=8, le=200)
    ] = 64
    max_json_nodes: Annotated[
        int, about(REQUESTS, "Maximum number of values in a JSON body.", ge=100)
    ] = 200_000
    arrival_s: Annotated[
        float,
        about(REQUESTS, "Seconds to receive a whole request, including its body.", gt=0),
    ] = 60.0
    max_media: Annotated[
        int,
        about(
            REQUESTS,
            "Maximum number of images and files in one request, including its history.",
            ge=1,
            le=10_000,
        ),
    ] = 100
    max_media_bytes: Annotated[
        int, about(REQUESTS, "Maximum total bytes of those images and files.", ge=1)
    ] = 64 * 1024 * 1024
    max_image_pixels: Annotated[
        int,
        about(
            REQUESTS,
            "Maximum pixels in one image, width times height. All images of a request may have "
            "eight times as many.",
            ge=1,
        ),
    ] = 50_000_000
    max_file_bytes: Annotated[
        int, about(REQUESTS, "Maximum size of an uploaded file in bytes.", ge=1)
    ] = 64 * 1024 * 1024
    strict: Annotated[
        bool,
        about(
            REQUESTS,
            "Refuse a request if any part of it would have no effect: a mistyped tool or label, a "
            "tool that this server does not run, or a field that it does not know or use. "
            "Otherwise the header x-antiphon-ignored names that part.",
        ),
    ] = False
    strict_unknown_fields: Annotated[
        bool,
        about(REQUESTS, "Refuse a request with a field that the server does not know."),
    ] = False

    keepalive_s: Annotated[
        float,
        about(
            STREAMS,
            "Seconds of silence before a stream sends a sign of life, and seconds between "
            "WebSocket pings, so that proxies keep connections open. 0 sends neither.",
            ge=0,
        ),
    ] = 15.0
    keepalive: Annotated[
        Literal["auto", "comment", "event"],
        about(
            STREAMS,
            "The sign of life of a silent stream: a comment line, which all clients skip, or an "
            "event of the type keepalive, also on a WebSocket. `auto` sends the event to Codex, "
            "which would otherwise end a silent turn after five minutes.",
        ),
    ] = "auto"
    dialect: Annotated[
        Literal["openai", "open-responses"],
        about(
            STREAMS,
            "The specification that names events and errors where the two differ. open-responses "
            "also ends streams with `data: [DONE]`. A request can choose with the header "
            "x-antiphon-dialect.",
        ),
    ] = "openai"

    response_s: Annotated[
        float,
        about(
            REQUESTS,
            "Seconds that one response may run, including its tools. It then ends as incomplete, "
            "with the output so far.",
            gt=0,
        ),
    ] = 3600.0

    websocket_s: Annotated[
        float,
        about(
            STREAMS,
            "Seconds that a WebSocket connection may last. Running responses still finish.",
            gt=0,
        ),
    ] = 3600.0

    websockets_per_tenant: Annotated[
        int,
        about(STREAMS, "Maximum number of open WebSocket connections per tenant.", ge=1),
    ] = 256

    webhooks: Annotated[
        Path | None,
        about(
            WEBHOOKS,
            "A TOML file of endpoints to notify when a background response ends: [[endpoint]] "
            "tables with url and secret, and optionally events, tenant, and name.",
            shown_default="none",
        ),
    ] = None
    webhook_url: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        about(
            WEBHOOKS,
            "A single webhook endpoint, without a file. It needs webhook_secret.",
            shown_default="none",
            is_secret=True,
        ),
    ] = None
    webhook_secret: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        about(
            WEBHOOKS,
            "The secret that signs the webhooks of webhook_url: whsec_ followed by 24 to 64 bytes "
            "in Base64. Set it as an environment variable: other users can see the command line.",
            shown_default="none",
            is_secret=True,
        ),
    ] = None

    tool: Annotated[
        tuple[Annotated[str, Meta(pattern=TOOL_CLASS)], ...],
        about(
            TOOLS,
            "Your own class of tools for the server to run: [LABEL=]package.module:Class. Requests "
            "name its label. Repeat the option to add classes.",
            allowed="a list of [LABEL=]package.module:Class",
            shown_default="none",
        ),
    ] = ()

    mcp_servers: tuple[McpServer, ...] = ()

    stand_in: Annotated[
        tuple[Annotated[str, Meta(pattern=STAND_IN)], ...],
        about(
            TOOLS,
            "Replace a hosted tool with the tools of one of your servers: TYPE=LABEL, where TYPE "
            "is web_search, code_interpreter, file_search, or image_generation. Repeat the option "
            "to replace more.",
            allowed="a list of TYPE=LABEL",
            shown_default="none",
        ),
    ] = ()
    hosted_label: Annotated[
        tuple[Literal["code_interpreter", "container", "web_search_preview"], ...],
        about(
            TOOLS,
            "Let requests name a hosted tool as an MCP server with this label, as clients of vLLM "
            "do: code_interpreter, container (the shell), or web_search_preview. Repeat the "
            "option to add labels.",
            allowed="a list of code_interpreter, container, web_search_preview",
            shown_default="none",
        ),
    ] = ()

    code_interpreter: Annotated[
        bool,
        about(
            CODE,
            "Run the Python code that models write for the code_interpreter tool. Each container "
            "is a bubblewrap sandbox without access to this machine's files, network, or "
            "processes. The server tests the sandbox and does not start if it leaks.",
        ),
    ] = False

    shell: Annotated[
        bool,
        about(
            CODE,
            "Run the commands that models write for the shell tool with a container on this "
            "server, in the same sandboxes. Commands can read this machine's programs (/usr/bin), "
            "and code can start processes.",
        ),
    ] = False

    programs: Annotated[
        bool,
        about(
            CODE,
            "Run the JavaScript that models write for the programmatic_tool_calling tool, in a "
            "bubblewrap sandbox with even fewer rights. Programs reach only the tools that a "
            "request lets them call.",
        ),
    ] = False

    fetch: Fetch = Fetch()
    outgoing: Outgoing = Outgoing()
    tools: Tools = Tools()
    agents: Agents = Agents()
    code: Code = Code()
    web: WebSearchSettings = WebSearchSettings()
    embeddings: EmbeddingEngine = EmbeddingEngine()
    images: ImageSettings = ImageSettings()
    guards: GuardSettings = GuardSettings()
    moderation: ModerationSettings = ModerationSettings()
    scripted: Scripted = Scripted()

    def __post_init__(self) -> None:
        check_workers(self)
        check_used(self.options, {setting: getattr(self, setting) for setting in OWN_CLASSES})
        if self.models:
            self._refuse_a_single_model()
        elif self.engine == "auto":
            # Resolved here, so that no caller has to handle `auto`.
            force_setattr(self, "engine", _engine_of(self.model))
        if self.engine in ("vllm", "llama") and self.model is None:
            raise SettingsError(
                f"The {self.engine} engine needs a model: antiphon serve MODEL --engine "
                f"{self.engine}."
            )
        if self.engine in ("scripted", "llama") and self.engine_options:
            raise SettingsError(
                f"Engine options ({shlex.join(self.engine_options)}) are for the vllm engine, "
                f"but the engine is {self.engine}: remove them, or name a model."
            )

    def _refuse_a_single_model(self) -> None:
        """Raises: SettingsError for settings of a single model beside the tables of several."""
        for field in fields(self):
            name = field.name
            if name in SINGLE_MODEL_SETTINGS and getattr(self, name) != field.default:
                raise SettingsError(
                    f"{name} is for a server of one model, but the settings file has [[models]]: "
                    "set it in the model's table."
                )

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines of the models, each once."""
        return tuple(dict.fromkeys(each.engine for each in self.models)) or (self.engine,)

    @property
    def needs_keys(self) -> bool:
        """Whether a request is refused that has no API key and nothing in its place."""
        if self.auth != "auto":
            return self.auth == "on"
        return not _is_loopback(self.host) or self.oidc.is_on or self.trusted_proxy.is_on

    @property
    def tenant_quotas(self) -> tuple[int | None, int | None]:
        """The most responses and bytes that a tenant may store; None means no limit."""
        default_responses, default_bytes = DEFAULT_QUOTAS if self.needs_keys else (0, 0)
        responses, size = self.quota_responses, self.quota_bytes
        return (
            (default_responses if responses is None else responses) or None,
            (default_bytes if size is None else size) or None,
        )

    @property
    def refuses_unknown_fields(self) -> bool:
        return self.strict or self.strict_unknown_fields


def _engine_of(model: str | None) -> str:
    """Return the engine of a model if none is named."""
    if model is None or model in SCRIPTED_MODELS:
        return "scripted"
    return "llama" if model.lower().endswith(".gguf") else "vllm"


def _is_loopback(host: str) -> bool:
    """Return whether only this machine can connect. A host name other than localhost may be any
    address.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    # Python 3.13 counts ::ffff:127.0.0.1 in, earlier ones do not.
    return address.is_loopback and not getattr(address, "ipv4_mapped", None)
