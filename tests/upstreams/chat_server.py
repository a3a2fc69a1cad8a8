"""A Chat Completions server that plays scripts, and writes its answers as any of several servers.

It is a real server on loopback with an event loop of its own; what it says comes from our scripted
model. `url("ollama")` is its base URL in the style of Ollama: a row of STYLES.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from itertools import count
from typing import Any

from msgspec import Struct
from tests.upstreams.chat_chunks import ChunkWriter, event_of, plain_calls, whole_answer
from tests.upstreams.chat_faults import (
    ERRORS,
    STREAMS,
    Closed,
    ErrorAnswer,
    context_error,
    error_body,
    refused_field,
)
from tests.upstreams.chat_request import InvalidRequest, KnowingEngine, check_calls, to_turn
from tests.upstreams.chat_styles import STYLES, Style

from antiphon.adapters.formats.chat_template import ScriptedMarkup, scripted_chat
from antiphon.adapters.formats.chat_template.scripted.markup import TOKENIZER
from antiphon.application.model.token_model import TokenModel
from antiphon.application.ports import ModelTurn, Turn
from antiphon.domain import deltas as d
from antiphon.domain.errors import CONTEXT_EXCEEDED, EngineError, RequestError

Json = dict[str, Any]

MODEL = "scripted-upstream"
CONTEXT_LENGTH = 131_072
COMMENT_EVERY = 5
"""Where a style has comments, one comes before each fifth chunk."""


class Received(Struct, frozen=True, kw_only=True):
    """A request, as it came. `style` is the first part of its path."""

    style: str
    method: str
    path: str
    headers: Mapping[str, str]
    body: Json


class ScriptedChatServer:
    """`received` are the requests so far, of every kind; `chats` those for an answer.

    `fault` is what goes wrong with each answer from now on, a key of ERRORS, STREAMS or
    BEFORE_HEADERS, and `faults` what goes wrong with the next ones, one after another. `streams`
    are the chunks of the next answers, whatever is asked.
    `refused_fields` are refused in addition to those of the style. With a `key`, all others are
    refused.
    """

    def __init__(self, *, context_length: int = CONTEXT_LENGTH) -> None:
        self.received: list[Received] = []
        self.faults: deque[str] = deque()
        self.fault: str | None = None
        self.streams: deque[Sequence[Json]] = deque()
        self.refused_fields: set[str] = set()
        self.key: str | None = None
        self.connections = 0
        self.open_answers = 0
        self.origin = ""
        self._context_length = context_length
        engine = KnowingEngine(ScriptedMarkup(), [MODEL], context_length=context_length)
        self._model = TokenModel(scripted_chat, engine)
        self._numbers = count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def url(self, style: str) -> str:
        """Return the base URL in this style, as the settings name it."""
        assert style in STYLES
        return f"{self.origin}/{style}/v1"

    @property
    def chats(self) -> list[Received]:
        return [each for each in self.received if each.path.endswith("/chat/completions")]

    # --- the server -------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(10), "the upstream did not start"

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive(), "the upstream did not stop"

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        await self._model.start()
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.origin = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._started.set()
        await self._stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection = Connection(reader, writer)
        try:
            while (request := await connection.read_request()) is not None:
                self.received.append(request)
                await self._answer_counted(request, connection)
        except (Closed, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _answer_counted(self, request: Received, connection: Connection) -> None:
        self.open_answers += 1
        try:
            await connection.unless_the_client_leaves(self._answer(request, connection))
        finally:
            self.open_answers -= 1

    async def _answer(self, request: Received, answer: Connection) -> None:
        style = STYLES[request.style]
        if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
            await self._refuse(style, ERRORS["401"], answer)
            return
        match request.method, request.path.removeprefix("/v1"):
            case "POST", "/chat/completions":
                await self._chat(style, request.body, answer)
            case "GET", "/models" if request.path.startswith("/v1"):
                await answer.json({"object": "list", "data": [self._card(style)]})
            case "POST", "/tokenize" if style.tokenizes == "vllm":
                await answer.json(await self._tokenize(request.body))
            case "POST", "/tokenize" if (
                style.tokenizes == "llama_cpp" and "content" in request.body
            ):
                tokens = TOKENIZER.encode(request.body["content"], special=True)
                await answer.json({"tokens": tokens})
            case "POST", "/apply-template" if style.tokenizes == "llama_cpp":
                await answer.json({"prompt": await self._prompt_of(request.body)})
            case "GET", "/props" if style.sizes == "llama_cpp":
                settings = {"n_ctx": self._context_length}
                await answer.json({"default_generation_settings": settings, "total_slots": 1})
            case "POST", "/api/show" if style.sizes == "ollama":
                info = {
                    "general.architecture": "qwen3",
                    "qwen3.context_length": self._context_length,
                }
                await answer.json({"model_info": info, "capabilities": ["completion", "tools"]})
            case "GET", "/api/v0/models" if style.sizes == "lm_studio":
                model = {"id": MODEL, "type": "llm", "max_context_length": self._context_length}
                await answer.json({"object": "list", "data": [model]})
            case _:
                await answer.json({"detail": "Not Found"}, status=404)

    def _card(self, style: Style) -> Json:
        sizes: Mapping[str | None, Json] = {
            "vllm": {"max_model_len": self._context_length},
            "llama_cpp": {"meta": {"n_ctx_train": self._context_length, "n_vocab": 32000}},
            "openrouter": {"context_length": self._context_length},
            "mistral": {"max_context_length": self._context_length},
        }
        return {
            "id": MODEL,
            "object": "model",
            "owned_by": style.owner,
            **sizes.get(style.sizes, {}),
        }

    async def _tokenize(self, body: Json) -> Json:
        if "messages" in body:
            size = await self._model.count(to_turn({"model": MODEL, **body}))
        else:
            size = len(TOKENIZER.encode(body["prompt"], special=True))
        limit = self._context_length
        return {"count": size, "max_model_len": limit, "tokens": list(range(size))}

    async def _prompt_of(self, body: Json) -> str:
        prompt = await scripted_chat().render(to_turn({"model": MODEL, **body}))
        return TOKENIZER.decode(prompt.token_ids)

    # --- an answer --------------------------------------------------------------------------------

    async def _chat(self, style: Style, body: Json, answer: Connection) -> None:
        fault = self.faults.popleft() if self.faults else self.fault
        if self.streams:
            await answer.stream(_written(style, self.streams.popleft()))
            return
        if fault == "closes before headers":
            raise Closed
        if fault == "hangs before headers":
            await asyncio.Event().wait()
        if fault == "context":
            error = context_error(style, tokens=140_000, limit=self._context_length)
            await self._refuse(style, error, answer)
        elif fault in ERRORS:
            await self._refuse(style, ERRORS[fault], answer)
        elif (refused := self._refused(style, body)) is not None:
            status, content = refused
            await answer.json(content, status=status)
        else:
            await self._play(style, body, answer, fault)

    async def _refuse(self, style: Style, error: ErrorAnswer, answer: Connection) -> None:
        await answer.json(error_body(style, error), status=error.status, headers=error.headers)

    def _refused(self, style: Style, body: Json) -> tuple[int, Json] | None:
        """Return the answer to a body with a field that this server does not take."""
        refused = (style.refused_fields | self.refused_fields) & body.keys()
        if style.known_fields:
            refused |= body.keys() - style.known_fields
        for name in sorted(refused):
            return refused_field(style, [name], body[name])
        for position, message in enumerate(body["messages"]):
            for name in sorted(style.refused_in_messages & message.keys()):
                path = ["messages", position, message["role"], name]
                return refused_field(style, path, message[name])
        for call_id in _call_ids(body["messages"]):
            if style.call_id_chars not in (None, len(call_id)):
                message = (
                    f"Tool call id was {call_id} but must be a-z, A-Z, 0-9, with a length of 9."
                )
                error = ErrorAnswer(
                    status=400, message=message, code="3280", type="invalid_function_call"
                )
                return 400, error_body(style, error)
        return None

    async def _play(self, style: Style, body: Json, answer: Connection, fault: str | None) -> None:
        try:
            if style.checks_calls:
                check_calls(body["messages"])
            turn = to_turn(body, step_tokens=style.step_tokens)
            admitted = await self._model.start_turn(turn, request_id=str(next(self._numbers)))
        except InvalidRequest as error:
            wrong = ErrorAnswer(
                status=400, message=error.message, type="invalid_request_error", param=error.param
            )
            await self._refuse(style, wrong, answer)
        except RequestError as error:
            if error.code == CONTEXT_EXCEEDED:
                size = await self._model.count(turn)
                wrong = context_error(style, tokens=size, limit=self._context_length)
            else:
                wrong = ErrorAnswer(status=400, message=error.message, type="invalid_request_error")
            await self._refuse(style, wrong, answer)
        else:
            await self._write(style, body, turn, admitted, answer, fault)

    async def _write(
        self,
        style: Style,
        body: Json,
        turn: Turn,
        admitted: ModelTurn,
        answer: Connection,
        fault: str | None,
    ) -> None:
        names = {(tool.namespace, tool.client_name): tool.name for tool in turn.tools}
        options = body.get("stream_options") or {}
        writer = ChunkWriter(
            style if body.get("stream") else plain_calls(style),
            body["model"],
            names,
            shows_usage=not body.get("stream") or options.get("include_usage") is True,
            usage_now=lambda: admitted.tokens_used()[0],
        )
        chunks = _chunks(writer, admitted)
        if not body.get("stream"):
            try:
                written = [chunk async for chunk in chunks]
            except EngineError as error:
                wrong = ErrorAnswer(status=500, message=str(error))
                await self._refuse(style, wrong, answer)
                return
            await answer.json(whole_answer(style, written))
            return
        events: AsyncGenerator[bytes] = _events(style, writer, chunks)
        if fault is not None:
            events = STREAMS[fault](events)
        async with aclosing(events):
            await answer.stream(events)


async def _chunks(writer: ChunkWriter, turn: ModelTurn) -> AsyncGenerator[Json]:
    for chunk in writer.start():
        yield chunk
    async with aclosing(aiter(turn)) as steps:
        async for deltas in steps:
            for delta in deltas:
                if isinstance(delta, d.TurnEnd):
                    for chunk in writer.end(delta.reason, delta.usage):
                        yield chunk
                else:
                    for chunk in writer.write(delta):
                        yield chunk


async def _events(
    style: Style, writer: ChunkWriter, chunks: AsyncGenerator[Json]
) -> AsyncGenerator[bytes]:
    if style.opening:
        yield style.opening
    try:
        async with aclosing(chunks):
            number = 0
            async for chunk in chunks:
                number += 1
                if style.comment and number % COMMENT_EVERY == 0:
                    yield style.comment
                yield event_of(style, json.dumps(chunk, ensure_ascii=False).encode())
    except EngineError as error:
        yield _error_event(style, ErrorAnswer(status=500, message=str(error)))
    if style.has_done:
        yield event_of(style, b"[DONE]")


async def _written(style: Style, chunks: Sequence[Json]) -> AsyncGenerator[bytes]:
    for chunk in chunks:
        yield event_of(style, json.dumps(chunk).encode())
    yield event_of(style, b"[DONE]")


def _error_event(style: Style, error: ErrorAnswer) -> bytes:
    """Return how a server says in a stream that it failed."""
    body = error_body(style, error)
    data = json.dumps(body).encode()
    match style.error_event:
        case "event":
            return b"event: error\n" + event_of(style, data)
        case "field":
            return b"error: " + json.dumps(body["error"]).encode() + b"\n\n"
        case "chunk":
            choice = {"index": 0, "delta": {"content": ""}, "finish_reason": "error"}
            return event_of(style, json.dumps({**body, "choices": [choice]}).encode())
    return event_of(style, data)


def _call_ids(messages: list[Json]) -> Iterator[str]:
    for message in messages:
        yield from (call["id"] for call in message.get("tool_calls") or ())
        if message["role"] == "tool":
            yield message["tool_call_id"]


class Connection:
    """A connection of a client: its requests, and what is written to it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._ahead = b""

    async def read_request(self) -> Received | None:
        """Return the next request, or None once the client has left."""
        try:
            head = (self._ahead + await self._reader.readuntil(b"\r\n\r\n")).decode()
            self._ahead = b""
            first, *lines = head.rstrip().split("\r\n")
            method, target, _ = first.split(" ")
            pairs = (line.split(":", 1) for line in lines)
            headers = {name.lower(): value.strip() for name, value in pairs}
            content = await self._reader.readexactly(int(headers.get("content-length", 0)))
        except asyncio.IncompleteReadError:
            return None
        _, style, path = target.partition("?")[0].split("/", 2)
        body = json.loads(content) if content else {}
        return Received(style=style, method=method, path=f"/{path}", headers=headers, body=body)

    async def unless_the_client_leaves(self, answering: Coroutine[Any, Any, None]) -> None:
        """Answer; once the client has left, stop. Raises: Closed."""
        task = asyncio.ensure_future(answering)
        watch = asyncio.ensure_future(self._reader.read(1))
        try:
            await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                self._ahead = watch.result()
            if not task.done() and not self._ahead:
                raise Closed
            await task
        finally:
            task.cancel()
            watch.cancel()
            await asyncio.gather(task, watch, return_exceptions=True)

    async def json(
        self, body: Json, *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        content = json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} x", f"content-length: {len(content)}"]
        lines += ["content-type: application/json"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self._writer.write("\r\n".join([*lines, "", ""]).encode() + content)
        await self._writer.drain()

    async def stream(self, events: AsyncIterator[bytes]) -> None:
        head = ["HTTP/1.1 200 OK", "content-type: text/event-stream", "transfer-encoding: chunked"]
        self._writer.write("\r\n".join([*head, "", ""]).encode())
        async for event in events:
            self._writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            await self._writer.drain()
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()


@contextmanager
def scripted_chat_server(**options: Any) -> Iterator[ScriptedChatServer]:
    server = ScriptedChatServer(**options)
    server.start()
    try:
        yield server
    finally:
        server.close()
