"""A constraint as GBNF: structural tags, schemas, expressions, grammars and choices.

A grammar of llama.cpp is matched from the first token on, as our constraints are: reasoning is a
part of the tag. Its lazy grammars would not do, since they never make a model call a tool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon.adapters.engines.llama.grammar.free_text import free_text
from antiphon.adapters.engines.llama.grammar.rules import (
    MAX_GRAMMAR_BYTES,
    MAX_REPEATS,
    NOTHING,
    Rules,
    any_of,
    none_of,
    quote,
)
from antiphon.adapters.engines.llama.grammar.schemas import CannotExpress, json_of, write_pattern
from antiphon.application.ports import Constraint
from antiphon.domain.errors import InvalidGrammar
from antiphon.domain.grammars import read
from antiphon.domain.grammars.ebnf import IN_TAGS, InputStyle, write_ebnf

Tag = Mapping[str, Any]
TextOf = Callable[[int], str | None]
"""Returns the text of a token; None if there is no such token."""

MAX_BLANKS = 32
VERBATIM = InputStyle(prefix="", suffix="")

_DSML = "\uff5cDSML\uff5cparameter"

TAG_STYLES: Mapping[str, tuple[str, str]] = {
    "qwen_xml": ("<parameter={key}>", "</parameter>"),
    "glm_xml": ("<arg_key>{key}</arg_key>{blank}<arg_value>", "</arg_value>"),
    "minimax_xml": ('<parameter name="{key}">', "</parameter>"),
    "deepseek_xml": (f'<{_DSML} name="{{key}}" string="{{is_text}}">', f"</{_DSML}>"),
}
"""By style of a call's arguments, what is before and after each value."""


def gbnf_of(constraint: Constraint, text_of: TextOf) -> str:
    """Return the grammar of a constraint. Raises: CannotExpress."""
    rules = Rules()
    writer = _Tags(rules, text_of)
    match constraint.kind:
        case "structural_tag":
            root = writer.write(constraint.value["format"])
        case "json_schema" | "json_object":
            schema = constraint.value if constraint.kind == "json_schema" else {"type": "object"}
            root = json_of(rules, schema, blanks=MAX_BLANKS)
        case "regex":
            root = writer.write({"type": "regex", "pattern": constraint.value})
        case "grammar":
            root = writer.write({"type": "grammar", "grammar": constraint.value})
        case "choice":
            root = any_of([quote(each) for each in constraint.value])
    grammar = rules.text(root)
    if len(grammar) > MAX_GRAMMAR_BYTES:
        raise CannotExpress("the grammar of the constraint is too large")
    return grammar


