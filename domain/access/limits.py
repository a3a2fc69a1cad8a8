"""The limits of an API key by minute and by day, and its rights.

    KINDS        each limit there is, by the name that operators write
    KeyPolicy    the limits and rights of one key
    parse_limit  reads `requests/min=60`

A window is fixed: a minute or a day of UTC, by the clock of the server that counts. So a counter
has a name and the start of its window, and adding to it is one write that all servers of a store
agree on (docs/decisions/0073).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from antiphon.domain.errors import SettingsError

Quantity = Literal["requests", "input_tokens", "output_tokens", "tokens", "runs"]

MINUTE_S, DAY_S = 60, 24 * 60 * 60


class LimitKind(Struct, frozen=True, kw_only=True):
    """A limit of `quantity` in windows of `window_s` seconds, or at a time if that is 0.

    `title` names it in messages, in the words of the official API.
    """

    quantity: Quantity
    window_s: int
    title: str

    def window_start(self, now: float) -> int:
        """Return the start of the window that contains this time, in seconds since the epoch.

        >>> KINDS["requests/min"].window_start(125.5)
        120
        """
        return int(now) // self.window_s * self.window_s


def _kinds() -> Mapping[str, LimitKind]:
    titles: Mapping[Quantity, tuple[str, str]] = {
        "requests": ("requests", "R"),
        "tokens": ("tokens", "T"),
        "input_tokens": ("input tokens", "IT"),
        "output_tokens": ("output tokens", "OT"),
    }
    by_window = {
        f"{quantity}/{window}": LimitKind(
            quantity=quantity, window_s=seconds, title=f"{words} per {window} ({short}{letters})"
        )
        for quantity, (words, short) in titles.items()
        for window, seconds, letters in (("min", MINUTE_S, "PM"), ("day", DAY_S, "PD"))
    }
    return {**by_window, RUNS: LimitKind(quantity="runs", window_s=0, title="runs at a time")}


RUNS = "runs"
"""The limit of runs at a time; it has no window."""

KINDS: Mapping[str, LimitKind] = _kinds()
"""Each limit that a key can have. `tokens` are input and output together. `runs` counts responses
from their acceptance to their end, also while they wait."""

Scope = Literal["read", "write", "metrics"]
SCOPES: tuple[Scope, ...] = ("read", "write")
"""The rights of a key unless its policy says otherwise. `read`: requests with GET. `write`: all
others. `metrics`: GET /metrics, which tells of all tenants."""

Tier = Literal["flex", "default", "priority"]
TIERS: tuple[Tier, ...] = ("flex", "default", "priority")
"""The service tiers, lowest first."""

MAX_NAMES = 100
"""How many models, tools, hosts or guards a key may list."""

NO_GUARDS = "none"
"""What a key lists as its guards if no guard applies to it."""

MAX_AMOUNT = 10**15
Amount = Annotated[int, Meta(ge=1, le=MAX_AMOUNT)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
Names = Annotated[tuple[Name, ...], Meta(max_length=MAX_NAMES)]


class KeyPolicy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits and rights of a key. The default is full access without limits, in the default
    service tier.

    `limits`: the highest amount of each kind. An empty tuple of `models`, `tools` or `hosts` allows
    all: a model is allowed by any of its names, a tool by its type, a host with its subdomains.
    `guards` names the guards that apply; all do if it is empty, and none if it is `none`.
    `service_tier`: the highest one that requests get. `expires_at`: in seconds since the epoch.
    """

    limits: Mapping[str, Amount] = {}
    models: Names = ()
    tools: Names = ()
    hosts: Names = ()
    guards: Names = ()
    scopes: tuple[Scope, ...] = SCOPES
    service_tier: Tier = "default"
    expires_at: int | None = None

    def has_expired(self, now: float) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    def allows_model(self, names: Sequence[str]) -> bool:
        """Return whether the key may use the model with these names."""
        return not self.models or any(name in self.models for name in names)

    def allows_tool(self, kind: str) -> bool:
        return not self.tools or kind in self.tools

    def allows_url(self, url: str) -> bool:
        """Return whether the key may have the server send requests to this URL.

        >>> policy = KeyPolicy(hosts=("example.org",))
        >>> [policy.allows_url(f"https://{host}/") for host in ("a.example.org", "anexample.org")]
        [True, False]
        """
        if not self.hosts:
            return True
        host = _host_of(url)
        return any(host == each or host.endswith(f".{each}") for each in self.hosts)


FULL_ACCESS = KeyPolicy()


