"""surgery: fine-tuning of one selection of layers, for all tasks of one seed."""

from stages.lib.entry import stage
from stages.lib.params import load_params


@stage
def main(selection: str, seed: int) -> None:
    """Train the selected layers from the pretrained model, and measure."""
    params = load_params(
        "model", "runtime", "finetune.cap_k", "finetune.steps_per_example", "finetune.momentum", "finetune.clip_norm",
        "finetune.dropout", "finetune.l1", "finetune.head_first_steps", "finetune.eval_steps", "surgery.target",
        "surgery.aggregation", "surgery.examples", "surgery.also", "surgery.optimizer", "surgery.learning_rate",
        "surgery.schedule", "surgery.warmup_steps", "surgery.batch_size", "surgery.max_steps", "surgery.weight_decay",
        "surgery.tasks", "surgery.test_max", "surgery.draws",
    )  # fmt: skip

    from stages.lib import runtime
    from stages.surgical.layer_surgery import operate

    machine = runtime.start(params.runtime)
    for task in params.surgery.tasks:
        print(operate(selection, task, seed, params, machine))


if __name__ == "__main__":
    main()
