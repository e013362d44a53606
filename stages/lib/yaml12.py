"""Safe YAML loading by YAML 1.2 rules, so that the pipeline reads what DVC wrote.

PyYAML follows YAML 1.1, where `1e-05` is a string and `No` is a boolean.  DVC follows YAML 1.2
and rewrites params.yaml on every `-S`, dropping quotes on the way, so both would bite.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from stages.lib.errors import GraftError

_Base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):
    """SafeLoader with the core schema of YAML 1.2 and without duplicate keys."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+0123456789."),
    ),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


def _construct_int(loader: Any, node: Any) -> int:
    text = loader.construct_scalar(node)
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    return int(text[2:] if base != 10 else text, base)


def _construct_mapping(loader: Any, node: Any) -> dict:
    seen: set = set()
    for key_node, _ in node.value:
        line = key_node.start_mark.line + 1
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        if not isinstance(key_node, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(
                None, None, f"a key that is no plain name in line {line}; put braces in quotes"
            )
        key = loader.construct_object(key_node, deep=True)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} stands twice, again in line {line}")
        seen.add(key)
    loader.flatten_mapping(node)
    return yaml.constructor.SafeConstructor.construct_mapping(loader, node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
_Loader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)


def load_yaml(path: Path, error: type[GraftError]) -> Any:
    """Read one YAML document; raise `error` that names the file when it can't be read or parsed."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise error(f"{path}: no such file; run this from the project's top folder") from None
    except UnicodeDecodeError as problem:
        raise error(f"{path}: not UTF-8 text (byte {problem.start})") from None
    return parse_yaml(text, str(path), error)


def parse_yaml(text: str, name: str, error: type[GraftError]) -> Any:
    """One YAML document; raises `error` with its `name` where it is none."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as problem:
        detail = " ".join(str(problem).split())
        raise error(f"{name}: not valid YAML: {detail}") from None
