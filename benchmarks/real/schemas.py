"""Forty schemas of five kinds, each with a question that fits it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jsonschema
from msgspec import Struct

Schema = Mapping[str, Any]
TEXT, WHOLE, YES_NO = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
SHORT = {"type": "string", "maxLength": 40}


class SchemaCase(Struct, frozen=True, kw_only=True):
    kind: str
    question: str
    schema: Schema

    def is_valid(self, value: Any) -> bool:
        return bool(jsonschema.Draft202012Validator(self.schema).is_valid(value))


def schema_cases() -> Sequence[SchemaCase]:
    """Return eight cases of each kind."""
    kinds = {
        "nested": _nested(),
        "enums": _enums(),
        "unions": _unions(),
        "recursive": _recursive(),
        "patterns": _patterns(),
    }
    return [
        SchemaCase(kind=kind, question=f"{question} Answer in JSON.", schema=schema)
        for kind, cases in kinds.items()
        for question, schema in cases.items()
    ]


def _object(**properties: Schema) -> dict[str, Any]:
    """Return a closed object that has all of these."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _some(items: Schema, most: int = 3) -> Schema:
    return {"type": "array", "items": items, "minItems": 1, "maxItems": most}


def _one(*values: Any) -> Schema:
    return {"enum": list(values)}


def _either(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def _matching(pattern: str) -> Schema:
    return {"type": "string", "pattern": pattern}


def _nested() -> Mapping[str, Schema]:
    place = _object(city=SHORT, country=SHORT)
    person = _object(name=SHORT, age=WHOLE, home=place)
    return {
        "Describe Ada Lovelace and her home.": person,
        "Name two physicists and their homes.": _object(people=_some(person, 2)),
        "Describe a small company with an office.": _object(company=_object(name=SHORT, at=place)),
        "Plan a trip of two stops.": _object(title=SHORT, stops=_some(_object(at=place), 2)),
        "List a shopping cart.": _object(items=_some(_object(name=SHORT, count=WHOLE))),
        "Give a three by three grid of numbers.": _object(grid=_some(_some(WHOLE))),
        "Write a recipe.": _object(name=SHORT, steps=_some(_object(text=SHORT, minutes=WHOLE))),
        "Describe a book and its author.": _object(title=SHORT, author=person, pages=WHOLE),
    }


def _enums() -> Mapping[str, Schema]:
    color = _one("red", "green", "blue")
    return {
        "What color is the sky?": _object(color=color),
        "Which colors has a traffic light?": _object(colors=_some(color)),
        "Is water wet?": _object(answer=_one("yes", "no", "unsure")),
        "How many legs has a dog?": _object(legs=_one(0, 2, 4, 6, 8)),
        "Is 7 a prime number?": _object(prime=_one(True, False), sure=_one("low", "high")),
        "What is the mood of 'I love it'?": _object(mood=_one("good", "bad", None)),
        "What day follows Monday?": _object(day=_one("Sunday", "Monday", "Tuesday", "Wednesday")),
        "Rate this film: dull.": _object(stars=_one(1, 2, 3, 4, 5), unit={"const": "stars"}),
    }


def _unions() -> Mapping[str, Schema]:
    circle = _object(shape={"const": "circle"}, radius=WHOLE)
    square = _object(shape={"const": "square"}, side=WHOLE)
    return {
        "Draw a circle of radius 3.": _object(figure=_either(circle, square)),
        "Draw two squares.": _object(figures=_some(_either(circle, square), 2)),
        "What is the capital of France, if any?": _object(capital={"type": ["string", "null"]}),
        "Give a number or a word.": _object(value=_either(WHOLE, SHORT)),
        "Give numbers and yes or no.": _object(values=_some(_either(WHOLE, YES_NO))),
        "Does the user want mail? Say how.": _object(contact=_either(SHORT, _object(mail=SHORT))),
        "Is there an error? Say which.": _either(_object(ok=YES_NO), _object(error=SHORT)),
        "How old is the tree?": _object(age=_either(WHOLE, {"type": "null"}), tree=SHORT),
    }


def _recursive() -> Mapping[str, Schema]:
    def of(**properties: Schema) -> Schema:
        return {"$defs": {"node": _object(**properties)}, "$ref": "#/$defs/node"}

    node = {"$ref": "#/$defs/node"}
    few, nothing = {"type": "array", "items": node, "maxItems": 2}, {"type": "null"}
    return {
        "Give a family tree of two people.": of(name=SHORT, children=few),
        "Give a linked list of 1 and 2.": of(value=WHOLE, next=_either(node, nothing)),
        "List a folder with one file.": of(name=SHORT, size=WHOLE, entries=few),
        "Write the sum of 1 and 2 as a tree.": of(number=WHOLE, left=_either(nothing, node)),
        "Give a menu with one entry.": of(label=SHORT, entries=few, open=YES_NO),
        "Give a comment and one reply.": of(text=SHORT, replies=few),
        "Give a task with one smaller task.": of(task=SHORT, done=YES_NO, parts=few),
        "Who is the head of a head?": of(name=SHORT, head=_either(nothing, node)),
    }


def _patterns() -> Mapping[str, Schema]:
    return {
        "When did people land on the moon?": _object(date=_matching(r"^\d{4}-\d{2}-\d{2}$")),
        "Give a phone number.": _object(phone=_matching(r"^\+[0-9]{6,12}$")),
        "Give a code of three letters for Oslo.": _object(code=_matching("^[A-Z]{3}$")),
        "Give a color in hex.": _object(color=_matching("^#[0-9a-f]{6}$")),
        "Give a version.": _object(version=_matching(r"^v?\d{1,3}\.\d{1,3}\.\d{1,3}$")),
        "Give a mail address.": _object(mail=_matching(r"^[a-z]{1,12}@[a-z]{1,12}\.(com|org)$")),
        "What time is noon?": _object(time=_matching("^([01][0-9]|2[0-3]):[0-5][0-9]$")),
        "Give two tags.": _object(tags=_some(_matching("^[a-z]{2,10}(-[a-z]{2,10})?$"), 2)),
    }
