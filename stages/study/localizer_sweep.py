"""Localizers on real models: the orders and the masks of the study."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from stages.lib import paths
from stages.lib.evaluation.study_cell import StudyCell, variant_rows, write_reading
from stages.lib.graft.apply import graft, values_at
from stages.lib.graft.mask_file import StoredMask, require_model, write_mask
from stages.lib.graft.order_file import read_order, write_order
from stages.lib.localizers.evidence import Evidence
from stages.lib.localizers.find_mask import find_mask
from stages.lib.localizers.registry import LOCALIZERS
from stages.lib.metrics.variants import GRAFTED
from stages.lib.models.evidence import draws, evidence_about
from stages.lib.progress import progress
from stages.lib.runtime import Runtime


class Counted:
    """Counts the training examples that a gradient was taken of, which is what a localizer costs."""

    def __init__(self, evidence: Evidence, train: int, batch_size: int) -> None:
        self.examples = 0
        self.evidence = replace(
            evidence,
            loss_gradient=self._counting(evidence.loss_gradient, lambda: min(train, batch_size)),
            full_gradient=self._counting(evidence.full_gradient, lambda: train),
            squared_gradients=self._counting(evidence.squared_gradients, lambda n, *_: min(n, train)),
        )

    def _counting(self, function: Callable[..., Any], examples: Callable[..., int]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self.examples += examples(*arguments)
            return function(*arguments)

        return counted


def rank(task: str, seed: int, params: Any, machine: Runtime) -> str:
    """Store the order of every localizer of the study for one cell; gives one line about them."""
    cell = StudyCell.open(task, seed, params.model, params.graft.region, machine)
    keep = cell.region.budget(params.movement.keep)
    about = _identity(cell)
    with progress(f"rank {task}-{seed}", len(params.sweep.localizers), "localizer") as bar:
        for name in params.sweep.localizers:
            counted = _evidence(cell, name, params.graft)
            order = LOCALIZERS[name].rank(counted.evidence, params.localizer, keep)
            header = {**about, "localizer": name, "gradient_examples": counted.examples}
            write_order(paths.rank(name, task, seed), order.cpu(), cell.region.size, header)
            bar.update()
    return f"rank {task}-{seed}: {', '.join(params.sweep.localizers)}"


def sweep(name: str, sparsity: str, task: str, seed: int, params: Any, machine: Runtime) -> str:
    """Store a cell's mask by one localizer at one size, and its graft's predictions; gives one line about them."""
    cell = StudyCell.open(task, seed, params.model, params.graft.region, machine)
    order, origin = read_order(paths.rank(name, task, seed))
    identity = _identity(cell)
    require_model(paths.rank(name, task, seed), origin, cell.region, identity["fingerprint"], cell.anatomy.name)
    counted = _evidence(cell, name, params.graft)
    settings = SimpleNamespace(**{**vars(params.graft), **params.localizer.model_dump()})
    mask = find_mask(name, counted.evidence, settings, float(sparsity), "sweep.sparsities", order)
    cost = origin["gradient_examples"] + counted.examples
    about = {**identity, "localizer": name, "sparsity": float(sparsity), "gradient_examples": cost}
    values = {key: part.cpu() for key, part in values_at(cell.finetuned, mask).items()}
    write_mask(paths.sweep_mask(name, sparsity, task, seed), StoredMask(mask, values, cell.head, about))
    evaluation = cell.evaluation(params.study.test_max)
    cell.model.put(graft(cell.pretrained, cell.finetuned, mask))
    with evaluation.progress(f"sweep {name} {sparsity} {task}-{seed}"):
        evaluation.predict(GRAFTED)
    predictions = evaluation.predictions()
    rows = variant_rows(predictions, task, seed, params.calibration.bins)
    record = {**cell.about(), "localizer": name, "sparsity": float(sparsity), "selected": mask.selected}
    write_reading("sweep", (name, sparsity), {**record, "about": {"gradient_examples": cost}}, predictions, rows)
    return f"sweep {name} {sparsity} {task}-{seed}: {mask.selected:,} parameters, {evaluation.describe()}"


def _evidence(cell: StudyCell, localizer: str, settings: Any) -> Counted:
    rows = cell.rows("train")
    evidence = evidence_about(
        cell.model, cell.region, cell.pretrained, cell.finetuned, rows, settings, ("mask", cell.task, cell.seed)
    )
    # draws of its own, so that no localizer's depend on which others the study has
    own = replace(evidence, generator=draws(localizer, cell.task, cell.seed))
    return Counted(own, len(rows), settings.batch_size)


def _identity(cell: StudyCell) -> dict[str, Any]:
    """What tells a mask or an order which model it belongs to."""
    on_cpu = {name: values.cpu() for name, values in cell.pretrained.items()}
    return {
        "fingerprint": cell.region.fingerprint(on_cpu),
        "model": cell.anatomy.name,
        "model_parameters": cell.anatomy.parameters,
        "task": cell.task,
        "seed": cell.seed,
    }
