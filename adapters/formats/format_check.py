"""Check a model's format: what is recognized, what its prompts look like, and whether calls work.

It renders a conversation with a tool, writes a call as the format does, and reads it back.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.adapters.formats.chat_template.call_writer import write_calls
from antiphon.adapters.formats.chat_template.detection import HARMONY, Detection, detect, has_calls
from antiphon.adapters.formats.chat_template.effort import EFFORTS, effort_options
from antiphon.adapters.formats.chat_template.families import FAMILIES, Family
from antiphon.adapters.formats.chat_template.families.own import markers_of_family
from antiphon.adapters.formats.chat_template.format import ChatTemplateFormat, has_only_tekken, load
from antiphon.adapters.formats.chat_template.renderer import TemplateRenderer
from antiphon.adapters.formats.chat_template.template import (
    REFUSED,
    ChatTemplate,
    load_template,
    named_templates,
    read_json,
    read_template,
)
from antiphon.adapters.formats.chat_template.template_capabilities import detect_capabilities
from antiphon.adapters.formats.chat_template.tokenizer import FolderTokenizer, Tokenizer
from antiphon.adapters.formats.chat_template.word_tokenizer import WordTokenizer
from antiphon.adapters.formats.fitting import Fittings
from antiphon.adapters.formats.harmony import HarmonyFormat, HarmonyMarkup
from antiphon.adapters.formats.harmony.encoding import load_encoding
from antiphon.application.ports import Parser, Prompt, Step, Turn
from antiphon.domain import deltas as d
from antiphon.domain import items as i
from antiphon.domain.errors import RequestError, SettingsError
from antiphon.domain.tools import ToolSpec

TOOL = ToolSpec(
    name="get_weather",
    description="Tells the weather of a city.",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "The city's name."},
            "days": {"type": "integer", "description": "For so many days."},
        },
        "required": ["city", "days"],
    },
)
ARGUMENTS = {"city": "Bonn", "days": 3}
RESULT = "21 degrees"
QUESTION = i.Message(role="user", content="How warm is it on the Rhine?")
CALL = i.FunctionCall(call_id="call_1", name=TOOL.name, arguments=json.dumps(ARGUMENTS))
OUTPUT = i.FunctionCallOutput(call_id="call_1", output=RESULT)

UNKNOWN_TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>"}
"""They stand for the tokens of a template's model, which a file with only a template omits."""

SHOWN_IN_PROMPT: Mapping[str, str] = {
    "the description of a tool": str(TOOL.description),
    "a call's name": TOOL.name,
    "a call's arguments": str(ARGUMENTS["city"]),
    "a tool's result": RESULT,
}
"""What the prompt of a conversation with tools shows, with a text by which it is found.

The city stands in the call alone.
"""


class FormatCapabilities(Struct, frozen=True, kw_only=True):
    """The abilities of a template besides text, calls, and reasoning.

    `efforts` are the values of `reasoning.effort` that change the prompt, apart from switching
    reasoning off, which is the `thinking_switch`.
    """

    images: bool
    tool_images: bool
    parallel_calls: bool
    object_arguments: bool
    thinking_switch: bool
    efforts: Sequence[str]


class FormatReport(Struct, frozen=True, kw_only=True):
    """The findings about a model's format.

    `format` is the name for `--format`; `is_chosen` if it was named, not recognized. `prompt` is a
    conversation with a tool, `written_call` what the model is expected to write for a call, and
    `reads_call` whether the call was read back. `notes` say what is wrong or unknown.
    """

    model: str
    format: str
    is_chosen: bool
    reasons: Sequence[str]
    candidates: Sequence[str] = ()
    knows_calls: bool
    reads_call: bool = False
    written_call: str = ""
    prompt: str = ""
    capabilities: FormatCapabilities | None = None
    notes: Sequence[str] = ()


class _Source(Struct, frozen=True, kw_only=True):
    """The facts about a model in its folder, or in a template alone."""

    name: str
    template: ChatTemplate
    tokenizer: Tokenizer | None
    config: Mapping[str, Any]
    notes: Sequence[str] = ()


def check_format(
    path: Path, family: str | Family = "auto", *, template_file: Path | None = None
) -> FormatReport:
    """Check the format of a model folder, or of a chat template in a file.

    `family` is `auto`, `harmony`, a name in the table, or a family of one's own. The template of
    `template_file` is used instead of the folder's.
    Raises: SettingsError if the folder or the file cannot be read, or the name is unknown.
    """
    _check_arguments(path, family)
    if family == HARMONY:
        return _check_harmony(path, [], is_chosen=True)
    if family == "auto" and _config_of(path).get("model_type") == "gpt_oss":  # needs no template
        return _check_harmony(path, ["config.json says model_type gpt_oss"], is_chosen=False)
    if has_only_tekken(path) and template_file is None:
        return _check_tekken(path, family)
    source = _read_source(path, template_file)
    detection = detect(source.template, source.tokenizer, source.config)
    if family == "auto" and detection.family == HARMONY:
        return _check_harmony(path, detection.reasons, is_chosen=False)
    return _check_chat(source, detection, None if family == "auto" else family)


