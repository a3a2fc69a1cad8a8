"""The ports: what the server needs from the outside, each a promise that contract tests check.

Model ⊃ Format + Engine   one turn: a conversation in, deltas out
Store                     all that is kept, in one place; one class implements its six parts:
    ResponseStore         responses, conversations and their items
    RunStore              who runs what, and the logs of runs that outlive their process
    RepeatStore           which response an Idempotency-Key has
    Outbox                webhooks that are to be delivered
    KeyStore              API keys, hashed
    Agreements            what all servers of the store have in common
EventLog                  the events of each run of this process, for its readers
PromptTemplates           what requests leave open, by name and version
FileStore                 the files that clients uploaded
VectorStores              what of them is searched: which are in which store, and their chunks
Embeddings                what texts mean, as vectors
Fetcher                   what a URL names, within the bounds that the operator set
ToolServers ⊃ ToolSession the tools of servers that requests name, for one response
ToolServer                a server of tools that the operator set up
Sandboxes ⊃ Sandbox       where the code of models runs
ReadPdf                   the text of a PDF

A port that opens something raises there, before the first result, whatever can still be answered
with a status code. Leaving an iterator (`aclose`, or cancelling the task that reads it) releases
what it holds.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

from msgspec import Raw, Struct

from antiphon.application.ports.sampling import Constraint, Sampling
from antiphon.domain.chunks import TextChunk
from antiphon.domain.content import Logprob
from antiphon.domain.conversation import Conversation
from antiphon.domain.deltas import Delta
from antiphon.domain.events import Event
from antiphon.domain.filters import Filter
from antiphon.domain.items import Item
from antiphon.domain.prompts import Template
from antiphon.domain.ranking import Passage
from antiphon.domain.response import Response, TextConfig
from antiphon.domain.tools import Choice, McpTool, ToolSpec
from antiphon.domain.usage import TurnUsage
from antiphon.domain.vector_stores import (
    ChunkSizes,
    FileBatch,
    IndexingError,
    StoreFile,
    VectorStore,
)

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
    shape and come first. `known_tokens` are those that the turn before read and wrote, where this
    one goes on after what the server did for it: what its prompt has beyond them, tools gave.
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
    known_tokens: int | None = None


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

    They are data URLs, of a type that was looked up. `prepared` is the engine's own; `place` is the
    format's: by what it knows the conversation so far.
    """

    token_ids: Sequence[int]
    image_urls: Sequence[str] = ()
    prepared: Any = None
    place: bytes = b""


class Parser(Protocol):
    """Reads what the model writes in one turn. Never raises on it, and loses no text.

    The same tokens give the same items and the same joined deltas, in however many steps they come.
    """

    reasoning_tokens: int
    """Tokens of reasoning read so far."""

    is_well_formed: bool
    """Whether what was read can be shown to the model again as it was written: nothing had to be
    mended, and all of it was given out."""

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

    def keep(
        self,
        turn: Turn,
        prompt: Prompt,
        *,
        token_ids: Sequence[int],
        parser: Parser,
        items: Sequence[Item],
    ) -> None:
        """Remember that this output, complete and read by `parser`, has become `items`: a prompt
        with them continues this prompt and its output exactly.
        """

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

    def became(self, items: Sequence[Item]) -> None:  # noqa: ARG002 - it is a default
        """Hear which items this turn has become, once it has ended by itself: later prompts may
        repeat it as it was written. What is no turn of a model has nothing to repeat.
        """
        return

    def messages(self) -> tuple[list[Json], list[Json]]:
        """Return the turn's input and output in the format's own shape, as far as they exist."""

    def used(self) -> Sequence[TurnUsage]:
        """Return the tokens taken so far, for a turn that is left before its end told of them."""
        return ()


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


class Chunk(Struct, frozen=True, kw_only=True):
    """Events of one run that follow each other, written down (event_chunks.py).

    The first has the number `first`; there are `count` of them.
    """

    first: int
    count: int
    body: bytes


class NewRun(Struct, frozen=True, kw_only=True):
    """How a new response is run.

    `owner` is the server that runs it from now on, under epoch 1; None leaves it waiting for one
    (epoch 0). `job` is all that any server needs to begin it; None where only its owner can.
    `events` are the first of its log, where the store keeps that. `key` is the Idempotency-Key that
    the response was given, if any.
    """

    owner: str | None = None
    job: bytes | None = None
    events: Chunk | None = None
    key: str | None = None


