"""dvc.lock with a stage's entry put into its text has the bytes that DVC writes."""

import json
import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from dvc.dependency import param
from dvc.dvcfile import Lockfile
from dvc.utils.serialize import dumps_yaml, parse_yaml
from dvc_objects.fs.local import LocalFileSystem
from ruamel.yaml import YAML

from stages.commands.parallel.quick_dvc import START, is_plain, load_entries, settings_read_once, with_entry
from stages.commands.parallel.run_stage import ALONE
from stages.lib.yaml12 import load_yaml
from tests.dvc_project import ROOT, lay_out_toy

LOCKS = sorted([ROOT / "dvc.lock", *ROOT.glob("stages/*/dvc.lock")])
PARAMS = {
    "small": 1e-05, "none": None, "text": "two\nlines\n\nand: more", "long": "word " * 40, "list": [1, 2.5, "three", []],
    "table": {"a": {"b": True}, "c": "'quoted'"}, "number": "0013",
}  # fmt: skip


def entry_of(name: str, content: dict) -> str:
    return dumps_yaml({"stages": {name: content}}).partition("\n")[2]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.parent.name)
def test_every_entry_of_the_projects_own_locks_can_be_put_in_and_taken_out(lock):
    text, stages = lock.read_text(encoding="utf-8"), load_yaml(lock, ValueError)["stages"]
    assert text.startswith(START) and len(stages) > 5
    for name, content in [*stages.items()][:: len(stages) // 5]:
        entry = entry_of(name, content)
        assert with_entry(text, entry) == text
        other = with_entry(text, entry_of(name, {**content, "cmd": "another"}))
        assert other != text and with_entry(other, entry) == text
        without = text.replace(entry, "")
        assert len(without) == len(text) - len(entry) and with_entry(without, entry) == without + entry


def test_an_entry_ends_where_the_next_one_begins_whatever_stands_in_it():
    entries = [entry_of(name, {"cmd": "x", "params": {"params.yaml": PARAMS}}) for name in ("a@1", "a@1-b", "a")]
    text = START + "".join(entries)
    assert len(re.findall(r"^ {2}\S", text, re.MULTILINE)) == 3
    short = entry_of("a@1-b", {"cmd": "y"})
    assert with_entry(text, short) == START + entries[0] + short + entries[2]
    assert with_entry(START + entries[0], short) == START + entries[0] + short


def test_a_file_that_was_cut_or_written_by_another_hand_is_left_to_dvc():
    text = START + entry_of("a", {"cmd": "x", "deps": [{"path": "data/tables/tweets"}]})
    assert is_plain(text) and is_plain(START), "control"
    cut = text[: text.index("tweets")]
    assert YAML(typ="safe").load(cut)["stages"], "control: what is left can still be read"
    assert not any(map(is_plain, (cut, "", "# mine\n" + text, text + "# mine\n")))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.parent.name)
def test_single_entries_are_read_as_dvc_reads_them(lock):
    all_of_it = Lockfile.validate(parse_yaml(lock.read_text(encoding="utf-8"), lock))
    names = [*all_of_it["stages"]]
    for chosen in ([names[0]], [names[-1], names[len(names) // 2]], []):
        assert load_entries(None, lock_file(lock), [*chosen, "nothing@of-this_name"]) == {
            **all_of_it, "stages": {name: all_of_it["stages"][name] for name in chosen}
        }  # fmt: skip


def test_a_file_that_was_cut_is_read_by_dvc(tmp_path):
    path = tmp_path / "dvc.lock"
    for text in ("", START + "  a:\n    cmd", "# mine\n" + START + "  a:\n    cmd: x\n"):
        path.write_text(text)
        assert load_entries(lambda file: file.path, lock_file(path), ["a"]) == str(path)
    path.write_text(START + "  a:\n    cmd: x\n")
    assert load_entries(None, lock_file(path), ["a"])["stages"] == {"a": {"cmd": "x"}}, "control"


def lock_file(path: Path) -> SimpleNamespace:
    return SimpleNamespace(path=str(path), validate=Lockfile.validate)


def test_settings_are_what_dvc_reads_and_a_changed_file_is_read_again(tmp_path):
    path, fs = tmp_path / "params.yaml", LocalFileSystem()
    path.write_text((ROOT / "params.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    keys = ["seeds", "graft.sparsity", "localizer.learned", "ood.sets", "graft.none", "tasks.none", "model.revision"]
    own = param.read_param_file(fs, str(path), keys, flatten=True)
    with settings_read_once():
        assert param.read_param_file(fs, str(path), keys, flatten=True) == own and len(own) == len(keys) - 2
        assert param.read_param_file(fs, str(path), keys[:1]) == {"seeds": own["seeds"]}, "not flattened: by DVC"
        path.write_text("seeds: [99]\n")
        os.utime(path, ns=(0, 0))
        assert param.read_param_file(fs, str(path), keys, flatten=True) == {"seeds": [99]}
    assert param.read_param_file(fs, str(path), keys, flatten=True) == {"seeds": [99]}


def run(folder: Path, *words: str) -> str:
    done = subprocess.run([*words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    return done.stdout


@pytest.mark.slow
def test_runs_write_what_runs_of_dvc_write(tmp_path, monkeypatch):
    places = {tmp_path / "dvc": ("dvc",), tmp_path / "quick": ALONE[:3]}
    names = ["first", "second", "a_rather_long_name_after_which_a_line_of_the_command_has_to_be_broken"]
    stages = {
        "cell": {
            "matrix": {"name": names}, "params": [*PARAMS], "outs": ["${item.name}.txt"],
            "cmd": 'exec python -c \'open("${item.name}.txt", "w").write("${item.name}")\' some more words',
        }
    }  # fmt: skip
    more = {"last": {"cmd": "exec touch last.txt", "deps": ["first.txt"], "outs": [{"last.txt": {"cache": False}}]}}
    for place in places:
        place.mkdir()
        monkeypatch.chdir(place)
        lay_out_toy(monkeypatch, {})

    def told(small: float, stages: dict) -> str:
        for place in places:
            (place / "params.yaml").write_text(json.dumps(PARAMS | {"small": small}))
            (place / "dvc.yaml").write_text(json.dumps({"stages": stages}))
        texts = {run(place, *command, "repro") for place, command in places.items()}
        assert len({(place / "dvc.lock").read_bytes() for place in places}) == 1
        # what git should add is listed in any order
        [said] = {text.partition("\nTo track the changes")[0] for text in texts}
        return said

    said = told(1e-05, stages)
    assert said.count("Running stage") == 3 and "Updating lock file 'dvc.lock'" in said
    stages |= more
    assert told(2e-05, stages).count("Running stage") == 4
    assert "Running stage" not in told(2e-05, stages)
    for place in places:  # what DVC begins the file with is not there: it is left to DVC
        (place / "dvc.lock").write_text("# mine\n" + (place / "dvc.lock").read_text().replace("'2.0'", '"2.0"'))
        (place / "last.txt").unlink()
    assert told(3e-05, stages).count("Running stage") == 4
    assert (tmp_path / "quick/dvc.lock").read_text().startswith("# mine\n")
