"""The ports: what the server needs from the outside, each a promise that contract tests check.

Model ⊃ Format + Engine   one turn: a conversation in, deltas out
ResponseStore             responses, conversations and their items, as long as the store keeps them
EventLog                  the events of each run, for its readers
PromptTemplates           what requests leave open, by name and version
FileStore                 the files that clients uploaded
Fetcher                   what a URL names, within the bounds that the operator set
ToolServers ⊃ ToolSession the tools of servers that requests name, for one response
ReadPdf                   the text of a PDF

A port that opens something raises there, before the first result, whatever can still be answered
with a status code. Leaving an iterator (`aclose`, or cancelling the task that reads it) releases
what it holds.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Raw, Struct

from antiphon.application.sampling import Constraint, Sampling
from antiphon.domain.content import Logprob
from antiphon.domain.conversation import Conversation
from antiphon.domain.deltas import Delta
from antiphon.domain.events import Event
from antiphon.domain.items import Item
from antiphon.domain.prompts import Template
from antiphon.domain.response import Response, TextConfig
from antiphon.domain.tools import Choice, McpTool, ToolSpec

Json = dict[str, Any]

Clock = Callable[[], float]
"""Seconds since the epoch."""

NewId = Callable[[str], str]
"""A fresh id with this prefix: `new_id("msg")` -> `msg_…`."""


# --- one turn of a model --------------------------------------------------------------------------


class Turn(Struct, frozen=True, kw_only=True):
    """One engine run, as asked for: independent of any format or engine.

    `items` are the conversation in order, without what the conversation rules drop. `tools` are
    offered to the model in this order; `choice` says which of them it may or must call. `effort`
    is None where the request leaves it to the model. `previous_messages` are in the format's own
    shape and come first.
    """

    model: str
    items: Sequence[Item]
    instructions: str | None = None
    tools: Sequence[ToolSpec] = ()
    choice: Choice = Choice()
    parallel_tool_calls: bool = True
    text: TextConfig = TextConfig()
    effort: str | None = None
    previous_messages: Sequence[Json] = ()
    template_kwargs: Mapping[str, Any] = {}
    truncate: bool = False
    sampling: Sampling = Sampling()
    priority: int = 0
    cache_salt: str | None = None
    trace_headers: Mapping[str, str] = {}


class Step(Struct, frozen=True, kw_only=True, gc=False):
    """What the engine generated since its last step.

    `text` is the tokens' text, special tokens included; it may lag behind `token_ids` while a
    character or a stop string is unfinished. `logprobs` has one entry a token, when asked for.
    `finish` is set on the last step: `stop`, `length`, `abort` or `error`. `cached_tokens` counts
    prompt tokens that were not computed again; it is known from the first step on.
    """

    text: str = ""
    token_ids: Sequence[int] = ()
    logprobs: tuple[Logprob, ...] | None = None
    finish: str | None = None
    cached_tokens: int = 0


class Prompt(Struct, frozen=True, kw_only=True):
    """A rendered turn; `image_urls` belong, in order, to the image placeholders in it.

    They are data URLs, of a type that was looked up. `prepared` is the engine's own.
    """

    token_ids: Sequence[int]
    image_urls: Sequence[str] = ()
    prepared: Any = None


class Parser(Protocol):
    """Reads what the model writes in one turn. Never raises on it, and loses no text.

    The same tokens give the same items and the same joined deltas, in however many steps they come.
    """

    reasoning_tokens: int
    """Tokens of reasoning read so far."""

    def feed(self, step: Step) -> list[Delta]: ...

    def end(self) -> list[Delta]:
        """Return what was held back; nothing is fed afterwards."""


class Format(Protocol):
    """How one family of models writes: conversation → tokens, tokens → deltas."""

    name: str
    """As `--format` spells it: `harmony`, `chat:hermes`…"""

    stop_token_ids: Sequence[int]
    """Tokens that end the assistant's turn, besides the model's own."""

    skip_special_tokens: bool
    """Whether the engine should leave special tokens out of `Step.text`."""

    reads_text: bool
    """Whether the parser needs `Step.text`; if not, the engine need not decode."""

    reads_images: bool
    """Whether a prompt can hold images."""

    efforts: Sequence[str]
    """Values of `reasoning.effort` that the model knows."""

    async def render(self, turn: Turn) -> Prompt:
        """Return the prompt. Raises: RequestError for what this model cannot be given."""

    def parser(self, turn: Turn, prompt: Prompt) -> Parser: ...

    def constraint(self, turn: Turn) -> Constraint | None:
        """Return what the output must match so that tool choice, strict tools and text format hold.

        Reasoning stays free; only what follows it is bound. None where nothing is asked for.
        Raises: RequestError where the format cannot bind what is asked for.
        """

    def messages(self, token_ids: Sequence[int]) -> list[Json]:
        """Return prompt or output as the format's own messages, each with its tokens.

        Shape (vLLM's): `{"type": "raw_message_tokens", "message": …, "tokens": [int]}`.
        """


class EngineRequest(Struct, frozen=True, kw_only=True):
    """A run for the engine. `request_id` is unique among live runs.

    `turn` is what the prompt was rendered from: no engine that samples looks at it; the scripted
    engine takes tools and schemas from it that a real model would understand from the prompt.
    """

    request_id: str
    model: str
    prompt: Prompt
    sampling: Sampling
    detokenize: bool = True
    priority: int = 0
    cache_salt: str | None = None
    trace_headers: Mapping[str, str] = {}
    turn: Turn


class Steps(Protocol):
    """A run's steps, read once; `aclose` aborts the run if it is not over."""

    def __aiter__(self) -> AsyncIterator[Step]: ...

    async def aclose(self) -> None: ...


class Engine(Protocol):
    """Generates tokens for prompts."""

    async def start(self) -> None:
        """Load what is needed. Raises: SettingsError with what to do about it."""

    async def aclose(self) -> None: ...

    @property
    def models(self) -> Sequence[str]:
        """The names that the engine serves, the base model first."""

    @property
    def context_length(self) -> int:
        """Tokens that prompt and output may have together."""

    @property
    def sampling_defaults(self) -> Mapping[str, Any]:
        """The model's own sampling defaults, as fields of Sampling; may be empty."""

    @property
    def reads_images(self) -> bool:
        """Whether prompts may bring images."""

    async def check(self) -> None:
        """Raises: EngineDead when no request can be served."""

    async def prepare(self, prompt: Prompt) -> Prompt:
        """Return the prompt as it will run: each image has all the tokens that it takes.

        What has no images comes back as it is. Raises: RequestError for images it cannot take.
        """

    async def generate(self, request: EngineRequest) -> Steps:
        """Admit the run and return its steps, the last with `finish` set.

        Leaving the iterator aborts the run in the engine.
        Raises: here RequestError (a bad constraint, no room) or TooManyRequests; later EngineError.
        """


class ModelTurn(Protocol):
    """A turn that was admitted: iterate once over lists of deltas, one list an engine step.

    The last delta is a TurnEnd. Raises while iterating: EngineError. Leaving the iterator, or
    `aclose` before it was begun, aborts the run.
    """

    def __aiter__(self) -> AsyncGenerator[list[Delta]]: ...

    async def aclose(self) -> None: ...

    def messages(self) -> tuple[list[Json], list[Json]]:
        """Return the turn's input and output in the format's own shape, as far as they exist."""


class Model(Protocol):
    """One turn of a model: conversation → deltas."""

    @property
    def names(self) -> Sequence[str]:
        """The names that clients may ask for."""

    @property
    def writes(self) -> str:
        """The name of its format, for people."""

    @property
    def reads_images(self) -> bool:
        """Whether a turn's items may hold images."""

    @property
    def efforts(self) -> Sequence[str]: ...

    @property
    def context_length(self) -> int:
        """Tokens that prompt and output may have together."""

    @property
    def sampling_defaults(self) -> Mapping[str, Any]: ...

    async def start(self) -> None: ...

    async def aclose(self) -> None: ...

    async def check(self) -> None:
        """Raises: EngineDead when no request can be served."""

    async def count(self, turn: Turn) -> int:
        """Return the turn's input tokens, also when they are too many. Raises: RequestError."""

    async def begin(self, turn: Turn, *, request_id: str) -> ModelTurn:
        """Render and admit a turn. Raises: RequestError, TooManyRequests, EngineDead."""


# --- what is kept ---------------------------------------------------------------------------------


class StoredItem(Struct, frozen=True, kw_only=True):
    """An item as the client may see it: `raw` is its whole JSON, unknown fields included."""

    id: str
    raw: Raw


class StoredResponse(Struct, frozen=True, kw_only=True):
    """A response as it is kept. `input` are the items that its request added to the chain."""

    response: Response
    input: Sequence[StoredItem] = ()


class Claim(Struct, frozen=True, kw_only=True):
    """The response that has a conversation to itself until it is over."""

    tenant: str
    conversation_id: str
    response_id: str


class ResponseStore(Protocol):
    """Responses, conversations and their items, by tenant. What was written is read at once, from
    any process.

    Items are kept once, for the response that brought them and for its conversation alike. Every id
    of another tenant is unknown. Raises: StoreError, from any method, when the store fails.
    """

    async def start(self) -> None:
        """Open, migrate, prove that a write can be read back. Raises: SettingsError."""

    async def aclose(self) -> None: ...

    async def create(self, tenant: str, stored: StoredResponse) -> None:
        """Keep a new response; its status is not terminal yet.

        Where it names a conversation it was given what that has now.
        """

    async def finish(self, tenant: str, response: Response) -> bool:
        """Set a terminal state and its output, once: False if it was terminal or deleted.

        A conversation that it has claimed is free at the same moment, with the response's input and
        output at its end unless the response failed (`Response.leaves_items`).
        """

    async def get(self, tenant: str, response_id: str) -> Response:
        """Raises: NotFound."""

    async def input_items(self, tenant: str, response_id: str) -> list[StoredItem]:
        """Return all that the model was given: the chain's inputs and outputs, then this input.

        Of a conversation, what it had then and still has. Raises: NotFound.
        """

    async def context(self, tenant: str, response_id: str) -> list[StoredItem]:
        """Return `input_items` followed by the response's output. Raises: NotFound."""

    async def item(self, tenant: str, item_id: str) -> StoredItem:
        """Return the newest item of that id. Raises: NotFound."""

    async def delete(self, tenant: str, response_id: str) -> None:
        """Forget the response; responses that continue it and its conversation keep its items.

        A conversation that it has claimed is free again. Raises: NotFound.
        """

    async def unfinished(self) -> list[tuple[str, Response]]:
        """Return (tenant, response) of all that have no terminal status, oldest first."""

    async def create_conversation(
        self, tenant: str, conversation: Conversation, items: Sequence[StoredItem] = ()
    ) -> None:
        """Keep a new conversation, which begins with these items."""

    async def conversation(self, tenant: str, conversation_id: str) -> Conversation:
        """Raises: NotFound."""

    async def update_conversation(
        self, tenant: str, conversation_id: str, metadata: Mapping[str, str]
    ) -> Conversation:
        """Replace the metadata and return the conversation. Raises: NotFound."""

    async def delete_conversation(self, tenant: str, conversation_id: str) -> None:
        """Forget the conversation and its items; responses keep those they brought.

        Raises: NotFound.
        """

    async def conversation_items(self, tenant: str, conversation_id: str) -> list[StoredItem]:
        """Return the items in order. Raises: NotFound."""

    async def add_items(
        self, tenant: str, conversation_id: str, items: Sequence[StoredItem]
    ) -> None:
        """Put items at the end. Raises: NotFound; ConversationLocked while it is claimed."""

    async def remove_item(self, tenant: str, conversation_id: str, item_id: str) -> None:
        """Take the items of this id out of the conversation. Raises: NotFound."""

    async def claim(self, tenant: str, conversation_id: str, response_id: str) -> None:
        """Keep the conversation for this response alone, until it is finished or lets it go.

        Of several that ask, one gets it. Raises: NotFound; ConversationLocked.
        """

    async def release(
        self,
        tenant: str,
        conversation_id: str,
        response_id: str,
        items: Sequence[StoredItem] = (),
    ) -> None:
        """Free the conversation with `items` at its end, if this response has claimed it.

        For responses that are not kept, and for those that came to nothing.
        """

    async def claims(self) -> list[Claim]:
        """Return the claims of all tenants."""


class Batches(Protocol):
    """Events of one run, read once, in batches of what is ready."""

    def __aiter__(self) -> AsyncIterator[Sequence[Event]]: ...

    async def __anext__(self) -> Sequence[Event]: ...

    async def aclose(self) -> None: ...


class EventLog(Protocol):
    """The events of each run, in order, for any number of readers that do not slow the run."""

    async def create(self, response_id: str) -> None: ...

    async def append(self, response_id: str, events: Sequence[Event]) -> None:
        """Add events; their numbers continue those before them."""

    async def open(self, response_id: str, *, after: int = -1) -> Batches:
        """Return the events numbered above `after`, then live ones, up to a terminal event.

        What is ready comes in one batch. Raises: NotFound, here, before the first batch.
        """

    async def drop(self, response_id: str) -> None:
        """Forget the log; readers that have it open still read to its end."""


class PromptTemplates(Protocol):
    """Templates that requests name in `prompt`."""

    async def start(self) -> None:
        """Read what must be read. Raises: SettingsError for a template that cannot be used."""

    async def get(self, prompt_id: str, version: str | None) -> Template | None:
        """Return that version, or the newest where none is named; None if there is none."""


class StoredFile(Struct, frozen=True, kw_only=True):
    """What is known of an uploaded file; its content is kept apart."""

    id: str
    filename: str
    purpose: str
    bytes: int
    created_at: int


class FileStore(Protocol):
    """Files and their content, by tenant. What was written is read at once.

    Every id of another tenant is unknown. A file is there with its whole content, or not at all.
    Raises: StoreError, from any method, when the store fails.
    """

    async def start(self) -> None:
        """Open, and prove that it can be written. Raises: SettingsError."""

    async def aclose(self) -> None: ...

    async def add(self, tenant: str, file: StoredFile, content: bytes) -> None: ...

    async def all(self, tenant: str) -> list[StoredFile]:
        """Return all files, oldest first."""

    async def get(self, tenant: str, file_id: str) -> StoredFile:
        """Raises: NotFound."""

    async def content(self, tenant: str, file_id: str) -> bytes:
        """Raises: NotFound."""

    def pieces(self, tenant: str, file_id: str) -> AsyncGenerator[bytes]:
        """Return the content in pieces, of which few are in memory at a time.

        Raises, with the first piece: NotFound.
        """

    async def delete(self, tenant: str, file_id: str) -> None:
        """Raises: NotFound."""


# --- what comes from elsewhere --------------------------------------------------------------------


class Fetched(Struct, frozen=True, kw_only=True):
    """An answer, whatever its status. Names of headers are in small letters."""

    status: int
    headers: Mapping[str, str] = {}
    content_type: str = ""
    content: bytes = b""


class Fetcher(Protocol):
    """The only way out: every outgoing HTTP request that a client can cause takes it."""

    async def fetch(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
    ) -> Fetched:
        """Return the answer; a GET follows redirects, each checked like the URL itself.

        Raises: FetchRefused for a URL that may not be fetched; FetchTooLarge; FetchFailed. Their
        messages may be shown to clients: they say nothing of the network behind this server.
        """


class ToolResult(Struct, frozen=True, kw_only=True):
    """What a call gave: its output, or the error of api_surface 3.2 that came in its place."""

    output: str | None = None
    error: Json | None = None


class ToolSession(Protocol):
    """One server's tools, for one response. Nothing is sent before the first use.

    Several calls may run at the same time. Each use ends within a time that the operator set.
    """

    async def tools(self) -> tuple[Json, ...]:
        """Return the tools as `mcp_list_tools` shows them. Raises: ToolServerError."""

    async def call(self, name: str, arguments: Json) -> ToolResult:
        """Call a tool, once: what went wrong is a result too, and nothing is tried again."""

    async def aclose(self) -> None: ...


class ToolServers(Protocol):
    """The servers whose tools this server calls."""

    def session(self, server: McpTool) -> ToolSession:
        """Return a session with the server of this address and these credentials."""


ReadPdf = Callable[[bytes], Awaitable[str]]
"""The text of a PDF. Raises: DocumentError, with what to do about it."""
