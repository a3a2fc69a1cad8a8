"""The settings of guards: who is asked before a text is read, called or shown."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from antiphon.entrypoints.settings.about import GUARDS, about
from antiphon.entrypoints.settings.options import OWN_CLASS

GUARD = rf"^([A-Za-z0-9_-]{{1,64}}=)?({OWN_CLASS})\Z"

GuardList = Annotated[
    tuple[Annotated[str, Meta(pattern=GUARD)], ...],
    about(
        GUARDS,
        "A guard, which is asked before a text is read, called or shown: "
        "[NAME=]package.module:Class is your own. Repeat the option to ask several, in this "
        "order. Keys can be limited to some of them by their names.",
        allowed="a list of [NAME=]package.module:Class",
        shown_default="none",
    ),
]


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
