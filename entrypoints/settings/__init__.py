"""Settings: their schema, the table derived from it, and the sources that provide values."""

from antiphon.entrypoints.settings.access import Oidc, TrustedProxy
from antiphon.entrypoints.settings.models import ModelTable
from antiphon.entrypoints.settings.schema import (
    SCRIPTED_MODELS,
    SINGLE_MODEL_SETTINGS,
    Settings,
)
from antiphon.entrypoints.settings.sections import ImageServer, McpServer, WebSearchSettings
from antiphon.entrypoints.settings.sources import (
    CONFIG_VARIABLE,
    DEFAULT_FILE,
    find_file,
    is_set,
    load,
)
from antiphon.entrypoints.settings.storage import without_password
from antiphon.entrypoints.settings.table import SETTINGS, Setting

__all__ = [
    "CONFIG_VARIABLE",
    "DEFAULT_FILE",
    "SCRIPTED_MODELS",
    "SETTINGS",
    "SINGLE_MODEL_SETTINGS",
    "ImageServer",
    "McpServer",
    "ModelTable",
    "Oidc",
    "Setting",
    "Settings",
    "TrustedProxy",
    "WebSearchSettings",
    "find_file",
    "is_set",
    "load",
    "without_password",
]
