"""A server that speaks vLLM's two wires of tokens, over a scripted engine.

The scripted engine reads tools and schemas from the turn, which is not on the wire: a test gives a
`TurnRegistry` to the server and to a `TellingEngine`, and so passes it aside.

As a process of its own: python -m tests.upstreams.token_server --port 8001 --model tokens
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any

from aiohttp import web

from antiphon.adapters.engines.scripted.engine import ScriptedEngine
from antiphon.adapters.engines.vllm_http import VllmHttpEngine
from antiphon.adapters.formats.chat_template import ScriptedMarkup
from antiphon.application.ports import EngineRequest, Prompt, Sampling, Step, Steps, Turn
from antiphon.domain.errors import EngineError, RequestError

Json = dict[str, Any]

WIRES = ("generate", "completions", "tokens_only")
COPIED = (
    *("max_tokens", "ignore_eos", "logprobs", "include_stop_str_in_output", "temperature"),
    *("seed", "top_p", "skip_special_tokens"),
)


class TurnRegistry(dict[str, EngineRequest]):
    """The requests that engines have told of, and the ids of those that a server has `begun`."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: set[str] = set()


class TellingEngine(VllmHttpEngine):
    """Tells the token server about each turn."""

    turns: TurnRegistry

    async def generate(self, request: EngineRequest) -> Steps:
        self.turns[request.request_id] = request
        return await super().generate(request)


