"""What a folder says beside its weights and its config: how texts are generated, how images and sentences are read."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..models.loading import load_config
from ..support.errors import ModelError, one_line
from ..support.io import read_json, write_json
from .folders import REFUSED

if TYPE_CHECKING:
    from transformers import GenerationConfig

GENERATION, TOKENIZER, TEMPLATE = "generation_config.json", "tokenizer_config.json", "chat_template"
# small files of settings that name no code, and so go along with what was tuned
Beside = Literal[
    "preprocessor_config.json", "processor_config.json", "sentence_bert_config.json", "1_Pooling/config.json"
]
# and what doesn't: a template is a program, and modules are classes by their names, with weights of their own
LEFT = ("chat_template.jinja", "modules.json", "config_sentence_transformers.json", "2_Dense/config.json")


def generation_of(folder: Path) -> "GenerationConfig":
    """How the model of a folder generates, as transformers reads it."""
    from transformers import GenerationConfig

    if not (folder / GENERATION).is_file():
        return GenerationConfig.from_model_config(load_config(folder))
    try:
        return GenerationConfig.from_dict(_settings(folder / GENERATION))
    except (TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{folder / GENERATION}: can't be used: {one_line(error)}") from error


def write_settings(folder: Path, base: Path, generation: Mapping[str, Any], beside: Mapping[str, Any]) -> None:
    """Write into the folder of a model that was made of a base's what goes along: the settings of generation that change, and files."""
    if generation:
        settings = generation_of(base).to_dict() | dict(generation)
        write_json(
            folder / GENERATION,
            {name: value for name, value in settings.items() if value is not None and name[0] != "_"},
        )
    for name, content in beside.items():
        write_json(folder / name, content)


def beside(base: Path, tuned: Path) -> dict[str, Any]:
    """The settings in files of the tuned folder that the base's hasn't, or has otherwise: file -> its content."""
    there = {name: _settings(tuned / name) for name in get_args(Beside) if (tuned / name).is_file()}
    return {
        name: found
        for name, found in there.items()
        if not (REFUSED.keys() & found.keys()) and not ((base / name).is_file() and _settings(base / name) == found)
    }


def left(base: Path, tuned: Path) -> list[str]:
    """What else the tuned folder has that may change what its model does, and that the base's hasn't or has otherwise."""
    files = [name for name in LEFT if (tuned / name).is_file() and not _same(base / name, tuned / name)]
    templates = [
        _settings(folder / TOKENIZER).get(TEMPLATE) for folder in (base, tuned) if (folder / TOKENIZER).is_file()
    ]
    return files + [f"{TEMPLATE} of {TOKENIZER}"] * (len({str(one) for one in templates}) > 1)


def _same(one: Path, other: Path) -> bool:
    return one.is_file() and one.read_bytes() == other.read_bytes()


def _settings(file: Path) -> dict[str, Any]:
    found = read_json(file, ModelError)
    if not isinstance(found, dict):
        raise ModelError(f"{file}: should be a JSON object of settings")
    return found
