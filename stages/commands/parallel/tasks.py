"""What a run has to do, as tasks that know which others they need."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stages.commands.plan.costs import Costs
from stages.commands.plan.predicted_steps import predict_steps
from stages.commands.plan.stage_status import UNCHANGED


@dataclass(frozen=True)
class Task:
    """A stage to run: its name, what DVC calls it, the tasks that it needs, and what the plan says that it takes."""

    name: str
    target: str
    needs: tuple[str, ...]
    seconds: float
    memory_mib: float
    has_model: bool


def find_tasks(targets: Sequence[str], costs: Costs) -> list[Task]:
    """The stages of `dvc repro TARGETS` that have something to do, each behind those that it needs."""
    import networkx as nx
    from dvc.repo import Repo

    names = {step.name for step in predict_steps(targets) if step.fate != UNCHANGED}
    with Repo() as repo:
        graph = repo.index.graph
        order = [stage for stage in reversed([*nx.topological_sort(graph)]) if stage.cmd and stage.name in names]
        return [_task(stage, graph, names, costs) for stage in order]


def _task(stage: Any, graph: Any, names: set[str], costs: Costs) -> Task:
    import networkx as nx

    needs = {other.name for other in nx.descendants(graph, stage)} & names
    settings = {name for dep in stage.deps for name in getattr(dep, "params", [])}
    seconds = costs.seconds(stage.name) or 0.0
    return Task(
        stage.name, stage.addressing, (*sorted(needs),), seconds, costs.memory(stage.name), "runtime" in settings
    )
