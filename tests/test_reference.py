"""The reference of settings says what the schema says, of every setting."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from stages.commands import profile
from stages.commands import settings_reference as reference
from stages.commands.settings_reference import comments, markdown, settings
from stages.lib.errors import ParamsError
from stages.lib.settings import Section
from stages.lib.yaml12 import load_yaml
from stages.workflow.core import paths

ROOT = Path(__file__).parents[1]
PARAMS = (ROOT / paths.PARAMS).read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([\w.]+)` \| (.*?) \| (.*) \|$", markdown(PARAMS), re.MULTILINE)


def test_the_page_is_what_the_schema_gives():
    made_by = "python -m stages.commands.settings_reference"
    assert (ROOT / reference.PAGE).read_text(encoding="utf-8") == markdown(PARAMS), made_by


def test_every_setting_of_params_yaml_is_there_once_with_what_is_allowed_and_what_it_means():
    keys = [key for key, _, _ in ROWS]
    assert len({*keys}) == len(keys)
    assert [row for row in ROWS if not row[1].strip() or not row[2].strip()] == []
    free = ("ood.sets.", "task.")  # tables whose names are the user's
    used = [key for key in profile.flatten(load_yaml(ROOT / paths.PARAMS, ParamsError)) if not key.startswith(free)]
    assert [key for key in used if not any(key == known or key.startswith(f"{known}.") for known in keys)] == []


class Inner(Section):
    depth: int = Field(ge=1, lt=5_000_000, description="how deep")


class Toy(Section):
    share: float = Field(gt=0, le=1, description="a share")
    cap: int | None = Field(ge=1)
    kind: Literal["a", "b"]
    names: list[Annotated[str, Field(min_length=1)]] = Field(min_length=2)
    rates: list[Annotated[float, Field(ge=0)]]
    sets: dict[str, list[str]]
    inner: Inner
    on: bool


def test_what_is_allowed_is_told_in_words():
    assert settings("toy", Toy) == [
        ("toy.share", "number, above 0, at most 1", "a share"),
        ("toy.cap", "whole number, 1 or more, or null", ""),
        ("toy.kind", "a | b", ""),
        ("toy.names", "list of text, 2 or more", ""),
        ("toy.rates", "list of (number, 0 or more)", ""),
        ("toy.sets", "name: list of text", ""),
        ("toy.inner.depth", "whole number, 1 or more, below 5,000,000", "how deep"),
        ("toy.on", "true or false", ""),
    ]
    assert settings("plain", list[int]) == [("plain", "list of (whole number)", "")]


def test_comments_explain_where_the_schema_does_not():
    text = "# Some words.  Paper: 5\n# More.\ntop:\n  - a\n\nmade:\n  size: 3  # a size: of it.  Paper: 4\n  other: 1\n"
    assert comments(text) == {"top": "Some words.", "made": "", "made.size": "a size: of it.", "made.other": ""}


def test_bars_in_what_is_allowed_do_not_break_the_table():
    lines = [line for line in markdown(PARAMS).splitlines() if line.startswith("| `")]
    assert "\\|" in markdown(PARAMS)
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {4} and len(lines) == len(ROWS)
