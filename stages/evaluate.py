"""evaluate: predictions of the grafted models of one (task, seed), and scores of all its models."""

from collections.abc import Iterator

from torch import Tensor

from skill_grafting.grafting.apply import graft, transplant
from skill_grafting.grafting.fingerprint import fingerprint
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.mask_files import read_mask, require_model
from skill_grafting.grafting.readout import wise_graft
from skill_grafting.localizers.movement import order_within
from skill_grafting.models.anatomy import read_anatomy
from skill_grafting.support.io import write_json
from stages.text.models.evaluation import Evaluation, MovedParameters
from stages.text.models.label_model import LabelModel
from stages.text.scores.predictions import write_predictions
from stages.text.scores.scores import classification_scores
from stages.text.scores.variants import GRAFTED, MOVEMENT_GRAFTED, WISE_GRAFT
from stages.text.tasks.runtime import Runtime
from stages.workflow.cells.scoring import cell_sets, read_cell
from stages.workflow.cells.stored import read_task
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage
from stages.workflow.stage.sections import Settings


def predict_grafts(task: str, seed: int, params: Settings, machine: Runtime) -> Evaluation:
    """Store what the grafts of a cell predict; gives the evaluation."""
    model = LabelModel.load(paths.finetuned(task, seed), read_task(task), params.model, machine)
    evaluation = Evaluation(model, cell_sets(task, seed), variants=2)
    with evaluation.progress(f"evaluate {task}-{seed}"):
        for variant, tensors, sets in grafts(MovedParameters.of(model, paths.PRETRAINED), seed, params):
            model.put(tensors)
            evaluation.predict(variant, sets)
    write_predictions(paths.logits("evaluate", task, seed), evaluation.predictions())
    return evaluation


def grafts(moved: MovedParameters, seed: int, params: Settings) -> Iterator[tuple[str, dict[str, Tensor], list[str]]]:
    """Each grafted variant: its name, its region's tensors, and the sets that it is for if not for all.

    They come from a cell's stored masks; raises MaskError if those belong to another model.  The movement graft is of the
    learned mask's size, which may be below the budget.
    """
    task, anatomy = moved.model.task.name, read_anatomy(paths.PRETRAINED)
    region = anatomy.region(params.graft.region, "graft.region")
    pretrained = {name: moved.model.parameters()[name].detach().cpu().clone() for name in region.shapes}
    finetuned = {name: moved.finetuned.get(name, values).cpu() for name, values in pretrained.items()}
    files = paths.mask("learned", task, seed), paths.mask("movement", task, seed)
    known = fingerprint(region, pretrained)
    learned, movement = (read_mask(file) for file in files)
    for file, stored in zip(files, (learned, movement), strict=True):
        require_model(file, stored.about, region, known, anatomy.name)
    order = order_within(movement.mask, pretrained, movement.values)[: learned.mask.selected]
    yield MOVEMENT_GRAFTED, graft(pretrained, finetuned, GraftMask.from_region_indices(region, order)), []
    for alpha in params.calibration.graft_alphas:
        yield f"{WISE_GRAFT}_{alpha}", wise_graft(pretrained, finetuned, learned.mask, alpha), [task]
    yield GRAFTED, transplant(pretrained, learned.values, learned.mask), []


@stage
def main(params: Settings, machine: Runtime, task: str, seed: int) -> None:
    """Store the logits of the grafts, and the scores of all models on the task's test set."""
    evaluation = predict_grafts(task, seed, params, machine)
    scores = classification_scores(read_cell(task, seed), read_task(task))[task]
    write_json(paths.record("evaluate", task, seed), {"scores": {task: scores}})
    print(f"evaluate {task}-{seed}: {evaluation.describe()}")
