"""What a tuned model brings along beside its numbers: how a new head's logits are read, and its size, and how texts are generated."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

# a config, a part or a map with the name of one of its settings, and the value for it
Settings = list[tuple[Any, str, Any]]
# values of settings of generation that are no objects of their own
PLAIN = (bool, int, float, str, list, type(None))


def config_of(model: nn.Module | None) -> dict[str, Any]:
    """Settings of a model of transformers that say how its logits are read."""
    if (config := getattr(model, "config", None)) is None:
        return {}
    padding = getattr(text_config(config), "pad_token_id", None)
    known = {name: getattr(config, name, None) for name in ("problem_type", "id2label")}
    return {"pad_token_id": padding if padding is None or padding >= 0 else None, **known}


def brought_along(config: Mapping[str, Any], labels: Sequence[str]) -> dict[str, Any]:
    """The settings that a head of these labels brings along from the config (see `config_of`) of the model that it is of."""
    # of a language model neither changes any logit
    known = {name: config[name] for name in ("pad_token_id", "problem_type") if labels and name in config}
    return known | (names_of_labels(labels) if labels and config else {})


def names_of_labels(labels: Sequence[str]) -> dict[str, Any]:
    """The labels of a new head by a config as JSON has it, in the order of its logits."""
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def as_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """What was `brought_along` as transformers takes it: labels by whole numbers."""
    names = config.get("id2label")
    return (
        {**config} if names is None else {**config, "id2label": {int(number): name for number, name in names.items()}}
    )


def generation_changes(before: object, after: object) -> dict[str, Any]:
    """The settings by which a tuned model generates otherwise, such as its end tokens, of two generation configs or models' lack of them."""
    if before is None or after is None:
        return {}
    old, new = (one.to_dict() for one in (before, after))
    names = [name for name in new if not name.startswith("_") and name != "transformers_version"]
    return {name: new[name] for name in names if new[name] != old.get(name) and isinstance(new[name], PLAIN)}


def put_settings(model: nn.Module, config: Mapping[str, Any], generation: Mapping[str, Any]) -> None:
    """Give a model that has another head now what was `brought_along` with it, and the settings of generation that changed."""
    _put(_settings(model, config, generation))


@contextmanager
def with_settings(model: nn.Module, config: Mapping[str, Any], generation: Mapping[str, Any]) -> Iterator[None]:
    """`put_settings` inside `with`; afterwards they are as before."""
    settings = _settings(model, config, generation)
    before = [(owner, name, getattr(owner, name, None)) for owner, name, _ in settings]
    try:
        _put(settings)
        yield
    finally:
        _put(before)


def text_config(config: "PreTrainedConfig") -> "PreTrainedConfig":
    """The part of a config that is about texts, which may be the config itself."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _settings(model: nn.Module, config: Mapping[str, Any], generation: Mapping[str, Any]) -> Settings:
    """What changes: a classifier reads the number of padding in the config of texts, and its loss the number of labels in itself."""
    options, settings = as_options(config), Settings()
    if (own := getattr(model, "config", None)) is not None:
        settings += [(own, name, value) for name, value in options.items()]
        settings += [(text_config(own), name, value) for name, value in options.items() if name == "pad_token_id"]
    if (own := getattr(model, "generation_config", None)) is not None:
        settings += [(own, name, value) for name, value in generation.items() if name in vars(own)]
    for part in model.modules():
        if "id2label" in options and isinstance(vars(part).get("num_labels"), int):
            settings.append((part, "num_labels", len(options["id2label"])))
        if isinstance(part, nn.Linear) and isinstance(weight := part._parameters.get("weight"), nn.Parameter):
            sizes = dict(zip(("out_features", "in_features"), weight.shape, strict=False)) if weight.dim() == 2 else {}
            settings += [(part, name, size) for name, size in sizes.items() if getattr(part, name) != size]
    return settings


def _put(settings: Settings) -> None:
    for owner, name, value in settings:
        setattr(owner, name, value)
