"""The options of `graft localize`, which __main__ shows without loading what it takes to run."""

from pathlib import Path
from typing import Any

LOCALIZE: dict[str, dict[str, Any]] = {
    "--base": {"required": True, "help": "pretrained checkpoint: a folder or a hub id"},
    "--finetuned": {"required": True, "help": "the same after fine-tuning, outside of this project or not"},
    "--to": {"type": Path, "required": True, "help": "folder of the patch; must not exist yet"},
    "--sparsity": {"type": float, "default": 1e-4, "help": "selected / graftable parameters; default: 1e-4"},
    "--localizer": {
        "default": "movement",
        "help": "movement, attribution, grown, learned or another one (a wrong name is told them all); default: movement",
    },
    "--region": {"nargs": "+", "default": ["layers"], "help": "layers, embeddings, pooler, lm_head; default: layers"},
    "--mode": {
        "help": "standard, prompt, autoregressive or generative; default: as the fine-tuned checkpoint was saved "
        "(a causal model: autoregressive)"
    },
    "--revision": {"help": "commit, tag or branch of the base model on the hub"},
    "--finetuned-revision": {"help": "the same of the fine-tuned one"},
    "--task": {"help": "what to call the task; default: the name of the fine-tuned checkpoint"},
    "--labels": {"nargs": "+", "help": "names of the labels in the order of the logits; default: those of its config"},
    "--prompt": {"help": "template with {sentence1} and {mask}, of a language model"},
    "--verbalizer": {"nargs": "+", "metavar": "LABEL=WORD", "help": "the word of each label in the prompt"},
    "--data": {
        "type": Path,
        "help": "labelled rows (.csv, .tsv, .jsonl) for localizers that take gradients; of --mode generative without "
        "--verbalizer prompts and completions",
    },
    "--test": {"help": "rows to score on; default: a fifth of --data, by their text; none: no scores"},
    "--sentence1": {"default": "sentence1", "help": "column of the text or prompt; default: sentence1 or prompt"},
    "--sentence2": {"default": "sentence2", "help": "column of a second text, if there is one; default: sentence2"},
    "--label": {
        "dest": "label_column",
        "default": "label",
        "help": "column of the label or completion; default: label or completion",
    },
    "--max-length": {"type": int, "help": "tokens of a text; default: what the model can read, at most 512"},
    "--batch-tokens": {
        "type": int,
        "default": 512,
        "help": "padded tokens of a batch, which memory grows with; default: 512",
    },
    "--dtype": {
        "default": "float32",
        "help": "of the live model that gradients are taken of: float32, or bfloat16 where both checkpoints are, in half the "
        "memory; default: float32",
    },
    "--set": {
        "dest": "changes",
        "nargs": "+",
        "metavar": "NAME=VALUE",
        "default": [],
        "help": "settings of the localizer",
    },
    "--seed": {"type": int, "default": 0, "help": "of what a localizer draws; default: 0"},
}
