"""Localizers on real models: the orders and the masks of the study."""

from typing import Any

from skill_grafting.grafting.apply import graft
from skill_grafting.grafting.mask_file import StoredMask, read_order, require_model, write_mask, write_order
from skill_grafting.localizers.evidence import counted
from skill_grafting.localizers.registry import Budget, find_mask, localizer_of
from skill_grafting.metrics.variants import GRAFTED
from skill_grafting.models.evaluation import Evaluation
from skill_grafting.runtime import Runtime
from skill_grafting.settings import Params
from stages.workflow.core import paths
from stages.workflow.core.cells import GraftCell, evidence_of
from stages.workflow.core.scoring import study_sets, variant_rows, write_record


def rank(name: str, task: str, seed: int, params: Params, machine: Runtime) -> str:
    """Store the order of one localizer for one cell; returns a line for the log."""
    cell = GraftCell.open(task, seed, params.model, params.graft.region, machine)
    keep, train, examples = cell.region.budget(params.movement.keep), cell.rows("train"), []
    evidence = counted(evidence_of(cell, name, train), len(train), examples.append)
    order = localizer_of(name).rank(evidence, getattr(params.localizer, name), keep)
    header = {**_origin(cell), "localizer": name, "gradient_examples": sum(examples)}
    write_order(paths.rank(name, task, seed), order.cpu(), cell.region.size, header)
    return f"rank {name} {task}-{seed}: {len(order):,} of {cell.region.size:,} parameters in order"


def sweep(name: str, sparsity: str, task: str, seed: int, params: Params, machine: Runtime) -> str:
    """Store a cell's mask by one localizer at one size, and its graft's predictions; returns a line for the log."""
    cell = GraftCell.open(task, seed, params.model, params.graft.region, machine)
    order, origin = read_order(paths.rank(name, task, seed))
    identity, train, examples = _origin(cell), cell.rows("train"), []
    require_model(paths.rank(name, task, seed), origin, cell.region, identity["fingerprint"], cell.anatomy.name)
    evidence = counted(evidence_of(cell, name, train, cell.rows("dev")), len(train), examples.append)
    budget = Budget.of(cell.region, float(sparsity), params.graft.rule, "sweep.sparsities")
    found = find_mask(name, evidence, getattr(params.localizer, name), budget, order)
    mask, cost = found.mask, origin["gradient_examples"] + sum(examples)
    about = {**identity, "localizer": name, "sparsity": float(sparsity), "gradient_examples": cost, **found.record}
    write_mask(paths.sweep_mask(name, sparsity, task, seed), StoredMask(mask, cell.values_at(mask), cell.head, about))
    evaluation = Evaluation(cell.model, study_sets(task, seed, params.study.test_max), variants=1)
    cell.model.put(graft(cell.pretrained, cell.finetuned, mask))
    with evaluation.progress(f"sweep {name} {sparsity} {task}-{seed}"):
        evaluation.predict(GRAFTED)
    predictions = evaluation.predictions()
    rows = variant_rows(predictions, task, seed, params.calibration.bins)
    record = {**cell.about(), "localizer": name, "sparsity": float(sparsity), "selected": mask.selected}
    extra = {key: about[key] for key in ("gradient_examples", "step") if key in about}
    write_record("sweep", (name, sparsity), {**record, "about": extra}, predictions, rows)
    return f"sweep {name} {sparsity} {task}-{seed}: {mask.selected:,} parameters, {evaluation.describe()}"


def _origin(cell: GraftCell) -> dict[str, Any]:
    return {**cell.origin(), "model_parameters": cell.anatomy.parameters}
