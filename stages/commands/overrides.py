"""Settings changed on a command line, -S KEY=VALUE as `dvc exp run` takes them: looked at before anything is changed."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from stages.lib import paths
from stages.lib.differences import flat
from stages.lib.errors import ParamsError, did_you_mean
from stages.lib.yaml12 import parse_yaml

# of Hydra's grammar: a setting that is added, and one that is taken away
MARKS = "+~"
WANTED = "KEY=VALUE is wanted, as in graft.sparsity=0.0005"


def overridden(text: str, settings: Sequence[str]) -> str:
    """The text of a params.yaml with these settings changed; raises ParamsError for all that are none, with the nearest names."""
    from dvc.utils.hydra import apply_overrides

    if problems := _problems(text, settings):
        raise ParamsError("\n".join(problems))
    with TemporaryDirectory() as folder:
        file = Path(folder, paths.PARAMS.name)
        file.write_text(text, encoding="utf-8")
        try:
            apply_overrides(file, [*settings])
        except Exception:  # of DVC, and of OmegaConf and ruamel.yaml what slips through it
            words = " ".join(f"-S {setting}" for setting in settings)
            raise ParamsError(f"{words}: DVC can't set this; {WANTED}") from None
        return file.read_text(encoding="utf-8")


def sections_in(settings: Sequence[str]) -> list[str]:
    """The sections that these settings are of."""
    return [key.partition(".")[0] for key in keys_in(settings)]


def keys_in(settings: Sequence[str]) -> list[str]:
    """Their dotted keys."""
    return [setting.lstrip(MARKS).partition("=")[0] for setting in settings]


def _problems(text: str, settings: Sequence[str]) -> list[str]:
    leaves = [*flat(parse_yaml(text, paths.PARAMS.name, ParamsError))]
    problems = []
    for setting in settings:
        key, given, value = setting.partition("=")
        entries = [leaf for leaf in leaves if leaf.startswith(f"{key}.")]
        if not (given and key) and not setting.startswith("~"):
            problems.append(f"-S {setting}: {WANTED}")
        elif key[:1] not in MARKS and not any(f"{leaf}.".startswith(f"{key}.") for leaf in leaves):
            problems.append(f"-S {setting}: unknown setting {key!r}{did_you_mean(key, leaves)}")
        elif entries and value.replace(" ", "") == "{}":
            named = entries[0][len(key) + 1 :].partition(".")[0]
            problems.append(
                f"-S {setting}: a table is merged into the one that is there, so this would change nothing; "
                f"an entry is taken away by -S '~{key}.{named}'"
            )
    return problems
