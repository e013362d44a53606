"""apply: the model that a patch makes of its base model, as an ordinary folder: a copy of the base's files with other values in some places."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..checkpoints.files import Checkpoint
from ..checkpoints.folders import CONFIG
from ..checkpoints.layouts import require_sizes
from ..checkpoints.settings import write_settings
from ..checkpoints.writing import TensorFiles, copy_beside
from ..support.errors import MaskError
from ..support.io import write_json
from ..support.writing import require_free
from .card import MODEL, write_folder
from .patch_file import PatchContent, read_patch
from .placing import base_of, load_base, patched_tensors, put_on, require_base, require_padding


def apply(patch: Path, base: str, to: Path) -> str:
    """Write the model that a patch makes of its base model to a new folder; gives one line about it.

    Raises MaskError if the patch is damaged or was made for another model than the base, a folder or a hub id.
    """
    target, one = require_free(to), read_patch(patch)
    if one.use.model_class is None:
        raise MaskError(f"{patch}: is for no model of transformers; in Python, Patch.apply puts it onto a module")
    checkpoint = Checkpoint.open(base, tokenizer=False)
    require_sizes(checkpoint)
    require_padding(one.use, checkpoint.config.get("vocab_size"))

    def write(folder: Path) -> str:
        named = base_of(one, checkpoint)
        if named is None:  # such a model is loaded
            put_on(one, load_base(one, base), f"the model in {base}").save_pretrained(folder)
            copy_beside(checkpoint, folder)
            write_settings(folder, checkpoint.folder, {}, one.use.beside)
            return ""
        made = patched_tensors(one, named)
        with ThreadPoolExecutor(1) as beside:  # what it was made from is read once, by both
            checked = beside.submit(require_base, one, named.only(one.region.shapes), f"the model in {base}")
            with TensorFiles(folder, made.files, made) as files:
                for name in (name for names in made.files.values() for name in names):
                    made.write(files, name)
                    _ = checked.done() and checked.result()  # another base is refused before all is written
            checked.result()
        _write_settings(one, checkpoint, folder, str(made.dtype).removeprefix("torch."))
        return ""

    return write_folder(target, one, MODEL, write)


def _write_settings(patch: PatchContent, checkpoint: Checkpoint, folder: Path, kind: str) -> None:
    settings: dict[str, Any] = {**checkpoint.config, **patch.use.config, "architectures": [patch.use.model_class]}
    if isinstance(inner := settings.get("text_config"), dict) and "pad_token_id" in patch.use.config:
        settings["text_config"] = inner | {"pad_token_id": patch.use.config["pad_token_id"]}
    write_json(folder / CONFIG, settings | {"dtype": kind})
    copy_beside(checkpoint, folder)
    write_settings(folder, checkpoint.folder, patch.use.generation, patch.use.beside)
