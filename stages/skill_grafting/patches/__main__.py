"""graft: find the patch between two checkpoints, hand a graft to others, look inside it, try it.

MODEL is a folder or a hub id.  MASK is a mask file of the pipeline, or a patch (its folder or its file).  Nothing is ever overwritten.
"""

import argparse
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from ..command import guarded
from ..errors import GraftError, missing_package, printable
from .options import add_options
from .paths import FORMS, MODEL, PRETRAINED

# of the installed package: what the commands need beside
EXTRA = "localize"
# command -> module with the function of that name, which gives what is printed, and what it does
COMMANDS = {
    "export": (
        "export",
        "Write a graft as a Hugging Face folder, a patch of some kilobytes, or a peft adapter.",
    ),
    "apply": ("export", "Put a patch onto its base model; another model is refused."),
    "inspect": ("inspect", "Show where the parameters of a mask lie, and which moved most."),
    "predict": (
        "predict",
        "Show how probable each label is for a text, by a patch on its base model or by a whole model.",
    ),
    "localize": ("localize", "Make the patch between two checkpoints, whoever fine-tuned them."),
}
MASK = {"type": Path, "help": "mask file or patch"}
PATCH = {"type": Path, "help": "folder or file of a patch"}
TO = {"--to": {"type": Path, "required": True, "help": "must not exist yet"}}
BASE = {"--base": {"type": Path, "default": PRETRAINED, "help": f"default: {PRETRAINED}"}}
KNOWN = {"--base": {"type": Path, "help": f"default: {PRETRAINED}, if it is the mask's"}}
FOREIGN = {"--base": {"type": Path, "required": True, "help": "any Hugging Face folder of the base model"}}
JSON = {"--json": {"dest": "as_json", "action": "store_true", "help": "for machines"}}
FORM = {"--as": {"dest": "form", "choices": FORMS, "default": MODEL, "help": f"default: {MODEL}"}}
LEAVE_OUT = {
    "--leave-out": {
        "action": "store_true",
        "help": "leave as pretrained what a peft adapter can't hold: biases, embeddings",
    }
}
# those of localize stand in options.py
ARGUMENTS: dict[str, dict[str, dict[str, Any]]] = {
    "export": {"mask": MASK, **FORM, **LEAVE_OUT, **BASE, **TO},
    "apply": {"patch": PATCH, **FOREIGN, **TO},
    "inspect": {"mask": MASK, **JSON, **KNOWN},
    "predict": {
        "folder": {"type": Path, "help": "patch or whole model"},
        "texts": {"nargs": "+", "help": "one or more"},
        "--second": {"nargs": "+", "default": [], "help": "of pairs: the second text of each"},
        **BASE,
        **JSON,
    },
    "localize": {},
}


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and run its command."""
    arguments = vars(_parser().parse_args(argv))
    command = arguments.pop("command")
    guarded(f"graft {command}", partial(_run, command, **arguments))


def _run(command: str, /, **arguments: Any) -> None:
    """Print what a command gives; one clear line in place of a traceback where a package is missing."""
    try:
        print(printable(getattr(import_module(f".{COMMANDS[command][0]}", __package__), command)(**arguments)))
    except ModuleNotFoundError as error:
        raise GraftError(
            f"needs the package {missing_package(error)}, which is not installed; pip install 'skill-grafting[{EXTRA}]'"
        ) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="graft", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command, (_, does) in COMMANDS.items():
        one = commands.add_parser(command, help=does, description=does)
        one.set_defaults(command=command)
        for name, details in ARGUMENTS[command].items():
            one.add_argument(name, **details)
        if command == "localize":
            add_options(one)
    return parser


if __name__ == "__main__":
    main()
