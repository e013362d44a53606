"""Change settings in the params.yaml files as DVC's -S does, all of them or none."""

from collections.abc import Callable, Sequence
from pathlib import Path

from skill_grafting.support.errors import ParamsError, did_you_mean
from stages.text.tasks.yaml12 import load_yaml, parse_yaml


def change_settings(settings: Sequence[str], check: Callable[[], object], folder: Path = Path()) -> dict[Path, str]:
    """Set each [FILE:]KEY=VALUE, as `dvc exp run -S` takes it, and call `check`; a key that isn't there is added, so that it names it.

    Gives the files that were changed as they were before, for `put_back`.  Raises ParamsError, with every file as it was, if DVC can't
    set one or the check raises one.
    """
    before: dict[Path, str] = {}
    try:
        if not _set(settings, folder, before):
            put_back(before)  # the files that were set, or what has just been removed from them can't be removed again
            wrong = next((one for one in settings if not _set([one], folder, before)), " -S ".join(settings))
            raise ParamsError(f"-S {wrong}: DVC can't set this; {_why(wrong, folder)}")
        for file, text in before.items():
            _require_yaml(file, text)
        check()
    except ParamsError:
        put_back(before)
        raise
    return before


def put_back(before: dict[Path, str]) -> None:
    """Write the files as they were."""
    for path, text in before.items():
        path.write_text(text, encoding="utf-8")


def _require_yaml(file: Path, before: str) -> None:
    """Raise ParamsError if DVC has written what can't be read again, as it breaks a long line inside a name with a space."""
    parse_yaml(before, str(file), ParamsError)
    try:
        load_yaml(file, ParamsError)
    except ParamsError:
        hint = "write a table with such names, like a verbalizer in one line, over several lines"
        raise ParamsError(f"-S: {file}: DVC would break a long line inside a name with a space; {hint}") from None


def _why(wrong: str, folder: Path) -> str:
    """What is the matter with a [FILE:]KEY=VALUE that can't be set."""
    file, colon, key = wrong.partition("=")[0].rpartition(":")
    if colon and not (folder / file).is_file():
        known = ["params.yaml", *(path.relative_to(folder).as_posix() for path in folder.glob("stages/*/params.yaml"))]
        return f"{file}: no such file{did_you_mean(file, known)}"
    if key.startswith("~"):
        return f"there is no {key[1:]} that could be taken away"
    return "expected KEY=VALUE, as in graft.sparsity=0.0005"


def _set(settings: Sequence[str], folder: Path, before: dict[Path, str]) -> bool:
    """Whether DVC has set these, a file's all at once; the texts of the files before are noted."""
    from dvc.utils.cli_parse import to_path_overrides
    from dvc.utils.hydra import apply_overrides

    try:
        for file, items in to_path_overrides([*settings]).items():
            before.setdefault(folder / file, (folder / file).read_text(encoding="utf-8"))
            apply_overrides(folder / file, [item if item[0] in "+~" else f"++{item}" for item in items])
    except Exception:  # errors of DVC, and those of Hydra, OmegaConf and ruamel.yaml that it doesn't catch
        return False
    return True
