"""Options of `graft localize`: what each one means, its default and what is allowed, read without heavy libraries."""

from argparse import SUPPRESS, ArgumentParser
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from ..errors import ParamsError, did_you_mean, plain_problem
from ..localizers.names import NAMES
from ..settings import Group, Section, Share


def _localizer(name: str) -> str:
    if name not in NAMES:
        raise ValueError(f"one of {', '.join(NAMES)}{did_you_mean(name, NAMES)}")
    return name


def _table(items: list[str]) -> dict[str, str]:
    table = dict(item.partition("=")[::2] for item in items)
    if wrong := [item for item in items if not all(item.partition("="))]:
        raise ValueError(f"NAME=VALUE, which {' and '.join(map(repr, wrong))} is not")
    if len(table) < len(items):
        raise ValueError("one value for each name")
    return table


Column = Literal["sentence1", "sentence2", "label", "prompt", "completion"]


class LocalizeOptions(Section):
    """Each is an option of the command line, with dashes for underscores."""

    base: str = Field(description="pretrained checkpoint: a folder or a hub id")
    finetuned: str = Field(description="the same after fine-tuning, outside of this project or not")
    to: Path = Field(description="folder of the patch; must not exist yet")
    sparsity: list[Share] = Field(
        [1e-4],
        min_length=1,
        description="selected / graftable parameters; default: 0.0001; of several each has a patch in a folder of its own, beside "
        "curve.png",
    )
    localizer: Annotated[str, AfterValidator(_localizer)] = Field("movement", description=", ".join(NAMES))
    region: list[Group] = Field(
        ["layers"], description="groups that are graftable: layers, embeddings, pooler, lm_head; default: layers"
    )
    mode: Literal["standard", "prompt", "autoregressive", "generative"] | None = Field(
        None,
        description="how labels are read; default: as the fine-tuned checkpoint was saved (a causal model: autoregressive)",
    )
    revision: str | None = Field(None, description="commit, tag or branch of the base model on the hub")
    finetuned_revision: str | None = Field(None, description="the same of the fine-tuned one")
    task: str | None = Field(None, description="what to call the task; default: the name of the fine-tuned checkpoint")
    prompt: str | None = Field(None, description="template with {sentence1} and {mask}, of a language model")
    verbalizer: Annotated[dict[str, str], BeforeValidator(_table)] = Field(
        {}, description="LABEL=WORD for each label: its word in the prompt"
    )
    data: Path | None = Field(
        None,
        description="labelled rows (.csv, .tsv, .jsonl) for localizers that take gradients; of --mode generative without "
        "--verbalizer prompts and completions",
    )
    test: str | None = Field(
        None, description="rows to score on; default: a fifth of --data, by their text; none: no scores"
    )
    columns: Annotated[dict[Column, str], BeforeValidator(_table)] = Field(
        {},
        description="sentence1=TEXT label=KIND: columns of other names than sentence1, sentence2 and label (or prompt and completion)",
    )
    max_length: int | None = Field(
        None, ge=8, description="tokens of a text; default: what the model can read, at most 512"
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="of the live model that gradients are taken of: bfloat16 takes half, where both checkpoints are",
    )
    set: Annotated[dict[str, str], BeforeValidator(_table)] = Field(
        {}, description="NAME=VALUE: settings of the localizer"
    )
    seed: int = Field(0, ge=0, description="of what a localizer draws")

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> "LocalizeOptions":
        """The options with their defaults; raises ParamsError with all that is wrong with them."""
        try:
            return cls.model_validate(options)
        except ValidationError as error:
            problems = [{**one, "loc": (f"--{one['loc'][0].replace('_', '-')}",)} for one in error.errors()]
            raise ParamsError("; ".join(plain_problem(one, "", cls) for one in problems)) from None


def add_options(parser: ArgumentParser) -> None:
    """One for each field; what isn't given keeps its default."""
    hints = get_type_hints(LocalizeOptions)
    for name, field in LocalizeOptions.model_fields.items():
        kinds = {int, float, Path} & {hints[name], *get_args(hints[name])}
        several = {"nargs": "+", "action": "extend"} if get_origin(hints[name]) in (list, dict) else {}
        default = f"; default: {field.default}" if field.default and not (several or field.is_required()) else ""
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=kinds.pop() if kinds else str,
            required=field.is_required(),
            default=SUPPRESS,
            help=f"{field.description}{default}",
            **several,
        )
