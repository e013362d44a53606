"""Two exact differences that follow each other, as one."""

import torch

from ..grafting.mask import GraftMask
from ..grafting.mask_files import StoredMask
from ..support.errors import MaskError
from .patch_file import PatchContent


def chained(first: PatchContent, second: PatchContent) -> PatchContent:
    """One patch in the place of two that follow each other: where both write, the second one's value stays.

    Raises MaskError unless the first makes what the second was made from, which takes patches of `diff`.
    """
    if first.use.makes is None or second.use.makes is None:
        missing = first if first.use.makes is None else second
        raise MaskError(f"{missing!r} doesn't say what it makes; `diff` makes patches that can be chained")
    if first.use.makes != second.use.fingerprint or first.mask.region.shapes != second.mask.region.shapes:
        made, wanted = first.use.makes[:12], second.use.fingerprint[:12]
        raise MaskError(f"the first patch makes the state {made}, and the second was made from the state {wanted}")
    places, values = {}, {}
    for name in first.mask.region.shapes:
        ours, theirs = (patch.mask.indices.get(name) for patch in (first, second))
        if ours is None or theirs is None:
            patch = second if ours is None else first
            if name in patch.mask.indices:
                places[name], values[name] = patch.mask.indices[name], patch.values[name]
            continue
        kept = ~torch.isin(ours, theirs)
        places[name], order = torch.cat([ours[kept], theirs]).sort()
        values[name] = torch.cat([first.values[name][kept], second.values[name]])[order]
    mask = GraftMask(first.mask.region, places, {"method": "diff"})
    head = {**first.head, **second.head}
    shapes = {name: [*part.shape] for name, part in sorted(head.items())}
    use = first.use.model_copy(
        update={"makes": second.use.makes, "title": second.use.title, "head": shapes, "labels": second.use.labels}
        | {"config": {**first.use.config, **second.use.config}}
        | {
            "generation": {**first.use.generation, **second.use.generation},
            "beside": {**first.use.beside, **second.use.beside},
        }
    )
    return PatchContent(StoredMask(mask, values, head, {}), use)
