"""All errors that the server raises on purpose, one tree.

AntiphonError
├── RequestError              the client asked for something wrong            400
│   ├── Unauthenticated       no API key that is known                        401
│   ├── NotFound              no such response, conversation, item or model   404
│   ├── ConversationLocked    another response runs on the conversation       400
│   ├── BodyTooLarge                                                          413
│   ├── UnsupportedMediaType                                                  415
│   ├── QueueFull             the client has too many requests waiting        429
│   ├── QuotaExceeded         the tenant keeps as much as it may              429
│   ├── EmbeddingsError       what a query means cannot be found out now       503
│   ├── IdempotencyKeyInUse         the first request of its key is still beginning 503
│   ├── TooManyRequests       the engine takes no more work now               503
│   └── ServerShuttingDown           this server begins nothing more                 503
├── EngineError               the engine failed in this run                   500
│   └── EngineDead            the engine failed for every run                 503
├── StoreError                the store failed                                500
│   ├── CorruptLog            what it kept of a run is not what was written   an `error` event
│   └── KeysUnavailable        nobody's API key can be looked up now           503
├── LeaseLost                 a run is another server's now, or is gone       never told
├── FetchError                what a URL names could not be had               told as a 400
│   ├── FetchRefused          it may not be asked for at all
│   ├── FetchTooLarge
│   └── FetchFailed           it was asked for in vain
├── ToolServerError           a server of tools could not be asked            told in its item
├── SandboxError              code could not be run at all                told in its item
│   └── SandboxesBusy         there are as many as there may be           429
├── DocumentError             a document could not be read as text            told as a 400
│   └── UnsupportedDocument   nothing here reads documents of its kind
├── SettingsError             the server cannot start as it was told to       exit 2
├── InvalidGrammar         a custom tool's definition, on the way to a RequestError that names it
├── UnsupportedGrammar      one that is only told to the model; listed as without effect
└── EventOutOfOrder                an event that the lifecycle forbids: a bug of ours

The HTTP status of each is looked up in entrypoints/http/errors.py.
"""

from __future__ import annotations


class AntiphonError(Exception):
    """Base of all errors raised on purpose."""


class RequestError(AntiphonError):
    """A request that cannot be honoured (docs/reference/errors.md#codes-of-wrong-requests).

    `param` is the path of the field at fault (`input[2].content[0]`), `code` the machine-readable
    reason.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


CONTEXT_EXCEEDED = "context_length_exceeded"
"""The code of a conversation that is longer than the model's context."""


def missing_parameter(param: str) -> RequestError:
    """Return the error of a field that is not there; `param` is its path."""
    return RequestError(
        f"Missing required parameter: {param!r}.", param=param, code="missing_required_parameter"
    )


class Unauthenticated(RequestError):
    """Nobody knows who asks: the API key is missing, malformed or unknown."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="invalid_api_key")


class NotFound(RequestError):
    """No such object, or not this tenant's: both answer alike."""


def conversation_not_found(conversation_id: str) -> NotFound:
    """Return the error of a request that asks for a conversation that is not there."""
    return NotFound(
        f"Conversation with id {conversation_id[:100]!r} not found.", param="conversation"
    )


class ConversationLocked(RequestError):
    """Another response runs on the conversation: nothing was changed
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


class QueueFull(RequestError):
    """The client has as many requests waiting, on its connection or in all, as it may have."""


class QuotaExceeded(RequestError):
    """The tenant has all that it may keep: a retry helps only after something was deleted."""


class IdempotencyKeyInUse(RequestError):
    """Another request with the same Idempotency-Key has not come to a response yet.

    Or it has, while this one, which had the key first, was taken for dead.
    """

    def __init__(self) -> None:
        super().__init__(
            "Another request with this Idempotency-Key is still beginning. Send this one again to "
            "get the same answer.",
            param="Idempotency-Key",
        )


class EmbeddingsError(RequestError):
    """The embedding engine gave no vectors; the message may be shown to clients."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="embeddings_unavailable")


class TooManyRequests(RequestError):
    """The engine's queue is full; nothing was started."""


class ServerShuttingDown(RequestError):
    """This server begins nothing more; another one may."""

    def __init__(self) -> None:
        super().__init__("The server is stopping. Send the request again.", code="server_error")


class EngineError(AntiphonError):
    """The engine failed in the middle of one run."""


class EngineDead(EngineError):
    """The engine is gone, for this run and for all that follow."""


class StoreError(AntiphonError):
    """The store could not keep or find what it must."""


class CorruptLog(StoreError):
    """A run's log has a gap, or bytes that were not written like this."""


class KeysUnavailable(StoreError):
    """Whether an API key is known cannot be found out now."""


class LeaseLost(AntiphonError):
    """A run was taken by another server, cancelled or deleted: nothing more of it is written."""


class FetchError(AntiphonError):
    """What a URL names could not be had; the message may be shown to clients."""


class FetchRefused(FetchError):
    """The URL is not one that this server may fetch."""


class FetchTooLarge(FetchError):
    """The URL's content is larger than this server takes in."""


class FetchFailed(FetchError):
    """The URL's server was not reached, or gave no whole answer in time."""


class ToolServerError(AntiphonError):
    """A server of tools gave no list of them; the message may be shown to clients."""


class SandboxError(AntiphonError):
    """Code could not be run, or a sandbox's files could not be had; its message is for clients."""


class SandboxesBusy(SandboxError):
    """There are as many sandboxes as there may be, and none is idle."""


class WebError(AntiphonError):
    """The web could not be searched, or a page not be read; the message is for models and
    clients."""


class DocumentError(AntiphonError):
    """A document could not be read as text; the message may be shown to clients."""


class UnsupportedDocument(DocumentError):
    """It is of a kind that is not read here."""


class SettingsError(AntiphonError):
    """The server cannot start with these settings; the message says what to change."""


class InvalidGrammar(AntiphonError):
    """A definition is no grammar; `at` is the index of the character at fault."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.message = message
        self.at = at

    def place(self, definition: str) -> str:
        """Return where in the definition the fault is, as people count.

        >>> InvalidGrammar("unexpected ')'", 4).place("ab\\nc)")
        'line 2, column 2'
        """
        before = definition[: self.at]
        return f"line {before.count(chr(10)) + 1}, column {self.at - before.rfind(chr(10))}"


class UnsupportedGrammar(AntiphonError):
    """A grammar that uses what no constraint of ours can express."""


class EventOutOfOrder(AntiphonError):
    """An event that may not follow the one before it: a defect of the server."""
