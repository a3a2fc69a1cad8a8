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

from antiphon.application.ports.callables import Clock, NewId, Salt, Seal, Unseal
from antiphon.application.ports.event_log import Batches, EventLog
from antiphon.application.ports.fetching import Fetched, Fetcher
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
    Exited,
    Printed,
    Ran,
    Sandbox,
    Sandboxes,
    SandboxFile,
    SandboxKind,
)
from antiphon.application.ports.stores import (
    PIECE_BYTES,
    Agreements,
    ApiKey,
    Chunk,
    KeyStore,
    Lease,
    Logged,
    NewRun,
    Notice,
    Outbox,
    Repeat,
    RepeatStore,
    ResponseStore,
    RunStore,
    Store,
    StoredItem,
    StoredResponse,
    TakenRun,
    Use,
)
from antiphon.application.ports.tools import ToolResult, ToolServer, ToolServers, ToolSession
from antiphon.application.ports.vector_stores import (
    AddedFile,
    Embeddings,
    IndexJob,
    Vectors,
    VectorStores,
)
from antiphon.application.ports.web import Domains, Found, Page, Web
from antiphon.domain.json import Json

__all__ = [
    "PIECE_BYTES",
    "AddedFile",
    "Agreements",
    "ApiKey",
    "Batches",
    "Chunk",
    "Clock",
    "Constraint",
    "Domains",
    "Embeddings",
    "Engine",
    "EngineRequest",
    "EventLog",
    "Exited",
    "Fetched",
    "Fetcher",
    "FileStore",
    "Format",
    "Found",
    "IndexJob",
    "Json",
    "KeyStore",
    "Lease",
    "Logged",
    "Model",
    "ModelTurn",
    "NewId",
    "NewRun",
    "Notice",
    "Outbox",
    "Page",
    "Parser",
    "Printed",
    "Prompt",
    "PromptTemplates",
    "Ran",
    "ReadPdf",
    "Repeat",
    "RepeatStore",
    "ResponseStore",
    "RunStore",
    "Salt",
    "Sampling",
    "Sandbox",
    "SandboxFile",
    "SandboxKind",
    "Sandboxes",
    "Seal",
    "Step",
    "Steps",
    "Store",
    "StoredFile",
    "StoredItem",
    "StoredResponse",
    "TakenRun",
    "ToolResult",
    "ToolServer",
    "ToolServers",
    "ToolSession",
    "Turn",
    "Unseal",
    "Use",
    "VectorStores",
    "Vectors",
    "Web",
]
