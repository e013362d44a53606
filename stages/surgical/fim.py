"""fim: the FIM score of every layer of the pretrained model, for all tasks of one seed."""

from stages.lib import paths
from stages.lib.entry import stage
from stages.lib.io import make_folders
from stages.workflow.settings import MODEL, load_params


@stage
def main(seed: int) -> None:
    """Score the layers by every target, aggregation and number of examples."""
    params = load_params("tasks", *MODEL, "fim.tasks", "fim.scores")
    make_folders(paths.reading_dir("fim", (), seed))

    from stages.lib import runtime
    from stages.surgical.fisher_scores import score_layers

    machine = runtime.start(params.runtime)
    for task in params.fim.tasks:
        print(score_layers(task, seed, params, machine))


if __name__ == "__main__":
    main()
