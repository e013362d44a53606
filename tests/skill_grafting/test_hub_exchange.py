"""push and pull, against a stand-in for the hub on this machine that keeps what it is given."""

import base64
import hashlib
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import ModelCard

from skill_grafting.grafting.mask_file import StoredMask, read_mask, write_mask
from skill_grafting.patches.patch_file import KEY
from skill_grafting.patches.paths import CARD, PATCH
from tests.cells import Cell
from tests.graft_project import MASK, ROOT, graft, make_project
from tests.pico import same
from tests.sealed import flip_bit, read_patch

SHA = "0123456789abcdef" * 2 + "01234567"
# runs several commands in one process, which knows the stand-in and no other hub
COMMANDS = """
import contextlib, io, json, os, sys, urllib.request
from skill_grafting.patches.__main__ import main
told = []
for arguments in json.load(sys.stdin):
    if arguments[0] == "without a token":
        arguments = arguments[1:]
        del os.environ["HF_TOKEN"]
    if arguments[0] == "unplug":  # from here on the hub answers no more
        told.append(urllib.request.urlopen(os.environ["HF_ENDPOINT"] + "/unplug").read().decode())
        continue
    if arguments[0] == "load":
        from skill_grafting.patches.live import load_graft
        told.append(" ".join(load_graft(*arguments[1:]).config.id2label.values()))
        continue
    said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said[0]), contextlib.redirect_stderr(said[1]), contextlib.suppress(SystemExit):
        main(arguments)
    told.append(said[0].getvalue() or said[1].getvalue())
print(json.dumps(told))
"""


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of the hub as it takes to make a repository, commit small files to it and fetch them."""

    repos: dict[str, dict[str, bytes]]
    made: dict[str, dict]

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def answer(self, value: object, **headers: str) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(200)
        for name, text in {"Content-Length": str(len(body)), "X-Repo-Commit": SHA, **headers}.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def unplug(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def missing(self, what: str) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", f"{what}NotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers["Authorization"] == "Bearer hf_standin"
        parts = self.path.strip("/").split("/")
        if self.path == "/api/repos/create":
            asked = json.loads(sent)
            name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            self.made[name] = asked
            self.repos.setdefault(name, {})
            return self.answer({"url": f"{self.endpoint}/{name}", "name": name})
        if parts[-2] == "preupload":
            how = {"uploadMode": "regular", "shouldIgnore": False}
            return self.answer({"files": [{"path": file["path"], **how} for file in json.loads(sent)["files"]]})
        if parts[-2] == "commit":
            name = "/".join(parts[2:4])
            for line in map(json.loads, sent.decode().splitlines()):
                if line["key"] == "file":
                    self.repos[name][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            place = f"{self.endpoint}/{name}/commit/{SHA}"
            return self.answer({"commitUrl": place, "commitOid": SHA, "success": True})
        return self.answer({"errors": [], "warnings": []})  # of the card's front matter

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = self.path.split("?")[0].strip("/").split("/")
        if parts == ["unplug"]:
            threading.Thread(target=self.unplug).start()
            return self.answer(b"")
        name = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        if name not in self.repos:
            return self.missing("Repo")
        files = self.repos[name]
        if "v9" in parts:
            return self.missing("Revision")
        if "tree" in parts:
            kind = {"type": "file", "oid": SHA}
            return self.answer([{"path": file, "size": len(content), **kind} for file, content in files.items()])
        if parts[0] == "api":
            card = {"license": "apache-2.0"} if name == "owner/base" else None
            siblings = [{"rfilename": file} for file in files]
            return self.answer({"id": name, "sha": SHA, "cardData": card, "siblings": siblings, "tags": []})
        if (content := files.get("/".join(parts[4:]))) is None:
            return self.missing("Entry")
        return self.answer(content, ETag=f'"{hashlib.sha1(content).hexdigest()}"')


@contextmanager
def serving() -> Iterator[type[Hub]]:
    kind = type("OneHub", (Hub,), {"repos": {"owner/base": {}, "owner/other": {"model.safetensors": b""}}, "made": {}})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        kind.endpoint = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield kind
        server.shutdown()


def run(endpoint: str, home: Path, *commands: list[object]) -> list[str]:
    """The output of each command, in a process of its own."""
    kept = [
        name for name in os.environ if not name.startswith(("HF_", "TRANSFORMERS_")) and "proxy" not in name.lower()
    ]
    clean = {name: os.environ[name] for name in kept}
    clean |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_TOKEN": "hf_standin", "HF_HUB_DISABLE_XET": "1"}
    asked = json.dumps([[str(word) for word in command] for command in commands])
    command, how = [sys.executable, "-c", COMMANDS], {"cwd": ROOT, "env": clean, "capture_output": True, "text": True}
    done = subprocess.run(command, input=asked, **how)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def export_patch(folder: Path, cell: Cell) -> Path:
    """A patch of a base model on the hub, with scores, and beside it one of a model that is nowhere else, and one with a bit lost."""
    project = make_project(folder / "project", cell)
    with chdir(project.folder):
        anatomy = Path("models/pretrained/anatomy.json")
        (anatomy.parent / "SHA256SUMS").unlink()
        anatomy.write_text(json.dumps(json.loads(anatomy.read_text()) | {"name": "owner/base", "source": "hub"}))
        graft("export", MASK, "--as", "patch", "--to", folder / "patch")
    stored, use = read_patch(folder / "patch" / PATCH)
    own = {**stored.about, KEY: use.model_copy(update={"source": "local", "base": "mine"}).model_dump()}
    for name in ("own", "damaged", "taken"):
        (folder / name).mkdir()
    write_mask(folder / "own" / PATCH, StoredMask(stored.mask, stored.values, stored.head, own))
    (folder / "own" / CARD).write_text("---\ntags: [x]\n---\n")
    shutil.copy(folder / "patch" / PATCH, folder / "damaged")
    flip_bit(folder / "damaged" / PATCH, -1)
    (folder / "taken/mine").touch()
    return folder / "patch"


LOCALIZE = ["localize", "--base", "owner/base-model", "--finetuned", "owner/tuned", "--sparsity", "0.01", "--to"]


@pytest.fixture(scope="module")
def told(tmp_path_factory, make_cell) -> SimpleNamespace:
    """All commands in one process, the last two without a hub: what each said, and where things lie."""
    folder, cell = tmp_path_factory.mktemp("exchange"), make_cell("standard")
    patch = export_patch(folder, cell)
    here = ["--base", cell.pretrained_folder, "--finetuned", cell.finetuned_folder, "--task", "tuned"]
    commands = {
        "push": ["push", patch, "--to", "owner/movies", "--private"],
        "pull": ["pull", "owner/movies", "--to", folder / "pulled"],
        "own": ["push", folder / "own", "--to", "owner/own"],
        "nobody": ["pull", "owner/nobody", "--to", folder / "to"],
        "other": ["pull", "owner/other", "--to", folder / "to"],
        "no name": ["pull", "not a name", "--to", folder / "to"],
        "taken": ["pull", "owner/movies", "--to", folder / "taken"],
        "no patch": ["push", folder / "taken", "--to", "owner/movies"],
        "damaged": ["pull", "owner/damaged", "--to", folder / "to"],
        "localize": [*LOCALIZE, folder / "found"],
        "of folders": ["localize", *here, "--sparsity", "0.01", "--to", folder / "of_folders"],
        "load": ["load", "owner/base-model", folder / "found"],
        "no model": [*LOCALIZE, folder / "to", "--finetuned", "owner/tunde"],
        "unsafe": [*LOCALIZE, folder / "to", "--finetuned", "owner/unsafe"],
        "no revision": [*LOCALIZE, folder / "to", "--finetuned-revision", "v9"],
        "no token": ["without a token", "push", patch, "--to", "owner/movies"],
        "unplugged": ["unplug"],
        "away": ["pull", "owner/elsewhere", "--to", folder / "to"],
        "again": [*LOCALIZE, folder / "again"],
    }
    with serving() as hub:
        for name, place in {"base-model": cell.pretrained_folder, "tuned": cell.finetuned_folder}.items():
            hub.repos[f"owner/{name}"] = {path.name: path.read_bytes() for path in place.iterdir()}
        hub.repos["owner/unsafe"] = {"config.json": b"{}", "pytorch_model.bin": b"", "tokenizer.json": b"{}"}
        hub.repos["owner/damaged"] = {PATCH: (folder / "damaged" / PATCH).read_bytes()}
        said = dict(zip(commands, run(hub.endpoint, folder / "home", *commands.values()), strict=True))
    return SimpleNamespace(hub=hub, folder=folder, patch=patch, said=said)


def test_a_patch_goes_to_the_hub_and_comes_back_whole(told):
    hub, pulled, said = told.hub, told.folder / "pulled", told.said
    assert said["push"] == f"{hub.endpoint}/owner/movies/commit/{SHA}: {told.patch}, licence apache-2.0\n"
    assert hub.made["owner/movies"]["visibility"] == "private" and {*hub.repos["owner/movies"]} == {PATCH, CARD}
    assert said["pull"] == f"{pulled}: patch of owner/base for toy, owner/movies at {SHA[:12]}\n"
    assert {path.name for path in pulled.iterdir()} == {PATCH, CARD}
    assert (pulled / PATCH).read_bytes() == (told.patch / PATCH).read_bytes()
    card = ModelCard.load(pulled / CARD)
    assert card.text == ModelCard.load(told.patch / CARD).text
    assert (card.data.license, card.data.base_model) == ("apache-2.0", "owner/base")
    assert card.data.library_name == "transformers"
    found = {result.metric_type: (result.metric_value, result.dataset_args) for result in card.data.eval_results}
    assert found == {"score": (0.875, {"n": 200}), "retained": (0.972, {"n": 200})}
    assert said["own"].endswith("own, licence none: mine has no card that names one\n")


REFUSED = {
    "nobody": "graft pull: owner/nobody: the hub has no such repository, or the token may not see it\n",
    "other": "graft pull: owner/other: has no patch.safetensors at its newest commit, so it is no patch\n",
    "no name": "graft pull: not a name: is no name of a repository such as 'owner/name'\n",
    "taken": "graft pull: {folder}/taken: is there already; remove it or choose another name\n",
    "no patch": "graft push: {folder}/taken/patch.safetensors: no such mask or patch\n",
    "damaged": "graft pull: .*damaged: its content is not what was written\n",
    "no model": "graft localize: the hub has no model 'owner/tunde', or it needs a login (`hf auth login`)\n",
    "unsafe": "graft localize: the hub's owner/unsafe: model.safetensors missing; .*\n",
    "no revision": "graft localize: .*'owner/tuned' has no revision 'v9' on the hub\n",
    "no token": "graft push: owner/movies: the hub wants a token to write: set HF_TOKEN, or log in with `hf auth login`\n",
    "away": "graft pull: owner/elsewhere: .*\n",
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_can_t_be_is_one_line_and_nothing_is_written(told, what):
    line = ".*".join(map(re.escape, REFUSED[what].replace("{folder}", str(told.folder)).split(".*")))
    assert re.fullmatch(line, told.said[what]), told.said[what]
    assert not (told.folder / "to").exists()


def test_two_checkpoints_of_the_hub_are_localized_and_later_without_it(told):
    folder, said = told.folder, told.said
    assert "patch of owner/base-model for tuned" in said["localize"] and said["load"] == "negative positive"
    card = ModelCard.load(folder / "found" / CARD).data
    assert (card.base_model, card.base_model_relation) == ("owner/base-model", "adapter")
    assert SHA in (folder / "found" / CARD).read_text(), "of the base: what was fetched, whatever is newest later"
    left, right = (read_mask(folder / place / PATCH) for place in ("found", "of_folders"))
    assert left.mask.equals(right.mask) and same(left.values, right.values) and same(left.head, right.head)
    assert (folder / "again" / PATCH).read_bytes() == (folder / "found" / PATCH).read_bytes(), said["again"]
