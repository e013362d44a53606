"""Reading of what fetch says about a data set."""

from stages.lib import paths
from stages.lib.data.tasks import TaskSpec
from stages.lib.io import read_json, require


def read_task(name: str) -> TaskSpec:
    """The resolved task definition that fetch stored; raises DataError if it isn't there."""
    return TaskSpec.model_validate(read_json(require(paths.card(name), "fetch"))["task"])
