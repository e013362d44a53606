"""model: import the pretrained model into models/pretrained."""

import tempfile
from pathlib import Path

from skill_grafting.support.writing import replacing
from stages.text.models.importing import import_model
from stages.text.sources.model_folders import obtain
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage
from stages.workflow.stage.sections import Settings


@stage
def main(params: Settings) -> None:
    """Fetch the pretrained model and write it as an ordinary folder."""
    model = params.model
    with tempfile.TemporaryDirectory() as downloads, replacing(paths.PRETRAINED) as folder:
        source = obtain(model.source, model.name, model.revision, Path(model.root), Path(downloads))
        anatomy = import_model(source, model, folder)
    graftable = anatomy.region(["layers"]).size
    print(f"model: {anatomy.name}, {anatomy.parameters:,} parameters, {graftable:,} of them in the layers")
