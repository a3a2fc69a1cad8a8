"""MCP servers of a request: which of their tools the model is offered, and which calls to run
(docs/reference/api.md#mcp-servers).

A request names a server by its URL, or by the label that the operator configured. A server's list
of tools is not trusted: entries that are not valid tools are left out, and an invalid schema is
replaced by one that allows any object.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import islice
from typing import Any

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.domain import items as i
from antiphon.domain.errors import RequestError
from antiphon.domain.json import Json
from antiphon.domain.kinds.mcp import MCP_KINDS, McpTool, model_name
from antiphon.domain.vocabulary.tool import ToolSpec

MAX_NAME_CHARS = 128
"""The maximum number of characters in a tool's name, from the MCP specification."""


MAX_LISTED_TOOL_CHARS = 100_000
"""In the description and the schema of a tool. A larger one is no tool, but an attack on the prompt
of whoever asks for it."""

MAX_LISTED_TOOLS = 2000
"""Of one server. Models lose track of a tenth of it."""

MAX_INSTRUCTIONS_CHARS = 4000
"""Of what a server, or the request, tells models about the server's tools. The rest is cut off."""

_LONG_RUN = re.compile(r"(?<![^\W\d])[^\W\d]{1024}|(?<![^\w\s])[^\w\s]{1024}|(?<!\s)\s{1024}")
"""A long run of letters, symbols or whitespace. Tokenizers take quadratic time on one, and no text
written for people has one. The lookbehinds match only where a run begins, so the search is linear.
"""

ANY_OBJECT: Json = {"type": "object", "properties": {}}
_WEB_URL = re.compile(r"https?://", re.IGNORECASE)

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}")
_HEADER_VALUE = re.compile(r"[!-~]?|[!-~][\t -~]*[!-~]")
MAX_HEADER_CHARS = 16 * 1024
OUR_HEADERS = frozenset(
    (
        *("host", "content-length", "content-type", "content-encoding", "transfer-encoding"),
        *("connection", "keep-alive", "upgrade", "te", "trailer", "expect", "http2-settings"),
        *("accept", "accept-encoding", "mcp-session-id", "mcp-protocol-version", "last-event-id"),
    )
)
"""Headers that a request may not set for its MCP server, besides those for proxies."""

TIMED_OUT, LOST, TOO_LARGE = -32001, -32000, -32002
"""JSON-RPC error codes that this server sets when the MCP server sends no answer of its own."""


class Listing(Struct, frozen=True):
    """The tools of a server, and its `instructions` for models that use them."""

    tools: tuple[Json, ...] = ()
    instructions: str = ""


NO_LISTING = Listing()


class McpServerPolicy(Struct, frozen=True, kw_only=True):
    """The operator's rules for a configured server.

    `allowed_tools` applies to every request; None allows all tools. `require_approval` is what a
    request gets that does not set it; one that does can only require more. With
    `tenant_authorization`, each request brings the token for the server.
    """

    label: str
    tenant_authorization: bool = False
    allowed_tools: tuple[str, ...] | None = None
    require_approval: str | Json = "never"

    def allow(self, name: Any) -> bool:
        return self.allowed_tools is None or name in self.allowed_tools


OPERATOR_FIELDS = ("server_url", "connector_id", "tunnel_id", "authorization", "headers")
"""Fields that a request may not set for a server that the operator configured."""


def apply_policy(policy: McpServerPolicy, server: McpTool, path: str) -> McpTool:
    """Return a request's MCP tool under the operator's policy. Raises: RequestError.

    A request that sets an address or credentials is refused: its author means a different server
    than the one that would be called. Where requests bring the token, one without it is refused.
    """
    brings_token = policy.tenant_authorization
    for field in OPERATOR_FIELDS:
        if brings_token and field == "authorization":
            continue
        if getattr(server, field) not in (UNSET, None):
            raise RequestError(
                f"The operator configured the server labeled {server.server_label[:100]!r}: "
                f"leave out {field!r}, or give your server another label.",
                param=f"{path}.{field}",
                code="invalid_value",
            )
    if brings_token and not server.authorization:
        raise RequestError(
            f"The server labeled {server.server_label[:100]!r} wants a token of yours: send it as "
            "'authorization', with each request.",
            param=f"{path}.authorization",
            code="missing_required_parameter",
        )
    check_headers(server, path)
    approval = server.require_approval
    if approval in (UNSET, None):
        approval = "never"
    return replace(server, require_approval=stricter_approval(policy.require_approval, approval))


