"""The parameters of paths and queries that several endpoints have, each with its bound."""

from __future__ import annotations

from typing import Annotated

from litestar.params import PathParameter, QueryParameter

MAX_CHARS = 4096
"""As of an id in a body: `domain.limits.Id`."""

MAX_PATH_CHARS = 2048
"""Of a whole path. The router keeps the last thousand paths, several times each."""

PathId = Annotated[str, PathParameter(max_length=MAX_PATH_CHARS)]
QueryText = Annotated[str | None, QueryParameter(max_length=MAX_CHARS)]
QueryFlag = Annotated[str, QueryParameter(max_length=8)]
