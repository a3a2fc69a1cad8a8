"""The ports: what the server needs from the outside. Contract tests check each promise.

Model ⊃ Format + Engine    one turn: a conversation in, deltas out
Store                      the persistent state; one class implements its parts (stores/):
    ResponseStore          responses and their items
    ConversationStore      conversations and their items
    RunStore               which server runs what
    EventStore             the logs of runs that outlive their process
    IdempotencyStore       Idempotency-Keys and their responses
    Outbox                 webhooks to deliver
    KeyStore               API keys, hashed
    UsageStore             what each API key has used, counted exactly
    SharedValues           values that all servers of the store share
    TraceStore             what the models of ended responses read and wrote
TokenVerifier              the tokens of an identity provider
EventLog                   the events of each run of this process, for its readers
PromptTemplates            prompt templates, by id and version
FileStore                  uploaded files
VectorStores               vector stores, their files and the chunks of those
Batches                    batches of requests, and the results of their lines
AnswerRequest              answers the request of a line of a batch
Embeddings                 vectors for texts
Fetcher                    outgoing HTTP requests, within the limits of the operator
ToolServers ⊃ ToolSession  the tools of servers that requests name, for one response
ToolServer                 the operator's own tools
Sandboxes ⊃ Sandbox        where the code of models runs
Programs ⊃ RunningProgram  where programs of models run, which call tools
OtherServers               the servers that share the store, with containers of their own
Web                        web search, and pages of the web
ImageGenerator             images, made from words or from other images
ReadPdf                    the text of a PDF
Guard                      judges what is asked, called and written
AuditLog                   a record of each call of a tool
Meter                      what operators count and time

Each port is a Protocol. Its abstract methods must be implemented: the server does not start with a
class that lacks one. Any other method has a default, in its body or its docstring.

A method that opens something raises an error that a status code can report before it returns the
first result. Leaving an iterator (`aclose`, or cancelling the task that reads it) releases its
resources.
"""

from antiphon.application.ports.audit_log import AuditLog, GuardRecord, ToolCallRecord
from antiphon.application.ports.batches import (
    AnswerRequest,
    BatchClaim,
    Batches,
    BatchProgress,
    ChangeBatch,
    ClaimedBatch,
    LineResult,
)
from antiphon.application.ports.callables import Clock, MakeSalt, NewId, Seal, Unseal
from antiphon.application.ports.engine import Engine, EngineRequest, PooledSteps, Steps
from antiphon.application.ports.event_log import EventBatches, EventLog, WriteBatch
from antiphon.application.ports.fetching import Fetcher, FetchResult
from antiphon.application.ports.files import (
    FilePageQuery,
    FileStore,
    FileUsage,
    ReadPdf,
    StoredFile,
)
from antiphon.application.ports.guards import Guard, Moderator
from antiphon.application.ports.images import (
    ImageGenerator,
    ImageRequest,
    MadeImage,
    SourceImage,
)
from antiphon.application.ports.model import (
    AdmitPrompt,
    Format,
    Model,
    ModelTurn,
    Parser,
    Prompt,
    RenderedTurn,
    Step,
    StepLog,
    Turn,
    TurnFacts,
    TurnProgress,
    TurnTranscript,
    Weights,
    WrittenPart,
)
from antiphon.application.ports.programs import (
    CallOutcome,
    ProgramCall,
    Programs,
    ProgramSource,
    ProgramStep,
    RunningProgram,
)
from antiphon.application.ports.prompt_templates import PromptTemplates
from antiphon.application.ports.sampling import Constraint, Sampling, json_of_sampling
from antiphon.application.ports.sandboxes import (
    CodeResult,
    CommandExit,
    CommandOutput,
    MountedSkill,
    Sandbox,
    Sandboxes,
    SandboxFile,
    SandboxSpec,
)
from antiphon.application.ports.servers import OtherServers
from antiphon.application.ports.stores.api_keys import ApiKey, KeyStore
from antiphon.application.ports.stores.conversations import ConversationStore
from antiphon.application.ports.stores.events import (
    LOG_READ_BYTES,
    EventChunk,
    EventStore,
    LogSlice,
)
from antiphon.application.ports.stores.idempotency import IdempotencyRecord, IdempotencyStore
from antiphon.application.ports.stores.items import StoredItem, StorePageQuery
from antiphon.application.ports.stores.responses import (
    MAX_SEARCHED_BYTES,
    FoundPage,
    FoundResponse,
    NewRun,
    ResponseStore,
    StorageUsage,
    StoredResponse,
)
from antiphon.application.ports.stores.runs import NO_RUNS, Lease, LeasedRun, RunStore
from antiphon.application.ports.stores.shared_values import SharedValues
from antiphon.application.ports.stores.store import Store
from antiphon.application.ports.stores.traces import TraceStore
from antiphon.application.ports.stores.usage import Charge, KeyUsage, RunSlot, UsageStore
from antiphon.application.ports.stores.webhooks import Outbox, WebhookDelivery
from antiphon.application.ports.telemetry import (
    EndedRun,
    Instrument,
    Labels,
    Meter,
    NullMeter,
    ReadGauge,
    ReportRun,
)
from antiphon.application.ports.tokens import TokenVerifier, VerifiedToken
from antiphon.application.ports.tools import ToolResult, ToolServer, ToolServers, ToolSession
from antiphon.application.ports.vector_stores import (
    Embeddings,
    FileToAdd,
    IndexJob,
    VectorPageQuery,
    Vectors,
    VectorStores,
)
from antiphon.application.ports.web import DomainFilter, Web, WebPage, WebResult
from antiphon.domain.json import Json