def stricter_approval(operators: str | Json, requests: Any) -> Any:
    """Return the approval to require: a request's, where it requires all that the operator does.

    >>> stricter_approval("never", {"always": {"tool_names": ["drop"]}})
    {'always': {'tool_names': ['drop']}}
    >>> stricter_approval({"always": {"tool_names": ["drop"]}}, "never")
    {'always': {'tool_names': ['drop']}}
    >>> stricter_approval({"always": {"tool_names": ["drop"]}}, {"never": {"tool_names": ["drop"]}})
    'always'
    """
    if operators == "never" or requests == operators:
        return requests
    if requests == "never":
        return operators
    return "always"  # of two different rules, neither may lift what the other requires


def check_url(server: McpTool, path: str) -> None:
    """Check that the server's URL is an http(s) URL. Raises: RequestError."""
    if not _WEB_URL.match(str(server.server_url)):
        raise RequestError(
            "An MCP server's URL must begin with http:// or https://.",
            param=f"{path}.server_url",
            code="invalid_value",
        )


def check_headers(server: McpTool, path: str) -> None:
    """Check that the headers, and the authorization, are a client's to set. Raises: RequestError.

    What frames a message, names its host or belongs to the protocol (RFC 9110, sections 5 and 7.6;
    MCP's transport) is ours.
    """
    headers = server.headers if isinstance(server.headers, dict) else {}
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise _invalid_header(f"{name[:100]!r} is not a valid name of a header.", path)
        if name.lower() in OUR_HEADERS or name.lower().startswith("proxy-"):
            raise _invalid_header(f"A request may not set the header {name[:100]!r}.", path)
        if not _HEADER_VALUE.fullmatch(value):
            raise _invalid_header(f"The value of the header {name[:100]!r} is not valid.", path)
    if sum(len(name) + len(value) for name, value in headers.items()) > MAX_HEADER_CHARS:
        raise _invalid_header(f"Headers may have {MAX_HEADER_CHARS} characters together.", path)
    if isinstance(server.authorization, str) and not (
        len(server.authorization) <= MAX_HEADER_CHARS
        and _HEADER_VALUE.fullmatch(server.authorization)
    ):
        raise RequestError(
            "The authorization is not a valid value of a header.",
            param=f"{path}.authorization",
            code="invalid_value",
        )


def _invalid_header(message: str, path: str) -> RequestError:
    return RequestError(message, param=f"{path}.headers", code="invalid_value")


def tool_specs_of(server: McpTool, listing: Listing) -> tuple[ToolSpec, ...]:
    """Return the specs of a server's tools that the request allows.

    What is said of all of them stands in the description of the first one: every format and every
    upstream shows that.
    """
    valid_tools = islice(filter(_is_valid, listing.tools), MAX_LISTED_TOOLS)
    tools_by_name = {tool["name"]: tool for tool in valid_tools}
    specs = tuple(
        ToolSpec(
            name=model_name(server.server_label, name),
            kind="mcp_approval" if needs_approval(server, tool) else "mcp",
            approval_key=approval_key(server, tool) if needs_approval(server, tool) else None,
            description=_text_or_empty(tool.get("description")),
            parameters=object_schema(tool.get("input_schema")),
            namespace=server.server_label,
            original_name=name,
        )
        for name, tool in tools_by_name.items()
        if is_allowed(server, tool)
    )
    about = about_server(server, listing.instructions)
    if not specs or not about:
        return specs
    description = "\n\n".join(filter(None, [specs[0].description, about]))
    return (replace(specs[0], description=description), *specs[1:])


def about_server(server: McpTool, instructions: str) -> str:
    """Return what models read about all tools of a server, "" if nothing is known.

    >>> server = McpTool(server_label="crm", server_description="Our customers.")
    >>> print(about_server(server, "Call find before change."))
    About all tools of crm: Our customers.
    Call find before change.
    """
    texts = [_text_or_empty(server.server_description), instructions]
    known = "\n".join(text for each in texts if (text := _bounded(each)))
    return known and f"About all tools of {server.server_label[:MAX_NAME_CHARS]}: {known}"


def _bounded(text: str) -> str:
    text = text.strip()[:MAX_INSTRUCTIONS_CHARS]
    return "" if _LONG_RUN.search(text) else text


def _is_valid(tool: Json) -> bool:
    name = tool.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
        return False
    size = 0
    for text in _texts_in([name, tool.get("description"), tool.get("input_schema")]):
        size += len(text)
        if size > MAX_LISTED_TOOL_CHARS or _LONG_RUN.search(text):
            return False
    return True


