"""An engine or a model of one's own in a table `[[models]]` of the settings file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.conftest import running, settings_for
from tests.entrypoints.own_adapters import EngineOptions
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from antiphon.application.ports import Model
from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.settings import load
from antiphon.entrypoints.wiring.models import build_models

ROOT = Path(__file__).parents[2]
OWN = "tests.entrypoints.own_adapters"
ENGINE = f'engine = "{OWN}:OwnEngine"'
EXAMPLE = ROOT / "examples" / "custom_engine.toml"
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
DIGITS = "0123456789"
SECRET = "s3cret-of-the-operator"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


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
            'engine = "examples.custom_engine:AnswerTable"\nformat = "harmony"\nanswers = {}',
            "format has no effect on the engine 'examples.custom_engine:AnswerTable': remove it "
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


# --- the example ----------------------------------------------------------------------------------


def test_the_example_is_served_beside_another_model(tmp_path: Path) -> None:
    with (
        running(settings_for(tmp_path, config=EXAMPLE)) as server,
        httpx.Client(base_url=server.api, timeout=15) as client,
    ):

        def answer_to(text: str, **fields: Any) -> tuple[str, str]:
            body = {"model": "help-desk", "input": text, **fields}
            response = client.post("/responses", json=body).json()
            text = response["output"][0]["content"][0]["text"]
            return response["status"], text

        names = {model["id"] for model in client.get("/models").json()["data"]}
        assert names == {"help-desk", "default", "scripted"}
        assert answer_to("When is my refund paid?") == (
            "completed",
            "Refunds are paid within two weeks.",
        )
        assert answer_to("Hello?") == ("completed", "Please call us.")
        assert answer_to("Hello?", model="scripted") == ("completed", "Echo: Hello?")
        assert answer_to("Refund?", max_output_tokens=16)[0] == "completed"
        bound = {"format": {"type": "json_object"}}
        refused = client.post(
            "/responses", json={"model": "help-desk", "input": "json", "text": bound}
        )
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "text")
        long = client.post("/responses", json={"model": "help-desk", "input": "word " * 1000})
        assert long.json()["error"]["code"] == "context_length_exceeded"


def test_the_example_has_at_most_60_lines() -> None:
    assert len(EXAMPLE.with_suffix(".py").read_text(encoding="utf-8").splitlines()) <= 60
