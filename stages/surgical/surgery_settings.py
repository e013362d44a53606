"""How whole layers are fine-tuned: the same way for every selection of them."""

from types import SimpleNamespace
from typing import Any

from stages.lib.models.groups import LAYERS


def settings_of(finetune_settings: Any, surgery: Any) -> SimpleNamespace:
    """The `finetune` section as the `surgery` section changes it: one point for a grid, and whole layers."""
    own = {
        name: getattr(surgery, name) for name in ("optimizer", "schedule", "warmup_steps", "weight_decay", "max_steps")
    }
    grid = {"learning_rates": [surgery.learning_rate], "batch_sizes": [surgery.batch_size]}
    whole = {"train": [LAYERS, *surgery.also], "bias_only": False}
    return SimpleNamespace(**{**vars(finetune_settings), **own, **grid, **whole})