def _texts_in(value: Any) -> Iterator[str]:
    """Yield all texts in a JSON value, and an empty one for any other value."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
            yield from value
        elif isinstance(value, list | tuple):
            waiting += value
        else:
            yield value if isinstance(value, str) else ""


def is_allowed(server: McpTool, tool: Json) -> bool:
    allowed = server.allowed_tools
    if isinstance(allowed, dict):
        return _matches(tool, allowed)
    return tool["name"] in allowed if isinstance(allowed, tuple) else True


def needs_approval(server: McpTool, tool: Json) -> bool:
    """Return whether the client must approve a call of this tool first, which is the default.

    >>> server = McpTool(server_label="s", require_approval={"never": {"tool_names": ["read"]}})
    >>> [needs_approval(server, {"name": name}) for name in ("read", "drop")]
    [False, True]
    """
    required = server.require_approval
    if not isinstance(required, dict):
        return required != "never"
    always, never = required.get("always"), required.get("never")
    if isinstance(always, dict) and _matches(tool, always):
        return True
    return not (isinstance(never, dict) and _matches(tool, never))


def _matches(tool: Json, rule: Json) -> bool:
    names, read_only = rule.get("tool_names"), rule.get("read_only")
    if isinstance(names, list) and tool["name"] not in names:
        return False
    if isinstance(read_only, bool):
        annotations = tool.get("annotations")
        is_read_only = isinstance(annotations, dict) and annotations.get("readOnlyHint") is True
        return is_read_only is read_only
    return isinstance(names, list)


def _text_or_empty(value: Any) -> str:
    return value if isinstance(value, str) else ""


def object_schema(value: Any) -> Json:
    """Return a tool's schema as one of an object; what cannot be one is one of any object.

    >>> object_schema({"type": ["object", "null"], "properties": {"a": {}}})
    {'type': 'object', 'properties': {'a': {}}}
    >>> object_schema({"type": "string"}), object_schema(None) == object_schema(True) == ANY_OBJECT
    ({'type': 'object', 'properties': {}}, True)
    """
    if not isinstance(value, dict):
        return ANY_OBJECT
    kinds = value.get("type") or "object"
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        return ANY_OBJECT
    schema = {**value, "type": "object"}
    if not isinstance(value.get("properties", {}), dict):
        schema["properties"] = {}  # PHP writes an empty list
    required = value.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        del schema["required"]
    return schema


def without_null_fields(tool: Json) -> Json:
    """Return a listed tool with the fields that its server gave: strict clients refuse a null.

    >>> without_null_fields({"name": "f", "description": "Reads.", "annotations": None})
    {'name': 'f', 'description': 'Reads.'}
    """
    return {name: value for name, value in tool.items() if value is not None}


def last_listing(label: str, conversation: Sequence[i.Item]) -> Listing | None:
    """Return what a server last listed, None if it must be asked (again)."""
    for item in reversed(conversation):
        if isinstance(item, i.McpListTools) and item.server_label == label:
            return None if item.error else _listing_in(item)
    return None


def listings_by_label(items: Sequence[i.Item]) -> dict[str, Listing]:
    return {
        item.server_label: _listing_in(item) for item in items if isinstance(item, i.McpListTools)
    }


def _listing_in(item: i.McpListTools) -> Listing:
    return Listing(item.tools, item.instructions if isinstance(item.instructions, str) else "")


_APPROVAL_KEY = re.compile(r"x([0-9a-f]{32})\Z")


def has_approval_key(request_id: str) -> bool:
    """Return whether a server like this made the id: older ids may not be unique."""
    return _APPROVAL_KEY.search(request_id) is not None


def approval_key(server: McpTool, tool: Json) -> str:
    """Return what an approval is bound to: a hash of the server's address and the tool.

    It is part of the approval request's id, which every client sends back.
    """
    address = [
        None if value is UNSET else value for value in (server.server_url, server.connector_id)
    ]
    bound = [server.server_label, *address, _without_nulls(tool)]
    return sha256(msgspec.json.encode(bound, order="sorted")).hexdigest()[:32]


class AnsweredCall(Struct, frozen=True, kw_only=True):
    """A call that the client approved or denied, with its tool's definition then, if known."""

    request: i.McpApprovalRequest
    definition: Json | None
    is_approved: bool = True

    @property
    def key(self) -> str | None:
        """The hash of the approved tool, if the request's id has one: older ids do not."""
        match = _APPROVAL_KEY.search(str(self.request.id))
        return match[1] if match is not None else None

    @property
    def names_its_tool(self) -> bool:
        """Whether it is known what was approved, besides the name."""
        return self.definition is not None or self.key is not None

    def is_of_another_tool(self, server: McpTool, tools: Sequence[Json]) -> bool:
        """Return whether the server now lists a different tool, or is a different server.

        >>> request = i.McpApprovalRequest(id="mcpr_1", server_label="s", name="f", arguments="{}")
        >>> server, tool = McpTool(server_label="s"), {"name": "f", "description": "Reads."}
        >>> call = AnsweredCall(request=request, definition=tool)
        >>> call.is_of_another_tool(server, [{**tool, "annotations": None}])
        False
        >>> call.is_of_another_tool(server, [{**tool, "description": "Sends it to evil.example"}])
        True
        """
        current = tool_named(self.request.name, tools)
        if current is None:
            return False
        if self.key is not None and self.key != approval_key(server, current):
            return True
        if self.definition is None:
            return False
        return bool(_without_nulls(current) != _without_nulls(self.definition))


