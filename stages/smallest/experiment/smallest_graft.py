"""The smallest graft of a cell that brings most of what fine-tuning gained, and the same graft in signs."""

from functools import partial

import numpy as np

from skill_grafting.data.encoding import Example
from skill_grafting.grafting.apply import graft
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.readout import signs
from skill_grafting.localizers.evidence import counted
from skill_grafting.localizers.registry import Budget, find_mask, localizer_of
from skill_grafting.metrics.gain import gained, relative_gain
from skill_grafting.metrics.predictions import Predictions, read_predictions
from skill_grafting.metrics.scores import Row, own_scores, score_rows
from skill_grafting.metrics.variants import FINETUNED, GRAFTED, PRETRAINED, SIGNS
from skill_grafting.models.evaluation import Evaluation
from skill_grafting.models.predicting import predict
from skill_grafting.progress import progress
from skill_grafting.runtime import Runtime
from skill_grafting.settings import Params
from stages.smallest.experiment.bisection import most_looks, smallest_enough
from stages.smallest.experiment.code_length import SCALE_BITS, code_bits
from stages.workflow.core import paths
from stages.workflow.core.cells import GraftCell, evidence_of
from stages.workflow.core.evaluation.study_cell import train_set, write_record
from stages.workflow.core.stored import read_test_sets


def search(name: str, task: str, seed: int, params: Params, machine: Runtime) -> str:
    """Store the size of a cell's smallest graft that is enough on dev, and its predictions; returns a line for the log.

    If no size is enough, or fine-tuning gained too little on dev, the largest is measured.
    """
    cell = GraftCell.open(task, seed, params.model, params.graft.region, machine)
    settings, own, least = params.smallest, getattr(params.localizer, name), params.summary.least_gain
    train, dev, examples = cell.rows("train"), cell.model.encode(cell.rows("dev")), []
    evidence = counted(evidence_of(cell, name, train, cell.rows("dev")), len(train), examples.append)
    localizer, budget = localizer_of(name), Budget.of(cell.region, settings.largest, "top_k", "smallest.largest")
    order = localizer.rank(evidence, own, budget.k)
    largest = budget.k if localizer.refine else min(budget.k, len(order))
    ends, asked, best = _dev_scores(cell), {}, []
    worth_it, find = gained(*ends.values(), least), partial(find_mask, name, evidence, own, order=order)
    with progress(f"search {name} {task}-{seed}", most_looks(largest, settings.precision), "graft") as bar:

        def enough(size: int) -> bool:
            mask = find(Budget(size)).mask
            evidence.put_graft(mask)
            asked[size] = relative_gain(_score(cell, dev), *ends.values(), least)
            bar.update(1)
            # the last one that is enough will be the smallest; finding it again might give another mask
            if size == largest or asked[size] >= settings.gain:
                best[:] = [mask]
            return asked[size] >= settings.gain

        found = smallest_enough(enough, largest, settings.precision) if worth_it else None
    [mask] = best or [find(Budget(largest)).mask]
    predictions = _predict(cell, mask, f"measure {name} {task}-{seed}")
    record = {
        "localizer": name, "selected": mask.selected, "largest": largest, "enough": found is not None if worth_it else None,
        "dev": {"n": len(dev), **ends}, "gradient_examples": sum(examples),
        "asked": [{"selected": size, "gain": gain} for size, gain in sorted(asked.items())],
        "tensors": len(mask.indices), "bits": _bits(cell, mask),
    }  # fmt: skip
    rows = _scores(cell, predictions, params.calibration.bins)
    write_record("search", (name,), {**cell.about(), **record}, predictions, rows)
    return f"search {name} {task}-{seed}: {_in_words(found, largest, worth_it)}"


def _bits(cell: GraftCell, mask: GraftMask) -> float:
    """Length of the code of a graft in signs; a new head is trained too, so its values are part of it."""
    head = sum(values.numel() for values in cell.head.values())
    return code_bits(mask.selected, cell.region.size, len(mask.indices)) + SCALE_BITS * head


def _in_words(found: int | None, largest: int, worth_it: bool) -> str:
    if not worth_it:
        return "fine-tuning gained too little on dev"
    return f"{found:,} parameters are enough" if found else f"{largest:,} parameters are not enough"


def _dev_scores(cell: GraftCell) -> dict[str, float]:
    stored = read_predictions(paths.predictions("reference", cell.task, cell.seed), dev=True)
    scores = own_scores(stored, cell.task, cell.model.task)
    return {name: scores[name]["score"] for name in (PRETRAINED, FINETUNED)}


def _score(cell: GraftCell, examples: list[Example]) -> float:
    """Score of the model as it is now."""
    name, labels = cell.task, np.array([example.label for example in examples])
    logits = predict(cell.model, examples).numpy()
    predictions = Predictions(cell.model.task.labels, {name: labels}, {name: {GRAFTED: logits}})
    return own_scores(predictions, name, cell.model.task)[GRAFTED]["score"]


def _predict(cell: GraftCell, mask: GraftMask, title: str) -> Predictions:
    """The graft of a mask, and the same in signs, on the cell's own test rows and on its training rows."""
    sets = {cell.task: read_test_sets(cell.task, cell.seed)[cell.task], train_set(cell.task): cell.rows("train")}
    evaluation = Evaluation(cell.model, sets, variants=2)
    with evaluation.progress(title):
        for variant, make in ((GRAFTED, graft), (SIGNS, signs)):
            cell.model.put({**make(cell.pretrained, cell.finetuned, mask), **cell.head})
            evaluation.predict(variant)
    return evaluation.predictions()


def _scores(cell: GraftCell, predictions: Predictions, bins: int) -> list[Row]:
    """Scores on test rows, beside the pretrained and the fine-tuned model's, and on training rows."""
    reference = read_predictions(paths.predictions("reference", cell.task, cell.seed))
    both = predictions.part([cell.task]) | reference.part([cell.task], [PRETRAINED, FINETUNED])
    on_train = own_scores(predictions, train_set(cell.task), cell.model.task)
    train = [{"test_set": train_set(cell.task), "variant": name, **scores} for name, scores in on_train.items()]
    return score_rows(both, cell.model.task, bins) + train
