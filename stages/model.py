"""model: the pretrained model, brought from its source into models/pretrained."""

import tempfile
from pathlib import Path

from stages.lib import paths
from stages.lib.entry import stage
from stages.lib.io import replacing
from stages.lib.params import load_params


@stage
def main() -> None:
    """Fetch the pretrained model and write it as an ordinary folder."""
    model = load_params("model.source", "model.name", "model.revision", "model.root", "model.mode").model

    from stages.lib.models.sources import import_model, obtain

    with tempfile.TemporaryDirectory() as downloads, replacing(paths.PRETRAINED) as folder:
        source = obtain(model.source, model.name, model.revision, Path(model.root), Path(downloads))
        anatomy = import_model(source, model, folder)
    graftable = anatomy.region(["layers"]).size
    print(f"model: {anatomy.name}, {anatomy.parameters:,} parameters, {graftable:,} of them in the layers")


if __name__ == "__main__":
    main()
