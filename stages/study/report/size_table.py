"""The fine-tuned model and its learned grafts of several sizes, task by task, laid out like table 5 of the paper."""

from itertools import chain

from stages.lib.metrics.variants import FINETUNED
from stages.lib.report.document import Row, Table
from stages.lib.report.format import percent, small_percent
from stages.study.report import choosing
from stages.study.report.choosing import LEARNED
from stages.study.report.collecting import Study
from stages.study.report.paper import table5
from stages.study.report.region_tables import SCORE_ECE, VALUES, texts

PAPER = "paper: RoBERTa-base, 50,000 examples per class; it gives no deviations, and is no target for other settings"


def size_table(study: Study) -> Table | None:
    """A row for each task; None without learned grafts."""
    sizes = choosing.sparsities(choosing.sweep(study, LEARNED))
    frames = {FINETUNED: choosing.anchor(study, FINETUNED)}
    frames |= {size: choosing.sweep(study, LEARNED, size) for size in sizes}
    rows = []
    for task in study.tasks if sizes else ():
        ours = {name: frame[frame.task == task] for name, frame in frames.items()}
        n = len(choosing.by_cell(ours[sizes[0]]))
        values = chain.from_iterable(texts(frame, SCORE_ECE) for frame in ours.values())
        rows.append(Row("ours", [choosing.named(study, task), str(n), *values]))
        rows += _paper_rows(task, [*frames])
    titles = ["FT", *(f"graft of {small_percent(size)}" for size in sizes)]
    header = ["task", "n", *(f"{title} {measure}" for title in titles for measure in ("score", "ECE"))]
    return Table("Table 5: learned grafts of several sizes", header, rows, [VALUES, PAPER]) if rows else None


def _paper_rows(task: str, columns: list[str | float]) -> list[Row]:
    theirs = table5(task)
    cells = [percent(theirs[name][measure]) if name in theirs else "" for name in columns for measure in SCORE_ECE]
    return [Row("paper", ["  paper", "", *cells])] if theirs else []
