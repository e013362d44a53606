"""controls: the baselines of a graft's calibration: one temperature, and WiSE-FT, for all models of one seed.

Kept apart from `evaluate` because no mask and no sparsity changes it, and from `reference`, which no setting of calibration changes.
"""

from skill_grafting.grafting.readout import wise_ft
from skill_grafting.support.io import read_rows, write_json
from stages.text.models.evaluation import Evaluation, MovedParameters
from stages.text.models.label_model import LabelModel
from stages.text.models.predicting import dev_score
from stages.text.scores.predictions import read_predictions, write_predictions
from stages.text.scores.temperature import temperature, tempered
from stages.text.scores.variants import FINETUNED, WISE_FT
from stages.text.tasks.runtime import Runtime
from stages.workflow.cells.scoring import cell_sets
from stages.workflow.cells.stored import read_task
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage
from stages.workflow.stage.sections import Settings


def predict_controls(task: str, seed: int, params: Settings, machine: Runtime) -> str:
    """Store the predictions of a cell's controls, and the values fitted on dev; returns a line for the log.

    The temperature comes from the logits that `reference` stored.
    """
    model = LabelModel.load(paths.finetuned(task, seed), read_task(task), params.model, machine)
    evaluation = Evaluation(model, cell_sets(task, seed), variants=1)
    with evaluation.progress(f"controls {task}-{seed}"):
        moved = MovedParameters.of(model, paths.PRETRAINED)
        alpha = best_alpha(moved, read_rows(paths.sample(task, seed, "dev")), params.calibration.wise_alphas)
        model.put(wise_ft(moved.pretrained, moved.finetuned, alpha))
        evaluation.predict(WISE_FT)
    predictions, reference = evaluation.predictions(), paths.logits("reference", task, seed)
    dev = read_predictions(reference, dev=True)
    degrees = temperature(dev.logits[task][FINETUNED], dev.labels[task])
    for name, logits in tempered(read_predictions(reference), degrees).logits.items():
        predictions.logits[name].update(logits)
    write_predictions(paths.logits("controls", task, seed), predictions)
    write_json(paths.record("controls", task, seed), {"temperature": degrees, "wise_alpha": alpha})
    return f"controls {task}-{seed}: {evaluation.describe()}"


def best_alpha(moved: MovedParameters, dev_rows: list[dict], alphas: list[float]) -> float:
    """The weight of the fine-tuned model with the best dev score, the first of equals (predicting.dev_score)."""
    dev = moved.model.encode(dev_rows)

    def score(alpha: float) -> tuple[float, float]:
        moved.model.put(wise_ft(moved.pretrained, moved.finetuned, alpha))
        return dev_score(moved.model, dev)

    return max(alphas, key=score)


@stage
def main(params: Settings, machine: Runtime, seed: int) -> None:
    """Fit the controls of every task; store their logits and fitted values."""
    for task in params.tasks:
        print(predict_controls(task, seed, params, machine))
