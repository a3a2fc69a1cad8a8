"""The settings that choose an adapter of ours, or the operator's own class in its place."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from antiphon.entrypoints.settings.about import (
    CODE,
    FILE_SEARCH,
    IMAGES,
    MODELS,
    STORAGE,
    WEB,
    about,
)
from antiphon.entrypoints.settings.guards import GuardList
from antiphon.entrypoints.settings.options import OWN_CLASS, OwnOptions
from antiphon.entrypoints.settings.storage import StorageSettings


class AdapterSettings(StorageSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of Settings about ports, except the store and the tools."""

    file_store: Annotated[
        str,
        about(
            STORAGE,
            "Where to store uploaded files. auto is postgres with a PostgreSQL store, memory with "
            "the memory store, otherwise folder. folder is a folder of data_dir. With postgres, "
            "they are in the PostgreSQL store. s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, "
            "az://CONTAINER/PREFIX and file:///FOLDER are object stores for the contents; the list "
            "of files is in the PostgreSQL store. Credentials come from the environment, such as "
            "AWS_ACCESS_KEY_ID. package.module:Class is your own file store.",
            allowed="auto, folder, postgres, s3://…, gs://…, az://…, file:///FOLDER or "
            "package.module:Class",
            pattern=rf"^(auto|folder|postgres|(s3|gs|az)://.+|file:///.+|{OWN_CLASS})\Z",
        ),
    ] = "auto"
    file_store_endpoint: Annotated[
        Annotated[str, Meta(pattern=r"^https?://.+\Z")] | None,
        about(
            STORAGE,
            "The URL of a service with the protocol of S3, such as MinIO, for a file_store at "
            "s3://….",
            allowed="a URL",
            shown_default="AWS",
        ),
    ] = None
    vector_stores: Annotated[
        str,
        about(
            STORAGE,
            "Where to keep vector stores. auto is postgres with a PostgreSQL store, otherwise "
            "sqlite. With postgres, they are in the PostgreSQL store; sqlite is a file in "
            "data_dir, or memory with the memory store. package.module:Class is your own.",
            allowed="auto, sqlite, postgres or package.module:Class",
            pattern=rf"^(auto|sqlite|postgres|{OWN_CLASS})\Z",
        ),
    ] = "auto"
    event_log: Annotated[
        str,
        about(
            STORAGE,
            "Where this server keeps the events of its runs for their readers: memory, or your "
            "own class.",
            allowed="memory or package.module:Class",
            pattern=rf"^(memory|{OWN_CLASS})\Z",
        ),
    ] = "memory"
    embedding_engine: Annotated[
        str,
        about(
            FILE_SEARCH,
            "What makes the vectors for semantic search: http is the API at embeddings.url, if "
            "that is set; package.module:Class is your own.",
            allowed="http or package.module:Class",
            pattern=rf"^(http|{OWN_CLASS})\Z",
        ),
    ] = "http"
    web_search: Annotated[
        str,
        about(
            WEB,
            "How models search the web: your own SearXNG, a search service that needs a key, a "
            "folder of pages, or your own class. Models can then read any public http(s) URL that "
            "fetch.hosts allows, with or without fetch.urls. With corpus, they can read only its "
            "pages; with a class of your own, what it reads.",
            allowed="off, searxng, brave, tavily, corpus or package.module:Class",
            pattern=rf"^(off|searxng|brave|tavily|corpus|{OWN_CLASS})\Z",
        ),
    ] = "off"
    image_generator: Annotated[
        str,
        about(
            IMAGES,
            "What makes the images of the image_generation tool: http is the API at images.url, if "
            "that is set; scripted draws colored tiles, for tests; package.module:Class is your "
            "own.",
            allowed="http, scripted or package.module:Class",
            pattern=rf"^(http|scripted|{OWN_CLASS})\Z",
        ),
    ] = "http"
    sandboxes: Annotated[
        str,
        about(
            CODE,
            "What runs the code and commands of models if code_interpreter or shell is on: "
            "bubblewrap on this machine, or your own class.",
            allowed="bubblewrap or package.module:Class",
            pattern=rf"^(bubblewrap|{OWN_CLASS})\Z",
        ),
    ] = "bubblewrap"
    program_runner: Annotated[
        str,
        about(
            CODE,
            "What runs the programs of models if programs is on: quickjs on this machine, or your "
            "own class.",
            allowed="quickjs or package.module:Class",
            pattern=rf"^(quickjs|{OWN_CLASS})\Z",
        ),
    ] = "quickjs"
    prompt_templates: Annotated[
        Annotated[str, Meta(pattern=rf"^{OWN_CLASS}\Z")] | None,
        about(
            MODELS,
            "Your own class of prompt templates, instead of prompts_dir.",
            allowed="package.module:Class",
            shown_default="none",
        ),
    ] = None

    guard: GuardList = ()

    options: OwnOptions = OwnOptions()
