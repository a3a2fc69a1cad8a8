"""One turn of a model: formats, and the model that joins them with an engine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from time import monotonic
from typing import Any, Protocol

from msgspec import Struct

from antiphon.application.ports.sampling import Constraint, Sampling
from antiphon.domain.content import Logprob
from antiphon.domain.deltas import Delta
from antiphon.domain.errors import RequestError
from antiphon.domain.items import Item
from antiphon.domain.json import Json
from antiphon.domain.requests.decisions import cannot_weigh
from antiphon.domain.requests.request import RawPrompt
from antiphon.domain.responses.metrics import TurnKind
from antiphon.domain.responses.response import TextConfig
from antiphon.domain.responses.usage import TurnUsage
from antiphon.domain.tools import ToolChoice, ToolSpec
from antiphon.domain.vocabulary.repairs import Repair


class WrittenPart(Struct, frozen=True):
    """The steps of a turn that a server has written that is gone, and the length of the prompt that
    the turn began with, in tokens."""

    steps: Sequence[Step] = ()
    input_tokens: int = 0


class TurnProgress(Protocol):
    """The part of a turn that a model has written, for a server that goes on with the turn."""

    @abstractmethod
    def begin(
        self, model: str, input_tokens: int, *, resumes: bool = True, trims: bool = False
    ) -> WrittenPart:
        """Record that `model` writes the turn, and return what it has written of it already.

        `input_tokens` is the length of the prompt. A server that goes on may write the prompt
        otherwise, but what counts is that of the one that began. If the last of the steps has
        `finish`, the turn is whole. `resumes`: the model can go on after them;
        if not, it begins again, unless readers have seen some of the turn. `trims`: steps without
        text at the end are left out, as the start of a character. Raises: CannotResume if another
        model has written what readers have seen.
        """

    @abstractmethod
    def add(self, step: Step) -> None:
        """Record the next step. The steps that `begin` returned come first; they are known."""


class Turn(Struct, frozen=True, kw_only=True, weakref=True):
    """One model run, independent of format and engine.

    `items` are the conversation in order, without those that the conversation rules drop. `tools`
    are offered to the model in this order; `choice` says which of them it may or must call.
    `effort` is None if the request leaves it to the model. `previous_messages` come first, in the
    format's own shape. `known_tokens`, if this turn follows the results of server-run tools, is the
    number of tokens that the turn before read and wrote: the rest of the prompt came from tools.
    `max_prompt_tokens`, if set, allows a format to stop rendering a longer prompt. `trace_steps` is
    the most steps that the turn's transcript records; 0 if nobody reads one. `progress`, if set,
    gets each step, so that another server can go on with the turn. `tenant` says whose turn it is
    where tenants share something; a `cache_salt` does not, since clients choose a part of it.
    `begins_answer`: the prompt ends where the text of the answer begins, after any reasoning and
    markup, so that the next token is the first one of that text. With `raw_prompt`, there is no
    conversation: the model goes on from that, without markup. `rendered_at` is the time that a
    prompt with the date in it tells, in seconds since the epoch; None for now.
    """

    model: str
    items: Sequence[Item]
    tenant: str = ""
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
    max_prompt_tokens: int | None = None
    trace_steps: int = 0
    progress: TurnProgress | None = None
    begins_answer: bool = False
    raw_prompt: RawPrompt | None = None
    rendered_at: float | None = None


class Step(Struct, frozen=True, kw_only=True, gc=False):
    """The tokens that the engine generated since its last step.

    `text` is the tokens' text, special tokens included; it may lag behind `token_ids` while a
    character is incomplete. `logprobs`, if requested, has one entry for each
    token. `finish` is set on the last step: `stop`, `length`, `abort` or `error`. `cached_tokens`
    counts prompt tokens that were not computed again; some engines know it only in the last step,
    and it is 0 before. `generation_s`: how long the engine took from the run's first token to its
    last one, if it knows; only asked of a last step that has all tokens. `prompt_logprobs`, if
    requested, is set on the first step: an entry for each token of the prompt. The first token's
    says nothing.
    """

    text: str = ""
    token_ids: Sequence[int] = ()
    logprobs: tuple[Logprob, ...] | None = None
    finish: str | None = None
    cached_tokens: int = 0
    generation_s: float | None = None
    prompt_logprobs: tuple[Logprob, ...] | None = None


class Prompt(Struct, frozen=True, kw_only=True):
    """A rendered turn.

    `image_urls` are data URLs of a checked type, in the order of the prompt's image placeholders.
    `fittings` names what was changed in the conversation so that the model's template takes it.
    Only the engine reads `prepared`. Only the format reads `prefix_digest`, which identifies the
    conversation that the prompt renders.
    """

    token_ids: Sequence[int]
    image_urls: Sequence[str] = ()
    fittings: Sequence[str] = ()
    prepared: Any = None
    prefix_digest: bytes = b""


class Parser(Protocol):
    """Parses the output of one turn. Never raises on any output, and loses no text.

    The same tokens give the same items and the same joined deltas, however they are split into
    steps.
    """

    reasoning_tokens: int
    """The number of reasoning tokens parsed so far."""

    is_well_formed: bool
    """Whether the model can be shown the output again as it wrote it: the parser repaired nothing
    and returned all of it."""

    unmarked_calls: int = 0
    """The number of calls that were read from the text of messages."""

    repairs: Collection[Repair] = ()
    """What was repaired, each once; some of it the model may see again as it wrote it."""

    @abstractmethod
    def feed(self, step: Step) -> list[Delta]: ...

    @abstractmethod
    def end(self) -> list[Delta]:
        """Return the remaining deltas; nothing is fed afterwards."""


class Format(Protocol):
    """The format of one family of models: conversation → tokens, tokens → deltas."""

    name: str
    """Its name in `--format`: `harmony`, `chat:hermes`…"""

    stop_token_ids: Sequence[int]
    """Tokens that end the assistant's turn, in addition to the model's own."""

    skip_special_tokens: bool
    """Whether the engine should leave special tokens out of `Step.text`."""

    reads_text: bool
    """Whether the parser needs `Step.text`; if not, the engine need not detokenize."""

    reads_images: bool
    """Whether a prompt can contain images."""

    efforts: Sequence[str]
    """The values of `reasoning.effort` that the model knows."""

    only_answers_end_turns: bool = False
    """Whether a user message leaves a turn unfinished, so that its reasoning is still shown."""

    @abstractmethod
    async def render(self, turn: Turn) -> Prompt:
        """Return the prompt. Raises: RequestError for input that this model does not support."""

    @abstractmethod
    def make_parser(self, turn: Turn, prompt: Prompt) -> Parser: ...

    @abstractmethod
    def remember(
        self,
        turn: Turn,
        prompt: Prompt,
        *,
        token_ids: Sequence[int],
        parser: Parser,
        items: Sequence[Item],
    ) -> None:
        """Remember that this complete output, parsed by `parser`, became `items`.

        A later prompt with these items then continues this prompt and its output exactly.
        """

    @abstractmethod
    def constraint(self, turn: Turn, prompt: Prompt) -> Constraint | None:
        """Return the constraint that enforces tool choice, strict tools and the text format.

        `prompt` is the turn's: it may have opened the reasoning. Reasoning stays free; only the
        output after it is constrained. None if the turn requests no constraint.
        Raises: RequestError if the format cannot enforce it.
        """

    def first_tokens(
        self,
        prompt: Prompt,  # noqa: ARG002 - it is a default
        texts: Sequence[str],
    ) -> Sequence[int | None]:
        """Return, for each text, the token that is all of it at the start of the answer.

        It is None for a text of several tokens. `prompt` is of a turn that `begins_answer`. By
        default, no text has one, so the model answers no decisions.
        """
        return [None] * len(texts)

    async def encode(self, text: str, turn: Turn) -> Sequence[int]:  # noqa: ARG002 - a default
        """Return the tokens of a text that is the whole prompt of `turn`, and no conversation.

        Markup in it becomes special tokens, and it begins with the tokens that begin all texts of
        the model. A long text holds nobody up. Raises: RequestError for one of more tokens than the
        turn allows, and by default.
        """
        raise RequestError(
            f"The format {self.name!r} takes no raw prompts.",
            param="raw_prompt",
            code="unsupported_parameter",
        )

    def text(self, token_ids: Sequence[int]) -> str:  # noqa: ARG002 - it is a default
        """Return the text of tokens, special tokens included, for people."""
        return ""

    @abstractmethod
    def messages(self, token_ids: Sequence[int]) -> list[Json]:
        """Return a prompt or an output as the format's own messages, each with its tokens.

        They have vLLM's shape: `{"type": "raw_message_tokens", "message": …, "tokens": [int]}`.
        """


AdmitPrompt = Callable[[int], Awaitable[None]]
"""Returns when a prompt of so many tokens may be run. Raises: RequestError, ServerOverloaded."""


class TurnFacts(Struct, frozen=True, kw_only=True):
    """Facts about a turn besides its deltas; see TurnMetrics.

    `came_at_once`: the engine handed over several tokens when all were there. Then `generation_s`
    is how long it had taken from the first one to the last one, None if it does not say.
    """

    kind: TurnKind = "answer"
    model: str = ""
    engine: str = ""
    attempts: int = 1
    is_repaired: bool = False
    repairs: Collection[Repair] = ()
    unmarked_calls: int = 0
    fittings: Sequence[str] = ()
    resumed_tokens: int = 0
    came_at_once: bool = False
    generation_s: float | None = None


class StepLog:
    """The steps of a turn as they come: when, how many tokens, and which text.

    It keeps `max_steps` of them; more are not recorded.
    """

    __slots__ = ("_append", "_max_steps", "steps")

    def __init__(self, max_steps: int) -> None:
        self.steps: list[tuple[float, int, str]] = []
        self._append = self.steps.append
        self._max_steps = max_steps

    @property
    def is_full(self) -> bool:
        """Whether there may have been more steps."""
        return len(self.steps) >= self._max_steps

    def add(self, tokens: int, text: str) -> None:
        """Record a step that has come now."""
        if len(self.steps) < self._max_steps:
            self._append((monotonic(), tokens, text))


class TurnTranscript(Struct, frozen=True, kw_only=True):
    """The input and the output of a model in a turn, for the trace of its run.

    `text_of` returns the text of tokens with special tokens visible, and may take long. For a model
    behind a Chat Completions server, `upstream_request` is what it was sent, and the texts of
    `steps` are the data of its events, each with its line end.
    """

    format: str
    turn: Turn
    prompt_token_ids: Sequence[int] = ()
    output_token_ids: Sequence[int] = ()
    text_of: Callable[[Sequence[int]], str] = lambda _: ""
    steps: StepLog
    upstream_request: Json | None = None


class ModelTurn(Protocol):
    """An admitted turn: iterate once over lists of deltas, one list for each engine step.

    Only the last delta is a TurnEnd. Its reason is `length` if the turn reached `max_tokens` or the
    end of the context, `content_filter` if a filter of its server cut it, else `stop`. Raises while
    iterating: EngineError.
    Leaving the iterator, cancelling the task that reads it, or calling `aclose` before the first
    step aborts the run and affects no other turn.
    """

    @abstractmethod
    def __aiter__(self) -> AsyncGenerator[list[Delta]]: ...

    async def aclose(self) -> None:
        """End the turn, started or not. Does nothing by default."""
        return

    def record_items(self, items: Sequence[Item]) -> None:  # noqa: ARG002 - it is a default
        """Record which items this turn became; called if it ended with `stop`.

        Later prompts with these items may then repeat the turn exactly as the model wrote it. A
        turn that no model wrote records nothing.
        """
        return

    def messages(self) -> tuple[list[Json], list[Json]]:
        """Return the turn's input and output so far, as JSON in the shape of the format.

        By default, there are none.
        """
        return [], []

    def tokens_used(self) -> Sequence[TurnUsage]:
        """Return the tokens used so far. After the end, they are those of the TurnEnd."""
        return ()

    @property
    def counts_tokens(self) -> bool:
        """Whether `tokens_used` are counted by now, and not estimated, as is the default."""
        return False

    def facts(self) -> TurnFacts:
        """Return what is known of the turn so far."""
        return TurnFacts()

    def transcript(self) -> TurnTranscript | None:
        """Return what the model has read and written, if `Turn.trace_steps` asks for it."""
        return None


class RenderedTurn(Struct, frozen=True, kw_only=True):
    """The tokens of a turn's prompt, and the `turn` without the items that were dropped."""

    turn: Turn
    token_ids: Sequence[int]


