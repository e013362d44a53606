"""The project's params.yaml files for tests, with other values."""

from functools import reduce
from operator import getitem
from pathlib import Path
from shutil import copyfile
from typing import Any

from ruamel.yaml import YAML

from stages.commands import profile
from stages.text.tasks.fields import Values
from stages.workflow.core.settings import PIPELINES, checked, load_all, owner_of, params_file, read_files, sections_of

ROOT = Path(__file__).parents[1]


def lay_out_settings(*several: dict[str, Any], folder: Path = Path()) -> None:
    """Copy the project's own files into a folder, and lay these settings, by section, over them."""
    for file in map(params_file, PIPELINES):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        copyfile(ROOT / file, folder / file)
    for settings in several:
        lay_over(settings, folder)


def lay_over(settings: dict[str, Any], folder: Path = Path()) -> None:
    """Change the files of a folder by these settings, which have to be right."""
    yaml = YAML()
    for pipeline in {owner_of(section) for section in settings}:
        document = yaml.load(file := folder / params_file(pipeline))
        for section in (name for name in settings if owner_of(name) == pipeline):
            for key, value in profile.flatten(section, settings[section], sections_of(pipeline)[section]).items():
                *above, last = key.split(".")
                reduce(getitem, above, document)[last] = value
        yaml.dump(document, file)
    load_all(folder)


def own_settings(pipelines: tuple[str, ...] = ("",), folder: Path = ROOT) -> Values:
    """The checked settings of these pipelines."""
    return checked(read_files(pipelines, folder))[0]