class TokenServer:
    """One server. `wire` is what it offers: a row of WIRES.

    `id_of` returns the token id of a text, for logprobs. `requests` and `headers` are those of all
    runs, `renderings` the requests to render images. What a test may set:

    - `refusal`: the status that each run gets; `image_refusal`: that of each rendering;
      `rendering`: what is answered to all of them
    - `health`: the status of a health check, None for no answer
    - `model_fields`: what it says of its model
    - `drops`: of so many of the next runs, the connections are closed without an answer
    - `before_token`: awaited before each step, with the number of tokens that were sent
    - `image`: the tokens of an image, whose placeholder is the last; a model of text has none
    - `broken_images`: the ids or URLs of images over which a run fails
    - `stream`: sent instead of what the engine writes; None in it is a pause without end
    """

    def __init__(
        self,
        engine: ScriptedEngine,
        *,
        wire: str = "generate",
        model: str = "tokens",
        turns: TurnRegistry | None = None,
        id_of: Callable[[str], int] = len,
    ) -> None:
        self.engine = engine
        self.wire = wire
        self.model = model
        self.turns = TurnRegistry() if turns is None else turns
        self.requests: list[Json] = []
        self.renderings: list[Json] = []
        self.image: Sequence[int] = ()
        self.image_refusal: int | None = None
        self.rendering: Json | None = None
        self.broken_images: set[str] = set()
        self.headers: list[Mapping[str, str]] = []
        self.refusal: int | None = None
        self.drops = 0
        self.health: int | None = 200
        self.model_fields: Json = {}
        self.before_token: Callable[[int], Any] | None = None
        self.stream: Sequence[bytes | None] | None = None
        self._id_of = id_of
        self._port = 0
        self._runner: web.AppRunner | None = None
        self._transports: set[asyncio.Transport] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self, port: int = 0) -> None:
        """Listen, on the port that it had if it was killed."""
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        if self.wire != "completions":
            app.router.add_post("/inference/v1/generate", self._generate)
            app.router.add_post("/v1/chat/completions/render", self._render)
        if self.wire != "tokens_only":
            app.router.add_post("/v1/completions", self._completions)
            app.router.add_post("/detokenize", self._health)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port or self._port, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def kill(self) -> None:
        """End as a killed process does: connections are reset, and new ones refused."""
        runner, self._runner = self._runner, None
        self.cut()
        if runner is not None:
            await runner.cleanup()

    def cut(self) -> None:
        """Reset the connections of all runs."""
        for transport in list(self._transports):
            transport.abort()

    # --- routes -----------------------------------------------------------------------------------

    async def _health(self, _: web.Request) -> web.Response:
        if self.health is None:
            await asyncio.Event().wait()
        return web.Response(status=self.health or 200)

    async def _models(self, _: web.Request) -> web.Response:
        length = self.engine.context_length
        model = {"id": self.model, "root": "/nowhere", "max_model_len": length, **self.model_fields}
        return web.json_response({"object": "list", "data": [model]})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if "token_ids" not in body:
            return _error(400, "token_ids: Field required", "body.token_ids")
        if self.wire == "tokens_only" and body["output_mode"] != "tokens":
            return _error(400, "output_mode='text' requires a tokenizer", None)
        sampling = body["sampling_params"]
        if self.wire == "tokens_only" and sampling.get("stop"):
            return _error(400, "stop strings are not supported", "stop")
        images = body.get("content_parts", [])
        if any(each.get("uuid", each["url"]) in self.broken_images for each in images):
            self.requests.append(body)
            return _error(500, "Internal server error", None)
        token_ids = self._expand(body["token_ids"]) if images else body["token_ids"]
        return await self._run(request, body, token_ids, sampling, self._token_choice)

    async def _render(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.renderings.append(body)
        if self.rendering is not None:
            return web.json_response(self.rendering)
        if not self.image:
            return _error(400, "At most 0 image(s) may be provided", "image")
        if self.image_refusal is not None:
            return _error(self.image_refusal, "not these images", "image")
        token_ids, ranges = [0], []
        for _ in body["messages"][0]["content"]:
            ranges.append({"offset": len(token_ids), "length": len(self.image)})
            token_ids += self.image
        features = {"mm_hashes": {}, "mm_placeholders": {"image": ranges}}
        return web.json_response({"token_ids": [*token_ids, 0], "features": features})

    def _expand(self, token_ids: Sequence[int]) -> list[int]:
        placeholder = self.image[-1]
        return [
            each
            for token_id in token_ids
            for each in (self.image if token_id == placeholder else [token_id])
        ]

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        return await self._run(request, body, body["prompt"], body, self._text_choice)

    async def _run(
        self,
        request: web.Request,
        body: Json,
        token_ids: Sequence[int],
        sampling: Mapping[str, Any],
        choice: Callable[[Step, Json], Json],
    ) -> web.StreamResponse:
        self.requests.append(body)
        self.headers.append(request.headers)
        assert request.transport is not None
        if self.drops:
            self.drops -= 1
            request.transport.abort()
        if self.refusal is not None:
            return _error(self.refusal, "not now", None)
        try:
            steps = await self.engine.generate(self._to_request(body, token_ids, sampling))
        except RequestError as error:
            return _error(400, error.message, "input_tokens")
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        self._transports.add(request.transport)
        try:
            async with aclosing(steps):
                if self.stream is not None:
                    await _write_all(response, self.stream)
                else:
                    await self._write(response, body, steps, choice, len(token_ids))
        finally:
            self._transports.discard(request.transport)
        return response

    async def _write(
        self,
        response: web.StreamResponse,
        body: Json,
        steps: AsyncIterator[Step],
        choice: Callable[[Step, Json], Json],
        prompt_tokens: int,
    ) -> None:
        count = cached = 0
        try:
            if self.before_token is not None:
                await self.before_token(0)
            async for step in steps:
                count, cached = count + len(step.token_ids), step.cached_tokens
                await response.write(_event({"choices": [choice(step, body)]}))
                if self.before_token is not None:
                    await self.before_token(count)
        except EngineError as error:
            await response.write(_event({"error": {"message": str(error), "code": 500}}))
        else:
            details = {"cached_tokens": cached}
            usage = {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": count,
                "prompt_tokens_details": details,
            }
            await response.write(_event({"choices": [], "usage": usage}))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()

    def _to_request(
        self, body: Json, token_ids: Sequence[int], sampling: Mapping[str, Any]
    ) -> EngineRequest:
        fields = {name: sampling[name] for name in COPIED if name in sampling}
        told = self.turns.get(body["request_id"])
        turn = Turn(model=self.model, items=()) if told is None else told.turn
        # If a run has lost its server, its prompt ends with what that one wrote.
        end = len(token_ids)
        if told is not None and (told.written or told.request_id in self.turns.begun):
            end = len(told.prompt.token_ids)
        self.turns.begun.add(body["request_id"])
        prompt, written = token_ids[:end], token_ids[end:]
        if "max_tokens" in fields:
            fields["max_tokens"] += len(written)
        return EngineRequest(
            request_id=body["request_id"],
            model=self.model,
            prompt=Prompt(token_ids=prompt),
            written=written,
            sampling=Sampling(
                stop=tuple(sampling.get("stop", ())),
                step_tokens=sampling.get("stream_interval", 1),
                answer_tokens=tuple(sampling.get("logprob_token_ids", ())),
                **fields,
            ),
            cache_salt=body.get("cache_salt"),
            turn=turn,
        )

    # --- events -----------------------------------------------------------------------------------

    def _token_choice(self, step: Step, body: Json) -> Json:
        choice: Json = {"index": 0, "token_ids": step.token_ids, "finish_reason": step.finish}
        if body["output_mode"] == "text":
            return {**choice, "text": step.text}
        if step.logprobs is None:
            return choice
        positions = [
            {
                "token_id": token_id,
                "logprob": each.logprob,
                "top_logprobs": [
                    {"token_id": self._id_of(top.token), "logprob": top.logprob}
                    for top in each.top_logprobs
                ],
            }
            for token_id, each in zip(step.token_ids, step.logprobs, strict=True)
        ]
        return {**choice, "logprobs": {"content": positions}}

    def _text_choice(self, step: Step, _: Json) -> Json:
        choice: Json = {
            "index": 0,
            "text": step.text,
            "token_ids": step.token_ids,
            "finish_reason": step.finish,
        }
        if step.logprobs is None:
            return choice
        logprobs = {
            "tokens": [f"token_id:{token_id}" for token_id in step.token_ids],
            "token_logprobs": [each.logprob for each in step.logprobs],
            "top_logprobs": [
                {f"token_id:{self._id_of(top.token)}": top.logprob for top in each.top_logprobs}
                for each in step.logprobs
            ],
        }
        return {**choice, "logprobs": logprobs}


async def _write_all(response: web.StreamResponse, stream: Sequence[bytes | None]) -> None:
    for data in stream:
        if data is None:
            await asyncio.Event().wait()
        else:
            await response.write(data)
    await response.write_eof()


def _event(content: Json) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def _error(status: int, message: str, param: str | None) -> web.Response:
    error = {"message": message, "type": "BadRequestError", "param": param, "code": status}
    return web.json_response({"error": error}, status=status)


@asynccontextmanager
async def listening(*servers: TokenServer) -> AsyncIterator[None]:
    """Serve in this event loop inside the block."""
    try:
        for server in servers:
            await server.start()
        yield
    finally:
        for server in servers:
            await server.kill()


@contextmanager
def serving(*servers: TokenServer) -> Iterator[None]:
    """Serve in a thread inside the block."""
    ready = threading.Event()
    stop: list[Callable[[], object]] = []

    async def serve() -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(ended.set))
        async with listening(*servers):
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=asyncio.run, args=[serve()], name="token servers")
    thread.start()
    assert ready.wait(30), "the token servers did not start"
    try:
        yield
    finally:
        stop[0]()
        thread.join(30)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", default="tokens")
    parser.add_argument("--wire", choices=WIRES, default="generate")
    parser.add_argument("--tokens-per-s", type=float)
    options = parser.parse_args()
    engine = ScriptedEngine(ScriptedMarkup(), [options.model], tokens_per_s=options.tokens_per_s)
    server = TokenServer(engine, wire=options.wire, model=options.model)
    await server.start(options.port)
    print(server.url, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
