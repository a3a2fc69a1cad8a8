"""Settings: their schema, the table derived from it, and the sources that provide values."""

from antiphon.entrypoints.settings.access import Oidc, TrustedProxy
from antiphon.entrypoints.settings.models import ModelTable
from antiphon.entrypoints.settings.schema import SCRIPTED_MODELS, Settings
from antiphon.entrypoints.settings.sections import McpServer, WebSearchSettings
from antiphon.entrypoints.settings.sources import CONFIG_VARIABLE, DEFAULT_FILE, find_file, load
from antiphon.entrypoints.settings.storage import without_password
from antiphon.entrypoints.settings.table import SETTINGS, Setting

__all__ = [
    "CONFIG_VARIABLE",
    "DEFAULT_FILE",
    "SCRIPTED_MODELS",
    "SETTINGS",
    "McpServer",
    "ModelTable",
    "Oidc",
    "Setting",
    "Settings",
    "TrustedProxy",
    "WebSearchSettings",
    "find_file",
    "load",
    "without_password",
]
