"""graft: find the patch between two checkpoints, look inside it, try it, and hand it on.

No command overwrites a file.
"""

import argparse
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, get_args

from .. import __version__
from ..support.command import USER_MISTAKE, guarded
from ..support.errors import did_you_mean, printable
from ..support.fields import GROUPS, Mode

# command, a function that gives what is printed -> what it does
COMMANDS = {
    "localize": "Make a patch from two checkpoints, whoever fine-tuned them.",
    "diff": "Make the patch of all that differs between two checkpoints, bit for bit.",
    "apply": "Put a patch onto its base model and save the result; any other model is refused.",
    "export": "Write a patch as an adapter of peft.",
    "merge": "Merge several checkpoints of one base, as a recipe in the form of mergekit says.",
    "inspect": "Show how large a mask is and where its parameters lie.",
}
# command -> its module, if it has another name
MODULES = {"export": "adapter"}
MODES = get_args(Mode)
# the methods that look at weights alone
METHODS = ("bias", "lota", "magnitude", "movement", "random")


class Parser(argparse.ArgumentParser):
    """Whose complaints are one line."""

    def error(self, message: str) -> NoReturn:
        """Leave with it."""
        self.exit(USER_MISTAKE, f"{self.prog}: {message.removeprefix('argument ')}\n")


def share(text: str) -> float:
    """A number above 0 and at most 1."""
    with suppress(ValueError):
        if 0 < float(text) <= 1:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text} should be a number above 0 and at most 1")


def whole(text: str) -> int:
    """A whole number, at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} should be a whole number, at least 0")
    return int(text)


def one_of(names: Collection[str]) -> Callable[[str], str]:
    """One of these names; the nearest is told."""

    def name(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(names)}{did_you_mean(text, names)}")
        return text

    return name


TO: dict[str, Any] = {"--to": {"type": Path, "required": True, "help": "folder to write, new or empty"}}
MASK: dict[str, Any] = {"mask": {"type": Path, "help": "a file of a mask, or the folder or file of a patch"}}
PATCH: dict[str, Any] = {"patch": {"type": Path, "help": "the folder or file of a patch"}}
BASE: dict[str, Any] = {"--base": {"required": True, "help": "base model, a folder or hub id"}}
JSON: dict[str, Any] = {"--json": {"dest": "as_json", "action": "store_true", "help": "print JSON instead of a table"}}
COMPACT: dict[str, Any] = {
    "--compact": {"action": "store_true", "help": "write a smaller file, which only this package reads"}
}
ARGUMENTS: dict[str, dict[str, dict[str, Any]]] = {
    "localize": {
        "--base": {"required": True, "help": "pretrained checkpoint, a folder or hub id"},
        "--finetuned": {"required": True, "help": "checkpoint that was fine-tuned from it, a folder or hub id"},
        **TO,
        "--sparsity": {"type": share, "nargs": "+", "default": [1e-4],
            "help": "share of the graftable parameters to select; default: 0.0001; several sizes give a folder each"},
        "--localizer": {"type": one_of(METHODS), "default": "movement", "metavar": "NAME",
            "help": f"method that selects the parameters: {', '.join(METHODS)}; default: %(default)s; those that take gradients are for Python"},
        "--region": {"type": one_of((*GROUPS, "all")), "nargs": "+", "default": [], "metavar": "GROUP",
            "help": f"groups of parameters that may be selected: {', '.join(GROUPS)}, or all; default: all that moved except heads, tables of "
            "embeddings, output embeddings and poolers"},
        "--mode": {"type": one_of(MODES), "metavar": "MODE",
            "help": f"how labels are read: {', '.join(MODES)}; default: as the fine-tuned checkpoint was saved"},
        "--revision": {"help": "commit, tag or branch of the base model on the hub"},
        "--finetuned-revision": {"help": "commit, tag or branch of the fine-tuned model on the hub"},
        "--title": {"help": "what the patch is for; default: the name of the fine-tuned checkpoint"},
        **COMPACT,
        "--seed": {"type": whole, "default": 0, "help": "random seed of the method; default: %(default)s"},
    },
    "diff": {
        **BASE,
        "--finetuned": {"required": True, "help": "checkpoint that came out of it, a folder or hub id"},
        **TO,
        "--revision": {"help": "commit, tag or branch of the base model on the hub"},
        "--finetuned-revision": {"help": "commit, tag or branch of the other one on the hub"},
        "--title": {"help": "what the patch is for; default: the name of the fine-tuned checkpoint"},
        **COMPACT,
    },
    "apply": {**PATCH, **BASE, **TO},
    "export": {
        **PATCH,
        "--leave-out": {"action": "store_true", "help": "leave biases and embeddings, which an adapter can't hold, as pretrained"},
        **BASE,
        **TO,
    },
    "merge": {
        "recipe": {"type": Path, "help": "a YAML file with merge_method, base_model and models with their weight and density"},
        **TO,
        "--seed": {"type": whole, "default": 0, "help": "random seed of the draws of DARE and DELLA; default: %(default)s"},
    },
    "inspect": {**MASK, **JSON},
}  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and run its command."""
    arguments = vars(_parser().parse_args(argv))
    command = arguments.pop("command")
    guarded(f"graft {command}", partial(_run, command, **arguments))


def _run(command: str, /, **arguments: Any) -> None:
    """Print what a command gives."""
    print(printable(getattr(import_module(f".{MODULES.get(command, command)}", __package__), command)(**arguments)))


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
