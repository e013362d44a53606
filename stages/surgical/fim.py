"""fim: the FIM score of every layer of the pretrained model, for all tasks of one seed."""

from skill_grafting.io import make_folders
from stages.workflow.core import paths
from stages.workflow.core.settings import MODEL, load_params
from stages.workflow.core.stage import stage


@stage
def main(seed: int) -> None:
    """Score the layers by every target, aggregation and number of examples."""
    params = load_params("tasks", *MODEL, "fim.tasks", "fim.scores")
    make_folders(paths.stage_dir("fim", (), seed))

    from skill_grafting import runtime
    from stages.surgical.experiment.fisher_scores import score_layers

    machine = runtime.start(params.runtime)
    for task in params.fim.tasks:
        print(score_layers(task, seed, params, machine))


if __name__ == "__main__":
    main()
