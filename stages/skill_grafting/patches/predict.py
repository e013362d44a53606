"""predict: the probability of each label for texts, by a patch or by a whole model that was exported."""

import json
from pathlib import Path

from tabulate import tabulate

from ..errors import DataError, ModelError
from ..models import predicting
from ..models.checkpoints import Checkpoint, labels_of, mode_of
from ..models.folders import CONFIG, find_checkpoint
from ..models.label_model import LabelModel
from ..models.loading import load_model, load_tokenizer
from ..models.probing import most_tokens
from ..words import percent
from .live import load_base, put_on
from .localize_data import best_device, longest_text
from .patch_file import read_patch, task_of


def predict(folder: Path, texts: list[str], second: list[str], base: str, as_json: bool) -> str:
    """The probability of each label for each text, by a whole model's folder, or by that of a patch on its base model.

    `second` are the second sentences of pairs, or none.  Raises ModelError for a folder that has no labels to choose among:
    that of a language model, whose patch has the prompt, or of completions.
    """
    if second and len(second) != len(texts):
        raise DataError(f"--second: {len(second)} texts for {len(texts)} first ones")
    model = _whole(folder) if (folder / CONFIG).is_file() else _patched(folder, base)
    labels = model.task.labels
    rows = [
        {"sentence1": text, "sentence2": other, "label": labels[0]}  # the label is not looked at
        for text, other in zip(texts, second or [None] * len(texts), strict=True)
    ]
    shares = predicting.predict(model, model.encode(rows)).double().softmax(1).tolist()
    found = [dict(zip(labels, row, strict=True)) for row in shares]
    facts = [
        {"text": text, "label": max(row, key=row.get), "probabilities": row}
        for text, row in zip(texts, found, strict=True)
    ]
    if as_json:
        return json.dumps(facts, indent=2)
    lines = [[fact["label"], *map(percent, fact["probabilities"].values()), fact["text"]] for fact in facts]
    return tabulate(lines, ["label", *(f"{label} (%)" for label in labels), "text"], "plain", disable_numparse=True)


def _patched(folder: Path, base: str) -> LabelModel:
    """The base model with a patch on it, whose metadata defines how its labels are read."""
    patch = read_patch(folder)
    use = patch.use
    if not use.labels or patch.stored.about.get("mode") == "generative":
        raise ModelError(f"{patch.path}: completes texts and has no labels to choose among")
    place, _ = find_checkpoint(base)
    task = task_of(use.task, use.title, use.labels, use.mode, use.prompt)
    model, tokenizer = put_on(load_base(place, patch)), load_tokenizer(place)
    return LabelModel(model, tokenizer, task, use.mode, use.max_length, best_device())


def _whole(folder: Path) -> LabelModel:
    """A classifier with its own labels."""
    checkpoint, tokenizer = Checkpoint.open(str(folder)), load_tokenizer(folder)
    if mode_of(checkpoint) != "standard":
        raise ModelError(
            f"{folder}: is no classifier; of a language model give the patch, which has prompt and label words"
        )
    labels = labels_of(checkpoint)
    model = load_model(folder, "standard", labels)
    task, length = task_of(folder.name, folder.name, labels, "standard"), longest_text(tokenizer, most_tokens(model))
    return LabelModel(model, tokenizer, task, "standard", length, best_device())
