"""The settings of what the server stores, and of the runs that wait in the store."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from antiphon.entrypoints.settings.about import BACKGROUND, STORAGE, about
from antiphon.entrypoints.settings.options import OWN_CLASS


def _default_data_dir() -> Path:
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "antiphon"
    if xdg := os.environ.get("XDG_DATA_HOME"):
        return Path(xdg) / "antiphon"
    try:
        return Path.home() / ".local" / "share" / "antiphon"
    except RuntimeError:  # in a container, the user may have no home directory
        return Path(".antiphon").absolute()


class StorageSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of Settings about storage and background runs."""

    store: Annotated[
        str,
        about(
            STORAGE,
            "Where to store responses. memory loses them when the server stops; sqlite is a file "
            "in the data folder; sqlite:///FILE is another file (four slashes for an absolute "
            "path); postgresql://… and redis://… are databases that several servers can share, "
            "and unix:///run/redis.sock?db=0 is Redis at a socket of this machine; "
            "package.module:Class is your own store. Set an address with a password as an "
            "environment variable: other users can see the command line.",
            allowed="memory, sqlite, sqlite:///FILE, postgresql://…, redis://…, unix:///SOCKET or "
            "package.module:Class",
            pattern=r"^(memory|sqlite|sqlite:///.+|(postgres(ql)?|rediss?)://.+|unix:///.+"
            rf"|{OWN_CLASS})$",
        ),
    ] = "sqlite"
    data_dir: Annotated[
        Path,
        about(
            STORAGE,
            "The folder for the store and the server's key. It is created if it is missing.",
            shown_default="~/.local/share/antiphon",
        ),
    ] = msgspec.field(default_factory=_default_data_dir)
    seal_key_file: Annotated[
        Path | None,
        about(
            STORAGE,
            "The key that encrypts reasoning and the requests queued in the store, and salts "
            "cached prompts. It is created if it is missing. Servers that share clients or a "
            "store must share it.",
            shown_default="seal.key in the data folder",
        ),
    ] = None
    keep_days: Annotated[
        float,
        about(
            STORAGE,
            "Days to keep a response. 0 keeps responses until they are deleted; a response in a "
            "conversation is always kept until then.",
            ge=0,
        ),
    ] = 30.0
    keep_responses: Annotated[
        int,
        about(
            STORAGE,
            "Maximum number of responses in the memory store. Beyond it, the oldest are deleted.",
            ge=1,
        ),
    ] = 10_000
    keep_events: Annotated[
        int,
        about(
            STORAGE,
            "Events of finished responses to keep in memory, in total, so that clients can read "
            "the streams again.",
            ge=0,
        ),
    ] = 20_000
    keep_events_s: Annotated[
        float, about(STORAGE, "Maximum number of seconds to keep those events.", ge=0)
    ] = 600.0
    session_header: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}\Z")], ...],
        about(
            STORAGE,
            "A header in which a client sends the id of its session, such as "
            "x-claude-code-session-id. What it does in that session is then stored as one "
            "conversation, as if it had asked for that. Repeat the option to add headers.",
            allowed="a list of names of headers",
            shown_default="none",
        ),
    ] = ()
    quota_responses: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        about(
            STORAGE,
            "Maximum number of responses that each tenant may store. Beyond it, only "
            "`store: false` works. 0 means no limit.",
            shown_default="100000 if requests need keys, otherwise no limit",
        ),
    ] = None
    quota_bytes: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        about(
            STORAGE,
            "Maximum bytes that each tenant may store, approximately: texts, items, and logs. 0 "
            "means no limit.",
            shown_default="2 GiB if requests need keys, otherwise no limit",
        ),
    ] = None
    sweep_s: Annotated[
        float, about(STORAGE, "Seconds between deletions of expired data.", gt=0)
    ] = 60.0
    keep_file_bytes: Annotated[
        int, about(STORAGE, "Maximum total bytes of each tenant's uploaded files.", ge=0)
    ] = 4 * 1024 * 1024 * 1024
    keep_all_file_bytes: Annotated[
        int,
        about(
            STORAGE,
            "Maximum total bytes of the uploaded files of all tenants. With OpenID Connect, each "
            "person may be a tenant.",
            ge=0,
        ),
    ] = 64 * 1024 * 1024 * 1024
    keep_vector_bytes: Annotated[
        int,
        about(
            STORAGE,
            "Maximum total bytes of each tenant's vector stores: texts and vectors.",
            ge=0,
        ),
    ] = 16 * 1024 * 1024 * 1024

    background_runs: Annotated[
        int,
        about(
            BACKGROUND,
            "Background responses that this server runs at the same time. Others wait in the store "
            "until a server has a free slot. If clients need keys, one tenant may have three "
            "quarters of the slots.",
            ge=1,
        ),
    ] = 64
    max_waiting: Annotated[
        int, about(BACKGROUND, "Maximum number of waiting background responses per tenant.", ge=0)
    ] = 1000
    batch_lines: Annotated[
        int,
        about(
            BACKGROUND,
            "Requests of batches that this server runs at the same time. With more than one, one "
            "tenant may have all but one of them.",
            ge=1,
        ),
    ] = 16
    max_batches: Annotated[
        int, about(BACKGROUND, "Maximum number of batches of a tenant that have not ended.", ge=0)
    ] = 100
    lease_s: Annotated[
        float,
        about(
            BACKGROUND,
            "Seconds without a heartbeat after which a server counts as dead. Other servers then "
            "take over its responses and batches.",
            ge=1,
        ),
    ] = 15.0
    run_attempts: Annotated[
        int,
        about(
            BACKGROUND,
            "How many servers may run a background response, one after another. It goes on where a "
            "server has died or stopped; after so many, it fails, as it may be what kills them.",
            ge=1,
        ),
    ] = 12
    store_retry_s: Annotated[
        float,
        about(
            BACKGROUND,
            "Seconds to retry a failing store before the response fails.",
            ge=0,
        ),
    ] = 10.0

    @property
    def sqlite_file(self) -> Path | None:
        """The store's file, if the store is SQLite."""
        if self.store == "sqlite":
            return self.data_dir / "antiphon.db"
        if self.store.startswith("sqlite:///"):
            return Path(self.store.removeprefix("sqlite:///")).expanduser()
        return None

    @property
    def shown_store(self) -> str:
        """The store's address without its password, for messages."""
        return without_password(self.store)

    @property
    def files_folder(self) -> Path:
        return self.data_dir / "files"

    @property
    def vector_stores_file(self) -> Path | None:
        """The file of the vector stores; None keeps them in memory."""
        return None if self.store == "memory" else self.data_dir / "vector_stores.db"

    @property
    def batches_file(self) -> Path | None:
        """The file of the batches; None keeps them in memory."""
        return None if self.store == "memory" else self.data_dir / "batches.db"

    @property
    def seal_key_path(self) -> Path:
        return self.seal_key_file or self.data_dir / "seal.key"


def without_password(text: str) -> str:
    """Return the text with the passwords of URLs masked.

    >>> without_password("postgresql://anna:secret@db/kept?sslpassword=secret&sslmode=require")
    'postgresql://anna:***@db/kept?sslpassword=***&sslmode=require'
    """
    text = re.sub(r"([?&]\w*password=)[^&]*", r"\1***", text, flags=re.IGNORECASE)
    return re.sub(r"(//[^/:@]*):.*@", r"\1:***@", text)
