"""The grafted models of a cell, and the two controls for their calibration, fitted on dev rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import paths
from ..data.task_cards import read_task, read_test_sets
from ..graft.apply import graft, transplant
from ..graft.interpolate import wise_ft, wise_graft
from ..graft.mask_file import read_mask, require_model
from ..graft.order_file import read_order
from ..io import read_rows
from ..localizers.movement import movement_mask
from ..metrics.predictions import Predictions, dev_set, read_predictions, write_predictions
from ..metrics.temperature import temperature, tempered
from ..metrics.variants import FINETUNED, GRAFT_TEMPERED, GRAFTED, MOVEMENT_GRAFTED, TEMPERED, WISE_FT, WISE_GRAFT
from ..models.anatomy import read_anatomy
from ..models.label_model import LabelModel, reset_to_pretrained
from ..models.predicting import dev_score
from ..runtime import Runtime
from ..settings import Params
from .evaluation import Evaluation, cell_sets


@dataclass(frozen=True)
class Moved:
    """Everything that fine-tuning moved and that has pretrained values: both sets of them, and the live model."""

    model: LabelModel
    pretrained: dict[str, Tensor]
    finetuned: dict[str, Tensor]

    @classmethod
    def of(cls, model: LabelModel) -> "Moved":
        """Take a fine-tuned model, which is reset to its pretrained values, but for a new head."""
        anatomy = read_anatomy(paths.PRETRAINED)
        names, parameters = model.pretrained_names(anatomy), model.parameters()
        finetuned = {name: parameters[name].detach().clone() for name in names}
        pretrained = reset_to_pretrained(model, anatomy, paths.PRETRAINED, names)
        moved = [name for name in names if not torch.equal(pretrained[name], finetuned[name])]
        return cls(model, *({name: values[name] for name in moved} for values in (pretrained, finetuned)))

    def best_alpha(self, dev_rows: list[dict], alphas: list[float]) -> float:
        """The weight of the fine-tuned model with the best dev score, the first of equals (predicting.dev_score)."""
        dev = self.model.encode(dev_rows)

        def score(alpha: float) -> tuple[float, float]:
            self.model.put(wise_ft(self.pretrained, self.finetuned, alpha))
            return dev_score(self.model, dev)

        return max(alphas, key=score)


def predict_grafts(task: str, seed: int, params: Params, machine: Runtime) -> tuple[Evaluation, dict[str, Any]]:
    """Store what the grafts and the controls of a cell predict; gives the evaluation, and what the controls were fitted to.

    The fine-tuned model's temperature comes from the logits that `reference` stored.  Of completions there are none, so that
    it is fitted to the live model, and the graft's own, which calibration would fit, too.
    """
    model = LabelModel.load(paths.finetuned(task, seed), read_task(task), params.model, machine)
    evaluation, generative = Evaluation(model, cell_sets(task, seed), variants=3), model.mode == "generative"
    dev, fitted, degrees = dev_set(task), dict[str, float](), 1.0
    with evaluation.progress(f"evaluate {task}-{seed}"):
        if generative:
            degrees = evaluation.predict_tempered(TEMPERED, dev, read_test_sets(task, seed))
        moved = Moved.of(model)
        alpha = moved.best_alpha(read_rows(paths.sample(task, seed, "dev")), params.calibration.wise_alphas)
        model.put(wise_ft(moved.pretrained, moved.finetuned, alpha))
        evaluation.predict(WISE_FT)
        model.put(moved.pretrained)
        for variant, tensors, sets in grafts(moved, seed, params):
            model.put(tensors)
            evaluation.predict(variant, sets)
        if generative:
            fitted["graft_temperature"] = evaluation.predict_tempered(GRAFT_TEMPERED, dev, [task])
    predictions = evaluation.predictions()
    if not generative:
        degrees = _temper(predictions, paths.predictions("reference", task, seed), task)
    write_predictions(paths.predictions("evaluate", task, seed), predictions)
    return evaluation, {"temperature": degrees, "wise_alpha": alpha, **fitted}


def _temper(predictions: Predictions, reference: Path, task: str) -> float:
    """Put the fine-tuned model at one temperature beside the predictions, by its stored logits; gives the temperature."""
    dev = read_predictions(reference, dev=True)
    degrees = temperature(dev.logits[task][FINETUNED], dev.labels[task])
    for name, logits in tempered(read_predictions(reference), degrees).logits.items():
        predictions.logits[name].update(logits)
    return degrees


def grafts(moved: Moved, seed: int, params: Params) -> Iterator[tuple[str, dict[str, Tensor], list[str]]]:
    """Each grafted variant: its name, its region's tensors, and the sets that it is for if not for all.

    They come from a cell's stored mask and movement order; raises MaskError if those belong to another model.
    """
    task, anatomy = moved.model.task.name, read_anatomy(paths.PRETRAINED)
    region = anatomy.region(params.graft.region)
    pretrained = {name: moved.model.parameters()[name].detach().cpu().clone() for name in region.shapes}
    finetuned = {name: moved.finetuned.get(name, values).cpu() for name, values in pretrained.items()}
    stored, (order, origin) = read_mask(paths.learned(task, seed)), read_order(paths.movement(task, seed))
    fingerprint = region.fingerprint(pretrained)
    for path, about in ((paths.learned(task, seed), stored.about), (paths.movement(task, seed), origin)):
        require_model(path, about, region, fingerprint, anatomy.name)
    yield MOVEMENT_GRAFTED, graft(pretrained, finetuned, movement_mask(region, order, stored.mask.selected)), []
    for alpha in params.calibration.graft_alphas:
        yield f"{WISE_GRAFT}_{alpha}", wise_graft(pretrained, finetuned, stored.mask, alpha), [task]
    yield GRAFTED, transplant(pretrained, stored.values, stored.mask), []
