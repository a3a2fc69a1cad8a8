"""The sources of settings, their priority, and the errors for invalid values."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from tests.entrypoints.settings.examples import EXAMPLES

from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.settings import SETTINGS, Settings, find_file, load

SECURE_URLS = "an https URL, or an http URL on this machine"
PREFIXES = "up to 32 letters, digits, '.', '_', '@' and '-', beginning with a letter or a digit"
ALGORITHMS = "RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512, EdDSA"
STORES = (
    "memory, sqlite, sqlite:///FILE, postgresql://…, redis://…, unix:///SOCKET or "
    "package.module:Class"
)
FILE_STORES = (
    "auto, folder, postgres, s3://…, gs://…, az://…, file:///FOLDER or package.module:Class"
)
WEB_SEARCHES = "off, searxng, brave, tavily, corpus or package.module:Class"


# --- priority ---


@pytest.mark.parametrize(
    ("file", "variable", "option", "wins"),
    [
        (None, None, None, 8000),
        (1, None, None, 1),
        (None, "2", None, 2),
        (None, None, "3", 3),
        (1, "2", None, 2),
        (1, None, "3", 3),
        (None, "2", "3", 3),
        (1, "2", "3", 3),
    ],
)
def test_the_command_line_wins_over_the_environment_over_the_file(
    toml: Any, file: int | None, variable: str | None, option: str | None, wins: int
) -> None:
    loaded = load(
        toml(f"port = {file}") if file else None,
        {"ANTIPHON_PORT": variable} if variable else {},
        {"port": option} if option else {},
    )
    assert loaded.port == wins


def test_the_same_holds_for_a_setting_inside_a_table(toml: Any) -> None:
    file = toml("[scripted]\ntokens_per_s = 10\nstep_tokens = 2\ncontext_length = 100")
    loaded = load(
        file,
        {"ANTIPHON_SCRIPTED__TOKENS_PER_S": "20", "ANTIPHON_SCRIPTED__STEP_TOKENS": "3"},
        {"scripted.tokens_per_s": "30.5"},
    )
    scripted = loaded.scripted
    assert (scripted.tokens_per_s, scripted.step_tokens, scripted.context_length) == (30.5, 3, 100)


@pytest.mark.parametrize("path", SETTINGS)
def test_every_setting_can_be_set_by_variable_and_by_option(path: str) -> None:
    required = {"model": "./m"} if path in ("engine", "engine_options") else {}
    by_variable = load(None, {SETTINGS[path].variable: EXAMPLES[path]}, required)
    by_option = load(None, {}, {**required, path: EXAMPLES[path]})
    assert by_variable == by_option
    assert by_variable != load(None, {}, required)


def test_lists_come_from_toml_as_lists_and_from_variables_as_shell_words(toml: Any) -> None:
    file = toml('served_model_name = ["a b", "c"]')
    assert load(file).served_model_name == ("a b", "c")
    assert load(None, {"ANTIPHON_SERVED_MODEL_NAME": "'a b' c"}).served_model_name == ("a b", "c")


def test_an_empty_variable_counts_as_not_set() -> None:
    assert load(None, {"ANTIPHON_MODEL": "", "ANTIPHON_PORT": ""}) == load()


def test_variables_that_kubernetes_sets_for_a_service_named_antiphon_are_ignored() -> None:
    kubernetes_variables = {
        "ANTIPHON_PORT": "tcp://10.0.0.1:8000",
        "ANTIPHON_PORT_8000_TCP_ADDR": "10.0.0.1",
        "ANTIPHON_SERVICE_HOST": "10.0.0.1",
        "ANTIPHON_SERVICE_PORT_HTTP": "8000",
    }
    assert load(None, kubernetes_variables) == load()


# --- derived settings ---


@pytest.mark.parametrize(
    ("options", "engine"),
    [
        ({}, "scripted"),
        ({"model": "scripted-harmony"}, "scripted"),
        ({"model": "./scripted-harmony"}, "vllm"),
        ({"model": "Qwen/Qwen3-8B"}, "vllm"),
        ({"model": "Qwen/Qwen3-8B", "engine": "scripted"}, "scripted"),
    ],
)
def test_the_engine_follows_from_the_model_unless_it_is_set(
    options: dict[str, str], engine: str
) -> None:
    assert load(None, {}, options).engine == engine


def test_the_store_and_the_key_are_in_the_data_folder_unless_they_are_set() -> None:
    by_default = Settings(data_dir=Path("/srv/a"))
    assert by_default.sqlite_file == Path("/srv/a/antiphon.db")
    assert by_default.seal_key_path == Path("/srv/a/seal.key")
    explicit = Settings(store="sqlite:////var/b.db", seal_key_file=Path("/run/key"))
    assert (explicit.sqlite_file, explicit.seal_key_path) == (Path("/var/b.db"), Path("/run/key"))
    assert Settings(store="sqlite:///b.db").sqlite_file == Path("b.db")
    assert Settings(store="memory").sqlite_file is None


@pytest.mark.parametrize(
    ("options", "needs_keys"),
    [
        ({}, False),
        ({"host": "localhost"}, False),
        ({"host": "127.0.0.2"}, False),
        ({"host": "::1"}, False),
        ({"host": "0.0.0.0"}, True),
        ({"host": "::"}, True),
        ({"host": "192.168.1.5"}, True),
        ({"host": "::ffff:127.0.0.1"}, True),
        ({"host": "localhost.example.org"}, True),
        ({"host": "127.0.0.1", "auth": "on"}, True),
        ({"host": "0.0.0.0", "auth": "off"}, False),
        ({"oidc.issuer": "https://id.example.org"}, True),
        ({"trusted_proxy.addresses": "127.0.0.1"}, True),
    ],
)
def test_keys_are_needed_if_others_can_connect(options: dict[str, str], needs_keys: bool) -> None:
    assert load(None, {}, options).needs_keys is needs_keys


def test_the_data_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/srv/xdg")
    assert Settings().data_dir == Path("/srv/xdg/antiphon")


# --- the settings file ---


def test_the_file_comes_from_the_option_or_the_variable_or_the_working_folder(
    toml: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_file(None, {}) is None
    here = toml("port = 1")
    other = tmp_path / "other.toml"
    other.touch()
    third = tmp_path / "third.toml"
    third.touch()
    assert find_file(None, {}) == Path(here.name)
    assert find_file(None, {"ANTIPHON_CONFIG": str(other)}) == other
    assert find_file(third, {"ANTIPHON_CONFIG": str(other)}) == third


def test_a_missing_settings_file_is_refused_if_it_was_named() -> None:
    with pytest.raises(SettingsError, match=r"^The settings file 'no.toml' does not exist\.$"):
        find_file(Path("no.toml"), {})


def test_a_file_that_is_not_toml_is_refused_with_the_line(toml: Any, refusal: Any) -> None:
    file = toml("port = 1\nhost = ")
    assert refusal(file=file) == (
        f"The settings file '{file}' is not TOML: Invalid value (at end of document)."
    )


# --- invalid values ---


@pytest.mark.parametrize(
    ("path", "value", "allowed"),
    [
        ("model", "", "a non-empty string"),
        ("engine", "sglang", "auto, scripted, vllm or llama"),
        ("format", "chatml", "auto, harmony, chat:FAMILY, FILE.toml or package.module:NAME"),
        ("served_model_name", "'unclosed", "a list of strings"),
        ("engine_options", "'unclosed", "a list of strings"),
        ("store", "postgres", STORES),
        ("file_store", "ftp://files", FILE_STORES),
        ("file_store_endpoint", "minio:9000", "a URL"),
        ("advertise_url", "10.0.0.7", "http://HOST:PORT or https://HOST:PORT"),
        ("vector_stores", "qdrant", "auto, sqlite, postgres or package.module:Class"),
        ("event_log", "my_package.logs:", "memory or package.module:Class"),
        ("data_dir", "", "a path"),
        ("seal_key_file", "", "a path"),
        ("chat_template", "", "a path"),
        ("prompts_dir", "", "a path"),
        ("prompt_templates", "prompts", "package.module:Class"),
        ("keep_responses", "0", "a whole number of at least 1"),
        ("keep_events", "-1", "a whole number of at least 0"),
        ("keep_events_s", "-1", "a number of at least 0"),
        ("host", "", "a non-empty string"),
        ("tls_cert", "", "a path"),
        ("tls_key", "", "a path"),
        ("session_header", "x chat:", "a list of names of headers"),
        ("cors_origin", "*", "a list of origins: http(s)://HOST or http(s)://HOST:PORT"),
        ("max_connections", "0", "a whole number of at least 1"),
        ("max_connections_per_address", "0", "a whole number of at least 1"),
        ("write_stall_s", "0", "a number above 0"),
        ("websockets_per_tenant", "0", "a whole number of at least 1"),
        ("max_work_bytes", "1", "a whole number of at least 65536"),
        ("auth", "maybe", "auto, on or off"),
        ("keys_file", "", "a path"),
        ("loop_watchdog_ms", "-1", "a whole number of at least 0"),
        ("keep_traces", "some", "off, failed or all"),
        ("keep_trace_bytes", "10", "a whole number of at least 4096"),
        ("default_limit", "'unclosed", "a list of strings"),
        ("oidc.issuer", "http://id.example.org", SECURE_URLS),
        ("oidc.audience", "''", "a list of strings"),
        ("oidc.jwks_url", "https://anna@id.example.org", SECURE_URLS),
        ("oidc.ca_file", "", "a path"),
        ("oidc.tenant_claim", "", "a non-empty string"),
        ("oidc.tenant_prefix", "-", PREFIXES),
        ("oidc.name_claim", "", "a non-empty string"),
        ("oidc.scopes", "''", "a list of strings"),
        ("oidc.claims", "groups", "a list of NAME=VALUE"),
        ("oidc.algorithms", "RS256 HS256", f"a list of {ALGORITHMS}"),
        ("oidc.algorithms", "none", f"a list of {ALGORITHMS}"),
        ("oidc.leeway_s", "3600", "a number from 0 to 300"),
        ("trusted_proxy.addresses", "''", "a list of addresses and networks"),
        ("trusted_proxy.tenant_header", "a b", "the name of a header"),
        ("trusted_proxy.tenant_prefix", "a b", PREFIXES),
        ("trusted_proxy.secret", "short", "16 to 512 printable characters without spaces"),
        ("port", "65536", "a whole number from 0 to 65535"),
        ("workers", "0", "a whole number from 1 to 64"),
        ("graceful_shutdown_s", "soon", "a whole number of at least 0"),
        ("max_body_bytes", "1", "a whole number of at least 1024"),
        ("max_depth", "1000", "a whole number from 8 to 200"),
        ("max_json_nodes", "3.5", "a whole number of at least 100"),
        ("arrival_s", "0", "a number above 0"),
        ("strict", "maybe", "true or false"),
        ("strict_unknown_fields", "maybe", "true or false"),
        ("keepalive", "never", "auto, comment or event"),
        ("allowed_host", "http://a.example", "a list of host names, without ports, or *"),
        ("keepalive_s", "nan", "a number of at least 0"),
        ("response_s", "0", "a number above 0"),
        ("websocket_s", "0", "a number above 0"),
        ("dialect", "2", "openai or open-responses"),
        ("log_level", "trace", "debug, info, warning or error"),
        ("log_format", "xml", "text or json"),
        ("metrics", "some", "true or false"),
        ("metrics_tenants", "some", "true or false"),
        ("admin_port", "65536", "a whole number from 0 to 65535"),
        ("admin_host", "", "a non-empty string"),
        ("otlp_endpoint", "127.0.0.1:4318", "a URL without a user"),
        ("trace_sample_ratio", "2", "a number from 0 to 1"),
        ("log_requests", "some", "true or false"),
        ("log_outputs", "some", "true or false"),
        ("error_stacks", "some", "true or false"),
        ("console", "some", "true or false"),
        ("keep_vector_bytes", "-1", "a whole number of at least 0"),
        ("keep_file_bytes", "-1", "a whole number of at least 0"),
        ("keep_all_file_bytes", "-1", "a whole number of at least 0"),
        ("quota_responses", "-1", "a whole number of at least 0"),
        ("quota_bytes", "-1", "a whole number of at least 0"),
        ("sweep_s", "0", "a number above 0"),
        ("webhooks", "", "a path"),
        ("audit_log", "", "a path or package.module:Class"),
        ("webhook_url", "", "a non-empty string"),
        ("webhook_secret", "", "a non-empty string"),
        ("max_media", "0", "a whole number from 1 to 10000"),
        ("max_media_bytes", "0", "a whole number of at least 1"),
        ("max_image_pixels", "0", "a whole number of at least 1"),
        ("max_file_bytes", "0", "a whole number of at least 1"),
        ("keep_days", "-1", "a number of at least 0"),
        ("background_runs", "0", "a whole number of at least 1"),
        ("batch_lines", "0", "a whole number of at least 1"),
        ("max_batches", "-1", "a whole number of at least 0"),
        ("run_attempts", "0", "a whole number of at least 1"),
        ("max_runs", "0", "a whole number of at least 1"),
        ("max_queued", "-1", "a whole number of at least 0"),
        ("max_prompt_tokens", "0", "a whole number of at least 1"),
        ("queue_s", "0", "a number above 0"),
        ("first_token_s", "0", "a number above 0"),
        ("engine_restarts", "-1", "a whole number of at least 0"),
        ("between_tokens_s", "0", "a number above 0"),
        ("max_waiting", "-1", "a whole number of at least 0"),
        ("lease_s", "0", "a number of at least 1"),
        ("store_retry_s", "-1", "a number of at least 0"),
        ("drain_delay_s", "-1", "a number of at least 0"),
        ("fetch.urls", "maybe", "true or false"),
        ("fetch.hosts", "'unclosed", "a list of strings"),
        ("fetch.private", "'unclosed", "a list of networks"),
        ("outgoing.cert", "", "a path"),
        ("outgoing.key", "", "a path"),
        ("outgoing.proxy", "https://proxy", "http://HOST:PORT or http://NAME:PASSWORD@HOST:PORT"),
        ("outgoing.no_proxy", "'unclosed", "a list of host names, without ports"),
        ("fetch.max_bytes", "0", "a whole number of at least 1"),
        ("fetch.timeout_s", "0", "a number above 0"),
        ("fetch.redirects", "21", "a whole number from 0 to 20"),
        ("tools.timeout_s", "0", "a number above 0"),
        ("tools.max_bytes", "0", "a whole number of at least 1"),
        ("tools.keep_lists_s", "-1", "a number of at least 0"),
        ("tools.approval", "never", "request or always"),
        ("tools.max_turns", "0", "a whole number of at least 1"),
        ("tools.call_s", "0", "a number above 0"),
        ("tools.call_bytes", "0", "a whole number of at least 1"),
        ("tools.shown_chars", "99", "a whole number of at least 100"),
        ("agents.total", "-1", "a whole number from 0 to 1024"),
        ("agents.concurrent", "0", "a whole number from 1 to 1024"),
        ("agents.depth", "17", "a whole number from 1 to 16"),
        ("tools.response_bytes", "0", "a whole number of at least 1"),
        ("tool", "my_package.tools", "a list of [LABEL=]package.module:Class"),
        ("stand_in", "web_search", "a list of TYPE=LABEL"),
        ("stand_in", "shell=mine", "a list of TYPE=LABEL"),
        ("hosted_label", "python", "a list of code_interpreter, container, web_search_preview"),
        ("code_interpreter", "maybe", "true or false"),
        ("shell", "maybe", "true or false"),
        ("programs", "maybe", "true or false"),
        ("sandboxes", "docker", "bubblewrap or package.module:Class"),
        ("program_runner", "node", "quickjs or package.module:Class"),
        ("code.skills_dir", "", "a path"),
        ("code.cgroup", "maybe", "auto, required or off"),
        ("code.python", "", "a non-empty string"),
        ("code.memory_mb", "16", "a whole number from 64 to 262144"),
        ("code.disk_mb", "0", "a whole number from 1 to 65536"),
        ("code.cpu_s", "0", "a whole number of at least 1"),
        ("code.timeout_s", "0", "a number above 0"),
        ("code.idle_s", "0", "a number above 0"),
        ("code.per_tenant", "0", "a whole number of at least 1"),
        ("code.max_containers", "0", "a whole number of at least 1"),
        ("code.program_memory_mb", "4", "a whole number from 8 to 4096"),
        ("code.program_cpu_s", "0", "a whole number from 1 to 600"),
        ("code.program_calls", "0", "a whole number from 1 to 100000"),
        ("code.max_programs", "1", "a whole number from 2 to 1024"),
        ("web_search", "google", WEB_SEARCHES),
        ("web.url", "file:///srv", "an http(s) URL without user, query, and fragment"),
        ("web.key", "k3y\n", "a string without spaces"),
        ("embedding_engine", "ollama", "http or package.module:Class"),
        ("embeddings.url", "ftp://a.b", "an http(s) URL"),
        ("embeddings.model", "", "a non-empty string"),
        ("embeddings.api_key", "", "a non-empty string"),
        ("embeddings.timeout_s", "0", "a number above 0"),
        ("image_generator", "dall-e", "http, scripted or package.module:Class"),
        ("images.url", "ftp://a.b", "an http(s) URL without user, query, and fragment"),
        ("images.model", "", "a non-empty string"),
        ("images.api_key", "", "a string without spaces"),
        ("images.timeout_s", "0", "a number above 0"),
        ("guard", "words", "a list of moderation, model and [NAME=]package.module:Class"),
        ("guards.model", "", "a non-empty string"),
        ("guards.statement", "", "a non-empty string"),
        ("guards.threshold", "2", "a number from 0 to 1"),
        ("guards.place", "nowhere", "a list of input, tool_call, tool_result, output"),
        ("guards.verdict", "mask", "refuse or stop"),
        ("moderation.url", "ftp://a.b", "an http(s) URL without user, query, and fragment"),
        ("moderation.model", "", "a non-empty string"),
        ("moderation.api_key", "a b", "a string without spaces"),
        ("moderation.threshold", "violence=2", "a list of CATEGORY=SCORE"),
        ("moderation.place", "nowhere", "a list of input, tool_call, tool_result, output"),
        ("moderation.verdict", "mask", "refuse or stop"),
        ("guards.window", "-1", "a whole number from 0 to 16384"),
        ("guards.timeout_s", "0", "a number above 0"),
        ("guards.failure", "maybe", "closed or open"),
        ("images.max_bytes", "0", "a whole number of at least 1"),
        ("web.folder", "", "a path"),
        ("web.folder_url", "https://a.b", "an http(s) URL that ends with a slash"),
        ("web.results", "0", "a whole number from 1 to 20"),
        ("web.max_page_kb", "0", "a whole number of at least 1"),
        ("web.timeout_s", "0", "a number above 0"),
        ("scripted.tokens_per_s", "0", "a number above 0"),
        ("scripted.slots", "0", "a whole number of at least 1"),
        ("scripted.step_tokens", "0", "a whole number from 1 to 4096"),
        ("scripted.context_length", "2", "a whole number of at least 16"),
    ],
)
def test_an_invalid_value_is_refused_with_its_name_and_what_is_allowed(
    path: str, value: str, allowed: str, refusal: Any
) -> None:
    setting = SETTINGS[path]
    option = "MODEL" if path == "model" else setting.option
    shown = "" if setting.is_secret else f", not {value!r}"
    assert refusal(options={path: value}) == f"{option} must be {allowed}{shown}."
    if value:
        sentence = f"{setting.variable} must be {allowed}{shown}."
        assert refusal(environ={setting.variable: value}) == sentence


def test_every_setting_has_an_invalid_value_in_the_table_above() -> None:
    marks = test_an_invalid_value_is_refused_with_its_name_and_what_is_allowed.pytestmark
    assert {row[0] for row in marks[0].args[1]} == set(SETTINGS)


def test_an_invalid_value_in_the_file_is_refused_with_key_and_file(toml: Any, refusal: Any) -> None:
    file = toml('port = "8000"')
    expected = f"port in {file} must be a whole number from 0 to 65535, not '8000'."
    assert refusal(file=file) == expected
    file = toml("[scripted]\nstep_tokens = 0")
    expected = f"scripted.step_tokens in {file} must be a whole number from 1 to 4096, not 0."
    assert refusal(file=file) == expected
    file = toml("scripted = 3")
    assert refusal(file=file) == f"scripted in {file} must be a table, not 3."


def test_an_invalid_value_is_refused_even_if_another_source_overrides_it(
    toml: Any, refusal: Any
) -> None:
    assert "ANTIPHON_PORT" in refusal(environ={"ANTIPHON_PORT": "x"}, options={"port": "1"})


def test_an_unknown_name_is_refused_with_the_closest_one(toml: Any, refusal: Any) -> None:
    file = toml("prot = 1")
    assert refusal(file=file) == f"prot in {file} is not a setting; did you mean port?"
    file = toml("[scripted]\nstep_token = 1")
    assert refusal(file=file) == (
        f"scripted.step_token in {file} is not a setting; did you mean scripted.step_tokens?"
    )
    file = toml("[oidc]\nprovider = 'x'")
    assert refusal(file=file).startswith(f"oidc.provider in {file} is not a setting; oidc has ")
    assert refusal(environ={"ANTIPHON_STOER": "memory"}) == (
        "The variable ANTIPHON_STOER is not a setting; did you mean ANTIPHON_STORE?"
    )
    assert refusal(environ={"ANTIPHON_XYZXYZ": "1"}) == (
        "The variable ANTIPHON_XYZXYZ is not a setting; `antiphon serve --help-all` lists them all."
    )


def test_vllm_without_a_model_is_refused(refusal: Any) -> None:
    expected = "The vllm engine needs a model: antiphon serve MODEL --engine vllm."
    assert refusal(options={"engine": "vllm"}) == expected


def test_engine_options_for_the_scripted_engine_are_refused(refusal: Any) -> None:
    assert refusal(options={"engine_options": ("--tensor-parallel-size", "2")}) == (
        "Engine options (--tensor-parallel-size 2) are for the vllm engine, but the engine is "
        "scripted: remove them, or name a model."
    )


def test_an_invalid_network_is_refused_with_an_example(refusal: Any) -> None:
    sentence = refusal(options={"fetch.private": ["10.1.0.0/16", "intranet"]})
    assert "'intranet'" in sentence
    assert "10.1.0.0/16" in sentence


@pytest.mark.parametrize("address", ["intranet", "10.1.2.3/8", "10.1.2.3:80", "*"])
def test_an_invalid_address_of_a_proxy_is_refused_with_an_example(
    address: str, refusal: Any
) -> None:
    sentence = refusal(options={"trusted_proxy.addresses": ["10.1.0.0/16", address]})
    assert f"10.1.2.0/24, not {address!r}" in sentence


@pytest.mark.parametrize("header", ["Authorization", "x-forwarded-for", "host", "Cookie"])
def test_a_header_that_clients_send_themselves_cannot_name_the_tenant(
    header: str, refusal: Any
) -> None:
    assert "only the proxy sends" in refusal(options={"trusted_proxy.tenant_header": header})


# --- copies ---


def test_settings_can_be_sent_to_another_process(toml: Any) -> None:
    file = toml('[[models]]\nname = "a"\nengine = "chat"\nurl = "http://127.0.0.1/v1"')
    for settings in (load(), load(file)):
        assert pickle.loads(pickle.dumps(settings)) == settings
