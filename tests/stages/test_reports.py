"""Each pipeline's committed report is what its report.yaml makes of its committed frames, and what it makes of others differs."""

import json
from functools import cache
from pathlib import Path

import pytest

from stages.workflow.report.claims import judge
from stages.workflow.report.publish import headline, load_report, markdown

ROOT = Path(__file__).parents[2]
PIPELINES = ["summary", "talos", "merge", "continual", "surgical", "smallest", "multitask", "study"]


@cache
def loaded(pipeline):
    folder = "" if pipeline == "summary" else pipeline
    return load_report(Path("stages", folder), ROOT / "plots" / folder)


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_the_committed_report_follows_from_the_committed_frames(pipeline):
    spec, frames = loaded(pipeline)
    assert markdown(spec, frames) == (ROOT / f"metrics/{pipeline}.md").read_text()
    assert headline(spec, frames) == json.loads((ROOT / f"metrics/{pipeline}.json").read_text())
    assert len(headline(spec, frames)) <= 15


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_no_two_claims_of_a_report_read_the_same(pipeline):
    told = [claim.words for claim in judge(*loaded(pipeline))]
    assert [words for words in told if told.count(words) > 1] == []