class StoredResponse(Struct, frozen=True, kw_only=True):
    """A response as it is kept. `input` are the items that its request added to the chain.

    `expires_at` (seconds since the epoch) is when it may be swept; None keeps it.
    """

    response: Response
    input: Sequence[StoredItem] = ()
    expires_at: float | None = None
    run: NewRun = NewRun()


class Lease(Struct, frozen=True, kw_only=True):
    """The right to write a run that has an owner: void once the run is over, deleted, given back,
    or taken under a higher epoch. Nobody has one for a run that waits.

    There is no other fence: whoever was stopped and wakes up finds that nothing of it is written.
    """

    tenant: str
    response_id: str
    epoch: int = 1


class Notice(Struct, frozen=True, kw_only=True):
    """A webhook to deliver: `id` is the same at each attempt; `endpoint` names its receiver."""

    id: str
    tenant: str
    endpoint: str
    body: bytes
    attempts: int = 0


class Use(Struct, frozen=True, kw_only=True):
    """What a tenant has in the store: `bytes` are those of bodies, items and logs, about.

    `waiting` are the runs that no server has been given yet, or that one has given back.
    """

    responses: int = 0
    bytes: int = 0
    waiting: int = 0


class ResponseStore(Protocol):
    """Responses, conversations and their items, by tenant. What was written is read at once, from
    any process.

    Items are kept once, for the response that brought them and for its conversation alike. Every id
    of another tenant is unknown. Raises: StoreError, from any method, when the store fails.
    """

    async def start(self) -> None:
        """Open, migrate, prove that a write can be read back. Raises: SettingsError."""

    async def aclose(self) -> None: ...

    async def check(self) -> None:
        """Raises: StoreError when nothing can be written now."""

    async def create(self, tenant: str, stored: StoredResponse) -> None:
        """Keep a new response with its run's job and first events; its status is not terminal yet.

        Where it names a conversation it was given what that has now. Raises: RepeatPending, and
        nothing is kept, if the response has lost the Idempotency-Key that it was given.
        """

    async def finish(
        self,
        lease: Lease,
        response: Response,
        *,
        events: Chunk | None = None,
        notices: Sequence[Notice] = (),
    ) -> bool:
        """Set a terminal state with its output, the last events of a log that is kept here, and the
        notices of it, all at once, once: False, and nothing written, if the lease is void. The job
        is forgotten. Raises: StoreError, and nothing is written, for events that `append` refuses.

        A conversation that the response has claimed is free at the same moment, with the response's
        input and output at its end unless the response failed (`Response.leaves_items`).
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
        """Forget the response, its log, its job and its Idempotency-Key.

        Responses that continue it and its conversation keep its items; its notices, which are not
        its content, are still delivered. A conversation that it has claimed is free again. Raises:
        NotFound.
        """

    async def use(self, tenant: str) -> Use:
        """Return what the tenant has here."""

    async def sweep(self, *, keep_events_s: float, limit: int = 1000) -> int:
        """Forget what is past its time: responses, as `delete` does; logs of runs that have been
        over for `keep_events_s`; Idempotency-Keys. Return how many, `limit` at the most: 0 where
        nothing is left to forget.

        No response that runs, and none that was made in a conversation, is past its time.
        """

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

    async def claim(
        self, tenant: str, conversation_id: str, response_id: str, *, owner: str
    ) -> None:
        """Keep the conversation for this response alone, until it is finished or lets it go.

        Of several that ask, one gets it. A claim whose owner is dead (see RunStore) counts only as
        long as the response that has it is stored and unfinished. Raises: NotFound;
        ConversationLocked.
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


class TakenRun(Struct, frozen=True, kw_only=True):
    """A run under a new lease: `response` is as it was created, `job` as it was given."""

    lease: Lease
    response: Response
    job: bytes | None = None


PIECE_BYTES = 4 * 2**20
"""What is read of a log at once, where nobody asks for less."""


class Logged(Struct, frozen=True, kw_only=True):
    """A piece of a log. `ends` says that no chunk follows these."""

    chunks: Sequence[Chunk]
    ends: bool


