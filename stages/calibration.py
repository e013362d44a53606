"""calibration: how far the confidence of one (task, seed)'s models is from their accuracy."""

from stages.lib import paths
from stages.lib.artifacts import write_json
from stages.lib.entry import stage
from stages.lib.params import load_params


@stage
def main(task: str, seed: int) -> None:
    """Derive ECE, reliability and confidence histograms from the stored predictions."""
    settings = load_params("calibration").calibration

    from stages.lib.measure.predictions import read_predictions
    from stages.lib.measure.scores import calibration_scores

    parts = [read_predictions(paths.predictions(made_by, task, seed)) for made_by in ("reference", "evaluate")]
    scores = calibration_scores(parts[0] | parts[1], settings.bins, settings.histogram_bins)
    write_json(paths.scores("calibration", task, seed), {**settings.model_dump(), "scores": scores})
    print(
        f"calibration {task}-{seed}: "
        + ", ".join(f"{name} {value['ece']:.3f}" for name, value in scores[task].items())
        + " (ECE)"
    )


if __name__ == "__main__":
    main()
