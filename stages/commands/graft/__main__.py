"""graft: hand a graft to others, look inside it, compare two, put several together.

    python -m stages.commands.graft export  MASK --to FOLDER [--as model|patch] [--task TASK] [--base FOLDER]
    python -m stages.commands.graft apply   PATCH --base FOLDER --to FOLDER
    python -m stages.commands.graft inspect MASK [--base FOLDER] [--picture FILE] [--json]
    python -m stages.commands.graft diff    MASK MASK [--json]
    python -m stages.commands.graft compose MASK MASK ... --to FILE [--rule mean|sum|sequence|largest] [--base FOLDER]

MASK is a mask file of the pipeline, or a patch (its folder or its file).  Nothing is ever overwritten.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stages.commands.graft.locations import FORMS, MODEL
from stages.lib import paths
from stages.lib.entry import guarded
from stages.lib.merging.names import MEAN, RULES


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and do what it says."""
    arguments = vars(_parser().parse_args(argv))
    command = arguments.pop("command")
    guarded(f"graft {command}", COMMANDS[command], **arguments)


def export(mask: Path, to: Path, form: str, task: str | None, base: Path) -> None:
    """Write a graft as an ordinary Hugging Face folder, or as a patch of some kilobytes."""
    from stages.commands.graft import export as handing
    from stages.lib.params import load_params

    print(handing.export(mask, form, task, base, load_params("model.max_length").model.max_length, to))


def apply(patch: Path, base: Path, to: Path) -> None:
    """Put a patch onto its base model; another model is refused."""
    from stages.commands.graft import export as handing

    print(handing.apply(patch, base, to))


def inspect(mask: Path, base: Path | None, picture: Path | None, as_json: bool) -> None:
    """Say where the parameters of a mask lie, and which moved most."""
    from stages.commands.graft.format import render
    from stages.commands.graft.inspect import inspect_mask

    facts = inspect_mask(mask, base)
    if picture:
        from stages.commands.graft.picture import draw

        draw(facts, picture)
    print(json.dumps(facts, indent=2) if as_json else render("inspect.txt.j2", facts=facts))


def diff(first: Path, second: Path, as_json: bool) -> None:
    """Compare two masks: what they share, and where."""
    from stages.commands.graft.compare import compare
    from stages.commands.graft.format import render

    facts = compare(first, second)
    print(json.dumps(facts, indent=2) if as_json else render("diff.txt.j2", facts=facts))


def compose(masks: list[Path], rule: str, base: Path, to: Path) -> None:
    """Put several masks together into one."""
    from stages.commands.graft.compose import compose as compose_masks

    print(compose_masks(masks, rule, base, to))


COMMANDS: dict[str, Callable[..., None]] = {
    "export": export,
    "apply": apply,
    "inspect": inspect,
    "diff": diff,
    "compose": compose,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m stages.commands.graft",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    made: dict[str, Any] = {
        name: commands.add_parser(name, help=function.__doc__, description=function.__doc__)
        for name, function in COMMANDS.items()
    }
    for name, several in (("export", None), ("inspect", None), ("compose", "+")):
        made[name].add_argument("masks" if several else "mask", type=Path, nargs=several, help="mask file or patch")
    made["apply"].add_argument("patch", type=Path, help="folder or file of a patch")
    made["diff"].add_argument("first", type=Path, help="mask file or patch")
    made["diff"].add_argument("second", type=Path, help="mask file or patch")
    made["export"].add_argument("--as", dest="form", choices=FORMS, default=MODEL, help=f"default: {MODEL}")
    made["export"].add_argument("--task", help="which one, if the mask serves several")
    made["compose"].add_argument(
        "--rule", choices=RULES, default=MEAN, help=f"what parameters become that several masks select; default: {MEAN}"
    )
    made["inspect"].add_argument("--picture", type=Path, help="also draw it, as a PNG")
    for name in ("inspect", "diff"):
        made[name].add_argument("--json", dest="as_json", action="store_true", help="for machines")
    _bases(made)
    for name in ("export", "apply", "compose"):
        made[name].add_argument("--to", type=Path, required=True, help="must not exist yet")
    return parser


def _bases(made: dict[str, Any]) -> None:
    made["apply"].add_argument("--base", type=Path, required=True, help="any Hugging Face folder of the base model")
    for name in ("export", "compose"):
        made[name].add_argument("--base", type=Path, default=paths.PRETRAINED, help=f"default: {paths.PRETRAINED}")
    made["inspect"].add_argument("--base", type=Path, help=f"default: {paths.PRETRAINED}, if it is the mask's")


if __name__ == "__main__":
    main()
