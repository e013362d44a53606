"""Back to the pretrained model, but for a new head."""

from collections.abc import Collection
from pathlib import Path

from torch import Tensor

from stages.lib.models.anatomy import Anatomy
from stages.lib.models.groups import HEAD, LM_HEAD
from stages.lib.models.label_model import LabelModel
from stages.lib.models.loading import read_tensors


def reset_to_pretrained(
    model: LabelModel, anatomy: Anatomy, folder: Path, keep: Collection[str] = ()
) -> dict[str, Tensor]:
    """Put every pretrained value into the model; gives those named in `keep`, on its device.

    A vocabulary head has no place in a model that reads labels off a new head, and is passed over.
    """
    groups = {*anatomy.groups.values()} - {HEAD} - ({LM_HEAD} if model.mode == "standard" else set())
    pretrained = read_tensors(folder, anatomy.names(sorted(groups)))
    model.put(pretrained)
    return {name: pretrained[name].to(model.runtime.device) for name in keep}
