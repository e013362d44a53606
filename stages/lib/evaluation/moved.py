"""The part of a model that fine-tuning moved, so that any values between or beside both can be put into it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .. import paths
from ..models.anatomy import read_anatomy
from ..models.label_model import LabelModel, reset_to_pretrained


@dataclass(frozen=True)
class Moved:
    """Everything that fine-tuning moved and that has pretrained values: both sets of them, and the live model."""

    model: LabelModel
    pretrained: dict[str, Tensor]
    finetuned: dict[str, Tensor]

    @classmethod
    def of(cls, model: LabelModel) -> "Moved":
        """Take a fine-tuned model, which is reset to its pretrained values, but for a new head."""
        anatomy = read_anatomy(paths.PRETRAINED)
        names, parameters = model.pretrained_names(anatomy), model.parameters()
        finetuned = {name: parameters[name].detach().clone() for name in names}
        pretrained = reset_to_pretrained(model, anatomy, paths.PRETRAINED, names)
        moved = [name for name in names if not torch.equal(pretrained[name], finetuned[name])]
        return cls(model, *({name: values[name] for name in moved} for values in (pretrained, finetuned)))