def _without_nulls(value: Any) -> Any:
    # Clients that send items back may leave out null fields.
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return list(map(_without_nulls, value)) if isinstance(value, list | tuple) else value


def tool_named(name: str, tools: Sequence[Json]) -> Json | None:
    """Return the last tool of that name, which is the one that models are offered."""
    return next((tool for tool in reversed(tools) if tool.get("name") == name), None)


def is_repeatable(tool: Json) -> bool:
    """Whether its server says that calling the tool twice does no more than calling it once.

    >>> is_repeatable({"name": "add", "annotations": {"idempotentHint": True}})
    True
    """
    annotations = tool.get("annotations")
    hints = annotations if isinstance(annotations, dict) else {}
    return hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True


def answered_calls(conversation: Sequence[i.Item]) -> list[AnsweredCall]:
    """Return the calls that were approved and have not run yet, and those that were denied.

    An answer no longer counts once the model has written more, or its server has listed its tools
    again: a client that replays a conversation must not run its calls again.

    Raises: RequestError for an approval without an approval request.
    """
    requested: dict[object, AnsweredCall] = {}
    run_ids = {item.approval_request_id for item in conversation if isinstance(item, i.McpCall)}
    answered: dict[str, AnsweredCall] = {}
    tools_by_label: dict[str, Sequence[Json]] = {}
    for item in conversation:
        if isinstance(item, i.McpListTools):
            tools_by_label[item.server_label] = item.tools
            answered = {
                request_id: call
                for request_id, call in answered.items()
                if call.request.server_label != item.server_label
            }
        elif isinstance(item, i.McpApprovalRequest):
            definition = tool_named(item.name, tools_by_label.get(item.server_label, ()))
            requested[item.id] = AnsweredCall(request=item, definition=definition)
        elif isinstance(item, i.McpApprovalResponse):
            call = requested.get(item.approval_request_id)
            if call is None:
                raise RequestError(
                    f"No 'mcp_approval_request' found with id {item.approval_request_id[:100]!r}.",
                    param="input",
                    code="invalid_value",
                )
            if item.approval_request_id not in run_ids:
                answer = replace(call, is_approved=item.approve)
                answered[item.approval_request_id] = answer
        elif _is_model_output(item):
            answered.clear()
    return list(answered.values())


def ids_of(calls: Iterable[AnsweredCall]) -> list[str]:
    """Return the ids of the requests, but only of those that this server made."""
    return [str(call.request.id) for call in calls if call.key is not None]


def _is_model_output(item: i.Item) -> bool:
    if isinstance(item, i.Message):
        return item.role == "assistant"
    return isinstance(item, i.Reasoning | i.FunctionCall | i.CustomToolCall | i.McpCall)


def is_unreachable(error: Any) -> bool:
    """Return whether a call's `error` says that the MCP server did not answer.

    An error that the server itself sent, such as for an unknown tool, shows that it is reachable.
    """
    if not isinstance(error, dict):
        return False
    is_lost = error.get("type") == "mcp_protocol_error" and error.get("code") in (TIMED_OUT, LOST)
    return is_lost or error.get("type") == "http_error"


_OUR_CAUSES = {
    TIMED_OUT: "it did not answer in time",
    LOST: "the connection was lost",
    TOO_LARGE: "its answer was too large",
}


def failure_cause(error: Any) -> str | None:
    """Return why an MCP server did not answer a call, None if it did or was not asked.

    For the log: without the server's own words, which may repeat what it was sent.

    >>> failure_cause({"type": "http_error", "code": 503, "message": "…"})
    'HTTP status 503'
    """
    match error:
        case {"type": "http_error", "code": int(status)}:
            return f"HTTP status {status}"
        case {"type": "mcp_protocol_error", "code": int(code)}:
            return _OUR_CAUSES.get(code, f"JSON-RPC error {code}")
    return None


def is_mcp_tool(spec: ToolSpec) -> bool:
    return spec.kind in MCP_KINDS
