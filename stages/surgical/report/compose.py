"""The whole surgical report, and the data behind its figures."""

from pathlib import Path

from stages.lib.io import write_text
from stages.lib.report.document import Report
from stages.lib.report.format import counted
from stages.surgical.report import ranking
from stages.surgical.report.collecting import Surgical
from stages.surgical.report.findings import claims, flagged_line
from stages.surgical.report.tables import tables

DECIMALS = 6


def write_report(data: Surgical) -> Report:
    """Tables, what is off, and which claims show."""
    size = f"{counted(data.fim.task.nunique(), 'task')}, {counted(data.fim.seed.nunique(), 'seed')}, {counted(data.layers, 'layer')}"
    off = [name for name, frame in (("surgery", data.surgery), ("robustness", data.robustness)) if frame.empty]
    facts = [flagged_line(data), f"off, so without tables and figures: {', '.join(off)}" if off else ""]
    return Report("Surgical fine-tuning", size, tables(data), [line for line in facts if line], claims(data))


def plot_data(data: Surgical, folder: Path) -> None:
    """Write fim.csv, surgery.csv, robustness.csv and regions.csv, those of stages that ran."""
    frames = {
        "fim": data.fim,
        "surgery": data.surgery.assign(
            layers=[" ".join(map(str, layers)) for layers in data.surgery.layers],
            flagged=data.surgery.index.isin(data.flagged().index),
        ),
        "robustness": ranking.checkpoints(data),
        "regions": data.regions,
    }
    for name, frame in frames.items():
        if len(frame):
            # scores may be tiny
            rounded = frame.round(
                dict.fromkeys({"accuracy", "loss", "majority", "spearman", "kendall", "moved"}, DECIMALS)
            )
            write_text(folder / f"{name}.csv", rounded.to_csv(index=False, lineterminator="\n"))