class RunStore(Protocol):
    """Who runs what: each unfinished response is waiting, or owned by one server.

    An owner is a name that a server has for one life. It is alive for the seconds that its last
    `beat` gave it, by a clock that nobody sets back or forward. Raises: StoreError.
    """

    def beat(self, owner: str, ttl_s: float) -> None:
        """Be alive for so many seconds more.

        Blocks: it is called from a thread of its own, also while the event loop is busy.
        """

    async def leave(self, owner: str) -> None:
        """Be dead from now on: what the owner still has may be taken at once."""

    async def take(self, owner: str, *, limit: int, waiting: bool = True) -> list[TakenRun]:
        """Take runs that wait or whose owner is dead, oldest first, each under a higher epoch.

        Without `waiting`, those whose owner is dead alone.

        Of several that ask for it, one gets a run. What the asker has already it does not get
        again, be it dead itself: it may have been cut off from the store, and have it at work.
        """

    async def take_over(self, owner: str, tenant: str, response_id: str) -> TakenRun | None:
        """Take a run from whoever has it, alive or not. None if it is over. Raises: NotFound."""

    async def give_back(self, lease: Lease) -> bool:
        """Let the run wait for another owner: False if the lease is void."""

    async def held(self, owner: str) -> list[Lease]:
        """Return the leases that the owner has; of those it had, the others are void."""

    async def append(self, lease: Lease, events: Chunk) -> bool:
        """Add events to a log that began when its response was created; it has no gaps.

        False, and nothing written, if the lease is void. The same chunk again changes nothing and
        is True. Raises: StoreError, and nothing is written, for any other chunk whose first number
        is not the one after the last, and where no log is kept.
        """

    async def events(
        self, tenant: str, response_id: str, *, after: int = -1, limit_bytes: int = PIECE_BYTES
    ) -> Logged:
        """Return chunks from the one with number `after + 1` in it on: about `limit_bytes` at most,
        but one chunk at least where there is any.

        Nothing is returned twice where `after` is the last number that was. A log ends when its run
        is over. Raises: NotFound where there is no such response, or no log of it here.
        """

    async def news(self, tenant: str, response_id: str, *, after: int = -1, limit_s: float) -> None:
        """Return when a log may have more than number `after`, or has ended, or is gone.

        Not later than after `limit_s`; nor, for what another process wrote, much later than 100 ms.
        Never raises NotFound: what is unknown is gone.
        """


class Repeat(Struct, frozen=True, kw_only=True):
    """What an Idempotency-Key stands for. `exists` says whether that response is stored yet."""

    response_id: str
    fingerprint: bytes
    exists: bool


class RepeatStore(Protocol):
    """Idempotency-Keys: each has one response, for as long as that is stored, or is being made.

    Raises: StoreError.
    """

    async def reserve(
        self,
        tenant: str,
        key: str,
        *,
        response_id: str,
        fingerprint: bytes,
        owner: str,
        expires_at: float,
    ) -> Repeat:
        """Give the key to this response if it is free, and return what has it then.

        It is free again when its response is deleted, when it has expired (at the latest once it
        is swept), and when its owner died before the response was created; `create` sees to it that
        the response does not come after all. Whoever has it may ask again.
        """

    async def unreserve(self, tenant: str, key: str, response_id: str) -> None:
        """Free the key again, if this response has it and is not stored: it came to nothing."""


class Outbox(Protocol):
    """Notices that `finish` left, until they are delivered or given up. Raises: StoreError."""

    async def due(self, *, limit: int, hold_s: float) -> list[Notice]:
        """Return notices whose time has come, longest due first; a new one's has come at once.

        Of several that ask, one gets a notice. Nobody is given it again for `hold_s`; then it is
        due once more. `attempts` counts the times that this returned the notice before.
        """

    async def delay(self, notice_id: str, seconds: float) -> None:
        """Make it due after so many seconds, counted from now."""

    async def remove(self, notice_id: str) -> None:
        """Forget it; it may be gone already."""


class ApiKey(Struct, frozen=True, kw_only=True):
    """`hash` is the SHA-256 of the key, which itself is nowhere."""

    id: str
    name: str
    tenant: str
    hash: bytes
    created_at: int


class KeyStore(Protocol):
    """The API keys of all tenants. Raises: StoreError."""

    async def add_key(self, key: ApiKey) -> None:
        """Keep a new key. Raises: StoreError if there is one of this id, or of this hash."""

    async def keys(self) -> list[ApiKey]:
        """Return all keys, oldest first."""

    async def key(self, hash: bytes) -> ApiKey | None:
        """Return the key of this hash, if there is one."""

    async def revoke_key(self, key_id: str) -> bool:
        """Forget a key: False if there is none of this id."""


