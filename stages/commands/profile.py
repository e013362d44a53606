"""profile: put a named set of settings into the params.yaml files.

python -m stages.commands.profile                      lists the profiles
python -m stages.commands.profile bert_tiny            writes its settings, comments kept
python -m stages.commands.profile bert_tiny -S data.k=8                 with this setting changed, as `dvc exp run -S` does
"""

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skill_grafting.support.command import guarded
from skill_grafting.support.errors import ParamsError, did_you_mean
from stages.text.tasks.yaml12 import load_yaml
from stages.workflow.change import change_settings
from stages.workflow.stage import paths
from stages.workflow.stage.sections import LocalizerParams
from stages.workflow.stage.settings import PIPELINES, load_all, owner_of, params_file, read_files, sections_of

# text that the grammar of -S takes for a number, a truth value or nothing, unless it stands in quotes
NOT_TEXT = re.compile(r"[-+.]?\d.*|[-+]?(nan|inf)|null|true|false", re.IGNORECASE)


def main() -> None:
    """Parse the command line and do what it says."""
    parser = argparse.ArgumentParser(
        prog="python -m stages.commands.profile", description="Choose a named set of settings."
    )
    parser.add_argument("name", nargs="?", help="a file of stages/profiles, without .yaml")
    about = "changes a setting of the profile, [FILE:]KEY=VALUE as `dvc exp run` takes it; more than once for several"
    parser.add_argument("-S", "--set-param", dest="changes", action="append", default=[], help=about)
    arguments = parser.parse_args()
    if arguments.name is None and arguments.changes:
        parser.error("-S changes a setting of a profile, so name one")
    if arguments.name is None:
        print("\n".join(f"{name:16} {profile['about']}" for name, profile in profiles().items()))
        return
    overrides = [*flags(profile_settings(arguments.name)), *arguments.changes]
    _require_committed(overrides)
    change_settings(overrides, load_all)
    changed = f" with {', '.join(arguments.changes)}" if arguments.changes else ""
    print(f"{paths.PARAMS} and those of the further pipelines now have the profile {arguments.name}{changed}")
    print(
        "`git diff -- '*params.yaml'` shows what differs from the committed settings, `git checkout '*params.yaml'` brings these back"
    )


def _require_committed(overrides: Sequence[str]) -> None:
    """Raise ParamsError if the params.yaml files have other settings than the committed ones, unless the profile put them there.

    A profile says what differs from the committed settings: on top of others it would be a mixture of both.
    """
    files = {name: params_file(name) for name in PIPELINES}
    with tempfile.TemporaryDirectory() as scratch:
        for file in files.values():
            shown = subprocess.run(["git", "show", f"HEAD:./{file}"], capture_output=True, check=False)
            (Path(scratch) / file).parent.mkdir(parents=True, exist_ok=True)
            (Path(scratch) / file).write_bytes(file.read_bytes() if shown.returncode else shown.stdout)
        now, committed = read_files(files), read_files(files, Path(scratch))
        if now == committed:
            return
        change_settings(overrides, lambda: None, Path(scratch))
        if now != read_files(files, Path(scratch)):
            other = ", ".join(str(file) for name, file in files.items() if now[name] != committed[name])
            raise ParamsError(
                f"{other}: not the committed settings, which a profile starts from; `git commit -am 'My settings'` keeps yours "
                "in every profile, `git checkout '*params.yaml'` drops them"
            )


def profiles() -> dict[str, dict[str, Any]]:
    """Every profile by name: `about` and `set`.  Raises ParamsError for a file that is not a profile."""
    found = {path: load_yaml(path, ParamsError) for path in sorted(paths.PROFILES.glob("*.yaml"))}
    for path, values in found.items():
        if not isinstance(values, dict) or {*values} != {"about", "set"} or not isinstance(values["set"], dict):
            raise ParamsError(f"{path}: should have `about`, a line on it, and `set`, its settings by section")
    return {path.stem: values for path, values in found.items()}


def profile_settings(name: str) -> dict[str, Any]:
    """The settings of a profile; raises ParamsError with the nearest name for an unknown profile or section."""
    if name not in (known := profiles()):
        raise ParamsError(f"unknown profile {name!r}{did_you_mean(name, known)}; known: {', '.join(known)}")
    settings = known[name]["set"]
    sections = [section for name in PIPELINES for section in sections_of(name)]
    if strange := [f"{section!r}{did_you_mean(section, sections)}" for section in settings if section not in sections]:
        raise ParamsError(f"{paths.PROFILES / name}.yaml: unknown section {', '.join(strange)}")
    return settings


def flags(settings: dict[str, Any]) -> list[str]:
    """The arguments of `-S` that set these; a table is removed first, since DVC would only add to it."""
    found = []
    for section, part in settings.items():
        file = params_file(owner_of(section))
        kind = sections_of(owner_of(section))[section]
        for key, value in flatten(section, part, kind).items():
            found += [f"{file}:~{key}"] * isinstance(value, dict) + [f"{file}:++{key}={_flag(value)}"]
    return found


def flatten(key: str, value: object, kind: object) -> dict[str, Any]:
    """Dotted key -> value of the settings in a section of this kind; tables whose keys are the user's own names stay whole.

    But for `localizer`, whose lines (kind Any) are changed setting by setting, too.
    """
    fields, lines = getattr(kind, "model_fields", {}), kind is Any or kind is LocalizerParams
    if not isinstance(value, dict) or not (fields or lines):
        return {key: value}
    kinds = {name: Any if lines else fields[name].annotation if name in fields else None for name in value}
    return {
        place: end for name, part in value.items() for place, end in flatten(f"{key}.{name}", part, kinds[name]).items()
    }


def _flag(value: object) -> str:
    """A value in the grammar of `dvc exp run -S`, without spaces so that the shell keeps it in one piece."""
    if isinstance(value, list):
        return "[" + ",".join(map(_flag, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_flag(item)}" for key, item in value.items()) + "}"
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    return f"'{value}'" if NOT_TEXT.fullmatch(value) else value


if __name__ == "__main__":
    guarded("profile", main)
