"""Reports that tests share: what was made of some data once is not made of it again."""

from collections.abc import Callable
from functools import wraps
from typing import Any


def once(make: Callable[..., Any]) -> Callable[..., Any]:
    """A function that keeps what it made of each object; a test may change neither."""
    made: dict[tuple, tuple] = {}

    @wraps(make)
    def kept(data: Any, *more: str) -> Any:
        key = (id(data), *more)
        if key not in made:
            made[key] = make(data, *more), data  # an object that is kept shares its id with no other
        return made[key][0]

    return kept
