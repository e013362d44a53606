"""export: a mask of the project that the command runs in, with the task, settings and scores that it doesn't hold, or a patch."""

from pathlib import Path

from .adapter import write_adapter
from .card import AS_PATCH, PEFT, require_free, write_folder
from .patch_file import PatchContent, read_graft
from .placing import load_base, places_of
from .project import as_patch, pipeline_scores


def export(mask: Path, form: str, base: str, to: Path, leave_out: bool) -> str:
    """Write the graft of a mask file or patch to a new folder, as a patch or an adapter of peft; gives one line about it.

    Raises MaskError if the mask is damaged, was made for another model than `base` or doesn't fit the form, and StorageError if
    something is at `to`.
    """
    target, (file, found) = require_free(to), read_graft(mask)
    if isinstance(found, PatchContent):
        patch = found
    else:
        patch = as_patch(file, found, Path(base))
        patch.scores = pipeline_scores(file, found.about.get("task") or "")
    if form == AS_PATCH:
        return write_folder(target, patch, form)
    model = load_base(patch, base)
    places_of(patch, model, f"the model in {base}")
    return write_folder(target, patch, PEFT, lambda folder: write_adapter(folder, patch, model, leave_out))