def _host_of(url: str) -> str:
    try:
        return normalize_host(urlsplit(url).hostname or "")
    except ValueError:
        return ""


def normalize_host(host: str) -> str:
    """Return the host in lower case and ASCII (IDNA). Raises: ValueError.

    >>> normalize_host("Bücher.Example.")
    'xn--bcher-kva.example'
    """
    host = host.strip(".").lower()
    return host if host.isascii() else host.encode("idna").decode("ascii")


class LimitState(Struct, frozen=True, kw_only=True):
    """The use of one limit by a key; `reset_s` is the time until its window ends."""

    name: str
    limit: int
    used: int
    reset_s: float

    @property
    def quantity(self) -> Quantity:
        return KINDS[self.name].quantity

    @property
    def remaining(self) -> int:
        return max(self.limit - self.used, 0)


def format_duration(seconds: float) -> str:
    """Return a time as Go writes it, as in the headers of the official API.

    >>> [format_duration(s) for s in (0.0204, 1, 59.25, 360, 86399)]
    ['20ms', '1s', '59.25s', '6m0s', '23h59m59s']
    """
    if seconds < 1:
        return f"{int(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds, 3), 60)
    hours, minutes = divmod(int(minutes), 60)
    text = f"{round(rest, 3):g}s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


# --- what operators write -------------------------------------------------------------------------

_AMOUNT = re.compile(r"(\d{1,15})([kKmMgG]?)")
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_DURATION = re.compile(r"(\d{1,6})([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": DAY_S, "w": 7 * DAY_S}
_WINDOW_NAMES = {"minute": "min", "m": "min", "d": "day"}


def parse_limit(text: str) -> tuple[str, int | None]:
    """Return the name and amount of a limit, or None for `none`. Raises: SettingsError.

    >>> parse_limit("requests/min=60"), parse_limit("tokens/day=1M"), parse_limit("runs=none")
    (('requests/min', 60), ('tokens/day', 1000000), ('runs', None))
    """
    name, separator, amount = text.replace(" ", "").partition("=")
    quantity, slash, window = name.lower().partition("/")
    name = f"{quantity}{slash}{_WINDOW_NAMES.get(window, window)}"
    if not separator or name not in KINDS:
        raise SettingsError(
            f"A limit is NAME=AMOUNT, like requests/min=60 or tokens/day=1M, not {text[:100]!r}. "
            f"NAME is one of: {', '.join(KINDS)}."
        )
    if amount.lower() == "none":
        return name, None
    match = _AMOUNT.fullmatch(amount)
    parsed = int(match[1]) * _FACTORS[match[2].lower()] if match else 0
    if not 1 <= parsed <= MAX_AMOUNT:
        raise SettingsError(
            f"The amount of the limit {name!r} is a whole number of at least 1, with k, M or G for "
            f"thousands, millions or billions, or none; not {amount[:100]!r}."
        )
    return name, parsed


def parse_limits(texts: Sequence[str]) -> dict[str, int]:
    """Return the limits by name; `none` leaves one out. Raises: SettingsError."""
    limits = dict(map(parse_limit, texts))
    return {name: amount for name, amount in limits.items() if amount is not None}


def parse_duration(text: str) -> int:
    """Return the seconds of a time like `30d` or `12h`. Raises: SettingsError.

    >>> parse_duration("30d")
    2592000
    """
    match = _DURATION.fullmatch(text.strip().lower())
    if not match or not int(match[1]):
        raise SettingsError(
            "A time is a whole number and a unit (s, m, h, d or w), like 30d or 12h, not "
            f"{text[:100]!r}."
        )
    return int(match[1]) * _SECONDS[match[2]]


def parse_host(text: str) -> str:
    """Return the host as it is compared: in lower case and ASCII. Raises: SettingsError.

    >>> parse_host("*.Example.org")
    'example.org'
    """
    host = text.strip().removeprefix("*.")
    try:
        normalized = normalize_host(host)
        is_host = bool(normalized) and _host_of(f"http://{_bracketed(normalized)}/") == normalized
    except ValueError:
        is_host = False
    if not is_host:
        raise SettingsError(f"A host is a name like example.org, not {text[:100]!r}.")
    return normalized


def check_limit_names(limits: Iterable[str]) -> None:
    """Raises: SettingsError for a limit that does not exist."""
    for name in limits:
        if name not in KINDS:
            raise SettingsError(f"There is no limit {name[:100]!r}. There are: {', '.join(KINDS)}.")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
