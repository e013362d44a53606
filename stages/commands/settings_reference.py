"""The reference of every setting, from the schema that params.yaml is checked against.

python -m stages.commands.settings_reference        writes stages/PARAMS.md
"""

import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import TypeAdapter

from stages.lib import paths
from stages.lib.entry import guarded
from stages.lib.io import write_text
from stages.workflow.settings import PIPELINES

PAGE = Path("stages/PARAMS.md")
INTRO = """# Every setting

Written by `python -m stages.commands.settings_reference` from the schema that `params.yaml` is checked against
(`settings.py` of each pipeline); change nothing here by hand. The default values, the reasons for them and the paper's own stand
in `params.yaml`.

A setting is named by its section and its own name: `graft.sparsity` is `sparsity` under `graft:`. A stage runs anew
only if one of the settings changes that its entry in the pipeline's `dvc.yaml` lists under `params`.
"""
Schema = dict[str, Any]
KINDS = {"boolean": "true or false", "null": "null", "integer": "whole number", "number": "number", "string": "text"}
LARGE = 1e10
BOUNDS = (
    ("exclusiveMinimum", "above {}"),
    ("minimum", "{} or more"),
    ("exclusiveMaximum", "below {}"),
    ("maximum", "at most {}"),
)


def markdown(params: str) -> str:
    """The whole page; what the schema doesn't explain is explained by its comment in `params`, the text of params.yaml."""
    told = comments(params)
    parts = [part for name, pipeline in PIPELINES.items() for part in _pipeline(name, pipeline, told)]
    return "\n".join([INTRO, *parts])


def _pipeline(name: str, pipeline: ModuleType, told: dict[str, str]) -> Iterator[str]:
    place = f"stages/{name}/dvc.yaml" if name else "dvc.yaml"
    yield f"## {(name or 'main').capitalize()} pipeline (`{place}`)\n"
    yield "| setting | allowed | meaning |\n| :-- | :-- | :-- |"
    for section, kind in pipeline.SECTIONS.items():
        for key, values, meaning in settings(section, kind):
            yield f"| `{key}` | {_cell(values)} | {_cell(meaning or told.get(key, ''))} |"
    yield ""


def settings(section: str, kind: object) -> list[tuple[str, str, str]]:
    """Dotted key, what is allowed and what it means (empty if the schema doesn't say), for each setting of a section."""
    return [(key, allowed(field, known), field.get("description", "")) for key, field, known in leaves(section, kind)]


def leaves(section: str, kind: object) -> Iterator[tuple[str, Schema, Schema]]:
    """Dotted key, JSON schema and the definitions that it refers to, for each setting of a section."""
    schema = TypeAdapter(kind).json_schema()
    yield from _leaves(section, schema, schema.get("$defs", {}))


def _leaves(key: str, field: Schema, known: Schema) -> Iterator[tuple[str, Schema, Schema]]:
    field = field | known[field["$ref"].rpartition("/")[2]] if "$ref" in field else field
    if "properties" not in field:
        yield key, field, known
    for name, inside in field.get("properties", {}).items():
        yield from _leaves(f"{key}.{name}", inside, known)


def comments(text: str) -> dict[str, str]:
    """Dotted key -> its comment in params.yaml: behind it, or above it, where lines of several keys begin with their names."""
    found: dict[str, str] = {}
    names, above, adjacent = [], [], False
    for line in text.splitlines():
        if (words := line.strip()).startswith("# "):
            above = [*(above if adjacent else []), words[2:]]
        elif match := re.match(r"( *)(\w+):(?:.*?# (.*))?", line):
            names = [*names[: len(match[1]) // 2], match[2]]
            named = [told.removeprefix(f"{match[2]}: ") for told in above if told.startswith(f"{match[2]}: ")]
            found[".".join(names)] = match[3] or " ".join(named or (above if adjacent else []))
        adjacent = words.startswith("#")
    return {key: re.sub(r" Paper: .*", "", " ".join(comment.split())) for key, comment in found.items()}


def allowed(field: Schema, known: Schema) -> str:
    """The allowed values in words, from their JSON schema."""
    if "$ref" in field:
        return allowed(known[field["$ref"].rpartition("/")[2]], known)
    if "anyOf" in field:
        return ", or ".join(allowed(choice, known) for choice in field["anyOf"])
    if "enum" in field or "const" in field:
        return " | ".join(map(str, field.get("enum", [field.get("const")])))
    if field.get("type") == "array":
        least = f", {field['minItems']} or more" if field.get("minItems") else ""
        items = allowed(field.get("items", {}), known)
        return f"list of {f'({items})' if ' ' in items else items}{least}"
    if field.get("type") == "object":
        return f"name: {allowed(_values(field), known)}"
    kind = KINDS.get(field.get("type", ""), "settings")
    return ", ".join([kind, *(words.format(_number(field[name])) for name, words in BOUNDS if name in field)])


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) and value < LARGE else f"{value:g}"


def _values(field: Schema) -> Schema:
    """Schema of the values of a table with free names."""
    values = field.get("additionalProperties") or next(iter(field.get("patternProperties", {}).values()), {})
    return values if isinstance(values, dict) else {}


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def main() -> None:
    """Write the page."""
    write_text(PAGE, markdown(paths.PARAMS.read_text(encoding="utf-8")))
    print(PAGE)


if __name__ == "__main__":
    guarded("reference", main)
