"""model: the pretrained model, brought from its source into models/pretrained."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from stages.lib import paths
from stages.lib.entry import stage
from stages.lib.io import replacing
from stages.workflow.settings import load_params

if TYPE_CHECKING:
    from stages.lib.models.anatomy import Anatomy
    from stages.lib.settings import RuntimeParams


@stage
def main() -> None:
    """Fetch the pretrained model and write it as an ordinary folder."""
    params = load_params(
        "model.source", "model.name", "model.revision", "model.root", "model.mode",
        "runtime.device", "runtime.precision", "runtime.threads",
    )  # fmt: skip
    model = params.model

    from stages.lib.models.sources import import_model, obtain

    with tempfile.TemporaryDirectory() as downloads, replacing(paths.PRETRAINED) as folder:
        source = obtain(model.source, model.name, model.revision, Path(model.root), Path(downloads))
        anatomy = import_model(source, model, folder)
        if params.runtime.precision == "auto":
            choose(anatomy, params.runtime, folder)
    graftable = anatomy.region(["layers"]).size
    print(f"model: {anatomy.name}, {anatomy.parameters:,} parameters, {graftable:,} of them in the layers")


def choose(anatomy: "Anatomy", runtime: "RuntimeParams", folder: Path) -> None:
    """Measure which precision is faster here, with as many threads as stages have, and keep it with the model."""
    import torch

    from stages.lib.models.precision import choose_precision, write_precision
    from stages.lib.runtime import device_of

    if runtime.threads:
        torch.set_num_threads(runtime.threads)
    name, reason = choose_precision(anatomy, device_of(runtime.device))
    write_precision(name, folder)
    print(f"model: runtime.precision auto is {name} ({reason})")


if __name__ == "__main__":
    main()
