"""Decisions: questions about an input, the text in which a model is asked them, and their answers
(docs/guides/decisions.md).

The shapes are those of OpenAI's API (`openai.types.DecisionCreateParams` and `Decision`); a level
of a score has the number of its place, from 0, as in vLLM.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from antiphon.domain.bounds import Name, Text
from antiphon.domain.content import InputImage, InputText
from antiphon.domain.errors import RequestError
from antiphon.domain.json import Json
from antiphon.domain.requests.decoding import decode_any, read
from antiphon.domain.requests.json_structure import has_more_values
from antiphon.domain.requests.request import CreateResponse, Key

MAX_QUESTIONS = 400
"""As in OpenAI's API."""

MAX_CHOICES = 255
"""As in OpenAI's API; a model may tell fewer apart."""

MAX_JSON_BYTES = 256 * 1024
MAX_JSON_VALUES = 10_000
"""Of a part with JSON, as in OpenAI's API."""

MAX_READ_BYTES = 64 * 1024 * 1024
"""Each question's prompt repeats the input: this many bytes in all prompts of a request."""

INPUT_TYPES = (
    "message",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
)

HEADS = {
    "predicate": "Is this statement about the input above true?",
    "choice": "Choose one option for the input above.",
    "score": "Rate the input above with one of these levels, which are in order.",
}
CLOSING = "Answer with the label of one option only."

TRUE, FALSE = "true", "false"


class JsonPart(Struct, frozen=True, kw_only=True, tag_field="type", tag="input_json"):
    """JSON that the model reads as text."""

    data: Json | Annotated[tuple[Json, ...], Meta(max_length=MAX_JSON_VALUES)]


QuestionPart = InputText | InputImage | JsonPart
Instructions = Text | Annotated[tuple[QuestionPart, ...], Meta(min_length=1, max_length=1024)]


class _Question(Struct, frozen=True, kw_only=True, tag_field="type"):
    instructions: Instructions
    name: Text | None = None


class PredicateQuestion(_Question, frozen=True, kw_only=True, tag="predicate"):
    """How likely is it that a statement about the input is true?"""


class ChoiceOption(Struct, frozen=True, kw_only=True):
    """`value` is a text or a boolean; `true` and `"true"` are two values."""

    value: Text | bool
    description: Text = ""


class ChoiceQuestion(_Question, frozen=True, kw_only=True, tag="choice"):
    """Which of these options is right for the input?"""

    choices: Annotated[tuple[ChoiceOption, ...], Meta(min_length=2, max_length=MAX_CHOICES)]


class ScoreLevel(Struct, frozen=True, kw_only=True):
    label: Text
    description: Text = ""


class ScoreQuestion(_Question, frozen=True, kw_only=True, tag="score"):
    """Where is the input between these levels, which are in order?"""

    levels: Annotated[tuple[ScoreLevel, ...], Meta(min_length=2, max_length=MAX_CHOICES)]


Question = PredicateQuestion | ChoiceQuestion | ScoreQuestion


class CacheOptions(Struct, frozen=True, kw_only=True):
    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m"] | None = None