class Weights(Struct, frozen=True, kw_only=True):
    """The natural logarithms of the probabilities of answers, in their order, and what it took.

    They may all have another number added, the same one.
    """

    logs: Sequence[float]
    usage: TurnUsage


class Model(Protocol):
    """A model: runs turns, each from a conversation to deltas.

    Any number of turns may be live, without affecting each other. A turn follows its `sampling`:
    the output is cut at exactly `max_tokens`, a stop string ends the text, and `step_tokens`
    changes the number of deltas but not the text. The output follows `choice`, strict tools and the
    text format. Before `start`, only `names` may be read.
    """

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """The names that requests may use: at least one, without duplicates."""

    @property
    @abstractmethod
    def format_name(self) -> str:
        """The name of its format, for people."""

    @property
    @abstractmethod
    def reads_images(self) -> bool:
        """Whether a turn's items may contain images."""

    @property
    @abstractmethod
    def efforts(self) -> Sequence[str]:
        """The values of `reasoning.effort` that the model knows; may be empty."""

    @property
    def only_answers_end_turns(self) -> bool:
        """Whether a user message leaves a turn unfinished, so that its reasoning is still shown."""
        return False

    @property
    @abstractmethod
    def context_length(self) -> int:
        """The maximum number of tokens of prompt and output together."""

    @property
    @abstractmethod
    def sampling_defaults(self) -> Mapping[str, Any]:
        """The model's own sampling defaults, as fields of Sampling; may be empty."""

    async def start(self) -> None:
        """Load the model; after `aclose`, again. Does nothing by default.

        Raises: SettingsError, which says what to do; EngineDead if its server cannot be reached,
        but may be later.
        """
        return

    async def aclose(self) -> None:
        """Release what `start` took; it may be called again. Does nothing by default."""
        return

    async def check(self) -> None:
        """Raises: EngineDead when no request can be served; never by default."""
        return

    @property
    def is_dead(self) -> bool:
        """Whether it can serve nothing more until it is closed and started again."""
        return False

    @abstractmethod
    async def count(self, turn: Turn) -> int:
        """Return the number of the turn's input tokens, even if they exceed the context.

        The turn's usage has the same number. With `truncate`, it counts the items that stay.
        Raises: RequestError.
        """

    async def render(self, turn: Turn) -> RenderedTurn | None:  # noqa: ARG002 - it is a default
        """Return the tokens that the turn's prompt would have now.

        By default, it is None: another server makes the prompt. Raises: RequestError.
        """
        return None

    @property
    def schedules_by_priority(self) -> bool:
        """Whether turns with a lower `priority` come first; if not, it may refuse a priority."""
        return False

    def ignored_fields(self, turn: Turn) -> Sequence[str]:  # noqa: ARG002 - it is a default
        """Return the paths of the request's fields that have no effect on this model, as far as is
        known; after `start_turn`, those that the turn was started without are among them.
        """
        return ()

    @abstractmethod
    async def start_turn(
        self, turn: Turn, *, request_id: str, admit: AdmitPrompt | None = None
    ) -> ModelTurn:
        """Render and admit a turn; `request_id` is unique among live turns.

        `admit` is called once with the number of the prompt's tokens, before the engine gets them;
        it may wait, or raise to refuse the turn.

        With `truncate`, it drops the oldest items that the conversation rules allow until the input
        fits. Raises: RequestError, with the code `context_length_exceeded` and the param `input` if
        the input leaves no room for output; ServerOverloaded; EngineDead.
        """

    @property
    def weighs_at_once(self) -> int:
        """How many of its turns should be weighed at a time that begin alike; 0 if none can be."""
        return 0

    async def labels(self, count: int) -> Sequence[str]:  # noqa: ARG002 - it is a default
        """Return so many texts of which each is one token at the start of an answer.

        Raises: RequestError for more than there are. By default, there are none.
        """
        raise cannot_weigh(self.names[0])

    async def weigh(
        self,
        turn: Turn,  # noqa: ARG002 - it is a default
        labels: Sequence[str],  # noqa: ARG002
        *,
        request_id: str,  # noqa: ARG002
    ) -> Weights:
        """Return how likely each of these labels is as the answer to a turn that `begins_answer`.

        The prompt is computed once, and one token is written. `request_id` is unique among live
        turns. Raises: as `start_turn`; RequestError for more labels than the engine tells apart;
        EngineError. By default, there are no labels.
        """
        raise cannot_weigh(self.names[0])