class Agreements(Protocol):
    """What all servers of a store have in common, by name, for as long as there is the store.

    Raises: StoreError.
    """

    async def agree(self, name: str, value: bytes, *, instead_of: bytes | None = None) -> bytes:
        """Keep `value` if there is none of this name, or it is `instead_of`; return what is kept.

        Of several that ask at once, all are told the same value.
        """


class Store(ResponseStore, RunStore, RepeatStore, Outbox, KeyStore, Agreements, Protocol):
    """All that is kept. One class, since much of it is written in one transaction."""


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

    async def break_off(self, response_id: str) -> None:
        """Forget a log that gets no terminal event here: its run goes on elsewhere, or nowhere.

        Readers that have it open get what it has, then no more. One that has its end is kept.
        """


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


class AddedFile(Struct, frozen=True, kw_only=True):
    """A file as it is added to a vector store; its id is that of the uploaded file."""

    id: str
    filename: str
    created_at: int
    attributes: Json
    sizes: ChunkSizes


class IndexJob(Struct, frozen=True, kw_only=True):
    """A file that is to be indexed. `attempt` counts from 1; a job is void once there is a later
    one, and once its file is removed, cancelled or done with.
    """

    key: int
    attempt: int
    tenant: str
    file_id: str
    filename: str
    sizes: ChunkSizes


class Vectors(Struct, frozen=True, kw_only=True):
    """Vectors of length 1, each as the bytes of its float32s; those of other models are no use."""

    model: str
    each: Sequence[bytes]


class VectorStores(Protocol):
    """Vector stores, the files in them and the chunks of those, by tenant.

    Every id of another tenant is unknown, and what one tenant has changes no result of another.
    What is removed is never found again, and erased by `sweep`. Raises: StoreError, from any
    method, when the store fails; NotFound for a vector store, file or batch that is not there.
    """

    async def start(self) -> None:
        """Open. Raises: SettingsError."""

    async def aclose(self) -> None: ...

    async def create(self, tenant: str, store: VectorStore) -> None:
        """Keep a new vector store; its counts are those of its files, whatever it says."""

    async def all(self, tenant: str) -> list[VectorStore]:
        """Return all vector stores, oldest first."""

    async def get(self, tenant: str, store_id: str) -> VectorStore: ...

    async def change(self, tenant: str, store: VectorStore) -> None:
        """Let the vector store of this id be as described, its files apart."""

    async def touch(self, tenant: str, store: VectorStore) -> None:
        """Let its `last_active_at` and `expires_at` be these, and nothing else change."""

    async def delete(self, tenant: str, store_id: str) -> None: ...

    async def usage_bytes(self, tenant: str) -> int:
        """Return what all files of the tenant take together, as far as they are indexed."""

    async def add_files(
        self,
        tenant: str,
        store_id: str,
        files: Sequence[AddedFile],
        *,
        batch: FileBatch | None = None,
    ) -> None:
        """Add files, as due; one that is there already is replaced. All of them, or none."""

    async def files(
        self, tenant: str, store_id: str, *, batch_id: str | None = None
    ) -> list[StoreFile]:
        """Return the files, or those of a batch, oldest first."""

    async def file(self, tenant: str, store_id: str, file_id: str) -> StoreFile: ...

    async def set_attributes(
        self, tenant: str, store_id: str, file_id: str, attributes: Json
    ) -> StoreFile: ...

    async def remove_file(self, tenant: str, store_id: str, file_id: str) -> None: ...

    async def forget_file(self, tenant: str, file_id: str) -> None:
        """Take the file out of all vector stores of the tenant; it may be in none."""

    async def texts(self, tenant: str, store_id: str, file_id: str) -> list[str]:
        """Return the file's text, in pieces."""

    async def batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatch: ...

    async def cancel_batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatch:
        """Cancel those of its files that are still to be indexed."""

    async def due(self, *, limit: int, hold_s: float) -> list[IndexJob]:
        """Return jobs whose time has come, longest due first; that of a new file has come at once.

        Of several that ask, one gets a job. Nobody is given it again for `hold_s`; then it is due
        once more.
        """

    async def hold(self, job: IndexJob, seconds: float) -> bool:
        """Let nobody else have the job for so long from now: False if it is void."""

    async def add_chunks(
        self, job: IndexJob, chunks: Sequence[TextChunk], vectors: Vectors | None, *, first: bool
    ) -> bool:
        """Add chunks of the job's file, which are found once it is done; the `first` replace
        those of earlier attempts. False, and nothing added, if the job is void.
        """

    async def finish(self, job: IndexJob, error: IndexingError | None = None) -> bool:
        """Say that all chunks were added, or what went wrong: False if the job is void."""

    async def search(
        self,
        tenant: str,
        store_ids: Sequence[str],
        *,
        words: str,
        vectors: Vectors | None = None,
        fits: Filter | None = None,
        most: int,
    ) -> list[Passage]:
        """Return the passages that fit best, in no order: up to `most` by words, and as many by
        the meaning of the one vector, both scores known for each.

        Only files that were indexed without an error and whose attributes fit are searched.
        """

    async def sweep(self, now: float, *, limit: int) -> int:
        """Erase the files of stores that have expired and what was removed, up to about `limit`
        chunks; return how much there was, 0 when nothing is left to erase.
        """


