"""predict: the probability of each label for texts, by a patch or by a whole model that was exported."""

import json
from pathlib import Path

from tabulate import tabulate

from ..errors import DataError, ModelError
from ..models import predicting
from ..models.checkpoints import MULTI_LABEL, ONE_LABEL, Checkpoint, labels_of, mode_of, mode_of_class
from ..models.folders import CONFIG, find_checkpoint
from ..models.label_model import LabelModel
from ..models.loading import load_model, load_tokenizer
from ..models.probing import most_tokens
from ..words import percent
from .patch import Patch
from .rows import best_device, longest_text, task_of


def predict(folder: Path, texts: list[str], second: list[str], base: str, as_json: bool) -> str:
    """The probability of each label for each text, by a whole model's folder, or by that of a patch on its base model.

    `second` are the second sentences of pairs, or none.  Raises ModelError for a folder that has no labels to choose among:
    that of a language model, whose patch has the prompt, or of completions.
    """
    if second and len(second) != len(texts):
        raise DataError(f"--second: {len(second)} texts for {len(texts)} first ones")
    model = _whole(folder) if (folder / CONFIG).is_file() else _patched(Patch.from_pretrained(folder), base)
    labels, pairs = model.task.labels, zip(texts, second or [None] * len(texts), strict=True)
    # the label is not looked at
    rows = [{"sentence1": text, "sentence2": other, "label": labels[0]} for text, other in pairs]
    logits, several = predicting.predict(model, model.encode(rows)).double(), _of_several(folder, model)
    shares = (logits.sigmoid() if several else logits.softmax(1)).tolist()
    found = [dict(zip(labels, row, strict=True)) for row in shares]
    facts = [
        {"text": text, "label": _likely(row) if several else max(row, key=row.get), "probabilities": row}
        for text, row in zip(texts, found, strict=True)
    ]
    if as_json:
        return json.dumps(facts, indent=2)
    lines = [[_shown(fact["label"]), *map(percent, fact["probabilities"].values()), fact["text"]] for fact in facts]
    return tabulate(lines, ["label", *(f"{label} (%)" for label in labels), "text"], "plain", disable_numparse=True)


def _of_several(folder: Path, model: LabelModel) -> bool:
    """Whether each label is true or not by itself; ModelError where logits are no labels' at all."""
    kind = getattr(model.model.config, "problem_type", None) if model.mode == "standard" else None
    if kind not in (None, ONE_LABEL, MULTI_LABEL):
        raise ModelError(f"{folder}: its logits are numbers and no labels' (problem_type {kind})")
    return kind == MULTI_LABEL


def _likely(shares: dict[str, float]) -> list[str]:
    return [label for label, share in shares.items() if share >= 0.5]


def _shown(label: str | list[str]) -> str:
    return label if isinstance(label, str) else ", ".join(label) or "none"


def _patched(patch: Patch, base: str) -> LabelModel:
    """The base model with a patch on it, whose metadata defines how its labels are read."""
    use, mode = patch.use, mode_of_class(patch.use.model_class)
    if not use.labels or mode is None:
        raise ModelError("the patch has no labels to choose among; `graft localize` takes --prompt and --verbalizer")
    folder, _ = find_checkpoint(base)
    tokenizer, task = load_tokenizer(folder), task_of(use.title, use.labels, mode, use.prompt)
    return LabelModel(patch.apply(folder), tokenizer, task, mode, use.max_length, best_device())


def _whole(folder: Path) -> LabelModel:
    """A classifier with its own labels."""
    checkpoint, tokenizer = Checkpoint.open(str(folder)), load_tokenizer(folder)
    if mode_of(checkpoint) != "standard":
        raise ModelError(
            f"{folder}: is no classifier; of a language model give the patch, which has prompt and label words"
        )
    model = load_model(folder, "standard", labels_of(checkpoint))
    task, length = task_of(folder.name, labels_of(checkpoint), "standard"), longest_text(tokenizer, most_tokens(model))
    return LabelModel(model, tokenizer, task, "standard", length, best_device())
