"""The settings of guards: who is asked before a text is read, called or shown."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from antiphon.domain.responses.guards import GuardPlace
from antiphon.entrypoints.settings.about import BASE_URL, GUARDS, SECRET_WORD, about
from antiphon.entrypoints.settings.options import OWN_CLASS

GUARD = rf"^([A-Za-z0-9_-]{{1,64}}=)?(moderation|model|{OWN_CLASS})\Z"
THRESHOLD = r"^[a-z][a-z/_-]{0,63}=(0(\.\d{1,6})?|1)\Z"

GuardList = Annotated[
    tuple[Annotated[str, Meta(pattern=GUARD)], ...],
    about(
        GUARDS,
        "A guard, which is asked before a text is read, called or shown: moderation is the API at "
        "moderation.url, model is a model of this server (guards.model), and "
        "[NAME=]package.module:Class is your own. Repeat the option to ask several, in this "
        "order.",
        allowed="a list of moderation, model and [NAME=]package.module:Class",
        shown_default="none",
    ),
]


class ModerationSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The moderations API that the guard `moderation` asks."""

    url: Annotated[
        Annotated[str, Meta(pattern=BASE_URL)] | None,
        about(
            GUARDS,
            "The base URL of a server of OpenAI's moderations API, without /moderations. It "
            "receives the texts that the guard is asked about. It may be in a private network.",
            allowed="an http(s) URL without user, query, and fragment",
            shown_default="none",
        ),
    ] = None
    model: Annotated[str, about(GUARDS, "The moderation model.", min_length=1)] = (
        "omni-moderation-latest"
    )
    api_key: Annotated[
        Annotated[str, Meta(pattern=SECRET_WORD)] | None,
        about(
            GUARDS,
            "The key for that API. Set it as an environment variable: other users can see the "
            "command line.",
            allowed="a string without spaces",
            shown_default="none",
            is_secret=True,
        ),
    ] = None
    threshold: Annotated[
        tuple[Annotated[str, Meta(pattern=THRESHOLD)], ...],
        about(
            GUARDS,
            "The highest score of a category that passes: violence=0.4. Repeat the option for more "
            "categories; others do not count then. Without it, what the API flags does not pass.",
            allowed="a list of CATEGORY=SCORE",
            shown_default="what the API flags",
        ),
    ] = ()
    place: Annotated[
        tuple[GuardPlace, ...],
        about(
            GUARDS,
            "Where it is asked. Repeat the option for more places.",
            allowed="a list of input, tool_call, tool_result, output",
            shown_default="input, output",
            min_length=1,
        ),
    ] = ("input", "output")
    verdict: Annotated[
        Literal["refuse", "stop"],
        about(
            GUARDS,
            "What happens to a text that does not pass: it is refused, or the response ends as "
            "incomplete with the reason content_filter.",
        ),
    ] = "refuse"

    def __repr__(self) -> str:
        return f"ModerationSettings({self.url!r})"  # without the key


class GuardSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How guards are asked."""

    window: Annotated[
        int,
        about(
            GUARDS,
            "Characters that guards must see after a text before it is shown. They are asked when "
            "so many are new. With 0, they are asked about each token, and no text waits.",
            ge=0,
            le=16_384,
        ),
    ] = 200
    timeout_s: Annotated[
        float, about(GUARDS, "Seconds that a guard has for a verdict.", gt=0, le=300)
    ] = 5.0
    failure: Annotated[
        Literal["closed", "open"],
        about(
            GUARDS,
            "What happens if a guard gives no verdict. closed: nothing passes, and the response "
            "fails. open: the text passes, and the metrics say so.",
        ),
    ] = "closed"
    model: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        about(
            GUARDS,
            "The model of this server that the guard `model` asks. It must answer decisions.",
            shown_default="none",
        ),
    ] = None
    statement: Annotated[
        str,
        about(
            GUARDS,
            "The statement that this model judges: a text of which it is true does not pass.",
            min_length=1,
        ),
    ] = "This text is harmful, or asks for something that is."
    threshold: Annotated[
        float,
        about(
            GUARDS,
            "The probability of the statement above which a text does not pass.",
            ge=0,
            le=1,
        ),
    ] = 0.5
    place: Annotated[
        tuple[GuardPlace, ...],
        about(
            GUARDS,
            "Where that model is asked. Repeat the option for more places.",
            allowed="a list of input, tool_call, tool_result, output",
            shown_default="input, output",
            min_length=1,
        ),
    ] = ("input", "output")
    verdict: Annotated[
        Literal["refuse", "stop"],
        about(GUARDS, "What happens to a text that does not pass that model."),
    ] = "refuse"