class Embeddings(Protocol):
    """A model that makes vectors of texts. Raises: EmbeddingsError, from any method."""

    async def start(self) -> None:
        """Ask once, to see that it answers. Raises: SettingsError."""

    async def aclose(self) -> None: ...

    async def of(self, texts: Sequence[str]) -> Vectors:
        """Return a vector for each of the texts."""


# --- what comes from elsewhere --------------------------------------------------------------------


class Fetched(Struct, frozen=True, kw_only=True):
    """An answer, whatever its status. Names of headers are in small letters.

    `url` is what answered: where redirects were followed, the last of them.
    """

    status: int
    url: str = ""
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

        Of the answer to anything but a GET, status and headers may be all that is read.
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


class ToolServer(Protocol):
    """Tools that the operator set up: requests name them by `label`, without an address.

    It lives as long as this server. How long a use may take, and how much it may give, is limited
    by whoever calls it; an exception that is no ToolServerError is logged, and a failed use.
    """

    label: str

    def session(self) -> ToolSession:
        """Return a session for one response; there may be many at the same time."""

    async def aclose(self) -> None:
        """Leave nothing running. All sessions are closed."""


class ToolServers(Protocol):
    """The servers whose tools this server calls."""

    def resolve(self, server: McpTool, path: str) -> McpTool | None:
        """Return the server as it is to be called, with all that the operator says of it; None for
        one that cannot be called here, which is without effect.

        Raises: RequestError for a field below `path` that no such server may have.
        """

    def session(self, server: McpTool) -> ToolSession:
        """Return a session with a server that was resolved."""

    async def aclose(self) -> None:
        """Leave nothing running. All sessions are closed."""


class Domains(Struct, frozen=True, kw_only=True):
    """Hosts that a search may show, with all below them: none of `blocked`, and only those of
    `allowed`, where that is not empty."""

    allowed: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()

    def allows(self, url: str) -> bool:
        """Whether a page at this URL may be shown.

        >>> domains = Domains(allowed=("example.org",), blocked=("ads.example.org",))
        >>> [domains.allows(f"https://{host}/") for host in ("www.example.org", "ads.example.org")]
        [True, False]
        """
        host = _host(url)
        if any(_is_below(host, each) for each in self.blocked):
            return False
        return not self.allowed or any(_is_below(host, each) for each in self.allowed)


def _host(url: str) -> str:
    try:
        return _spelled(urlsplit(url).hostname or "")
    except ValueError:
        return ""


def _is_below(host: str, domain: str) -> bool:
    domain = _spelled(domain.removeprefix("*."))
    return bool(domain) and (host == domain or host.endswith(f".{domain}"))


def _spelled(host: str) -> str:
    """Return the one spelling of a host: what is not ASCII as DNS has it."""
    host = host.strip(".").lower()
    try:
        return host if host.isascii() else host.encode("idna").decode("ascii")
    except UnicodeError:
        return host


class Found(Struct, frozen=True, kw_only=True):
    """A page that a search found; `text` is what the search shows of it."""

    url: str
    title: str
    text: str = ""


