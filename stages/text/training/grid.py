"""The grid search: every point is trained, the one with the best dev score is kept."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from skill_grafting.support.errors import TrainingError

Kept = TypeVar("Kept")
Point = dict[str, Any]


@dataclass(frozen=True)
class Trained(Generic[Kept]):
    """The result of training at one point: what to keep, its (accuracy, -loss) on dev, and its record."""

    kept: Kept
    score: tuple[float, float]
    record: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SearchResult(Generic[Kept]):
    """The best point, its result, its accuracy on dev, and a record of every point."""

    point: Point
    kept: Kept
    accuracy: float
    grid: list[dict[str, Any]]


def search(points: Iterable[Point], train: Callable[[Point], Trained[Kept]]) -> SearchResult[Kept]:
    """The point with the best dev score, the first of equals; diverging ones are skipped; TrainingError if all diverge."""
    best, grid = None, []
    for point in points:
        try:
            trained = train(point)
        except TrainingError as error:
            grid.append({**point, "failed": str(error)})
            continue
        accuracy, minus_loss = trained.score
        grid.append({**point, **trained.record, "dev_accuracy": accuracy, "dev_loss": -minus_loss})
        if best is None or trained.score > best[1].score:
            best = point, trained
    if best is None:
        raise TrainingError("; ".join(point["failed"] for point in grid))
    point, trained = best
    return SearchResult(point, trained.kept, trained.score[0], grid)
