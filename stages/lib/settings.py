"""What sections of params.yaml are made of, and rules between settings named by dotted keys."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from stages.lib.errors import did_you_mean

# A dash would let two cells share a DVC stage name: `a@b-c-1` is both (a, b-c) and (a-b, c).
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.]*$")]
Share = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Rate = Annotated[float, Field(gt=0, le=1e12)]


class Section(BaseModel):
    """Settings that don't change after they were read, and know no unknown key."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=(), allow_inf_nan=False)


def not_among(values: dict[str, Any], place: str, source: str) -> list[str]:
    """A problem for each item of the list `place` that isn't in the list `source`."""
    if any(key.partition(".")[0] not in values for key in (place, source)):
        return []  # a section that isn't fine by itself is a problem of its own
    allowed = at(values, source)
    names = ", ".join(map(str, allowed)) or "empty"
    strange = [item for item in at(values, place) if item not in allowed]
    return [f"{place}: {item!r} is not among {source} ({names}){did_you_mean(item, allowed)}" for item in strange]


def is_on(values: dict[str, Any], section: str) -> bool:
    """Whether a section is fine by itself and none of its lists is empty: an empty one switches its stage off."""
    return section in values and all(item != [] for _, item in values[section])


def at(values: dict[str, Any], key: str) -> Any:
    """The section or the setting of a dotted key."""
    section, _, setting = key.partition(".")
    part = values[section]
    if not setting:
        return part
    return part[setting] if isinstance(part, dict) else getattr(part, setting)
