"""All tables of the study, those of stages that are off left out."""

from stages.lib.report.document import Table
from stages.study.report.bound_table import bound_table
from stages.study.report.collecting import Study
from stages.study.report.comparing import gap_table, localizer_table, order_table, readout_kinds_table
from stages.study.report.method_tables import calibration_tables, transfer_tables
from stages.study.report.region_tables import fish_table, ood_table, readout_table
from stages.study.report.size_table import size_table


def tables(study: Study) -> list[Table]:
    """Tables in the order in which they are read."""
    single = (
        localizer_table,
        order_table,
        readout_table,
        readout_kinds_table,
        gap_table,
        bound_table,
        ood_table,
        size_table,
        fish_table,
    )
    found = [table for make in single if (table := make(study))]
    found += [*calibration_tables(study), *transfer_tables(study)]
    return [table for table in found if table.rows]


def off_line(study: Study) -> str:
    """One line that says which stages are off; empty if none is."""
    return f"off, so without tables and figures: {', '.join(study.off)}" if study.off else ""
