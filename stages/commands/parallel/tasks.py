"""The work of a run, as tasks that know which others they need."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stages.commands.mend import mending
from stages.commands.plan.costs import Costs
from stages.commands.plan.predicted_steps import prediction
from stages.commands.plan.stage_status import CACHED, UNCHANGED, Step

if TYPE_CHECKING:
    from dvc.stage import Stage


@dataclass(frozen=True)
class Task:
    """A stage to run: its name, what DVC calls it, the tasks that it needs, and what the plan says that it takes.

    `seconds` are 0 where outputs only come from the run cache, and where nobody has measured any.
    `processes` compute with the model together, each on a GPU of its own if there are any; 0 of a stage without a model.

    Whether its outputs come from this clone's run cache, and whether a run cache keeps them at all: DVC has none of a stage
    with `outs` that git keeps, as reports are.
    """

    name: str
    target: str
    needs: tuple[str, ...]
    seconds: float
    memory_mib: float
    processes: int
    is_cached: bool
    is_kept: bool


@mending
def find_tasks(targets: Sequence[str], costs: Costs) -> tuple[list[Step], list[Task]]:
    """Steps of `dvc repro TARGETS`, and the stages that have something to do, each behind those that it needs."""
    import networkx as nx

    with prediction(targets) as (steps, graph):
        fates = {stage: step.fate for stage, step in steps.items() if step.fate != UNCHANGED}
        tasks = [
            Task(
                name=stage.name,
                target=stage.addressing,
                needs=(*sorted(other.name for other in nx.descendants(graph, stage) & {*fates}),),
                seconds=0.0 if fate == CACHED else costs.seconds(stage.name) or 0.0,
                memory_mib=costs.memory(stage.name) * max(1, used := _processes(stage)),
                processes=used,
                is_cached=fate == CACHED,
                is_kept=all(out.use_cache or out.is_metric or out.is_plot for out in stage.outs),
            )
            for stage, fate in fates.items()
        ]
        return [*steps.values()], tasks


def _processes(stage: "Stage") -> int:
    asked = {name for dep in stage.deps for name in getattr(dep, "params", [])}
    # only what computes with a model asks for the size of its batches
    return int("runtime.batch_tokens" in asked)
