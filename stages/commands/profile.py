"""profile: put a named set of settings into params.yaml, or print it for `dvc exp run`.

python -m stages.commands.profile                      lists the profiles
python -m stages.commands.profile bert_tiny            writes its settings into params.yaml, comments kept
python -m stages.commands.profile bert_tiny -S data.k=8                 with this setting changed, as `dvc exp run -S` does
dvc exp run $(python -m stages.commands.profile bert_tiny --flags)      one experiment, params.yaml untouched before
"""

import argparse
import io
import json
import subprocess
from collections.abc import Sequence
from functools import cache, reduce
from operator import getitem
from pathlib import Path
from typing import Any

from stages.commands.settings_reference import leaves
from stages.lib import paths
from stages.lib.entry import guarded
from stages.lib.errors import ParamsError, did_you_mean
from stages.lib.io import write_text
from stages.lib.params import SECTIONS, validate
from stages.lib.yaml12 import load_yaml, parse_yaml
from stages.workflow.run import change_settings


def main() -> None:
    """Parse the command line and do what it says."""
    parser = argparse.ArgumentParser(
        prog="python -m stages.commands.profile", description="Choose a named set of settings."
    )
    parser.add_argument("name", nargs="?", help="a file of stages/profiles, without .yaml")
    parser.add_argument(
        "--flags", action="store_true", help="print -S flags for `dvc exp run` instead of writing params.yaml"
    )
    told = "changes a setting of the profile; more than once for several"
    parser.add_argument(
        "-S", "--set-param", dest="changes", metavar="KEY=VALUE", action="append", default=[], help=told
    )
    arguments = parser.parse_args()
    if arguments.name is None and arguments.changes:
        parser.error("-S changes a setting of a profile, so name one")
    if arguments.name is None:
        print("\n".join(f"{name:16} {profile['about']}" for name, profile in profiles().items()))
        return
    settings = profile_settings(arguments.name)
    if arguments.flags:
        own = [flag for key, value in flatten(settings).items() for flag in flags(key, value)]
        print(*(f"-S {flag}" for flag in own + arguments.changes))
        return
    before, text = load_yaml(paths.PARAMS, ParamsError), paths.PARAMS.read_text(encoding="utf-8")
    try:
        write_text(paths.PARAMS, apply(text, settings))
        change_settings(arguments.changes, ())
    except (KeyError, TypeError):  # there is no place for a setting of the profile
        validate(before)
        raise
    except ParamsError:
        write_text(paths.PARAMS, text)
        raise
    changed = f" with {', '.join(arguments.changes)}" if arguments.changes else ""
    back = "`git checkout params.yaml` brings the committed one back"
    print(f"params.yaml now has the profile {arguments.name}{changed}; {back}")
    named = [change.partition("=")[0].lstrip("+~") for change in arguments.changes]
    if others := _left(before, settings, named):
        print(f"left as they were, which is neither the profile's nor as committed: {', '.join(others)}")


def _left(before: dict[str, Any], settings: dict[str, Any], named: Sequence[str]) -> list[str]:
    """Settings that are not the profile's nor `named`, and were other than those of the last commit: of a profile before it, perhaps."""
    shown = subprocess.run(["git", "show", f"HEAD:./{paths.PARAMS}"], capture_output=True, text=True, check=False)
    if shown.returncode:
        return []
    theirs, own = flatten(parse_yaml(shown.stdout, str(paths.PARAMS), ParamsError)), {*flatten(settings), *named}
    return [key for key, value in flatten(before).items() if key not in own and theirs.get(key) != value]


def profiles() -> dict[str, dict[str, Any]]:
    """Every profile by name: `about` and `set`."""
    return {path.stem: _profile(path) for path in sorted(paths.PROFILES.glob("*.yaml"))}


def _profile(path: Path) -> dict[str, Any]:
    """Raises ParamsError for a file that is none."""
    values = load_yaml(path, ParamsError)
    if not isinstance(values, dict) or {*values} != {"about", "set"} or not isinstance(values["set"], dict):
        raise ParamsError(f"{path}: should have `about`, a line on it, and `set`, its settings by section")
    return values


def profile_settings(name: str) -> dict[str, Any]:
    """The settings of a profile; raises ParamsError with the nearest name, of its settings, too."""
    known = profiles()
    if name not in known:
        raise ParamsError(f"unknown profile {name!r}{did_you_mean(name, known)}; known: {', '.join(known)}")
    settings = known[name]["set"]
    if unknown := [key for key in flatten(settings) if key not in schemas()]:
        told = ", ".join(f"{key!r}{did_you_mean(key, schemas())}" for key in unknown)
        raise ParamsError(f"{paths.PROFILES / name}.yaml: no setting is called {told}")
    return settings


@cache
def schemas() -> dict[str, dict[str, Any]]:
    """Dotted key of every setting -> its JSON schema."""
    return {key: schema for section, kind in SECTIONS.items() for key, schema, _ in leaves(section, kind)}


@cache
def tables() -> set[str]:
    """Settings that are tables whose keys are the user's own names."""
    return {key for key, schema in schemas().items() if schema.get("type") == "object"}


def flatten(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value; `tables` stay whole."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        dotted = f"{prefix}{key}"
        if isinstance(value, dict) and dotted not in tables():
            flat |= flatten(value, f"{dotted}.")
        else:
            flat[dotted] = value
    return flat


def apply(text: str, settings: dict[str, Any]) -> str:
    """params.yaml with these settings, written as DVC writes it; raises ParamsError if the result is not valid."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.default_flow_style = False
    document = yaml.load(text)
    # a copy: what YAML's anchors share would come out as anchors again
    for key, value in json.loads(json.dumps(flatten(settings))).items():
        *sections, last = key.split(".")
        place = reduce(getitem, sections, document)
        if isinstance(place[last], dict):
            place[last].clear()
            place[last].update(value)
        else:
            place[last] = value
    out = io.StringIO()
    yaml.dump(document, out)
    validate(json.loads(json.dumps(document)))
    return out.getvalue()


def flags(key: str, value: object) -> list[str]:
    """The argument of `-S` that sets a value; a table is removed first, since DVC would only add to it."""
    return [f"~{key}", f"++{key}={_flag(value)}"] if isinstance(value, dict) else [f"{key}={_flag(value)}"]


def _flag(value: object) -> str:
    """A value in the grammar of `dvc exp run -S`, without spaces so that the shell keeps it in one piece."""
    if isinstance(value, list):
        return "[" + ",".join(_flag(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_flag(item)}" for key, item in value.items()) + "}"
    return json.dumps(value) if value is None or isinstance(value, bool | int | float) else str(value)


if __name__ == "__main__":
    guarded("profile", main)
