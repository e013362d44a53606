"""Ways to fine-tune beside the main pipeline's own (paper, section 3.2): AdamW, and AdamW with an l1 norm."""

from typing import Any

from ..settings import AdamWParams, FinetuneParams

SGD, ADAMW, ADAMW_L1 = "sgd", "adamw", "adamw_l1"


def settings_of(paradigm: str, finetune: FinetuneParams, adamw: AdamWParams) -> FinetuneParams:
    """The `finetune` section for a paradigm: sgd keeps its grid and weight decay, adamw and adamw_l1 have their own."""
    own: dict[str, Any] = {"optimizer": "sgd", "l1": adamw.l1 if paradigm == ADAMW_L1 else 0.0}
    if paradigm in (ADAMW, ADAMW_L1):
        own |= {"optimizer": "adamw", "learning_rates": [adamw.learning_rate], "weight_decay": adamw.weight_decay}
    return finetune.model_copy(update=own)
