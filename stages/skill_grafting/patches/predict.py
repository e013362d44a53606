"""predict: the probability of each label for texts, by a patch or by a whole model that was exported."""

import json
from pathlib import Path

from tabulate import tabulate

from ..errors import DataError, ModelError
from ..models import predicting
from ..models.comparing import MULTI_LABEL, ONE_LABEL
from ..models.folders import CONFIG
from ..models.label_model import LabelModel
from ..words import percent
from .label_models import patched, whole
from .patch_file import read_patch


def predict(folder: Path, texts: list[str], second: list[str], base: str, as_json: bool) -> str:
    """The probability of each label for each text, by a whole model's folder, or by that of a patch on its base model.

    `second` are the second sentences of pairs, or none.  Raises ModelError for a folder that has no labels to choose among:
    that of a language model, whose patch has the prompt, or of completions.
    """
    if second and len(second) != len(texts):
        raise DataError(f"--second: {len(second)} texts for {len(texts)} first ones")
    model = whole(folder) if (folder / CONFIG).is_file() else patched(read_patch(folder), base)
    labels, pairs = model.task.labels, zip(texts, second or [None] * len(texts), strict=True)
    # the label is not looked at
    rows = [{"sentence1": text, "sentence2": other, "label": labels[0]} for text, other in pairs]
    logits, several = predicting.predict(model, model.encode(rows)).double(), _of_several(folder, model)
    facts, lines = [], []
    for text, row in zip(texts, (logits.sigmoid() if several else logits.softmax(1)).tolist(), strict=True):
        shares = dict(zip(labels, row, strict=True))
        likely = [label for label, share in shares.items() if share >= 0.5] if several else max(shares, key=shares.get)
        facts.append({"text": text, "label": likely, "probabilities": shares})
        lines.append([(", ".join(likely) or "none") if several else likely, *map(percent, row), text])
    if as_json:
        return json.dumps(facts, indent=2)
    return tabulate(lines, ["label", *(f"{label} (%)" for label in labels), "text"], "plain", disable_numparse=True)


def _of_several(folder: Path, model: LabelModel) -> bool:
    """Whether each label is true or not by itself; ModelError where logits are no labels' at all."""
    kind = getattr(model.model.config, "problem_type", None) if model.mode == "standard" else None
    if kind not in (None, ONE_LABEL, MULTI_LABEL):
        raise ModelError(f"{folder}: its logits are numbers and no labels' (problem_type {kind})")
    return kind == MULTI_LABEL