class NewDecision(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/decisions`. `input` is a text, or items as those of a response."""

    model: Name
    input: Text | Annotated[tuple[Raw, ...], Meta(max_length=131_072)]
    questions: Annotated[tuple[Question, ...], Meta(min_length=1, max_length=MAX_QUESTIONS)]
    prompt_cache_key: Key | None = None
    prompt_cache_options: CacheOptions | None = None
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    cache_salt: (
        Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[^@/\\\x00]+$")] | None
    ) = None


# --- answers --------------------------------------------------------------------------------------


class _Answer(Struct, frozen=True, kw_only=True, tag_field="type"):
    name: str | None


class PredicateAnswer(_Answer, frozen=True, kw_only=True, tag="predicate"):
    probability: float


class ChoiceProbability(Struct, frozen=True, kw_only=True):
    value: str | bool
    probability: float


class ChoiceAnswer(_Answer, frozen=True, kw_only=True, tag="choice"):
    """`choice` is the likeliest value, and `confidence` its probability."""

    choice: str | bool
    probabilities: Sequence[ChoiceProbability]
    confidence: float


class ScoreProbability(Struct, frozen=True, kw_only=True):
    value: int
    label: str
    probability: float


class ScoreAnswer(_Answer, frozen=True, kw_only=True, tag="score"):
    """`score` is the mean of the levels' values, and `confidence` the likeliest level's
    probability."""

    score: float
    probabilities: Sequence[ScoreProbability]
    confidence: float


Answer = PredicateAnswer | ChoiceAnswer | ScoreAnswer


class DecisionInputDetails(Struct, frozen=True, kw_only=True):
    cached_tokens: int
    cache_write_tokens: int = 0


class DecisionOutputDetails(Struct, frozen=True, kw_only=True):
    reasoning_tokens: int = 0


class DecisionUsage(Struct, frozen=True, kw_only=True):
    """The tokens of all questions' runs together."""

    input_tokens: int
    input_tokens_details: DecisionInputDetails
    output_tokens: int
    output_tokens_details: DecisionOutputDetails = DecisionOutputDetails()
    total_tokens: int


class Decision(Struct, frozen=True, kw_only=True):
    """The answers of `POST /v1/decisions`, in the order of the questions."""

    model: str
    answers: Sequence[Answer]
    usage: DecisionUsage


def options_of(question: Question) -> Sequence[str]:
    """Return the possible answers of a question, as the model reads them."""
    match question:
        case PredicateQuestion():
            return (TRUE, FALSE)
        case ChoiceQuestion(choices=choices):
            # As JSON: a text is told from a boolean, and ends where it ends.
            return [
                _described(msgspec.json.encode(each.value).decode(), each.description)
                for each in choices
            ]
        case ScoreQuestion(levels=levels):
            return [_described(each.label, each.description) for each in levels]


def _described(name: str, description: str) -> str:
    return f"{name} - {description}" if description else name


def answer_of(question: Question, logs: Sequence[float]) -> Answer:
    """Return a question's answer, from the logarithms of its options' probabilities.

    >>> answer_of(PredicateQuestion(instructions="It rains."), [-1.0, -1.0]).probability
    0.5
    """
    chances = normalize(logs)
    best = max(range(len(chances)), key=chances.__getitem__)
    match question:
        case PredicateQuestion():
            return PredicateAnswer(name=question.name, probability=chances[0])
        case ChoiceQuestion(choices=choices):
            return ChoiceAnswer(
                name=question.name,
                choice=choices[best].value,
                probabilities=[
                    ChoiceProbability(value=each.value, probability=chance)
                    for each, chance in zip(choices, chances, strict=True)
                ],
                confidence=chances[best],
            )
        case ScoreQuestion(levels=levels):
            return ScoreAnswer(
                name=question.name,
                score=sum(value * chance for value, chance in enumerate(chances)),
                probabilities=[
                    ScoreProbability(value=value, label=level.label, probability=chance)
                    for value, (level, chance) in enumerate(zip(levels, chances, strict=True))
                ],
                confidence=chances[best],
            )


def normalize(logs: Sequence[float]) -> Sequence[float]:
    """Return the probabilities of which these are the logarithms, but for a common summand.

    They add up to 1.

    >>> normalize([0.0, 0.0]), normalize([-9999.0, -20.0])
    ([0.5, 0.5], [0.0, 1.0])
    """
    most = max(logs)
    weights = [math.exp(each - most) for each in logs]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def cannot_weigh(model: str) -> RequestError:
    """Return the error for a model of which nobody tells how likely its answers are."""
    return RequestError(
        f"The model {model!r} answers no decisions: its server does not tell how likely each "
        "answer is. Ask a model that this server runs, or reaches by its tokens.",
        param="model",
        code="unsupported_value",
    )


def too_many_answers(count: int, most: int) -> RequestError:
    """Return the error for more answers than a model, or its engine, tells apart."""
    return RequestError(
        f"A question has {count} possible answers; this model tells {most} apart. Ask in several "
        "steps: first for a group of answers, then for one of the group.",
        param="questions",
        code="unsupported_value",
    )


# --- what the model is asked ----------------------------------------------------------------------


def check_decision(decision: NewDecision) -> None:
    """Raises: RequestError for what the types do not say."""
    for index, question in enumerate(decision.questions):
        path = f"questions[{index}]"
        if isinstance(question, ChoiceQuestion):
            values = {(type(each.value), each.value) for each in question.choices}
            if len(values) < len(question.choices):
                raise _invalid(f"{path}.choices", "has the same value twice; each must be unique")
        if not isinstance(question.instructions, str):
            for place, part in enumerate(question.instructions):
                if isinstance(part, JsonPart):
                    _check_json(msgspec.json.encode(part.data), f"{path}.instructions[{place}]")
    size = len(decision.questions) * _size_of(decision.input)
    if size > MAX_READ_BYTES:
        raise _invalid(
            "questions",
            f"would have the model read {size} bytes, the input once for each question; "
            f"{MAX_READ_BYTES} are allowed. Ask in several requests",
        )


def _size_of(given: str | Sequence[Raw]) -> int:
    return len(given) if isinstance(given, str) else sum(len(bytes(raw)) for raw in given)


def request_of(decision: NewDecision, labels: Sequence[str]) -> CreateResponse:
    """Return the request whose input is the decision's, then one message for each question.

    Raises: RequestError.
    """
    given = decision.input
    items = (
        [_message([{"type": "input_text", "text": given}])]
        if isinstance(given, str)
        else [_without_json(raw, f"input[{index}]") for index, raw in enumerate(given)]
    )
    questions = [_message(_parts_of(each, labels)) for each in decision.questions]
    return CreateResponse(
        model=decision.model,
        input=(*items, *questions),
        cache_salt=decision.cache_salt,
        safety_identifier=decision.safety_identifier,
        store=False,
    )


def _message(content: Sequence[Json]) -> Raw:
    return Raw(msgspec.json.encode({"type": "message", "role": "user", "content": content}))


def _without_json(raw: Raw, path: str) -> Raw:
    """Return an item of the input with its JSON parts as text. Raises: RequestError."""
    fields = read(decode_any, raw, path)
    if not isinstance(fields, dict):
        return raw  # refused where items are decoded
    kind = fields.get("type", "message")
    if kind not in INPUT_TYPES:
        raise RequestError(
            f"Invalid value: {str(kind)[:100]!r} is not supported here; these types of items are: "
            f"{', '.join(INPUT_TYPES)}.",
            param=f"{path}.type",
            code="invalid_value",
        )
    content = fields.get("content")
    if not isinstance(content, list) or b"input_json" not in bytes(raw):
        return raw
    parts = [_as_text(part, f"{path}.content[{index}]") for index, part in enumerate(content)]
    return Raw(msgspec.json.encode({**fields, "content": parts}))


def _as_text(part: Any, path: str) -> Any:
    if not isinstance(part, dict) or part.get("type") != "input_json":
        return part
    json = read(_decode_part, msgspec.json.encode(part), path)
    return {"type": "input_text", "text": _json_text(json, path)}


_decode_part = msgspec.json.Decoder(JsonPart).decode


def _json_text(part: JsonPart, path: str) -> str:
    encoded = msgspec.json.encode(part.data)
    _check_json(encoded, path)
    return encoded.decode()


def _check_json(encoded: bytes, path: str) -> None:
    if len(encoded) > MAX_JSON_BYTES:
        raise _invalid(
            f"{path}.data", f"has {len(encoded)} bytes of JSON; {MAX_JSON_BYTES} are allowed"
        )
    if has_more_values(encoded, MAX_JSON_VALUES):
        raise _invalid(f"{path}.data", f"has more than {MAX_JSON_VALUES} values")


def _parts_of(question: Question, labels: Sequence[str]) -> Sequence[Json]:
    """Return the parts of the message that asks a question; text without images is one part."""
    kind: str = question.__struct_config__.tag  # type: ignore[assignment]
    given = question.instructions
    parts: Sequence[QuestionPart] = (InputText(text=given),) if isinstance(given, str) else given
    options = zip(labels, options_of(question), strict=False)
    ending = [*(f"{label}: {option}" for label, option in options), "", CLOSING]
    texts = [HEADS[kind]]
    found: list[Json] = []
    for part in parts:
        match part:
            case InputText(text=text):
                texts.append(text)
            case JsonPart(data=data):
                texts.append(msgspec.json.encode(data).decode())
            case _:
                found += [_text("\n\n".join(texts)), msgspec.to_builtins(part)]
                texts = []
    return [*found, _text("\n\n".join([*texts, "\n".join(ending)]))]


def _text(text: str) -> Json:
    return {"type": "input_text", "text": text}


def _invalid(param: str, why: str) -> RequestError:
    return RequestError(f"{param!r} {why}.", param=param, code="invalid_value")