def _check_arguments(path: Path, family: str | Family) -> None:
    if isinstance(family, str) and family not in ("auto", HARMONY, *FAMILIES):
        names = ", ".join(["auto", HARMONY, *sorted(FAMILIES)])
        raise SettingsError(f"There is no format {family!r}; choose one of: {names}.")
    if not path.exists():
        raise SettingsError(f"There is no model folder or template {str(path)!r}.")


# --- reading --------------------------------------------------------------------------------------


def _config_of(path: Path) -> Mapping[str, Any]:
    return read_json(path / "config.json") if path.is_dir() else {}


def _read_source(path: Path, template_file: Path | None) -> _Source:
    if not path.is_dir():
        note = (
            "This is a template without a tokenizer: the model's tokens were not checked, and "
            "<bos> and <eos> stand for two of them."
        )
        return _Source(
            name=path.name,
            template=ChatTemplate(named_templates(read_template(path)), UNKNOWN_TOKENS),
            tokenizer=None,
            config={},
            notes=[note],
        )
    tokenizer, notes = _load_tokenizer(path)
    return _Source(
        name=path.resolve().name,
        template=load_template(path, template_file),
        tokenizer=tokenizer,
        config=_config_of(path),
        notes=notes,
    )


def _load_tokenizer(folder: Path) -> tuple[Tokenizer | None, Sequence[str]]:
    try:
        return FolderTokenizer.load(folder / "tokenizer.json"), []
    except SettingsError as error:
        return None, [f"The tokenizer was not checked: {error}"]


# --- checking -------------------------------------------------------------------------------------


def _check_chat(source: _Source, detection: Detection, chosen: str | Family | None) -> FormatReport:
    family = chosen or detection.family
    name, row = ("own", family) if isinstance(family, Family) else (family, FAMILIES[family])
    tokenizer = source.tokenizer or stand_in_tokenizer(row)
    renderer = TemplateRenderer(source.template, tokenizer, row)
    chat_format = ChatTemplateFormat(name, row, tokenizer, renderer=renderer)
    # The renderer's prompt, since the format refuses tools that the model cannot call.
    check = _CallCheck(renderer.render, chat_format.make_parser, tokenizer.decode)
    is_detected = name == detection.family
    others = [each for each in (detection.family, *detection.candidates) if each != name]
    return _with_calls(
        FormatReport(
            model=source.name,
            format=chat_format.name,
            is_chosen=chosen is not None,
            reasons=detection.reasons if is_detected else [],
            candidates=others,
            knows_calls=has_calls(row),
            capabilities=_capabilities_of(source.template),
            notes=[
                *source.notes,
                *_notes_of(renderer.fittings),
                *([] if is_detected else [f"Without --format, chat:{others[0]} is recognized."]),
            ],
        ),
        check,
        _written_call(row),
    )


def _notes_of(fittings: Fittings) -> Iterator[str]:
    """Yield what the template does not take, in its own words, and what is done about it."""
    for fitting in fittings.needed:
        yield f"Template: {fitting.description}{_words(fittings.refusals.get(fitting.name))}"
    for rule in fittings.unmet:
        yield f"Template: it does not show {rule}.{_words(fittings.refusals.get(rule))}"


def _words(refusal: str | None) -> str:
    return f" It says: {refusal.removeprefix(REFUSED)}" if refusal else ""


def _check_tekken(path: Path, family: str | Family) -> FormatReport:
    chat_format = load(path, family=family)
    check = _CallCheck(
        chat_format.render,
        chat_format.make_parser,
        lambda ids: "".join(message["message"] for message in chat_format.messages(ids)),
    )
    report = FormatReport(
        model=path.resolve().name,
        format=chat_format.name,
        is_chosen=family != "auto",
        reasons=["the folder has only tekken.json, the tokenizer of Mistral's models"],
        knows_calls=has_calls(chat_format.family),
    )
    return _with_calls(report, check, _written_call(chat_format.family))


def _with_calls(report: FormatReport, check: _CallCheck, call: Step | None) -> FormatReport:
    """Return the report with the prompt, and with whether the call is read back."""
    prompt = check.render_conversation()
    reads_call = call is not None and check.reads(call)
    return replace(
        report,
        prompt=prompt,
        written_call=call.text if call else "",
        reads_call=reads_call,
        notes=[*report.notes, *check.notes],
    )


