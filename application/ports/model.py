"""One turn of a model: formats, engines, and what joins them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from antiphon.application.ports.sampling import Constraint, Sampling
from antiphon.domain.content import Logprob
from antiphon.domain.deltas import Delta
from antiphon.domain.items import Item
from antiphon.domain.json import Json
from antiphon.domain.response import TextConfig
from antiphon.domain.tools import ToolChoice, ToolSpec
from antiphon.domain.usage import TurnUsage


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
    choice: ToolChoice = ToolChoice()
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

    They are data URLs of a checked type. Only the engine reads `prepared`. Only the format reads
    `prefix_digest`, which identifies the conversation that the prompt renders.
    """

    token_ids: Sequence[int]
    image_urls: Sequence[str] = ()
    prepared: Any = None
    prefix_digest: bytes = b""


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

    def make_parser(self, turn: Turn, prompt: Prompt) -> Parser: ...

    def remember(
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
    """Generates tokens for prompts.

    Any number of runs go side by side and do not mix.
    """

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
        """Admit the run and return its steps: `finish` is set on the last, and on no other.

        `max_tokens` is met exactly, a step has at most `step_tokens` tokens, and text and tokens
        are the same in however many steps they come. A stop string ends the text; it is left out
        unless `include_stop_str_in_output`. With `logprobs`, each token has as many alternatives,
        the likeliest first. `cached_tokens` is the same in all steps and less than the prompt has.

        Leaving the iterator at any step, or cancelling the task that reads it, aborts the run and
        leaves the engine working.
        Raises: here TooManyRequests, or RequestError (for a prompt that leaves no room, with the
        code `context_length_exceeded` and the param `input`); later EngineError.
        """


class ModelTurn(Protocol):
    """An admitted turn: iterate once over lists of deltas, one list per engine step.

    The last delta, and no other, is a TurnEnd. Its reason is `length` if the turn reached
    `max_tokens` or the end of the context, else `stop`. Raises while iterating: EngineError.
    Leaving the iterator, cancelling the task that reads it, or calling `aclose` before the first
    step aborts the run and affects no other turn.
    """

    def __aiter__(self) -> AsyncGenerator[list[Delta]]: ...

    async def aclose(self) -> None: ...

    def record_items(self, items: Sequence[Item]) -> None:  # noqa: ARG002 - it is a default
        """Learn which items this turn has become, once it has ended by itself.

        Later prompts with these items may then repeat the turn exactly as the model wrote it. A
        turn that no model wrote has nothing to repeat.
        """
        return

    def messages(self) -> tuple[list[Json], list[Json]]:
        """Return the turn's input and output so far, as JSON in the shape of the format."""

    def tokens_used(self) -> Sequence[TurnUsage]:
        """Return the tokens used so far. After the end, they are those of the TurnEnd."""
        return ()


class Model(Protocol):
    """A model: runs turns, each from a conversation to deltas.

    Any number of turns run side by side and do not mix. What a turn's `sampling` asks for holds:
    `max_tokens` is met exactly, a stop string ends the text, and `step_tokens` changes how many
    deltas the text comes in, but not the text. `choice`, strict tools and the text format hold for
    all that the model writes. Except for `names`, nothing is asked before `start`.
    """

    @property
    def names(self) -> Sequence[str]:
        """The names that clients may ask for: at least one, and no name twice."""

    @property
    def format_name(self) -> str:
        """The name of its format, for people."""

    @property
    def reads_images(self) -> bool:
        """Whether a turn's items may hold images."""

    @property
    def efforts(self) -> Sequence[str]:
        """Values of `reasoning.effort` that the model knows; may be empty."""

    @property
    def context_length(self) -> int:
        """Tokens that prompt and output may have together."""

    @property
    def sampling_defaults(self) -> Mapping[str, Any]:
        """The model's own sampling defaults, as fields of Sampling; may be empty."""

    async def start(self) -> None:
        """Load what is needed. Raises: SettingsError with what to do about it."""

    async def aclose(self) -> None: ...

    async def check(self) -> None:
        """Raises: EngineDead when no request can be served."""

    async def count(self, turn: Turn) -> int:
        """Return the number of the turn's input tokens, even if they exceed the context.

        It is the number that the turn's usage gives: with `truncate`, that of the items that stay.
        Raises: RequestError.
        """

    async def start_turn(self, turn: Turn, *, request_id: str) -> ModelTurn:
        """Render and admit a turn; `request_id` is unique among live turns.

        With `truncate`, the oldest items that the conversation rules let go are dropped until the
        input fits. Raises: RequestError, with the code `context_length_exceeded` and the param
        `input` if the input leaves no room for output; TooManyRequests; EngineDead.
        """
