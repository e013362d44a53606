"""calibration: how far the confidence of one seed's models is from their accuracy."""

from stages.lib import paths
from stages.lib.entry import stage
from stages.lib.io import write_json
from stages.lib.params import load_params


@stage
def main(seed: int) -> None:
    """Derive ECE, reliability and confidence histograms of every task from the stored predictions."""
    params = load_params("tasks", "calibration")

    from stages.lib.metrics.predictions import read_predictions
    from stages.lib.metrics.scores import calibration_scores

    settings = params.calibration
    for task in params.tasks:
        parts = [read_predictions(paths.predictions(made_by, task, seed)) for made_by in ("reference", "evaluate")]
        scores = calibration_scores(parts[0] | parts[1], settings.bins, settings.histogram_bins)
        write_json(paths.scores("calibration", task, seed), {**settings.model_dump(), "scores": scores})
        errors = ", ".join(f"{name} {value['ece']:.3f}" for name, value in scores[task].items())
        print(f"calibration {task}-{seed}: {errors} (ECE)")


if __name__ == "__main__":
    main()
