"""calibration: calibration error of all models of one seed."""

from skill_grafting.support.io import read_json, write_json
from stages.text.scores.scores import calibration_scores
from stages.text.scores.temperature import frontier
from stages.workflow.cells.scoring import read_cell
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage
from stages.workflow.stage.sections import Settings


@stage
def main(params: Settings, seed: int) -> None:
    """Derive ECE, reliability, confidence histograms and the frontier of every task from the stored predictions."""
    settings = params.calibration
    for task in params.tasks:
        tests, dev = read_cell(task, seed), read_cell(task, seed, dev=True)
        scores = calibration_scores(tests, settings.bins, settings.histogram_bins)
        fitted, evaluated = (read_json(paths.record(stage, task, seed)) for stage in ("controls", "evaluate"))
        about = {"bins": settings.bins, "histogram_bins": settings.histogram_bins}
        rows = frontier(tests, dev, task, fitted | evaluated, settings.bins)
        write_json(paths.record("calibration", task, seed), {**about, "scores": scores, "frontier": rows})
        errors = ", ".join(f"{name} {value['ece']:.3f}" for name, value in scores[task].items())
        print(f"calibration {task}-{seed}: {errors} (ECE)")
