"""Imports what `finetune` does before its first step, and nothing else."""

from importlib import import_module

MODULES = (
    "stages.lib.runtime",
    "stages.lib.models.loading",
    "stages.lib.training.finetuning",
    "transformers.models.bert.modeling_bert",
)

if __name__ == "__main__":
    for name in MODULES:
        import_module(name)
