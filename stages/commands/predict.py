"""predict: the probability of each label for texts, by a patch on its base model or by the folder of a whole classifier.

python -m stages.commands.predict movies "A warm and funny film." --base models/pretrained

A language model's patch needs the prompt that `python -m stages.commands.patch` notes in it.
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from tabulate import tabulate

from skill_grafting.checkpoints.comparing import MULTI_LABEL, ONE_LABEL, labels_of, mode_of
from skill_grafting.checkpoints.files import Checkpoint
from skill_grafting.checkpoints.folders import CONFIG, find_checkpoint
from skill_grafting.models.loading import classes, load_model, load_tokenizer
from skill_grafting.models.probing import most_tokens
from skill_grafting.patches.patch_file import PatchContent, read_patch
from skill_grafting.patches.placing import load_base, put_on
from skill_grafting.support.command import guarded
from skill_grafting.support.errors import DataError, MaskError, ModelError, plain_problem, printable
from skill_grafting.support.formatting import percent
from stages.commands.patch import Notes
from stages.text.models.label_model import LabelModel
from stages.text.models.predicting import predict
from stages.text.tasks.runtime import best_runtime
from stages.text.tasks.tasks import TaskSpec
from stages.workflow.stage import paths

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# of a model without a limit of its own
MOST_TOKENS = 512


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and print a row for each text."""
    about = "The probability of each label for texts."
    parser = argparse.ArgumentParser(prog="python -m stages.commands.predict", description=about)
    parser.add_argument("folder", type=Path, help="a patch, or a whole classifier")
    parser.add_argument("texts", nargs="+", metavar="TEXT")
    parser.add_argument("--second", nargs="+", default=[], metavar="TEXT", help="the second texts of pairs, in order")
    parser.add_argument("--base", default=str(paths.PRETRAINED), help="base model of a patch; default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    asked = parser.parse_args(argv)
    if asked.second and len(asked.second) != len(asked.texts):
        raise DataError(f"--second: {len(asked.second)} texts for {len(asked.texts)} first ones")
    whole = (asked.folder / CONFIG).is_file()
    model = _classifier(asked.folder) if whole else _patched(asked.folder, read_patch(asked.folder), asked.base)
    facts = _facts(model, asked.texts, asked.second)
    print(json.dumps(facts, indent=2) if asked.json else printable(_table(facts)))


def _patched(folder: Path, patch: PatchContent, base: str) -> LabelModel:
    """The base model with a patch on it; labels are those of its head, or words by the prompt in its notes."""
    known = Notes.of(patch)
    mode = next((mode for mode, names in classes().items() if patch.use.model_class in names.values()), None)
    labels = [*known.prompt.verbalizer] if known.prompt else patch.use.labels
    if not labels or mode is None or (mode == "standard") != (known.prompt is None):
        raise MaskError(
            f"{folder}: has no labels to choose among, and no prompt in its notes that says how words are read"
        )
    place, _ = find_checkpoint(base)
    model = put_on(patch, load_base(patch, place), f"the model in {place}")
    return _reading(folder, model, load_tokenizer(place), mode, labels, known)


def _classifier(folder: Path) -> LabelModel:
    """A whole classifier, with its own labels."""
    checkpoint = Checkpoint.open(str(folder))
    if mode_of(checkpoint) != "standard":
        raise ModelError(f"{folder}: is no classifier; of a language model give the patch, whose notes have the prompt")
    labels = labels_of(checkpoint)
    return _reading(folder, load_model(folder, "standard", labels), load_tokenizer(folder), "standard", labels, Notes())


def _reading(
    folder: Path,
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    mode: str,
    labels: list[str],
    known: Notes,
) -> LabelModel:
    """The model as it reads these labels; raises ModelError where its logits are no labels'."""
    kind = getattr(model.config, "problem_type", None) if mode == "standard" else None
    if kind not in (None, ONE_LABEL, MULTI_LABEL):
        raise ModelError(f"{folder}: its logits are numbers and no labels' (problem_type {kind})")
    try:
        task = TaskSpec.read_as(folder.name, labels, mode, known.prompt)
    except ValidationError as error:
        raise ModelError(f"{folder}: {plain_problem(error.errors()[0], 'its', TaskSpec)}") from None
    longest = known.max_length or min(tokenizer.model_max_length, MOST_TOKENS, most_tokens(model) or MOST_TOKENS)
    return LabelModel(model, tokenizer, task, mode, longest, best_runtime())


def _facts(model: LabelModel, texts: list[str], second: list[str]) -> list[dict[str, Any]]:
    """For each text the probability of each label, and the most probable one, or all that are likely where each is true or not."""
    labels, pairs = model.task.labels, zip(texts, second or [None] * len(texts), strict=True)
    # the label is not looked at
    examples = model.encode([{"sentence1": text, "sentence2": other, "label": labels[0]} for text, other in pairs])
    logits = predict(model, examples).double()
    several = model.mode == "standard" and model.model.config.problem_type == MULTI_LABEL
    facts = []
    for text, row in zip(texts, (logits.sigmoid() if several else logits.softmax(1)).tolist(), strict=True):
        shares = dict(zip(labels, row, strict=True))
        likely = [label for label, share in shares.items() if share >= 0.5] if several else max(shares, key=shares.get)
        facts.append({"text": text, "label": likely, "probabilities": shares})
    return facts


def _table(facts: list[dict[str, Any]]) -> str:
    header = ["label", *(f"{label} (%)" for label in facts[0]["probabilities"]), "text"]
    named = [one["label"] if isinstance(one["label"], str) else ", ".join(one["label"]) or "none" for one in facts]
    rows = [
        [name, *map(percent, one["probabilities"].values()), one["text"]]
        for name, one in zip(named, facts, strict=True)
    ]
    return tabulate(rows, header, "plain", disable_numparse=True)


if __name__ == "__main__":
    guarded("predict", main)
