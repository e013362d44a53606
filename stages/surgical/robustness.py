"""robustness: the FIM score of every layer while all of them are fine-tuned, for all tasks of one seed."""

from stages.lib.entry import stage
from stages.lib.params import load_params


@stage
def main(seed: int) -> None:
    """Fine-tune, and score the layers and measure their movement on the way."""
    params = load_params(
        "model", "runtime", "finetune.cap_k", "finetune.steps_per_example", "finetune.momentum", "finetune.clip_norm",
        "finetune.dropout", "finetune.l1", "finetune.head_first_steps", "finetune.eval_steps", "surgery.target",
        "surgery.aggregation", "surgery.examples", "surgery.also", "surgery.optimizer", "surgery.learning_rate",
        "surgery.schedule", "surgery.warmup_steps", "surgery.batch_size", "surgery.max_steps", "surgery.weight_decay",
        "robustness.tasks", "robustness.every",
    )  # fmt: skip

    from stages.lib import runtime
    from stages.surgical.rank_robustness import watch_training

    machine = runtime.start(params.runtime)
    for task in params.robustness.tasks:
        print(watch_training(task, seed, params, machine))


if __name__ == "__main__":
    main()