class _Tags:
    def __init__(self, rules: Rules, text_of: TextOf) -> None:
        self._rules = rules
        self._text_of = text_of
        self._writers: Mapping[str, Callable[[Tag], str]] = {
            "const_string": lambda tag: quote(tag["value"]),
            "token": lambda tag: f"<[{tag['token']}]>",
            "any_tokens": self._any_tokens,
            "optional": lambda tag: f"({self.write(tag['content'])})?",
            "star": lambda tag: f"({self.write(tag['content'])})*",
            "plus": lambda tag: f"({self.write(tag['content'])})+",
            "regex": self._regex,
            "grammar": self._grammar,
            "json_schema": self._json,
            "tags_with_separator": self._tags_with_separator,
            "triggered_tags": self._triggered_tags,
        }

    def write(self, tag: Tag, until: str = "") -> str:
        """Return the expression of a tag and the text after it, at which free text ends."""
        match tag["type"]:
            case "any_text":
                return self._any_text(tag, until)
            case "sequence":
                *parts, last = tag["elements"]
                return " ".join([*map(self.write, parts), self.write(last, until)])
            case "or":
                return any_of([self.write(each, until) for each in tag["elements"]])
            case "tag":
                return self._tag(tag) + _after(until)
        writer = self._writers.get(tag["type"])
        if writer is None:
            raise CannotExpress(f"constraints of the kind {tag['type']!r} are not known")
        return writer(tag) + _after(until)

    def _tag(self, tag: Tag) -> str:
        begin = f"{quote(tag['begin'])} " if tag["begin"] else ""
        return begin + self.write(tag["content"], tag["end"])

    def _any_text(self, tag: Tag, until: str) -> str:
        patterns: dict[str, str | None] = dict.fromkeys(tag.get("excludes") or ())
        if not until and not patterns:
            return self._rules.shared("any-text", f"{none_of(())}*")
        if until:
            patterns[until] = ""
        return free_text(self._rules, patterns, may_end=not until)

    def _any_tokens(self, tag: Tag) -> str:
        """Return any text in which no excluded token occurs, however it is spelled."""
        texts = [self._text_of(token) for token in tag.get("exclude_tokens") or ()]
        return free_text(self._rules, {text: None for text in texts if text}, may_end=True)

    def _regex(self, tag: Tag) -> str:
        try:
            grammar = read("regex", tag["pattern"])
        except InvalidGrammar as error:
            if str(tag["pattern"]) == NOTHING_MATCHES:
                return f"{quote(chr(0))} {quote(chr(1))}"
            raise CannotExpress(f"the expression is invalid: {error}") from None
        if grammar is None:
            raise CannotExpress(f"the expression {tag['pattern']!r} cannot be enforced")
        return self._rules.add_ebnf(write_ebnf(grammar, VERBATIM))

    def _grammar(self, tag: Tag) -> str:
        text = tag["grammar"]
        if "::=" not in text:
            try:
                grammar = read("lark", text)
            except InvalidGrammar as error:
                raise CannotExpress(f"the grammar is invalid: {error}") from None
            if grammar is None:
                raise CannotExpress("the grammar cannot be enforced")
            text = write_ebnf(grammar, VERBATIM)
        try:
            return self._rules.add_ebnf(text)
        except ValueError as error:
            raise CannotExpress(f"the grammar is invalid: {error}") from None

    def _tags_with_separator(self, tag: Tag) -> str:
        one = any_of([self.write(each) for each in tag["tags"]])
        if not tag.get("stop_after_first"):
            separator = tag.get("separator") or ""
            one = self._rules.add("call", one)
            between = f"{quote(separator)} " if separator else ""
            one = f"{one} ({between}{one})*"
        return one if tag.get("at_least_one") else f"({one})?"

    def _triggered_tags(self, tag: Tag) -> str:
        name = self._rules.reserve("text")
        again = NOTHING if tag.get("stop_after_first") else name
        patterns: dict[str, str | None] = dict.fromkeys(tag.get("excludes") or ())
        for trigger in tag["triggers"]:
            options = [
                self.write({**each, "begin": each["begin"][len(trigger) :]})
                for each in tag["tags"]
                if each["begin"].startswith(trigger)
            ]
            patterns[trigger] = f"{any_of(options)} {again}" if options else None
        return free_text(self._rules, patterns, may_end=True, name=name)

    # --- arguments --------------------------------------------------------------------------------

    def _json(self, tag: Tag) -> str:
        style = tag.get("style", "json")
        if style == "json":
            blanks = tag.get("max_whitespace_cnt", MAX_BLANKS)
            return json_of(self._rules, tag["json_schema"], blanks=min(blanks, MAX_BLANKS))
        if style not in TAG_STYLES:
            raise CannotExpress(f"calls in this model's format ({style}) cannot be enforced")
        return self._arguments(*TAG_STYLES[style], tag["json_schema"])

    def _arguments(self, begin: str, end: str, schema: Any) -> str:
        """Return arguments as tags, in the schema's order; all of those required are there."""
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        blank = self._rules.shared("tag-blank", "[ \\n]{0,4}")
        if not properties:
            return blank
        definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        required = schema.get("required") or ()
        parts: list[str] = []
        for key, value in properties.items():
            own = {**definitions, **value} if isinstance(value, Mapping) else {}
            is_text = _allows_text(own)
            head = begin.replace("{key}", key).replace("{is_text}", str(is_text).lower())
            opening = f" {blank} ".join(map(quote, head.split("{blank}")))
            if is_text and (pattern := _pattern_of(own)) is not None:
                text = self._rules.add_ebnf(write_pattern(pattern, IN_TAGS))
                content = f"{blank} {text} {blank} {quote(end)}"
            elif is_text and not own.get("enum"):
                content = free_text(self._rules, {end: ""}, may_end=False)
            else:
                content = f"{blank} {self._plain(own)} {blank} {quote(end)}"
            part = f"{blank} {opening} {content}"
            parts.append(part if key in required else f"({part})?")
        return " ".join([*parts, blank])

    def _plain(self, schema: Mapping[str, Any]) -> str:
        values: Sequence[Any] = schema.get("enum") or ()
        if values and all(isinstance(each, str) for each in values):
            return any_of([quote(each) for each in values])
        return json_of(self._rules, schema, blanks=MAX_BLANKS)


NOTHING_MATCHES = r"[^\s\S]"


def _after(until: str) -> str:
    return f" {quote(until)}" if until else ""


def _pattern_of(schema: Mapping[str, Any]) -> str | None:
    """Return the pattern of a text, or one of its lengths; None if it has neither."""
    if isinstance(pattern := schema.get("pattern"), str):
        return pattern
    if not schema.keys() & {"minLength", "maxLength"} or schema.get("enum"):
        return None
    low, high = int(schema.get("minLength") or 0), schema.get("maxLength")
    if low > MAX_REPEATS:
        raise CannotExpress(f"a minimum length of {low} is too large")
    high = None if high is None else min(int(high), MAX_REPEATS)
    # Blanks around a text are no part of it, so it has others at its ends.
    if high is not None and high < 2:
        return rf"^\S{{{low},{high}}}$"
    more = rf"[\s\S]{{{max(low - 2, 0)},{'' if high is None else high - 2}}}\S"
    if low == 0:
        return rf"^(\S({more})?)?$"
    return rf"^\S({more})?$" if low == 1 else rf"^\S{more}$"


def _allows_text(schema: Mapping[str, Any]) -> bool:
    declared = schema.get("type")
    if declared is not None:
        return "string" in declared
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, Sequence):
        return any(isinstance(each, Mapping) and _allows_text(each) for each in options)
    return not schema.keys() & {"$ref", "const", "properties", "items"}
