"""Model folders of anybody's, found on the hub or the disk: complete, and with nothing that runs when it is read.

Weights are safetensors, never a pickle, and settings name no code and no other files.
"""

import difflib
from pathlib import Path

from ..models.loading import TOKENIZER_FILES, WEIGHTS
from ..support.errors import ModelError, one_line
from ..support.formatting import counted
from ..support.io import read_json, require_permission
from ..support.offline import hub_answers

CONFIG, INDEX, SHARDS = "config.json", "model.safetensors.index.json", "model-*-of-*.safetensors"
# Also the patterns of what is fetched: a star only where shards need one, since it matches sub-folders too.
WANTED = (CONFIG, WEIGHTS, INDEX, SHARDS, *TOKENIZER_FILES)
# Settings of a model or tokenizer that can't be kept.
REFUSED = {
    "auto_map": "names code that comes with the model, which is never run; take it out if transformers knows this kind of model itself",
    "transformers_weights": f"names another file of weights; they are read from {WEIGHTS} only",
    "quantization_config": "says that the weights are quantised; only whole ones can be fine-tuned and grafted",
}
OTHER_FORMS = ("*.gguf", "*.onnx", "*.h5", "*.msgpack", "*.npz", "consolidated*.safetensors")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def find_checkpoint(place: str, revision: str | None = None, tokenizer: bool = True) -> tuple[Path, str]:
    """The folder of a checkpoint that is given by its folder or its hub id, and which of both it was: local or hub.

    It may lack a tokenizer if none is asked for.  Raises ModelError as `obtain` does.
    """
    folder = Path(place)
    if revision and folder.is_dir():
        raise ModelError(f"{place}: is a folder, so it has no revision {revision!r}")
    a_path = folder.exists() or folder.is_absolute() or place.startswith(".") or place.count("/") > 1
    if a_path or ("/" in place and folder.parent.is_dir()):
        return from_folder(folder, tokenizer), "local"
    try:
        return from_hub(place, revision, tokenizer), "hub"
    except ModelError as error:
        if "/" in place:
            raise
        raise ModelError(f"{place}: there is no such folder{_nearest(folder)}, and {error}") from error


def commit_of(folder: Path) -> str | None:
    """The commit of the hub that a folder of its cache holds, or one of links into it; None for a folder from elsewhere."""
    file = folder / CONFIG
    places = [folder, *([file.readlink().parent] if file.is_symlink() else [])]
    return next((place.name for place in places if place.parent.name == "snapshots"), None)


def has_tokenizer(folder: Path) -> bool:
    """True if one of the files that make a tokenizer is there."""
    return any((folder / file).is_file() for file in TOKENIZER_FILES)


def weight_files(folder: Path) -> list[Path]:
    """The files of a checkpoint's weights: one, or the shards that an index names; raises ModelError for anything else."""
    index = folder / INDEX
    if (folder / WEIGHTS).is_file() or not index.is_file():
        return [folder / WEIGHTS]
    try:
        shards = sorted({*read_json(index, ModelError)["weight_map"].values()})
        strange = [name for name in shards if "/" in name or "\\" in name or not name.endswith(".safetensors")]
    except (KeyError, TypeError, AttributeError):
        raise ModelError(f"{index}: has no weight_map from tensors to files") from None
    if strange:
        only = "weights are read only from *.safetensors files beside it, never from a pickle"
        raise ModelError(f"{index}: names {strange[0]!r}; {only}")
    return [folder / name for name in shards]


