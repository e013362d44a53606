"""A short part of the campaign in tests/chaos, the same cases every time, and that it would find something."""

import random

import pytest

from stages.lib.errors import DataError
from tests.chaos import campaign, folders, inputs, tensors
from tests.sealed import read_patch

CHECKS = {**inputs.CHECKS, **tensors.CHECKS}


@pytest.mark.parametrize("name", CHECKS)
def test_no_reader_breaks_on_damaged_input(name):
    found, cases, failures = campaign.examine(name, CHECKS[name], 40, 1)
    assert (found, failures) == (name, []) and cases >= 40


def test_no_model_folder_breaks_the_import_or_runs_code(monkeypatch):
    monkeypatch.setattr(folders, "_limit_memory", lambda: None)
    assert campaign.examine("model folders", folders.model_folders, 15, 1)[2] == []


def test_the_same_number_makes_the_same_cases_and_a_broken_reader_is_told():
    seen = []

    def broken(chance, _folder):
        seen.append(drawn := chance.randint(0, 9))
        if drawn == 7:
            raise KeyError("seven")
        raise DataError("one clear line")

    name, cases, failures = campaign.examine("broken", broken, 100, 1)
    first, seen[:] = [*seen], []
    assert (name, len(failures)) == ("broken", 1) and "KeyError: 'seven'" in failures[0] and 7 in first
    assert campaign.examine("broken", broken, 100, 1) == (name, cases, failures) and seen == first


@pytest.mark.parametrize("said", ["", "\n"])
def test_a_refusal_without_words_is_a_failure(tmp_path, said):
    def refuse(_chance, _folder):
        raise DataError(said)

    with pytest.raises(AssertionError, match="refused without a word"):
        campaign.put_to_the_test(refuse, random.Random(0), tmp_path)


def test_the_campaign_sees_a_reader_that_takes_what_is_damaged():
    """Control: a reader that passes over the digest lets bits go by."""

    def careless(path):
        return path.read_bytes()

    def check(chance, folder):
        tensors.damaged(careless, tensors.FILES["patches"][1], chance, folder)

    assert "was read as if it were whole" in campaign.examine("careless", check, 40, 1)[2][0]
    assert campaign.examine("patches", lambda *args: tensors.damaged(*tensors.FILES["patches"], *args), 40, 1)[2] == []
    assert tensors.FILES["patches"][0] is read_patch
