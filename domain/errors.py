"""All errors that the server raises on purpose, in one tree.

AntiphonError
├── RequestError              the request is invalid                          400
│   ├── Unauthenticated       the API key is missing or unknown               401
│   │   └── InvalidToken      the token is forged, expired or not for us      401
│   ├── Forbidden             the API key may not do this                     403
│   ├── NotFound              no such response, conversation, item or model   404
│   ├── ConversationLocked    another response is using the conversation      400
│   ├── ContainerElsewhere    another server has the container                409, if not relayed
│   ├── AlreadyAnswered       another response has answered the approval request 409
│   ├── BodyTooLarge                                                          413
│   ├── UnsupportedMediaType                                                  415
│   │   └── UnsupportedContentEncoding the body is compressed in another way  415
│   ├── ConcurrencyLimitExceeded the client has too many requests waiting     429
│   ├── QuotaExceeded         the tenant has reached its storage limit        429
│   ├── LimitExceeded         the API key has reached one of its limits       429
│   │   └── ModelBusy         the model's server takes no more requests now   429
│   ├── EmbeddingsError       the embedding engine is not available           503
│   │   └── EmbeddingsRefused it does not take the input                      400
│   ├── GuardFailed           a guard gave no verdict                         503
│   ├── IdempotencyKeyInUse   the first request with the key is still starting 503
│   ├── ServerOverloaded      the engine's or the server's queue is full      503
│   ├── ServerShuttingDown    this server starts nothing more                 503
│   └── ServerUnreachable     the server that has a container does not answer 503
├── EngineError               the engine failed in this run                   500
│   ├── CannotResume          no model here goes on with what another server began
│   └── EngineDead            the engine failed for every run                 503
│       └── ModelUnavailable  the model is being started                      503
├── StoreError                the store failed                                500
│   ├── CorruptLog            a run's stored log is damaged                   an `error` event
│   └── KeysUnavailable       API keys cannot be looked up now                503
├── FilesFull                 the tenant has no room for another file         shown as a 400
├── IssuerUnavailable         the keys that sign tokens cannot be fetched     503
├── LeaseLost                 another server owns the run, or it is gone      never shown
├── FetchError                a URL could not be fetched                      shown as a 400
│   ├── FetchRefused          this server may not fetch it
│   ├── FetchTooLarge
│   └── FetchFailed           its server did not answer properly
├── ToolServerError           a tool server did not list its tools            shown in its item
├── SandboxError              a sandbox could not run code                    shown in its item
│   └── SandboxesBusy         the maximum number of sandboxes is in use       429
├── WebError                  a web search or page failed                     shown in its item
├── ImageError                an image could not be made                      shown in its item
├── DocumentError             a document could not be read as text            shown as a 400
│   └── UnsupportedDocument   no reader for this type of document
├── SettingsError             the server cannot start with these settings     exit 2
├── ModelsFailed              no model works or can be started                exit 3
├── InvalidGrammar            becomes a RequestError that names the tool's definition
├── UnsupportedGrammar        the model sees the grammar, but it is not enforced
├── RunDiverged               a resumed run does not repeat its events        ends the run
└── EventOutOfOrder           the lifecycle forbids the event: a bug of the server

The HTTP status of each is looked up in entrypoints/http/errors.py. These decide that an answer is
a 429:
- ConcurrencyLimitExceeded: the tenant's requests that wait (application/support/fair_queue.py, with
  the limits of application/responses/admission.py), its background responses that wait
  (application/responses/start.py), its bytes in work (application/support/bytes_in_work.py),
  its WebSockets (application/websocket/open_websockets.py) and what waits in one of them (lanes.py)
- LimitExceeded: application/resources/limits.py
- ModelBusy: adapters/models/chat_completions/errors.py
- QuotaExceeded: application/resources/quotas.py
- SandboxesBusy: adapters/sandboxes/, answered by application/resources/containers.py
"""

from __future__ import annotations

from collections.abc import Mapping


class AntiphonError(Exception):
    """Base class of all errors raised on purpose."""


class RequestError(AntiphonError):
    """A request that the server refuses (docs/reference/errors.md#codes-of-wrong-requests).

    `param` is the path of the field at fault, such as `input[2].content[0]`; `code` is the
    machine-readable reason.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


CONTEXT_EXCEEDED = "context_length_exceeded"
"""The error code for a conversation that does not fit into the model's context."""


def input_too_long(tokens: int | str, limit: int) -> RequestError:
    """Return the error for a prompt of so many tokens, where `limit` are allowed."""
    return RequestError(
        f"Your input exceeds the context window of this model: it has {tokens} tokens of at most "
        f"{limit}. Please adjust your input and try again.",
        param="input",
        code=CONTEXT_EXCEEDED,
    )