def from_hub(name: str, revision: str | None, tokenizer: bool = True) -> Path:
    """The folder of the cache with a model of the hub, fetched if need be; raises ModelError, within seconds where no hub answers."""
    reachable = hub_answers()  # asked before the library is imported
    from huggingface_hub import errors, snapshot_download

    origin = f"the hub's {name}" + (f" at {revision}" if revision else "")
    try:
        folder = snapshot_download(name, revision=revision, allow_patterns=list(WANTED), local_files_only=not reachable)
    except errors.HFValidationError as problem:
        raise ModelError(f"{name!r} is no hub id such as 'roberta-base' or 'owner/name': {problem}") from None
    except errors.RevisionNotFoundError:
        raise ModelError(f"{name!r} has no revision {revision!r} on the hub") from None
    except errors.RepositoryNotFoundError:
        raise ModelError(f"the hub has no model {name!r}, or it needs a login (`hf auth login`)") from None
    except Exception as problem:  # a connection that breaks has no error type of its own
        why = f"could not be fetched: {one_line(problem)}"
        if not reachable:
            why = "is not, or not completely, in the cache, and the hub doesn't answer (or HF_HUB_OFFLINE is set)"
        raise ModelError(f"{origin} {why}") from problem
    require_complete(Path(folder), origin, tokenizer=tokenizer)
    return Path(folder)


def from_folder(folder: Path, tokenizer: bool = True) -> Path:
    """The folder itself; raises ModelError with the nearest one if it is missing or not complete."""
    if folder.is_file():
        raise ModelError(f"{folder}: is a file; a model is a folder")
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such folder{_nearest(folder)}")
    require_complete(folder, str(folder), _nearest(folder), tokenizer)
    return folder


def _nearest(folder: Path) -> str:
    """Give ` (did you mean ...?)` for a model inside a folder, or the one beside it with the nearest name."""
    inside = sorted(folder.glob(f"*/{CONFIG}")) or sorted(folder.glob(f"snapshots/*/{CONFIG}"))  # of the hub's cache
    beside = [file.parent.name for file in sorted(folder.parent.glob(f"*/{CONFIG}")) if file.parent != folder]
    near = [folder.with_name(name) for name in difflib.get_close_matches(folder.name, beside, n=1)]
    near = [file.parent for file in inside] or near
    return f" (did you mean {str(near[0])!r}?)" if near else ""


def require_complete(folder: Path, origin: str, hint: str = "", tokenizer: bool = True) -> None:
    """Raise ModelError if a folder lacks a file, or its settings would have code or weights fetched from elsewhere."""
    missing = [file.name for file in (folder / CONFIG, *weight_files(folder)) if not file.is_file()]
    missing += ["tokenizer.json"] * (tokenizer and not has_tokenizer(folder))
    if missing:
        pickles = _about_pickles(folder) if WEIGHTS in missing else ""
        raise ModelError(f"{origin}: {' and '.join(missing)} missing{hint}{pickles}")
    for file in weight_files(folder):
        require_permission(file)
    for name in (CONFIG, "tokenizer_config.json"):
        if (folder / name).is_file():
            _require_harmless(folder / name)


def _require_harmless(file: Path) -> None:
    """Raise ModelError if a settings file would have code or weights fetched from elsewhere, or can't be used at all."""
    settings = read_json(file, ModelError)
    if not isinstance(settings, dict):
        raise ModelError(f"{file}: should be a JSON object of settings")
    parts = [settings]
    for part in parts:
        parts += [value for value in part.values() if isinstance(value, dict)]
        for key, value in part.items():
            if key in REFUSED and value is not None:
                raise ModelError(f"{file}: {key} {REFUSED[key]}")
            if key.endswith("_implementation") and "/" in str(value):
                raise ModelError(f"{file}: {key} names a kernel of the hub ({value!r}), which is code and never run")


def _about_pickles(folder: Path) -> str:
    if (folder / "adapter_config.json").is_file():
        return "; it is an adapter of peft: merge it into its base model (merge_and_unload), and save that"
    if others := sorted(path.name for pattern in OTHER_FORMS for path in folder.glob(pattern)):
        return f"; {others[0]} is of another format: weights are read from safetensors only; load it and save it by save_pretrained"
    if shards := [*folder.glob(SHARDS)]:
        return f"; there is no {INDEX}, which says what its {counted(len(shards), 'shard')} should have"
    there = "there are none"
    if pickles := sorted(path.name for pattern in PICKLES for path in folder.glob(pattern)):
        there = f"{pickles[0]} is a pickle, which can run code when it is read"
    return f"; weights are read from safetensors only: {there}; save the model anew with save_pretrained"
