"""push and pull, against a stand-in for the hub on this machine that keeps what it is given."""

import base64
import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from stages.lib.grafting.mask_file import StoredMask, read_mask, write_mask
from stages.lib.patches.patch_file import KEY
from stages.lib.patches.paths import CARD, PATCH
from tests.graft_project import MASK, ROOT, graft, make_project
from tests.pico import same
from tests.sealed import flip_bit, read_patch

SHA = "0123456789abcdef" * 2 + "01234567"
# runs several commands in one process, which knows the stand-in and no other hub
COMMANDS = """
import contextlib, io, json, os, sys
from stages.lib.patches.__main__ import main
told = []
for arguments in json.load(sys.stdin):
    if arguments[0] == "without a token":
        arguments = arguments[1:]
        del os.environ["HF_TOKEN"]
    if arguments[0] == "load":
        from stages.lib.patches.live import load_graft
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


@pytest.fixture
def hub() -> Iterator[type[Hub]]:
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


@pytest.fixture
def patch(tmp_path, make_cell, monkeypatch) -> Path:
    """A patch of a base model on the hub, with scores."""
    project = make_project(tmp_path / "project", make_cell("standard"))
    monkeypatch.chdir(project.folder)
    anatomy = project.folder / "models/pretrained/anatomy.json"
    (anatomy.parent / "SHA256SUMS").unlink()
    anatomy.write_text(json.dumps(json.loads(anatomy.read_text()) | {"name": "owner/base", "source": "hub"}))
    graft("export", MASK, "--as", "patch", "--to", tmp_path / "patch")
    return tmp_path / "patch"


def test_a_patch_goes_to_the_hub_and_comes_back_whole(hub, patch, tmp_path):
    stored, use = read_patch(patch / PATCH)
    own = {**stored.about, KEY: use.model_copy(update={"source": "local", "base": "mine"}).model_dump()}
    (tmp_path / "own").mkdir()
    write_mask(tmp_path / "own" / PATCH, StoredMask(stored.mask, stored.values, stored.head, own))
    (tmp_path / "own" / CARD).write_text("---\ntags: [x]\n---\n")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/mine").touch()
    said = run(
        hub.endpoint, tmp_path / "home",
        ["push", patch, "--to", "owner/movies", "--private"],
        ["pull", "owner/movies", "--to", tmp_path / "pulled"],
        ["push", tmp_path / "own", "--to", "owner/own"],
        ["pull", "owner/nobody", "--to", tmp_path / "to"],
        ["pull", "owner/other", "--to", tmp_path / "to"],
        ["pull", "not a name", "--to", tmp_path / "to"],
        ["pull", "owner/movies", "--to", tmp_path / "taken"],
        ["push", tmp_path / "taken", "--to", "owner/movies"],
        ["without a token", "push", patch, "--to", "owner/movies"],
    )  # fmt: skip
    assert said[0] == f"{hub.endpoint}/owner/movies/commit/{SHA}: {patch}, licence apache-2.0\n"
    assert hub.made["owner/movies"]["visibility"] == "private" and {*hub.repos["owner/movies"]} == {PATCH, CARD}
    assert said[1] == f"{tmp_path / 'pulled'}: patch of owner/base for toy, owner/movies at {SHA[:12]}\n"
    assert {path.name for path in (tmp_path / "pulled").iterdir()} == {PATCH, CARD}
    assert (tmp_path / "pulled" / PATCH).read_bytes() == (patch / PATCH).read_bytes()
    card = ModelCard.load(tmp_path / "pulled" / CARD)
    assert card.text == ModelCard.load(patch / CARD).text
    assert (card.data.license, card.data.base_model) == ("apache-2.0", "owner/base")
    assert card.data.library_name == "transformers"
    found = {result.metric_type: (result.metric_value, result.dataset_args) for result in card.data.eval_results}
    assert found == {"score": (0.875, {"n": 200}), "retained": (0.972, {"n": 200})}
    assert said[2].endswith("own, licence none: mine has no card that names one\n")
    assert said[3:] == [
        "graft pull: owner/nobody: the hub has no such repository, or the token may not see it\n",
        "graft pull: owner/other: has no patch.safetensors at its newest commit, so it is no patch\n",
        "graft pull: not a name: is no name of a repository such as 'owner/name'\n",
        f"graft pull: {tmp_path / 'taken'}: is there already; remove it or choose another name\n",
        f"graft push: {tmp_path / 'taken' / PATCH}: no such mask or patch\n",
        "graft push: owner/movies: the hub wants a token to write: set HF_TOKEN, or log in with `hf auth login`\n",
    ]
    assert not (tmp_path / "to").exists()


def test_a_damaged_patch_is_not_pulled_and_an_unreachable_hub_is_said(hub, patch, tmp_path):
    hub.repos["owner/movies"] = {name: (patch / name).read_bytes() for name in (PATCH, CARD)}
    flip_bit(patch / PATCH, -1)
    hub.repos["owner/damaged"] = {PATCH: (patch / PATCH).read_bytes()}
    damaged, whole = run(
        hub.endpoint, tmp_path / "home",
        ["pull", "owner/damaged", "--to", tmp_path / "damaged"],
        ["pull", "owner/movies", "--to", tmp_path / "whole"],
    )  # fmt: skip
    assert damaged.startswith("graft pull: ") and damaged.endswith("damaged: its content is not what was written\n")
    assert not (tmp_path / "damaged").exists() and (tmp_path / "whole").is_dir(), whole
    [away] = run("http://127.0.0.1:9", tmp_path / "other", ["pull", "owner/movies", "--to", tmp_path / "to"])
    assert away.startswith("graft pull: owner/movies: ") and away.count("\n") == 1


def test_two_checkpoints_of_the_hub_are_localized_and_later_without_it(hub, make_cell, tmp_path):
    cell = make_cell("standard")
    for name, folder in {"base": cell.pretrained_folder, "tuned": cell.finetuned_folder}.items():
        hub.repos[f"owner/{name}"] = {path.name: path.read_bytes() for path in folder.iterdir()}
    hub.repos["owner/unsafe"] = {"config.json": b"{}", "pytorch_model.bin": b"", "tokenizer.json": b"{}"}
    two = ["localize", "--base", "owner/base", "--finetuned", "owner/tuned", "--sparsity", "0.01", "--to"]
    here = ["--base", cell.pretrained_folder, "--finetuned", cell.finetuned_folder, "--task", "tuned"]
    found, _, loaded, *refused = run(
        hub.endpoint, tmp_path / "home",
        [*two, tmp_path / "patch"],
        ["localize", *here, "--sparsity", "0.01", "--to", tmp_path / "of_folders"],
        ["load", "owner/base", tmp_path / "patch"],
        [*two, tmp_path / "to", "--finetuned", "owner/tunde"],
        [*two, tmp_path / "to", "--finetuned", "owner/unsafe"],
        [*two, tmp_path / "to", "--finetuned-revision", "v9"],
    )  # fmt: skip
    assert "patch for tuned on owner/base" in found and loaded == "negative positive"
    card = ModelCard.load(tmp_path / "patch" / CARD).data
    assert (card.base_model, card.base_model_relation) == ("owner/base", "adapter")
    assert SHA in (tmp_path / "patch" / CARD).read_text(), "of the base: what was fetched, whatever is newest later"
    left, right = (read_mask(tmp_path / place / PATCH) for place in ("patch", "of_folders"))
    assert left.mask.equals(right.mask) and same(left.values, right.values) and same(left.head, right.head)
    assert refused[0] == "graft localize: the hub has no model 'owner/tunde', or it needs a login (`hf auth login`)\n"
    assert refused[1].startswith("graft localize: the hub's owner/unsafe: model.safetensors missing; ")
    assert refused[2].endswith("'owner/tuned' has no revision 'v9' on the hub\n") and not (tmp_path / "to").exists()
    [again] = run("http://127.0.0.1:9", tmp_path / "home", [*two, tmp_path / "again"])
    assert (tmp_path / "again" / PATCH).read_bytes() == (tmp_path / "patch" / PATCH).read_bytes(), again
