"""The ports: what the server needs from the outside, each a promise that contract tests check.

Model ⊃ Format + Engine   one turn: a conversation in, deltas out
Store                     all that is kept, in one place; one class implements its six parts:
    ResponseStore         responses, conversations and their items
    RunStore              who runs what, and the logs of runs that outlive their process
    IdempotencyStore           which response an Idempotency-Key has
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

from antiphon.application.ports.callables import Clock, MakeSalt, NewId, Seal, Unseal
from antiphon.application.ports.event_log import EventBatches, EventLog
from antiphon.application.ports.fetching import Fetcher, FetchResult
from antiphon.application.ports.files import FileStore, ReadPdf, StoredFile
from antiphon.application.ports.model import (
    Engine,
    EngineRequest,
    Format,
    Model,
    ModelTurn,
    Parser,
    Prompt,
    Step,
    Steps,
    Turn,
)
from antiphon.application.ports.prompt_templates import PromptTemplates
from antiphon.application.ports.sampling import Constraint, Sampling
from antiphon.application.ports.sandboxes import (
    CodeResult,
    CommandExit,
    CommandOutput,
    Sandbox,
    Sandboxes,
    SandboxFile,
    SandboxSpec,
)
from antiphon.application.ports.stores import (
    LOG_READ_BYTES,
    ApiKey,
    EventChunk,
    IdempotencyRecord,
    IdempotencyStore,
    KeyStore,
    Lease,
    LeasedRun,
    LogSlice,
    NewRun,
    Outbox,
    ResponseStore,
    RunStore,
    SharedValues,
    StorageUsage,
    Store,
    StoredItem,
    StoredResponse,
    WebhookDelivery,
)
from antiphon.application.ports.tools import ToolResult, ToolServer, ToolServers, ToolSession
from antiphon.application.ports.vector_stores import (
    Embeddings,
    FileToAdd,
    IndexJob,
    Vectors,
    VectorStores,
)
from antiphon.application.ports.web import DomainFilter, Web, WebPage, WebResult
from antiphon.domain.json import Json

__all__ = [
    "LOG_READ_BYTES",
    "ApiKey",
    "Clock",
    "CodeResult",
    "CommandExit",
    "CommandOutput",
    "Constraint",
    "DomainFilter",
    "Embeddings",
    "Engine",
    "EngineRequest",
    "EventBatches",
    "EventChunk",
    "EventLog",
    "FetchResult",
    "Fetcher",
    "FileStore",
    "FileToAdd",
    "Format",
    "IdempotencyRecord",
    "IdempotencyStore",
    "IndexJob",
    "Json",
    "KeyStore",
    "Lease",
    "LeasedRun",
    "LogSlice",
    "MakeSalt",
    "Model",
    "ModelTurn",
    "NewId",
    "NewRun",
    "Outbox",
    "Parser",
    "Prompt",
    "PromptTemplates",
    "ReadPdf",
    "ResponseStore",
    "RunStore",
    "Sampling",
    "Sandbox",
    "SandboxFile",
    "SandboxSpec",
    "Sandboxes",
    "Seal",
    "SharedValues",
    "Step",
    "Steps",
    "StorageUsage",
    "Store",
    "StoredFile",
    "StoredItem",
    "StoredResponse",
    "ToolResult",
    "ToolServer",
    "ToolServers",
    "ToolSession",
    "Turn",
    "Unseal",
    "VectorStores",
    "Vectors",
    "Web",
    "WebPage",
    "WebResult",
    "WebhookDelivery",
]
