"""Safe YAML loading by YAML 1.2 rules, so that the pipeline reads what DVC wrote.

PyYAML follows YAML 1.1, where `1e-05` is a string and `No` is a boolean.  DVC follows YAML 1.2
and rewrites params.yaml on every `-S`, dropping quotes on the way, so both would bite.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from .errors import GraftError

_Base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# far more than any file of the project has: bytes, values once aliases are followed, values in each other, digits
LARGEST, MOST, DEEPEST, LONGEST = 1 << 20, 100_000, 50, 1000


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


def _refusal(what: str, place: yaml.Event | yaml.Node, hint: str = "") -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, f"{what} in line {place.start_mark.line + 1}{hint}")


def _require_bounded(text: str) -> None:
    """Raise YAMLError for what would exhaust memory or stack once it is put together, and for types that are spelt out.

    Only a few values are held at any time: libyaml crashes on deep nesting, and ten lines of aliases stand for billions of values.
    """
    sizes: dict[str | None, int] = {}
    inside: list[tuple[str | None, int]] = []
    total = 0
    for event in yaml.parse(text, Loader=_Base):
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = inside.pop()
            sizes[anchor] = total - before
        elif isinstance(event, yaml.NodeEvent):
            total += sizes.get(event.anchor, 1) if isinstance(event, yaml.AliasEvent) else 1
            if isinstance(event, yaml.CollectionStartEvent):
                inside.append((event.anchor, total - 1))
            if total > MOST or len(inside) > DEEPEST:
                raise _refusal("more values" if total > MOST else "deeper nesting", event, " than any settings need")
            if getattr(event, "tag", None):
                raise _refusal(f"the type {event.tag.rpartition(':')[2]!r}", event, "; write the value alone")
            if "\0" in getattr(event, "value", ""):
                raise _refusal("the character \\0", event)


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    if len(text) > LONGEST:
        raise _refusal(f"a number of {len(text):,} digits", node)
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    return int(text[2:] if base != 10 else text, base)


def _construct_mapping(loader: _Loader, node: yaml.MappingNode) -> dict:
    seen: set = set()
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        if not isinstance(key_node, yaml.ScalarNode):
            raise _refusal("a key that is no plain name", key_node, "; put braces in quotes")
        key = loader.construct_object(key_node, deep=True)
        if key in seen:
            raise _refusal(f"the key {key!r} stands twice, again", key_node)
        seen.add(key)
    loader.flatten_mapping(node)
    return yaml.constructor.SafeConstructor.construct_mapping(loader, node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
_Loader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)


def load_yaml(path: Path, error: type[GraftError]) -> Any:
    """Read one YAML document; raise `error` that names the file when it can't be read or parsed."""
    try:
        if (size := path.stat().st_size) > LARGEST:
            raise error(f"{path}: too large to be settings ({size:,} bytes; at most {LARGEST:,})")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise error(f"{path}: no such file; run this from the project's top folder") from None
    except OSError as problem:
        raise error(f"{path}: can't be read: {problem.strerror}") from None
    except UnicodeDecodeError as problem:
        raise error(f"{path}: not UTF-8 text (byte {problem.start})") from None
    return parse_yaml(text, str(path), error)


def parse_yaml(text: str, name: str, error: type[GraftError]) -> Any:
    """One YAML document; raises `error` with its `name` where it is none."""
    try:
        _require_bounded(text)
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as problem:
        detail = " ".join(str(problem).split())
        raise error(f"{name}: not valid YAML: {detail}") from None