def _written_call(row: Family) -> Step | None:
    if row.call_form is None:
        return None
    return Step(text=write_calls(row.call_form, [(TOOL.name, ARGUMENTS)]))


def stand_in_tokenizer(row: Family) -> Tokenizer:
    """Return a tokenizer that knows the family's markers, for a template without a tokenizer."""
    return WordTokenizer(list(dict.fromkeys(markers_of_family(row))))


def _check_harmony(path: Path, reasons: Sequence[str], *, is_chosen: bool) -> FormatReport:
    report = FormatReport(
        model=path.resolve().name,
        format=HARMONY,
        is_chosen=is_chosen,
        reasons=reasons,
        knows_calls=True,
    )
    try:
        encoding = load_encoding()
    except Exception as error:  # the library's own error types: it may need the network
        return replace(report, notes=[f"The vocabulary cannot be loaded: {error}"])
    harmony = HarmonyFormat()
    check = _CallCheck(harmony.render, harmony.make_parser, encoding.text)
    call = _harmony_call()
    written = encoding.text(call.token_ids)
    return replace(_with_calls(report, check, call), written_call=written)


def _harmony_call() -> Step:
    script = [{"call": TOOL.name, "args": ARGUMENTS}]
    parts = HarmonyMarkup().write(script, tools=[TOOL], thinking=False)
    tokens = [token for part in parts for token in part]
    return Step(token_ids=[token for token, _ in tokens], text="".join(text for _, text in tokens))


class _CallCheck:
    """Renders a conversation with a tool and reads calls of it. `notes` say what is wrong."""

    def __init__(
        self,
        render: Callable[[Turn], Awaitable[Prompt]],
        make_parser: Callable[[Turn, Prompt], Parser],
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        self.notes: list[str] = []
        self._render_turn = render
        self._make_parser = make_parser
        self._decode = decode

    def render_conversation(self) -> str:
        """Return the prompt of a question, a call and its result; "" if it cannot be rendered."""
        prompt = self._render([QUESTION, CALL, OUTPUT])
        if prompt is None:
            return ""
        text = self._decode(prompt.token_ids)
        self.notes += [
            f"The template does not show the model {what}."
            for what, sign in SHOWN_IN_PROMPT.items()
            if sign not in text
        ]
        return text

    def reads(self, step: Step) -> bool:
        """Whether the call is read back, and nothing else with it."""
        turn = _turn([QUESTION])
        prompt = self._render(turn.items)
        if prompt is None:
            return False
        parser = self._make_parser(turn, prompt)
        deltas = [*parser.feed(step), *parser.end()]
        calls = [delta.name for delta in deltas if isinstance(delta, d.CallStart)]
        written = "".join(each.text for each in deltas if isinstance(each, d.ArgumentsDelta))
        texts = [each.text for each in deltas if isinstance(each, d.TextDelta | d.ReasoningDelta)]
        if calls == [TOOL.name] and _is_json(written, ARGUMENTS) and not any(texts):
            return True
        self.notes.append(f"A call is not read back; what is read: {deltas!r}.")
        return False

    def _render(self, items: Sequence[i.Item]) -> Prompt | None:
        """Return the prompt, without instructions if the template refuses them."""
        turn = _turn(items)
        for attempt in (turn, replace(turn, instructions="")):
            try:
                return asyncio.run(_result_of(self._render_turn(attempt)))
            except RequestError as error:
                if error.message not in self.notes:
                    self.notes.append(error.message)
        return None


async def _result_of(prompt: Awaitable[Prompt]) -> Prompt:
    return await prompt


def _turn(items: Sequence[i.Item]) -> Turn:
    return Turn(model="", items=items, instructions="Answer in one sentence.", tools=[TOOL])


def _is_json(text: str, value: Any) -> bool:
    try:
        return bool(json.loads(text) == value)
    except ValueError:
        return False


# --- capabilities ---------------------------------------------------------------------------------


def _capabilities_of(template: ChatTemplate) -> FormatCapabilities:
    found = detect_capabilities(template)
    prompts = {effort: _prompt_with_effort(template, effort) for effort in EFFORTS}
    without = prompts.pop("none")
    # An effort that the template refuses, or that changes nothing, is none that it knows.
    texts = {effort: text for effort, text in prompts.items() if text is not None}
    unknown = _prompt_with_effort(template, "unknown")
    return FormatCapabilities(
        images=found.images,
        tool_images=found.tool_images,
        parallel_calls=found.parallel_calls,
        object_arguments=found.object_arguments,
        thinking_switch=without is not None and without not in (*texts.values(), unknown),
        efforts=[effort for effort, text in texts.items() if text != unknown],
    )


def _prompt_with_effort(template: ChatTemplate, effort: str) -> str | None:
    try:
        return template.render([{"role": "user", "content": "?"}], [], next(effort_options(effort)))
    except RequestError:
        return None
