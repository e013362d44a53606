"""Turning any folder that transformers can load into models/pretrained.

The folder is written again so that its tensors carry the names of the class that `model.mode` uses.
Fine-tuned checkpoints then have the same names, and arithmetic between the two needs no model.
"""

from pathlib import Path
from typing import Any

from stages.lib.errors import ModelError
from stages.lib.models.anatomy import Anatomy, write_anatomy
from stages.lib.models.groups import HEAD, LM_HEAD, parameter_groups
from stages.lib.models.loading import load_model, load_tokenizer, missing_tensors, save_model
from stages.lib.runtime import seeded_torch


def import_model(source: Path, settings: Any, folder: Path) -> Anatomy:
    """Write the model of `source` to `folder`, without a task head, and describe it.

    Raises ModelError if it lacks what the mode needs, such as a masked-LM head for prompts.
    """
    tokenizer = load_tokenizer(source)
    if settings.mode == "prompt" and tokenizer.mask_token is None:
        raise ModelError(
            f"{settings.name}: its tokenizer has no mask token, so it can't be prompted; use model.mode=autoregressive or standard"
        )
    with seeded_torch("model", settings.name):
        model = load_model(source, settings.mode)
    groups = parameter_groups(model, settings.mode)
    missing = [name for name in missing_tensors(model) if groups.get(name) != HEAD]
    if missing:
        part = "a language-model head" if groups.get(missing[0]) == LM_HEAD else "all parameters of this class"
        raise ModelError(
            f"{settings.name}: the checkpoint doesn't have {part} (for instance {missing[0]}), which model.mode={settings.mode} needs"
        )
    head = [name for name, group in groups.items() if group == HEAD]
    save_model(model, tokenizer, folder, leave_out=head)
    shapes = {name: list(parameter.shape) for name, parameter in model.named_parameters()}
    anatomy = Anatomy(settings.name, settings.source, settings.revision, settings.mode, groups, shapes)
    write_anatomy(anatomy, folder)
    return anatomy
