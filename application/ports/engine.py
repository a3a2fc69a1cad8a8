"""An engine: tokens in, tokens out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from antiphon.application.ports.model import Prompt, Step, Turn
from antiphon.application.ports.sampling import Sampling


class EngineRequest(Struct, frozen=True, kw_only=True):
    """A request to the engine. `request_id` is unique among live runs.

    The prompt was rendered from `turn`. An engine with a real model ignores it; the scripted engine
    reads tools and schemas from it, which a real model would understand from the prompt.
    `written` are tokens of the output that were generated before: the run goes on after them. They
    count in `max_tokens`, but are not in the steps. Only an engine with `resumes` gets any.
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
    written: Sequence[int] = ()


class Steps(Protocol):
    """The steps of a run, read once; `aclose` aborts the run if it has not ended."""

    @abstractmethod
    def __aiter__(self) -> AsyncIterator[Step]: ...

    @abstractmethod
    async def aclose(self) -> None: ...


class PooledSteps(Steps):
    """The steps of a run on one of several servers. Not a protocol: each run is asked for it."""

    @property
    @abstractmethod
    def server(self) -> str:
        """The URL of the server that runs it, or was tried last; without credentials."""

    @property
    @abstractmethod
    def attempts(self) -> int:
        """The number of servers that were tried."""


class Engine(Protocol):
    """Generates tokens for prompts.

    Any number of runs may be live, without affecting each other.
    """

    async def start(self) -> None:
        """Load the model; after `aclose`, again. Does nothing by default.

        Raises: SettingsError, which says what to do; EngineDead if its server cannot be reached,
        but may be later.
        """
        return

    async def aclose(self) -> None:
        """Release what `start` took; it may be called again. Does nothing by default."""
        return

    @property
    @abstractmethod
    def models(self) -> Sequence[str]:
        """The model names that the engine serves, the base model first."""

    @property
    @abstractmethod
    def context_length(self) -> int:
        """The maximum number of tokens of prompt and output together."""

    @property
    @abstractmethod
    def sampling_defaults(self) -> Mapping[str, Any]:
        """The model's own sampling defaults, as fields of Sampling; may be empty."""

    @property
    @abstractmethod
    def reads_images(self) -> bool:
        """Whether prompts may contain images."""

    async def check(self) -> None:
        """Raises: EngineDead when no request can be served; never by default."""
        return

    @abstractmethod
    async def prepare(self, prompt: Prompt) -> Prompt:
        """Return the prompt as it will run, with all tokens of each image.

        A prompt without images is returned as it is. Raises: RequestError for unsupported images.
        """

    @property
    def is_dead(self) -> bool:
        """Whether it can serve nothing more until it is closed and started again."""
        return False

    @property
    def model_folder(self) -> Path | None:
        """The folder with the model's tokenizer and chat template, if the started engine knows it.

        The settings then need not name it.
        """
        return None

    @property
    def tokenizer(self) -> Any:
        """The model's transformers tokenizer with its chat template, if the started engine has it;
        otherwise None.
        """
        return None

    @property
    def model_type(self) -> str:
        """The kind of model, `model_type` in its config.json; may be empty."""
        return ""

    @property
    def schedules_by_priority(self) -> bool:
        """Whether requests with a lower `priority` come first; if not, it may refuse a priority."""
        return False

    @property
    def resumes(self) -> bool:
        """Whether `generate` can go on after tokens that were generated before, on any server."""
        return False

    @property
    def weighs_at_once(self) -> int:
        """How many runs with `answer_tokens` it should get at a time whose prompts begin alike, so
        that it computes the beginning once; 0 if it knows no such runs.
        """
        return 0

    @property
    def scores_prompts(self) -> bool:
        """Whether it knows `prompt_logprobs`; if not, each token of such a prompt is a run."""
        return False

    @abstractmethod
    async def generate(self, request: EngineRequest) -> Steps:
        """Admit the run and return its steps; only the last one has `finish`.

        The output is cut at exactly `max_tokens`, and a step has at most `step_tokens` tokens. The
        number of steps does not change text or tokens. There are no stop strings: the turn ends the
        run at one. A stop token is the last of the tokens, and not in the text. A constraint holds
        from the first token, and the run ends where the constraint does. With `logprobs`, each
        token has this number of alternatives, the likeliest first. `cached_tokens` is right in the
        last step, at the latest, and less than the prompt's length.

        With `answer_tokens`, and as many `logprobs`, the run's tokens are some of these. The
        alternatives of the first one are all of them in this order; their log probabilities are
        those that the model gives the next token, whatever the other sampling parameters are, but
        for a number that is added to all.

        Leaving the iterator at any step, or cancelling the task that reads it, aborts the run,
        which then costs nothing more, and leaves the engine working.
        Raises: ServerOverloaded; RequestError for a prompt that leaves no room for output, with the
        code `context_length_exceeded` and the param `input`, for a constraint that the engine
        cannot enforce, and for more `answer_tokens` than it tells apart; EngineDead; while
        iterating: EngineError.
        """
