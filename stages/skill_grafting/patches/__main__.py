"""graft: find the patch between two checkpoints, hand a graft to others, look inside it, try it.

Nothing is ever overwritten.
"""

import argparse
from collections.abc import Callable, Collection
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, get_args

from .. import __version__
from ..command import USER_MISTAKE, guarded
from ..errors import GraftError, did_you_mean, missing_package, printable
from ..fields import Column, Group, Mode
from ..localizers import NAMES

# command, a function in the module of its name, which gives what is printed -> what it does
COMMANDS = {
    "localize": "Make the patch between two checkpoints, whoever fine-tuned them.",
    "apply": "Put a patch onto its base model; another model is refused.",
    "export": "Write a mask of the pipeline as a patch, or either as an adapter of peft.",
    "inspect": "Show how large a mask is and where its parameters lie.",
    "predict": "Show how probable each label is for a text, by a patch on its base model or by a whole model.",
}
GROUPS, MODES, COLUMNS = get_args(Group), get_args(Mode), get_args(Column)
PRETRAINED = "models/pretrained"


class Parser(argparse.ArgumentParser):
    """Whose complaints are one line."""

    def error(self, message: str) -> NoReturn:
        """Leave with it."""
        self.exit(USER_MISTAKE, f"{self.prog}: {message.removeprefix('argument ')}\n")


def share(text: str) -> float:
    """A number above 0 and at most 1."""
    if not 0 < float(text) <= 1:
        raise argparse.ArgumentTypeError(f"{text} should be above 0 and at most 1")
    return float(text)


def at_least(least: int, text: str) -> int:
    """A whole number from the least one on."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text} should be a whole number, at least {least}")
    return int(text)


def pair(text: str, names: Collection[str] = ()) -> tuple[str, str]:
    """NAME=VALUE, of these names if there are some."""
    name, _, value = text.partition("=")
    if not name or not value:
        raise argparse.ArgumentTypeError(f"{text!r} should be NAME=VALUE")
    return one_of(names)(name) if names else name, value


def one_of(names: Collection[str]) -> Callable[[str], str]:
    """One of these names; the nearest is told."""

    def name(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(names)}{did_you_mean(text, names)}")
        return text

    return name


TO: dict[str, Any] = {"--to": {"type": Path, "required": True, "help": "new folder"}}
MASK: dict[str, Any] = {"mask": {"type": Path, "help": "mask file of the pipeline, or folder or file of a patch"}}
BASE: dict[str, Any] = {
    "--base": {"default": PRETRAINED, "help": "folder or hub id of the base model; default: %(default)s"}
}
JSON: dict[str, Any] = {"--json": {"dest": "as_json", "action": "store_true", "help": "for machines"}}
PAIRS: dict[str, Any] = {"type": pair, "nargs": "+", "action": "extend", "default": [], "metavar": "NAME=VALUE"}
ARGUMENTS: dict[str, dict[str, dict[str, Any]]] = {
    "localize": {
        "--base": {"required": True, "help": "pretrained checkpoint: a folder or a hub id"},
        "--finetuned": {"required": True, "help": "the same after fine-tuning, outside of this project or not"},
        **TO,
        "--sparsity": {"type": share, "nargs": "+", "default": [1e-4],
            "help": "selected / graftable parameters; default: 0.0001; of several each has a folder, beside curve.png"},
        "--localizer": {"type": one_of(NAMES), "default": "movement", "metavar": "NAME",
            "help": f"{', '.join(NAMES)}; default: %(default)s"},
        "--region": {"type": one_of(GROUPS), "nargs": "+", "default": [], "metavar": "GROUP",
            "help": f"groups that are graftable: {', '.join(GROUPS)}; default: all that moved but heads, tables of embeddings, output "
            "embeddings and poolers"},
        "--mode": {"type": one_of(MODES), "metavar": "MODE",
            "help": f"how labels are read: {', '.join(MODES)}; default: as the fine-tuned checkpoint was saved"},
        "--revision": {"help": "commit, tag or branch of the base model on the hub"},
        "--finetuned-revision": {"help": "the same of the fine-tuned one"},
        "--task": {"help": "what to call the task; default: the name of the fine-tuned checkpoint"},
        "--prompt": {"help": "template with {sentence1} and {mask}, of a language model"},
        "--verbalizer": {**PAIRS, "metavar": "LABEL=WORD", "help": "the word of each label in the prompt"},
        "--data": {"type": Path, "help": "labelled rows (.csv, .tsv, .jsonl) for localizers that take gradients, or, of --mode "
            "generative without --verbalizer, prompts and completions"},
        "--test": {"help": "rows to score on; default: a fifth of --data, by their text; none: no scores"},
        "--columns": {**PAIRS, "type": partial(pair, names=COLUMNS), "help": f"sentence1=TEXT: columns of other names than {', '.join(COLUMNS)}"},
        "--max-length": {"type": partial(at_least, 8), "help": "tokens of a text; default: what the model can read, at most 512"},
        "--set": {**PAIRS, "help": "settings of the localizer"},
        "--seed": {"type": partial(at_least, 0), "default": 0, "help": "of what a localizer draws; default: %(default)s"},
    },
    "apply": {
        "patch": {"type": Path, "help": "folder or file of a patch"},
        "--base": {"required": True, "help": "folder or hub id of the base model"},
        **TO,
    },
    "export": {
        **MASK,
        "--as": {"dest": "form", "choices": ("patch", "peft"), "default": "patch", "help": "default: %(default)s"},
        "--leave-out": {"action": "store_true", "help": "leave as pretrained what an adapter can't hold: biases, embeddings"},
        **BASE,
        **TO,
    },
    "inspect": {**MASK, **JSON},
    "predict": {
        "folder": {"type": Path, "help": "patch or whole model"},
        "texts": {"nargs": "+", "help": "one or more"},
        "--second": {"nargs": "+", "default": [], "help": "of pairs: the second text of each"},
        **BASE,
        **JSON,
    },
}  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and run its command."""
    arguments = vars(_parser().parse_args(argv))
    command = arguments.pop("command")
    guarded(f"graft {command}", partial(_run, command, **arguments))


def _run(command: str, /, **arguments: Any) -> None:
    """Print what a command gives; one clear line in place of a traceback where a package is missing."""
    try:
        print(printable(getattr(import_module(f".{command}", __package__), command)(**arguments)))
    except ModuleNotFoundError as error:
        raise GraftError(
            f"needs the package {missing_package(error)}, which is not installed; pip install it"
        ) from error


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="graft", description=__doc__)
    parser.add_argument("--version", action="version", version=f"graft {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command, does in COMMANDS.items():
        one = commands.add_parser(command, help=does, description=does)
        one.set_defaults(command=command)
        for name, details in ARGUMENTS[command].items():
            one.add_argument(name, **details)
    return parser


if __name__ == "__main__":
    main()
