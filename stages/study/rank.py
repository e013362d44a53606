"""rank: the order in which every localizer of the study chooses the parameters of one seed's tasks."""

from stages.lib.entry import stage
from stages.lib.params import load_params


@stage
def main(seed: int) -> None:
    """Store each localizer's first movement.keep share of the region, best first."""
    params = load_params(
        "model",
        "runtime",
        "movement.keep",
        "graft.region",
        "graft.batch_size",
        "study.tasks",
        "localizer",
        "sweep.localizers",
    )

    from stages.lib import runtime
    from stages.study.localizer_sweep import rank

    machine = runtime.start(params.runtime)
    for task in params.study.tasks:
        print(rank(task, seed, params, machine))


if __name__ == "__main__":
    main()
