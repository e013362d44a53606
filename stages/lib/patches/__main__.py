"""graft: hand a graft to others, look inside it, compare two, put several together.

    graft export  MASK --to FOLDER [--as model|patch|peft|delta|sparse-delta] [--task TASK] [--base FOLDER]
    graft apply   PATCH --base FOLDER --to FOLDER
    graft inspect MASK [--base FOLDER] [--picture FILE] [--json]
    graft diff    MASK MASK [--json]
    graft localize --base MODEL --finetuned MODEL --to FOLDER [--sparsity SHARE] [--localizer NAME] [--data ROWS] ...
    graft push    PATCH --to OWNER/NAME [--private]
    graft pull    OWNER/NAME --to FOLDER [--revision NAME]
    graft compose MASK MASK ... --to FILE [--rule mean|sum|sequence|largest] [--base FOLDER]

MODEL is a folder or a hub id.  MASK is a mask file of the pipeline, or a patch (its folder or its file).  Nothing is ever overwritten.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from .. import paths
from ..entry import guarded
from ..merging.names import MEAN, RULES
from .extras import with_extras
from .localize_options import LOCALIZE
from .locations import COMMAND, FORMS, MODEL


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and do what it says."""
    arguments = vars(_parser().parse_args(argv))
    command = arguments.pop("command")
    guarded(f"graft {command.__name__}", with_extras(command), **arguments)


def export(mask: Path, to: Path, form: str, task: str | None, base: Path, leave_out: bool) -> None:
    """Write a graft as an ordinary Hugging Face folder, a patch of some kilobytes, an adapter for peft, or a difference."""
    from .export import export as write

    print(write(mask, form, task, base, to, leave_out))


def apply(patch: Path, base: Path, to: Path) -> None:
    """Put a patch onto its base model; another model is refused."""
    from .export import apply as write

    print(write(patch, base, to))


def inspect(mask: Path, base: Path | None, picture: Path | None, as_json: bool) -> None:
    """Say where the parameters of a mask lie, and which moved most."""
    from .inspect import inspect_mask

    facts = inspect_mask(mask, base)
    if picture:
        from .picture import draw

        draw(facts, picture)
    _show("inspect.txt.j2", facts, as_json)


def diff(first: Path, second: Path, as_json: bool) -> None:
    """Compare two masks: what they share, and where."""
    from .compare import compare

    _show("diff.txt.j2", compare(first, second), as_json)


def compose(masks: list[Path], rule: str, base: Path, to: Path) -> None:
    """Put several masks together into one."""
    from .compose import compose as write

    print(write(masks, rule, base, to))


def localize(**options: Any) -> None:
    """Make the patch between two checkpoints, whoever fine-tuned them."""
    from .localize import Request
    from .localize import localize as write

    print(write(Request(**options)))


def push(patch: Path, to: str, private: bool) -> None:
    """Put a patch onto the hub, with its card."""
    from .hub import push as write

    print(write(patch, to, private))


def pull(name: str, to: Path, revision: str | None) -> None:
    """Fetch a patch from the hub, checked before it gets its name."""
    from .hub import pull as write

    print(write(name, to, revision))


def _show(template: str, facts: dict[str, Any], as_json: bool) -> None:
    from .format import render

    print(json.dumps(facts, indent=2) if as_json else render(template, facts=facts))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=COMMAND,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    file = {"type": Path, "help": "mask file or patch"}
    base = {"--base": {"type": Path, "default": paths.PRETRAINED, "help": f"default: {paths.PRETRAINED}"}}
    to = {"--to": {"type": Path, "required": True, "help": "must not exist yet"}}
    as_json = {"--json": {"dest": "as_json", "action": "store_true", "help": "for machines"}}
    form = {"dest": "form", "choices": FORMS, "default": MODEL, "help": f"default: {MODEL}"}
    task = {"help": "which one, if the mask serves several"}
    rule = {"choices": RULES, "default": MEAN}
    rule["help"] = f"what parameters become that several masks select; default: {MEAN}"
    leave_out = {"action": "store_true", "help": "leave as pretrained what a peft adapter can't hold: biases"}
    foreign = {"type": Path, "required": True, "help": "any Hugging Face folder of the base model"}
    known = {"type": Path, "help": f"default: {paths.PRETRAINED}, if it is the mask's"}
    picture = {"type": Path, "help": "also draw it, as a PNG"}
    there = {"required": True, "metavar": "OWNER/NAME", "help": "a model repository of the hub; made if it isn't there"}
    private = {"action": "store_true", "help": "if it is made, nobody else can see it"}
    revision = {"help": "branch, tag or commit; default: the newest"}
    options: dict[Any, dict[str, dict[str, Any]]] = {
        export: {"mask": file, "--as": form, "--task": task, "--leave-out": leave_out} | base | to,
        apply: {"patch": {"type": Path, "help": "folder or file of a patch"}, "--base": foreign} | to,
        inspect: {"mask": file, "--picture": picture} | as_json | {"--base": known},
        diff: {"first": file, "second": file} | as_json,
        push: {"patch": {"type": Path, "help": "folder of a patch"}, "--to": there, "--private": private},
        pull: {"name": {"metavar": "OWNER/NAME"}, **to, "--revision": revision},
        compose: {"masks": {**file, "nargs": "+"}, "--rule": rule} | base | to,
        localize: LOCALIZE,
    }
    for function, arguments in options.items():
        command = commands.add_parser(function.__name__, help=function.__doc__, description=function.__doc__)
        command.set_defaults(command=function)
        for name, details in arguments.items():
            command.add_argument(name, **details)
    return parser


if __name__ == "__main__":
    main()