def missing_parameter(param: str) -> RequestError:
    """Return the error for a missing field; `param` is its path."""
    return RequestError(
        f"Missing required parameter: {param!r}.", param=param, code="missing_required_parameter"
    )


class Unauthenticated(RequestError):
    """The API key is missing, malformed or unknown."""

    def __init__(self, message: str, *, code: str = "invalid_api_key") -> None:
        super().__init__(message, code=code)


class InvalidToken(Unauthenticated):
    """The token is forged or expired, is for another service, or lacks a claim."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="invalid_token")


class Forbidden(RequestError):
    """The API key may not do this; `param` names the field, if it is one."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, code="insufficient_permissions")


class ForeignSite(RequestError):
    """A web page sends the request, or a name that is not this server's."""


class NotFound(RequestError):
    """The object does not exist or belongs to another tenant; the answer is the same."""


class NotInList(RequestError):
    """A page should begin or end at an item that the list does not have."""

    def __init__(self, item_id: str, param: str = "after") -> None:
        super().__init__(
            f"Item with id {item_id[:100]!r} not found.", param=param, code="invalid_value"
        )


class AlreadyAnswered(RequestError):
    """Another response has answered the approval request: a call is answered once."""

    def __init__(self, request_id: str, response_id: str) -> None:
        super().__init__(
            f"The approval request {request_id[:100]!r} was answered in response {response_id!r} "
            "already. A call is approved or denied once: read that response, or continue it.",
            param="input",
            code="already_answered",
        )


def conversation_not_found(conversation_id: str) -> NotFound:
    """Return the error for a conversation that does not exist."""
    return NotFound(
        f"Conversation with id {conversation_id[:100]!r} not found.", param="conversation"
    )


class ConversationLocked(RequestError):
    """Another response is using the conversation; nothing was changed
    (docs/reference/api.md#conversations)."""

    def __init__(self) -> None:
        super().__init__(
            "Another process is currently operating on this conversation. "
            "Please retry in a few seconds.",
            param="conversation",
            code="conversation_locked",
        )


class BodyTooLarge(RequestError):
    """The request body exceeds the server's limit."""


class UnsupportedMediaType(RequestError):
    """The request body is not declared as JSON."""


class UnsupportedContentEncoding(UnsupportedMediaType):
    """The request body has a content coding other than those that are `accepted`."""

    def __init__(self, coding: str, accepted: str) -> None:
        super().__init__(
            f"Unsupported 'Content-Encoding': {coding[:100]!r}. Send the body as it is, or with "
            f"one of: {accepted}.",
            code="invalid_value",
        )
        self.accepted = accepted


class ConcurrencyLimitExceeded(RequestError):
    """The client has too many requests waiting or arriving, or too many connections open."""


class QuotaExceeded(RequestError):
    """The tenant has reached its storage limit; a retry helps only after it deletes something."""


class LimitExceeded(RequestError):
    """The API key has reached one of its limits.

    `headers` say how much it may use; `retry_after_s` is the time until a retry may help, or None
    if none will.
    """

    def __init__(
        self, message: str, *, headers: Mapping[str, str], retry_after_s: float | None
    ) -> None:
        super().__init__(message, code="rate_limit_exceeded")
        self.headers = headers
        self.retry_after_s = retry_after_s


class ModelBusy(LimitExceeded):
    """The server that runs the model takes no more requests now; it may say when it will."""

    def __init__(self, *, retry_after_s: float = 1.0) -> None:
        super().__init__(
            "The model's server takes no more requests now. Please retry later.",
            headers={},
            retry_after_s=retry_after_s,
        )


class GuardFailed(RequestError):
    """A guard gave no verdict, so nothing may pass; the message may be shown to clients."""

    def __init__(self, guard: str, reason: str) -> None:
        message = f"The guard {guard!r} of this server failed: {reason}."
        super().__init__(message, code="guard_failed")


class IdempotencyKeyInUse(RequestError):
    """Another request with the same Idempotency-Key has not created its response yet.

    Or this request had the key first but was taken for dead, and another one has the response.
    """

    def __init__(self) -> None:
        super().__init__(
            "Another request with this Idempotency-Key is still starting. Send this one again to "
            "get the same answer.",
            param="Idempotency-Key",
        )