__all__ = [
    "LOG_READ_BYTES",
    "MAX_SEARCHED_BYTES",
    "NO_RUNS",
    "AdmitPrompt",
    "AnswerRequest",
    "ApiKey",
    "AuditLog",
    "BatchClaim",
    "BatchProgress",
    "Batches",
    "CallOutcome",
    "ChangeBatch",
    "Charge",
    "ClaimedBatch",
    "Clock",
    "CodeResult",
    "CommandExit",
    "CommandOutput",
    "Constraint",
    "ConversationStore",
    "DomainFilter",
    "Embeddings",
    "EndedRun",
    "Engine",
    "EngineRequest",
    "EventBatches",
    "EventChunk",
    "EventLog",
    "EventStore",
    "FetchResult",
    "Fetcher",
    "FilePageQuery",
    "FileStore",
    "FileToAdd",
    "FileUsage",
    "Format",
    "FoundPage",
    "FoundResponse",
    "Guard",
    "GuardRecord",
    "IdempotencyRecord",
    "IdempotencyStore",
    "ImageGenerator",
    "ImageRequest",
    "IndexJob",
    "Instrument",
    "Json",
    "KeyStore",
    "KeyUsage",
    "Labels",
    "Lease",
    "LeasedRun",
    "LineResult",
    "LogSlice",
    "MadeImage",
    "MakeSalt",
    "Meter",
    "Model",
    "ModelTurn",
    "Moderator",
    "MountedSkill",
    "NewId",
    "NewRun",
    "NullMeter",
    "OtherServers",
    "Outbox",
    "Parser",
    "PooledSteps",
    "ProgramCall",
    "ProgramSource",
    "ProgramStep",
    "Programs",
    "Prompt",
    "PromptTemplates",
    "ReadGauge",
    "ReadPdf",
    "RenderedTurn",
    "ReportRun",
    "ResponseStore",
    "RunSlot",
    "RunStore",
    "RunningProgram",
    "Sampling",
    "Sandbox",
    "SandboxFile",
    "SandboxSpec",
    "Sandboxes",
    "Seal",
    "SharedValues",
    "SourceImage",
    "Step",
    "StepLog",
    "Steps",
    "StorageUsage",
    "Store",
    "StorePageQuery",
    "StoredFile",
    "StoredItem",
    "StoredResponse",
    "TokenVerifier",
    "ToolCallRecord",
    "ToolResult",
    "ToolServer",
    "ToolServers",
    "ToolSession",
    "TraceStore",
    "Turn",
    "TurnFacts",
    "TurnProgress",
    "TurnTranscript",
    "Unseal",
    "UsageStore",
    "VectorPageQuery",
    "VectorStores",
    "Vectors",
    "VerifiedToken",
    "Web",
    "WebPage",
    "WebResult",
    "WebhookDelivery",
    "Weights",
    "WriteBatch",
    "WrittenPart",
    "json_of_sampling",
]
