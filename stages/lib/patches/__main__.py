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
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from ..command import guarded
from ..errors import GraftError, missing_package
from ..merging.names import MEAN, RULES
from .locations import COMMAND, FORMS, MODEL, PRETRAINED

# of the installed package: what the commands need beside
EXTRA = "localize"
# command -> module with the function of that name, which gives what is printed, and what it does
COMMANDS = {
    "export": (
        "export",
        "Write a graft as an ordinary Hugging Face folder, a patch of some kilobytes, an adapter for peft, or a difference.",
    ),
    "apply": ("export", "Put a patch onto its base model; another model is refused."),
    "inspect": ("inspect", "Say where the parameters of a mask lie, and which moved most."),
    "diff": ("inspect", "Compare two masks: what they share, and where."),
    "push": ("hub", "Put a patch onto the hub, with its card."),
    "pull": ("hub", "Fetch a patch from the hub, checked before it gets its name."),
    "compose": ("compose", "Put several masks together into one."),
    "localize": ("localize", "Make the patch between two checkpoints, whoever fine-tuned them."),
}
# an option with several words, which may also be given several times
WORDS: dict[str, Any] = {"nargs": "+", "action": "extend"}
# options of `graft localize`, shown without loading what it takes to run
LOCALIZE: dict[str, dict[str, Any]] = {
    "--base": {"required": True, "help": "pretrained checkpoint: a folder or a hub id"},
    "--finetuned": {"required": True, "help": "the same after fine-tuning, outside of this project or not"},
    "--to": {"type": Path, "required": True, "help": "folder of the patch; must not exist yet"},
    "--sparsity": {"type": float, "default": 1e-4, "help": "selected / graftable parameters; default: 1e-4"},
    "--localizer": {
        "default": "movement",
        "help": "movement, attribution, grown, learned or another one (a wrong name is told them all); default: movement",
    },
    "--region": {**WORDS, "help": "layers, embeddings, pooler, lm_head; default: layers"},
    "--mode": {
        "help": "standard, prompt, autoregressive or generative; default: as the fine-tuned checkpoint was saved "
        "(a causal model: autoregressive)"
    },
    "--revision": {"help": "commit, tag or branch of the base model on the hub"},
    "--finetuned-revision": {"help": "the same of the fine-tuned one"},
    "--task": {"help": "what to call the task; default: the name of the fine-tuned checkpoint"},
    "--labels": {**WORDS, "help": "names of the labels in the order of the logits; default: those of its config"},
    "--prompt": {"help": "template with {sentence1} and {mask}, of a language model"},
    "--verbalizer": {**WORDS, "metavar": "LABEL=WORD", "help": "the word of each label in the prompt"},
    "--data": {
        "type": Path,
        "help": "labelled rows (.csv, .tsv, .jsonl) for localizers that take gradients; of --mode generative without "
        "--verbalizer prompts and completions",
    },
    "--test": {"help": "rows to score on; default: a fifth of --data, by their text; none: no scores"},
    "--sentence1": {"default": "sentence1", "help": "column of the text or prompt; default: sentence1 or prompt"},
    "--sentence2": {"default": "sentence2", "help": "column of a second text, if there is one; default: sentence2"},
    "--label": {
        "dest": "label_column",
        "default": "label",
        "help": "column of the label or completion; default: label or completion",
    },
    "--max-length": {"type": int, "help": "tokens of a text; default: what the model can read, at most 512"},
    "--batch-tokens": {
        "type": int,
        "default": 512,
        "help": "padded tokens of a batch, which memory grows with; default: 512",
    },
    "--dtype": {
        "default": "float32",
        "help": "of the live model that gradients are taken of: float32, or bfloat16 where both checkpoints are, in half the "
        "memory; default: float32",
    },
    "--set": {**WORDS, "dest": "changes", "metavar": "NAME=VALUE", "default": [], "help": "settings of the localizer"},
    "--seed": {"type": int, "default": 0, "help": "of what a localizer draws; default: 0"},
}


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and do what it says."""
    arguments = vars(_parser().parse_args(argv))
    command = arguments.pop("command")
    guarded(f"graft {command}", partial(_run, command), **arguments)


def _run(command: str, /, **arguments: Any) -> None:
    """Print what a command gives; one clear line in place of a traceback where a package is missing."""
    try:
        print(getattr(import_module(f".{COMMANDS[command][0]}", __package__), command)(**arguments))
    except ModuleNotFoundError as error:
        raise GraftError(
            f"needs the package {missing_package(error)}, which is not installed; pip install 'skill-grafting[{EXTRA}]'"
        ) from error


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__, formatter_class=raw)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    file = {"type": Path, "help": "mask file or patch"}
    base = {"--base": {"type": Path, "default": PRETRAINED, "help": f"default: {PRETRAINED}"}}
    to = {"--to": {"type": Path, "required": True, "help": "must not exist yet"}}
    as_json = {"--json": {"dest": "as_json", "action": "store_true", "help": "for machines"}}
    form = {"dest": "form", "choices": FORMS, "default": MODEL, "help": f"default: {MODEL}"}
    task = {"help": "which one, if the mask serves several"}
    rule = {"choices": RULES, "default": MEAN}
    rule["help"] = f"what parameters become that several masks select; default: {MEAN}"
    leave_out = {"action": "store_true", "help": "leave as pretrained what a peft adapter can't hold: biases"}
    foreign = {"type": Path, "required": True, "help": "any Hugging Face folder of the base model"}
    known = {"type": Path, "help": f"default: {PRETRAINED}, if it is the mask's"}
    picture = {"type": Path, "help": "also draw it, as a PNG"}
    there = {"required": True, "metavar": "OWNER/NAME", "help": "a model repository of the hub; made if it isn't there"}
    private = {"action": "store_true", "help": "if it is made, nobody else can see it"}
    revision = {"help": "branch, tag or commit; default: the newest"}
    options: dict[str, dict[str, dict[str, Any]]] = {
        "export": {"mask": file, "--as": form, "--task": task, "--leave-out": leave_out} | base | to,
        "apply": {"patch": {"type": Path, "help": "folder or file of a patch"}, "--base": foreign} | to,
        "inspect": {"mask": file, "--picture": picture} | as_json | {"--base": known},
        "diff": {"first": file, "second": file} | as_json,
        "push": {"patch": {"type": Path, "help": "folder of a patch"}, "--to": there, "--private": private},
        "pull": {"name": {"metavar": "OWNER/NAME"}, **to, "--revision": revision},
        "compose": {"masks": {**file, "nargs": "+"}, "--rule": rule} | base | to,
        "localize": LOCALIZE,
    }
    for command, arguments in options.items():
        does = COMMANDS[command][1]
        one = commands.add_parser(command, help=does, description=does)
        one.set_defaults(command=command)
        for name, details in arguments.items():
            one.add_argument(name, **details)
    return parser


if __name__ == "__main__":
    main()
