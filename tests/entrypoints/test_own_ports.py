"""A class of one's own for each port that the settings can name, and its options."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import httpx
import pytest
from tests.conftest import running, settings_for
from tests.entrypoints.incomplete_classes import Own, class_without, members_of
from tests.entrypoints.own_adapters import Options
from tests.http.conftest import wait_until
from tests.support.loopback_server import listening

from antiphon.adapters.web.search_services import SearchService
from antiphon.application import ports
from antiphon.application.ports import DomainFilter
from antiphon.domain.errors import FetchRefused, SettingsError
from antiphon.entrypoints.container import Container
from antiphon.entrypoints.settings.options import LISTS, OWN_CLASSES

ROOT = Path(__file__).parents[2]
OWN = "tests.entrypoints.own_adapters"
SECRET = "s3cret-of-the-operator"


class Port(NamedTuple):
    """A class for a setting, where the container has it, its port, and what else must be set."""

    name: str
    provider: str
    port: type
    also: Mapping[str, Any] = MappingProxyType({})


PORTS = {
    "store": Port("Store", "store", ports.Store),
    "file_store": Port("Files", "files", ports.FileStore),
    "vector_stores": Port("OwnVectorStores", "vector_stores", ports.VectorStores),
    "event_log": Port("Log", "log", ports.EventLog),
    "embedding_engine": Port("WordEmbeddings", "embeddings", ports.Embeddings),
    "web_search": Port("Search", "web", SearchService, {"web.url": "http://127.0.0.1:1"}),
    "image_generator": Port("Tiles", "image_generator", ports.ImageGenerator),
    "sandboxes": Port("Boxes", "sandboxes", ports.Sandboxes, {"shell": True}),
    "program_runner": Port("Scripts", "programs", ports.Programs, {"programs": True}),
    "prompt_templates": Port("Prompts", "prompts", ports.PromptTemplates),
    "audit_log": Port("Audit", "audit_log", ports.AuditLog),
    "tool": Port("Tools", "tool_servers", ports.ToolServer),
    "guard": Port("Watch", "guards", ports.Guard),
}
METHODS = [
    (setting, port, method)
    for setting, port in [
        *((setting, each.port) for setting, each in PORTS.items()),
        ("web_search", ports.Web),
    ]
    for method in members_of(port)
]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Own:
    return Own(monkeypatch)


@pytest.fixture
def container(tmp_path: Path) -> Callable[..., Container]:
    """`container(toml, **settings)`: a server that is not started."""

    def build(toml: str = "", **settings: Any) -> Container:
        file = tmp_path / "antiphon.toml"
        file.write_text(toml, encoding="utf-8")
        return Container(settings=settings_for(tmp_path, config=file, **settings))

    return build


@pytest.fixture
def refusal(container: Callable[..., Container]) -> Callable[..., str]:
    """`refusal(setting, toml, **settings)`: the error of a port that cannot be built."""

    def refuse(setting: str, toml: str = "", **settings: Any) -> str:
        with pytest.raises(SettingsError) as refused:
            getattr(container(toml, **settings), PORTS[setting].provider)()
        return str(refused.value)

    return refuse


def value_of(setting: str, name: str) -> Any:
    path = f"{OWN}:{name}"
    return [f"mine={path}"] if setting in LISTS else path


def table(setting: str) -> str:
    return f"options.{setting}.mine" if setting in LISTS else f"options.{setting}"


def options_of(setting: str, port: Any) -> Options:
    """Return the options of the class, behind what of ours surrounds it."""
    if setting == "tool":
        port = port._servers["mine"].server._server
    if setting == "guard":
        port = port.guards[0].guard
    if setting == "web_search":
        port = port._service
    options: Options = port.options
    return options


def test_every_setting_that_can_name_a_class_is_tested_here() -> None:
    assert PORTS.keys() == OWN_CLASSES.keys()


@pytest.mark.parametrize("setting", PORTS)
def test_a_class_of_the_operators_own_gets_its_options(
    setting: str, container: Callable[..., Container]
) -> None:
    name, provider, _, also = PORTS[setting]
    settings = {setting: value_of(setting, name), **also}
    built = container(f"[{table(setting)}]\nsize = 7\nfolder = '/srv'", **settings)
    options = options_of(setting, getattr(built, provider)())
    assert options == Options(size=7, folder=Path("/srv"))


@pytest.mark.parametrize("setting", PORTS)
def test_options_have_their_defaults_without_a_table(
    setting: str, container: Callable[..., Container]
) -> None:
    name, provider, _, also = PORTS[setting]
    built = container(**{setting: value_of(setting, name), **also})
    assert options_of(setting, getattr(built, provider)()) == Options()


@pytest.mark.parametrize("setting", PORTS)
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ("xyz = 1", "Object contains unknown field `xyz`; it can have `size`, `mode`, `folder`."),
        (f"sise = '{SECRET}'", "Object contains unknown field `sise`; did you mean `size`?"),
        (f"size = '{SECRET}'", "Expected `int`, got `str` - at `$.size`."),
        ("size = 0", "Expected `int` >= 1 - at `$.size`."),
        (f"mode = '{SECRET}'", "mode must be fast or slow."),
        ("folder = ''", "not a Path - at `$.folder`."),
    ],
)
def test_an_invalid_option_is_named_and_its_value_is_not_shown(
    setting: str, options: str, error: str, refusal: Callable[..., str]
) -> None:
    name, _, _, also = PORTS[setting]
    settings = {setting: value_of(setting, name), **also}
    path = f"{OWN}:{name}"
    assert refusal(setting, f"[{table(setting)}]\n{options}", **settings) == (
        f"{OWN_CLASSES[setting]} {path!r} cannot be constructed: {error}"
    )


@pytest.mark.parametrize("setting", PORTS)
def test_a_class_without_the_methods_of_its_port_is_refused(
    setting: str, refusal: Callable[..., str]
) -> None:
    settings = {setting: value_of(setting, "Nothing"), **PORTS[setting].also}
    settings.pop("web.url", None)
    settings.pop("shell", None)
    if setting == "sandboxes":
        settings["code_interpreter"] = True
    error = refusal(setting, **settings)
    assert error.startswith(f"{OWN_CLASSES[setting]} '{OWN}:Nothing' does not implement ")
    assert ": it has no " in error


@pytest.mark.parametrize(("setting", "port", "method"), METHODS)
def test_a_class_that_lacks_one_method_of_its_port_is_refused_with_its_name(
    setting: str, port: type, method: str, refusal: Callable[..., str], own: Own
) -> None:
    also = {"sandboxes": {"code_interpreter": True}, "program_runner": {"programs": True}}.get(
        setting, {}
    )
    own(class_without(method, port))
    path = f"{own.module}:Mine"
    what = f"{OWN_CLASSES[setting]} '{path}'"
    value = [f"mine={path}"] if setting in LISTS else path
    if method != "build_request":  # by which the server knows a SearchService
        assert refusal(setting, **{setting: value, **also}) == (
            f"{what} does not implement {port.__name__}: it has no {method}."
        )
    own(class_without(method, port, base=port))
    if method in port.__abstractmethods__:  # type: ignore[attr-defined]
        assert refusal(setting, **{setting: value, **also}) == (
            f"{what} is incomplete: it has no {method}."
        )


def test_a_class_with_only_the_port_as_base_is_refused_with_all_that_it_lacks(
    refusal: Callable[..., str], own: Own
) -> None:
    own(type("Mine", (ports.EventLog,), {}))
    assert refusal("event_log", event_log=f"{own.module}:Mine") == (
        f"The event log '{own.module}:Mine' is incomplete: it has no abandon, append, create, "
        "drop, open."
    )


def test_a_method_that_does_not_take_the_arguments_of_its_port_is_refused(
    refusal: Callable[..., str],
) -> None:
    assert refusal("event_log", event_log=f"{OWN}:ShortLog") == (
        f"The event log '{OWN}:ShortLog' does not implement EventLog: open() has other "
        "parameters: got an unexpected keyword argument 'after'."
    )


def test_options_of_a_class_that_takes_none_are_refused(refusal: Callable[..., str]) -> None:
    error = refusal("store", f"[options.store]\nkey = '{SECRET}'", store=f"{OWN}:Plain")
    assert error == (
        f"The store '{OWN}:Plain' cannot be constructed: it has no options, but the settings have "
        "'key'."
    )


def test_options_that_have_a_default_may_be_left_out(
    container: Callable[..., Container], refusal: Callable[..., str]
) -> None:
    path = f"{OWN}:Forgiving"
    assert container(store=path).store().options is None
    given: Any = container("[options.store]\nsize = 5", store=path).store()
    assert given.options == Options(size=5)
    assert "unknown field `sice`" in refusal("store", "[options.store]\nsice = 5", store=path)


def test_the_error_of_a_constructor_shows_no_option(
    refusal: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    toml = f"[options.store]\naddress = '{SECRET}'"
    error = refusal("store", toml, store=f"{OWN}:Failing")
    assert "ValueError: cannot reach *** (" in error
    assert SECRET not in error + caplog.text


@pytest.mark.parametrize(
    ("toml", "error"),
    [
        (
            f"[options.web_search]\nkey = '{SECRET}'",
            "The table [options.web_search] is for a class of your own, but web_search names none: "
            "set it to package.module:Class, or remove the table.",
        ),
        (
            "[options.file_stor]",
            "options.file_stor in FILE is for no setting that can name a class; did you mean "
            "file_store?",
        ),
        (
            "[options.xyz]",
            "options.xyz in FILE is for no setting that can name a class; it is store, "
            "file_store, vector_stores, event_log, embedding_engine, web_search, "
            "image_generator, sandboxes, program_runner, prompt_templates, audit_log, tool or "
            "guard.",
        ),
        (f"options = '{SECRET}'", "options in FILE must be a table: [options]."),
        (f"options.store = '{SECRET}'", "options.store in FILE must be a table: [options.store]."),
        (
            f"[options.tool]\nmine = '{SECRET}'",
            "options.tool.mine in FILE must be a table: [options.tool.mine].",
        ),
    ],
)
def test_a_table_that_belongs_to_nothing_is_refused(
    toml: str, error: str, container: Callable[..., Container], tmp_path: Path
) -> None:
    with pytest.raises(SettingsError) as refused:
        container(toml)
    assert str(refused.value) == error.replace("FILE", str(tmp_path / "antiphon.toml"))


def test_options_of_a_label_that_no_tool_server_has_are_refused(
    refusal: Callable[..., str],
) -> None:
    tool = [f"{OWN}:Tools"]
    assert refusal("tool", f"[options.tool.miles]\nkey = '{SECRET}'", tool=tool) == (
        "The table [options.tool.miles] is for no tool server of yours: `tool` names no class with "
        "that label."
    )
    assert refusal("tool", "[options.tool.late]\nsize = 1", tool=[f"{OWN}:LateLabel"]) == (
        f"The tool server '{OWN}:LateLabel' sets its label itself, too late for "
        f"[options.tool.late]: use --tool late={OWN}:LateLabel."
    )


def test_the_label_of_a_class_is_the_label_of_its_options(
    container: Callable[..., Container],
) -> None:
    servers: Any = container("[options.tool.lengths]\nsize = 9", tool=[f"{OWN}:Tools"])
    assert servers.tool_servers()._servers["lengths"].server._server.options.size == 9


def test_no_option_is_shown_with_the_settings(container: Callable[..., Container]) -> None:
    built = container(f"[options.store]\nkey = '{SECRET}'", store=f"{OWN}:Plain")
    assert SECRET not in repr(built.settings())


# --- the settings of ours that a class may read ---------------------------------------------------


def test_a_constructor_gets_the_settings_that_it_has_parameters_for(
    container: Callable[..., Container], tmp_path: Path
) -> None:
    built: Any = container(
        sandboxes=f"{OWN}:Boxes",
        shell=True,
        embedding_engine=f"{OWN}:WordEmbeddings",
        event_log=f"{OWN}:Log",
        file_store=f"{OWN}:Files",
        keep_events=17,
        **{"code.memory_mb": 128, "embeddings.model": "words"},
    )
    assert (built.sandboxes().memory_mb, built.sandboxes().shell) == (128, True)
    assert built.embeddings().model == "words"
    assert built.log().keep_events == 17
    assert built.files()._folder == tmp_path / "own_files"


@pytest.mark.parametrize(
    ("setting", "name", "value"),
    [
        ("web_search", "web.key", SECRET),
        ("embedding_engine", "embeddings.api_key", SECRET),
        ("image_generator", "images.api_key", SECRET),
    ],
)
def test_a_setting_that_the_class_would_ignore_is_refused(
    setting: str, name: str, value: str, refusal: Callable[..., str]
) -> None:
    port = PORTS[setting]
    settings = {setting: f"{OWN}:{port.name}", name: value, **port.also}
    parameter = name.rpartition(".")[2]
    assert refusal(setting, **settings) == (
        f"{OWN_CLASSES[setting]} '{OWN}:{port.name}' cannot be constructed: {name} is set, but its "
        f"constructor has no parameter '{parameter}'."
    )


async def test_a_web_of_the_operators_own_fetches_within_the_limits_of_all_requests(
    container: Callable[..., Container], tmp_path: Path
) -> None:
    (tmp_path / "page.md").write_text("# Choirs\n\nAn antiphon is sung.")
    settings = {"web.folder": tmp_path, "web.results": 3}
    web: Any = container(web_search=f"{OWN}:OwnWeb", **settings).web()
    await web.start()
    [found] = await web.search("antiphon", tenant="us", limit=5, domains=DomainFilter())
    assert found.title == "Choirs"
    async with listening() as sink:
        with pytest.raises(FetchRefused):
            await web.page_fetcher.fetch(f"http://127.0.0.1:{sink.port}/", tenant="us")
        assert sink.connections == 0
    await web.aclose()


def test_prompt_templates_come_from_a_folder_or_from_a_class(refusal: Callable[..., str]) -> None:
    settings = {"prompts_dir": "/srv", "prompt_templates": f"{OWN}:Prompts"}
    assert refusal("prompt_templates", **settings) == (
        "prompt_templates replaces prompts_dir: set one of them."
    )


def test_no_sandboxes_are_made_if_nothing_runs_in_them(
    container: Callable[..., Container],
) -> None:
    built: Any = container(sandboxes=f"{OWN}:Nothing")
    assert built.sandboxes() is None


# --- a whole server -------------------------------------------------------------------------------


def test_a_server_runs_on_classes_of_the_operators_own(tmp_path: Path) -> None:
    (tmp_path / "antiphon.toml").write_text(
        f'[options.prompt_templates]\nfolder = "{tmp_path}"\n[options.tool.mine]\nsize = 1'
    )
    settings = settings_for(
        tmp_path,
        config=tmp_path / "antiphon.toml",
        **{setting: value_of(setting, port.name) for setting, port in PORTS.items()},
        **PORTS["web_search"].also,
        **PORTS["sandboxes"].also,
        **PORTS["program_runner"].also,
    )
    with running(settings) as server:
        with httpx.Client(base_url=server.api, timeout=15) as client:
            call = {"mcp": "convert", "args": {"value": 1, "unit": "km", "into": "m"}}
            script = f"@@script {json.dumps([call, {'say': 'so far'}])}"
            body = {
                "model": "scripted",
                "input": script,
                "tools": [{"type": "mcp", "server_label": "mine", "require_approval": "never"}],
            }
            response = client.post("/responses", json=body).json()
            assert response["status"] == "completed"
            file = {"file": ("notes.txt", b"An antiphon is sung.")}
            uploaded = client.post("/files", files=file, data={"purpose": "user_data"}).json()
            store = client.post("/vector_stores", json={"file_ids": [uploaded["id"]]}).json()
            path = f"/vector_stores/{store['id']}"
            wait_until(lambda: client.get(path).json()["file_counts"]["completed"] == 1)
            [found] = client.post(f"{path}/search", json={"query": "sung"}).json()["data"]
            assert found["filename"] == "notes.txt"
        container: Any = server.container
        assert [call.name for call in container.audit_log().calls] == ["convert"]
        assert any((tmp_path / "own_files").rglob("*"))


def test_code_of_models_runs_in_sandboxes_of_the_operators_own(tmp_path: Path) -> None:
    settings = settings_for(
        tmp_path,
        sandboxes="tests.support.toy_sandboxes:ToySandboxes",
        code_interpreter=True,
        shell=True,
    )
    with (
        running(settings) as server,
        httpx.Client(base_url=server.api, timeout=15) as client,
    ):
        container = client.post("/containers", json={"name": "numbers"}).json()
        turns = [{"python": "open('a.txt', 'w').write('42')\nprint(6 * 7)"}, {"say": "so far"}]
        body = {
            "model": "scripted-chat",
            "input": f"@@script {json.dumps(turns)}",
            "tools": [{"type": "code_interpreter", "container": container["id"]}],
            "include": ["code_interpreter_call.outputs"],
        }
        call, message = client.post("/responses", json=body).json()["output"]
        assert call["outputs"] == [{"type": "logs", "logs": "42\n"}]
        assert message["content"][0]["text"] == "so far"
        files = client.get(f"/containers/{container['id']}/files").json()["data"]
        assert [file["path"] for file in files] == ["/mnt/data/a.txt"]
