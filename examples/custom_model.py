"""Your own model: it answers from a table in the settings file, and needs no weights.

    $ antiphon serve --config examples/custom_models.toml

It is a `Model`, which runs whole turns; custom_engine.py is an `Engine`.
"""

from msgspec import Struct

from antiphon.application.ports import Model, ModelTurn, Turn
from antiphon.domain.content import text_of
from antiphon.domain.deltas import TextDelta, TurnEnd
from antiphon.domain.errors import RequestError, input_too_long
from antiphon.domain.items import Message
from antiphon.domain.responses.usage import TurnUsage


class Options(Struct):  # what its table has besides the fields that all models have
    answers: dict[str, str]
    otherwise: str = "I do not know."


class AnswerTable(Model):
    format_name, efforts, context_length = "words", (), 1000
    names, reads_images, sampling_defaults = (), False, {}

    def __init__(self, names: tuple[str, ...], options: Options) -> None:
        self.names, self._options = names, options

    async def count(self, turn: Turn) -> int:
        return len(" ".join(texts_of(turn)).split())

    async def start_turn(self, turn: Turn, *, admit=None, **_: str) -> ModelTurn:
        if turn.choice.mode == "required" or turn.text.format["type"] != "text":
            raise RequestError(f"{turn.model} only writes text.", param="text")
        size = await self.count(turn)
        if size >= self.context_length:
            raise input_too_long(size, self.context_length - 1)
        if admit:
            await admit(size)
        asked, answers = "".join(texts_of(turn)[-1:]).lower(), self._options.answers
        found = [answers[word] for word in answers if word in asked]
        words = " ".join(found or [self._options.otherwise]).split()
        shown = words[: turn.sampling.max_tokens]
        usage = TurnUsage(input=size, output=len(shown))
        return Answer(shown, TurnEnd("stop" if shown == words else "length", usage))


class Answer(ModelTurn):
    def __init__(self, words: list[str], end: TurnEnd) -> None:
        self._words, self._end = words, end

    async def __aiter__(self):
        for number, word in enumerate(self._words):
            yield [TextDelta(f" {word}" if number else word)]
        yield [self._end]


def texts_of(turn: Turn) -> list[str]:
    return [text_of(item.content or "") for item in turn.items if isinstance(item, Message)]