class Page(Struct, frozen=True, kw_only=True):
    """A page as text. In `text`, `【n†words】` is a link to `links[n]`, as models know it; nothing
    else there is written so."""

    url: str
    title: str
    text: str
    links: tuple[str, ...] = ()


class Web(Protocol):
    """Pages: those that a search finds, and those of a URL.

    Each use ends within a time that the operator set. Raises: WebError, from any method, with what
    the model is to be told.
    """

    is_external: bool = True
    """Whether it asks anything of other machines."""

    async def start(self) -> None:
        """Open what it needs. Raises: SettingsError."""

    async def aclose(self) -> None: ...

    async def search(
        self, query: str, *, most: int, domains: Domains, location: Json | None = None
    ) -> Sequence[Found]:
        """Return up to `most` pages, best first; `location` is `user_location` of api_surface
        4.1."""

    async def read(self, url: str) -> Page:
        """Return the page at `url`, with at most as much text as the operator lets it have."""


class Ran(Struct, frozen=True, kw_only=True):
    """What code printed, and the pictures (PNG) that it showed; `is_error`: it ended with one."""

    logs: str = ""
    images: tuple[bytes, ...] = ()
    is_error: bool = False


class Printed(Struct, frozen=True, kw_only=True):
    """A piece of what a command prints."""

    stdout: str = ""
    stderr: str = ""


class Exited(Struct, frozen=True, kw_only=True):
    """The end of a command: its exit code, None for one that was stopped because of its time."""

    code: int | None


class SandboxFile(Struct, frozen=True, kw_only=True):
    """A file below a sandbox's folder, by its path there; `is_given`: not written by code."""

    path: str
    bytes: int
    changed_at: int
    is_given: bool = False


class SandboxKind(Struct, frozen=True, kw_only=True):
    """What a sandbox is to have; None for what the operator set, which it cannot exceed."""

    name: str = ""
    memory_bytes: int | None = None
    idle_s: float | None = None


class Sandbox(Protocol):
    """A place where code runs that nobody trusts, one call after another: variables and files stay.

    No code gets out of it, at a network, or at more of this machine than the operator gave it. Each
    use ends within a time that the operator set. Raises: SandboxError, from any method.
    """

    id: str
    name: str
    created_at: int
    memory_bytes: int
    idle_s: float
    """After so many seconds without use it is closed."""

    @property
    def last_active_at(self) -> int: ...

    async def begin(self) -> None:
        """Take now what it needs of this machine. Raises: SandboxesBusy."""

    async def run(self, code: str) -> Ran:
        """Run Python. What goes wrong in the code is a result; where it has cost the sandbox what
        it held, the logs say so."""

    def command(
        self, command: str, *, timeout_s: float | None = None
    ) -> AsyncGenerator[Printed | Exited]:
        """Run a command of a shell: give what it prints, soon after it does, and last how it ended.

        It ends after `timeout_s`, where that is less than what the operator set, and leaves no
        process behind. Where it has cost the sandbox what it held, `stderr` says so.
        """

    async def put(self, name: str, content: bytes) -> None:
        """Write a file into its folder. Raises: SandboxError for a name that is none."""

    async def files(self) -> list[SandboxFile]:
        """Return its files, 1000 at most; none of a sandbox that was not used yet."""

    def pieces(self, path: str) -> AsyncGenerator[bytes]:
        """Return a file's content in pieces. Raises, with the first: SandboxError."""

    async def remove(self, path: str) -> None: ...

    async def aclose(self) -> None:
        """Forget all of it; whatever runs there is gone."""


class Sandboxes(Protocol):
    """The sandboxes of all tenants; those that are not used for long are closed."""

    async def start(self) -> None:
        """Prove that nothing gets out. Raises: SettingsError, with what to do about it."""

    async def aclose(self) -> None: ...

    def open(self, tenant: str, kind: SandboxKind = ...) -> Sandbox:
        """Return a new sandbox; what it takes of this machine, its first use takes.

        For one more than there may be, another that is idle is closed then: the one that was not
        used for longest.
        """

    def find(self, tenant: str, sandbox_id: str) -> Sandbox | None:
        """Return the sandbox of this id, None if this tenant has none."""

    def all(self, tenant: str) -> list[Sandbox]:
        """Return a tenant's sandboxes, oldest first."""


ReadPdf = Callable[[bytes], Awaitable[str]]
"""The text of a PDF. Raises: DocumentError, with what to do about it."""
