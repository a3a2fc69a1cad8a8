"""An engine or a model of one's own in a table `[[models]]` of the settings file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.conftest import running, settings_for
from tests.entrypoints.incomplete_classes import Own, class_without, members_of
from tests.entrypoints.own_adapters import EngineOptions
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from antiphon.application.ports import Engine, Model
from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.settings import load
from antiphon.entrypoints.wiring.models import build_models

ROOT = Path(__file__).parents[2]
OWN = "tests.entrypoints.own_adapters"
ENGINE = f'engine = "{OWN}:OwnEngine"'
EXAMPLES = ROOT / "examples"
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
DIGITS = "0123456789"
SECRET = "s3cret-of-the-operator"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Own:
    return Own(monkeypatch)


@pytest.fixture
def models(toml: Callable[[str], Path]) -> Callable[[str], Sequence[Model]]:
    """`models(lines)`: the model of a table with these lines, and of no other table."""
    return lambda lines: build_models(load(toml(f'[[models]]\nname = "mine"\n{lines}')))


@pytest.fixture
def refusal(models: Callable[[str], Sequence[Model]]) -> Callable[[str], str]:
    """`refusal(lines)`: the error of such a table."""

    def refuse(lines: str) -> str:
        with pytest.raises(SettingsError) as refused:
            models(lines)
        return str(refused.value)

    return refuse


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A folder with a tokenizer in which each character is a token, and a chat template."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    letters = set(pre_tokenizers.ByteLevel.alphabet())
    alphabet = [*DIGITS, *sorted(letters - set(DIGITS))]
    tokenizer = Tokenizer(BPE({byte: n for n, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def test_an_engine_gets_its_names_and_the_options_of_its_table(
    models: Callable[[str], Sequence[Model]],
) -> None:
    [model] = models(f'{ENGINE}\nmodel = "weights"\nformat = "harmony"')
    assert model.names == ("mine",)
    engine: Any = model._model._engine  # type: ignore[attr-defined]
    assert engine.options == EngineOptions(model="weights", context_length=2000)


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (
            f'engine = "{OWN}:Nothing"',
            f"The engine '{OWN}:Nothing' is neither an Engine nor a Model.",
        ),
        (
            f'engine = "{OWN}:Absent"',
            f"The engine '{OWN}:Absent' cannot be loaded: AttributeError: module '{OWN}' has no "
            "attribute 'Absent'.",
        ),
        (
            f'engine = "{OWN}:NamelessEngine"\nformat = "harmony"',
            f"The engine '{OWN}:NamelessEngine' serves scripted-chat, scripted, gpt-4.1-scripted, "
            "and not the names of its table: let its constructor take `names`.",
        ),
        (
            f'engine = "{OWN}:NamelessEngine"\nkey = "{SECRET}"',
            f"The engine '{OWN}:NamelessEngine' cannot be constructed: it has no options, but the "
            "settings have 'key'.",
        ),
        (
            ENGINE,
            f"The engine '{OWN}:OwnEngine' cannot be constructed: Object missing required field "
            "`model`.",
        ),
        (
            f'{ENGINE}\nmodel = "m"\ncontext_lenght = "{SECRET}"',
            f"The engine '{OWN}:OwnEngine' cannot be constructed: Object contains unknown field "
            "`context_lenght`; did you mean `context_length`?",
        ),
        (
            f'{ENGINE}\nmodel = "m"\ncontext_length = "{SECRET}"',
            f"The engine '{OWN}:OwnEngine' cannot be constructed: Expected `int`, got `str` - at "
            "`$.context_length`.",
        ),
        (
            f'engine = "{OWN}:Failing"\naddress = "{SECRET}"',
            f"The engine '{OWN}:Failing' cannot be constructed: ValueError: cannot reach *** (",
        ),
        (
            f'{ENGINE}\nmodel = "m"\ntokenizer = "/no/such"',
            "tokenizer must be a folder with tokenizer.json or tekken.json; '/no/such' has "
            "neither.",
        ),
        (
            'engine = "examples.custom_model:AnswerTable"\nformat = "harmony"\nanswers = {}',
            "format has no effect on the engine 'examples.custom_model:AnswerTable': remove it "
            "from the table.",
        ),
        (
            'engine = "scripted"\ntokenizer = "/srv"',
            "tokenizer has no effect on the engine 'scripted': remove it from the table.",
        ),
    ],
)
def test_a_class_that_cannot_be_used_is_refused_in_one_sentence(
    lines: str, error: str, refusal: Callable[[str], str]
) -> None:
    sentence = refusal(lines)
    assert sentence.startswith(f"The model 'mine' is invalid: {error}")
    assert SECRET not in sentence


@pytest.mark.parametrize("port", [Engine, Model])
def test_an_engine_that_lacks_one_method_of_its_port_is_refused_with_its_name(
    port: type, refusal: Callable[[str], str], own: Own
) -> None:
    lines = f'engine = "{own.module}:Mine"'
    what = f"The model 'mine' is invalid: The engine '{own.module}:Mine'"
    for method in members_of(port):
        own(class_without(method, port))
        error = refusal(lines)
        if method in ("generate", "start_turn"):  # by which the server knows what it is
            assert error == f"{what} is neither an Engine nor a Model."
        else:
            assert error == f"{what} does not implement {port.__name__}: it has no {method}."
        if method in port.__abstractmethods__:  # type: ignore[attr-defined]
            own(class_without(method, port, base=port))
            assert refusal(lines) == f"{what} is incomplete: it has no {method}."


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ('name = "a"', "models[0] in FILE is invalid: Object missing required field `engine`."),
        (
            f'name = "a"\nengine = "{SECRET}"',
            "models[0] in FILE is invalid: Expected `str` matching regex",
        ),
        (
            'name = "a"\nengine = "scripted"\ntokenizer = 3',
            "models[0] in FILE is invalid: not a path - at `$.tokenizer`.",
        ),
        (
            'name = "a"\nengine = "scripted"\nname_ = 3\n[[models]]\nname = "a"\n'
            'engine = "scripted"',
            "models[1] in FILE has the name 'a' of models[0]: each name belongs to one model.",
        ),
    ],
)
def test_an_invalid_table_is_refused_with_the_name_of_the_field(
    lines: str, error: str, toml: Callable[[str], Path]
) -> None:
    file = toml(f"[[models]]\n{lines}")
    with pytest.raises(SettingsError) as refused:
        load(file)
    assert str(refused.value).startswith(error.replace("FILE", str(file)))
    assert SECRET not in str(refused.value)


# --- the tokenizer of an engine of one's own ------------------------------------------------------


async def test_an_engine_without_a_tokenizer_is_refused_when_it_starts(
    models: Callable[[str], Sequence[Model]],
) -> None:
    [model] = models(f'{ENGINE}\nmodel = "m"')
    with pytest.raises(SettingsError) as refused:
        await model.start()
    assert str(refused.value) == (
        "The tokenizer of 'mine' is not known: set `tokenizer` in its table [[models]] to a folder "
        "with its tokenizer.json."
    )


def test_an_engine_is_served_with_the_tokenizer_of_its_table(
    tokenizer: Path, tmp_path: Path, toml: Callable[[str], Path]
) -> None:
    table = f'name = "mine"\nengine = "{OWN}:CountingEngine"\ntokenizer = "{tokenizer}"'
    with (
        running(settings_for(tmp_path, config=toml(f"[[models]]\n{table}"))) as server,
        httpx.Client(base_url=server.api, timeout=15) as client,
    ):
        response = client.post("/responses", json={"model": "mine", "input": "Hi!"}).json()
        tokens = len("<user>") + len("Hi!") + len("<assistant>")
        assert response["output"][0]["content"][0]["text"] == str(tokens)
        assert response["usage"]["input_tokens"] == tokens


def test_vllm_in_this_process_uses_the_tokenizer_of_its_table_too(
    models: Callable[[str], Sequence[Model]], tokenizer: Path
) -> None:
    [model] = models(
        f'engine = "vllm"\nmodel = "org/name"\nformat = "chat:hermes"\ntokenizer = "{tokenizer}"'
    )
    engine: Any = model._model._engine  # type: ignore[attr-defined]
    assert engine._engine_args == ("--tokenizer", str(tokenizer))


# --- the examples ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def examples(serve_from: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        folder, config = tmp_path_factory.mktemp("examples"), EXAMPLES / "custom_models.toml"
        with (
            serve_from(folder, config=config) as server,
            httpx.Client(base_url=server.api, timeout=30) as client,
        ):
            yield client


def answer_of(client: httpx.Client, text: str, **fields: Any) -> tuple[str, str]:
    body = {"model": "help-desk", "input": text, **fields}
    response = client.post("/responses", json=body).json()
    return response["status"], response["output"][0]["content"][0]["text"]


def test_the_examples_are_served_side_by_side(examples: httpx.Client) -> None:
    names = {model["id"] for model in examples.get("/models").json()["data"]}
    assert names == {"help-desk", "default", "parrot"}
    refund = "Refunds are paid within two weeks."
    assert answer_of(examples, "When is my refund paid?") == ("completed", refund)
    assert answer_of(examples, "Hello?") == ("completed", "Please call us.")
    assert answer_of(examples, "Hello?", model="parrot") == ("completed", "They said: Hello?")


@pytest.mark.parametrize("model", ["help-desk", "parrot"])
def test_the_examples_keep_the_limits_of_a_request(examples: httpx.Client, model: str) -> None:
    long = {"model": model, "input": "word " * 9000}
    error = examples.post("/responses", json=long).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    body = {"model": "parrot", "input": "word " * 50, "max_output_tokens": 16}
    response = examples.post("/responses", json=body).json()
    assert (response["status"], response["usage"]["output_tokens"]) == ("incomplete", 16)


def test_the_example_of_a_model_refuses_what_it_cannot_do(examples: httpx.Client) -> None:
    bound = {"format": {"type": "json_object"}}
    body = {"model": "help-desk", "input": "json", "text": bound}
    refused = examples.post("/responses", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "text")


@pytest.mark.parametrize("name", ["custom_engine.py", "custom_model.py"])
def test_an_example_has_at_most_60_lines(name: str) -> None:
    assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) <= 60
