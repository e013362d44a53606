"""Ways to fine-tune beside the main pipeline's own (paper, section 3.2): AdamW, and AdamW with an l1 norm."""

from types import SimpleNamespace
from typing import Any

SGD, ADAMW, ADAMW_L1 = "sgd", "adamw", "adamw_l1"


def settings_of(paradigm: str, finetune_settings: Any, changes: Any) -> SimpleNamespace:
    """The `finetune` section as `changes` changes it: learning_rate, weight_decay, l1, max_steps.

    sgd keeps the grid and the weight decay of `finetune`; adamw and adamw_l1 have their own.
    """
    own: dict[str, Any] = {"optimizer": "sgd", "l1": 0.0}
    if paradigm in (ADAMW, ADAMW_L1):
        own = {
            "optimizer": "adamw",
            "learning_rates": [changes.learning_rate],
            "weight_decay": changes.weight_decay,
            "l1": changes.l1 if paradigm == ADAMW_L1 else 0.0,
        }
    return SimpleNamespace(**{**vars(finetune_settings), "max_steps": changes.max_steps, **own})
