"""transfer: every region of one joint model, and every union of them, grafted and tested on every task."""

from stages.lib.entry import stage
from stages.lib.params import load_params


@stage
def main(paradigm: str, localizer: str, sparsity: str, seed: int) -> None:
    """Graft, predict, and purify unions on the way."""
    params = load_params(
        "model", "runtime", "graft.region", "localizer.learned", "calibration.bins", "multitask.tasks",
        "multitask.test_max", "multitask.groups", "transfer",
    )  # fmt: skip

    from stages.lib import runtime
    from stages.multitask.transfer_matrix import transfer

    print(transfer(paradigm, localizer, sparsity, seed, params, runtime.start(params.runtime)))


if __name__ == "__main__":
    main()