class EmbeddingsError(RequestError):
    """The embedding engine returned no vectors; the message may be shown to clients."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="embeddings_unavailable")


class EmbeddingsRefused(EmbeddingsError):
    """The embedding engine does not take these inputs; asking again does not help."""

    def __init__(self, status: int) -> None:
        super().__init__(
            f"The embedding model does not take this input (its server answers with {status}): a "
            "text may be too long for it, or tokens may not be of its vocabulary."
        )
        self.param, self.code = "input", "invalid_value"


class ServerOverloaded(RequestError):
    """The engine's or the server's queue is full; nothing was started."""


class ServerShuttingDown(RequestError):
    """This server starts nothing more; another one may."""

    def __init__(self) -> None:
        super().__init__(
            "The server is shutting down. Send the request again.", code="server_error"
        )


class ContainerElsewhere(RequestError):
    """Another live server has the container; `server` is its tag. HTTP requests are relayed there.

    A WebSocket connection stays at its server, so its client gets this error.
    """

    def __init__(self, container_id: str, *, server: str, param: str) -> None:
        super().__init__(
            f"The container {container_id[:100]!r} is at another server, and WebSocket messages "
            "are not relayed. Send this request over HTTP: any server relays POST /v1/responses.",
            param=param,
            code="container_at_another_server",
        )
        self.server = server


class ServerUnreachable(RequestError):
    """Another server, which alone can answer the request, does not answer."""


class EngineError(AntiphonError):
    """The engine failed in the middle of one run."""


class CannotResume(EngineError):
    """No model of this server can go on with a turn that another server has begun."""


class EngineDead(EngineError):
    """The engine is dead, for this run and all later ones."""


class ModelUnavailable(EngineDead):
    """The model is `starting`, or `unavailable` until it has been started again."""

    def __init__(self, name: str, state: str) -> None:
        verb = "is starting" if state == "starting" else "is not available now"
        super().__init__(f"The model {name!r} {verb}. Try again in a few seconds.")
        self.state = state


class StoreError(AntiphonError):
    """The store failed to write or read.

    `reason` says why in words that name no machine, path or user; "" if that is unknown.
    """

    def __init__(self, message: str = "", *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class CorruptLog(StoreError):
    """A run's log has a gap or bytes that the server did not write."""


class KeysUnavailable(StoreError):
    """API keys cannot be looked up now."""


class FilesFull(AntiphonError):
    """The tenant's files leave no room for another one: it has `files` of `used_bytes` together."""

    def __init__(self, *, files: int, used_bytes: int) -> None:
        super().__init__(f"{files} files of {used_bytes} bytes leave no room for another one")
        self.files = files
        self.used_bytes = used_bytes


class IssuerUnavailable(AntiphonError):
    """A token cannot be verified now, because its issuer's keys cannot be fetched."""


class LeaseLost(AntiphonError):
    """Another server took over the run, or it was cancelled or deleted; stop writing to it."""


class RunDiverged(AntiphonError):
    """A resumed run has written another event than the one that its log has under this number."""


class FetchError(AntiphonError):
    """A URL could not be fetched; the message may be shown to clients."""


class FetchRefused(FetchError):
    """This server may not fetch the URL."""


class FetchTooLarge(FetchError):
    """The URL's content exceeds this server's limit."""


class FetchFailed(FetchError):
    """The URL's server could not be reached, or did not send a complete answer in time."""


class ToolServerError(AntiphonError):
    """A tool server did not list its tools; the message may be shown to clients."""


class SandboxError(AntiphonError):
    """A sandbox could not run code or access files; the message may be shown to clients."""


class SandboxesBusy(SandboxError):
    """The maximum number of sandboxes is in use, and none is idle."""


class WebError(AntiphonError):
    """A web search or page could not be read; the message is for models and clients."""


class ImageError(AntiphonError):
    """An image could not be made; the message is for models and clients, the code for programs.

    `is_unreachable`: the generator is gone or does not answer, so others need not ask it now.
    """

    def __init__(
        self, message: str, *, code: str = "image_generation_failed", is_unreachable: bool = False
    ) -> None:
        super().__init__(message)
        self.code = code
        self.is_unreachable = is_unreachable


class DocumentError(AntiphonError):
    """A document could not be read as text; the message may be shown to clients."""


class UnsupportedDocument(DocumentError):
    """The document is of a type that this server cannot read."""


class SettingsError(AntiphonError):
    """The server cannot start with these settings; the message says what to change."""


class ModelsFailed(AntiphonError):
    """No model works, and starting them again has failed too often."""


class InvalidGrammar(AntiphonError):
    """A grammar's definition is invalid; `at` is the index of the character at fault."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.message = message
        self.at = at

    def place(self, definition: str) -> str:
        """Return the line and column of the error in the definition, counted from 1.

        >>> InvalidGrammar("unexpected ')'", 4).place("ab\\nc)")
        'line 2, column 2'
        """
        prefix = definition[: self.at]
        return f"line {prefix.count(chr(10)) + 1}, column {self.at - prefix.rfind(chr(10))}"


class UnsupportedGrammar(AntiphonError):
    """A grammar uses features that this server's constraints cannot express."""


class EventOutOfOrder(AntiphonError):
    """An event may not follow the previous one: a bug of the server."""
