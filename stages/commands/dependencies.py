"""dependencies: what is known against the pinned packages, and newer ones in their place.

python -m stages.commands.dependencies audit      advisories about requirements.txt; a part of `make lint`
python -m stages.commands.dependencies update     newest versions into pyproject.toml and requirements.txt: `make update`
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from stages.lib.command import guarded
from stages.lib.errors import StorageError
from stages.lib.io import write_text

AUDITOR = "pip-audit==2.10.1"
PINNED, DIRECT = Path("requirements.txt"), Path("pyproject.toml")
PIP = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")


def main() -> None:
    """Parse the command line and do what it says."""
    parser = argparse.ArgumentParser(prog="python -m stages.commands.dependencies", description=__doc__)
    commands = {function.__name__: function for function in (audit, update)}
    parser.add_argument("command", choices=commands)
    command = parser.parse_args().command
    guarded(command, commands[command])


def audit() -> None:
    """Print the advisories about the pinned packages, or that none could be asked for; raises StorageError if there are any."""
    # beside the environment and not in it: its own packages would replace pinned ones
    place = Path(sys.prefix) / AUDITOR
    if not place.is_dir():
        _run(*PIP, "--target", str(place), AUDITOR)
    options = ("--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off")
    done = _run(sys.executable, "-m", "pip_audit", "-r", str(PINNED), *options, PYTHONPATH=str(place))
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except ValueError:
        packages = []
    asked = [package for package in packages if "vulns" in package]
    if not asked:
        print("audit: the index gave no advisories (no network, or a mirror without them), so nothing was audited")
        return
    found = []
    for package in asked:
        for advisory in package["vulns"]:
            mended = ", ".join(advisory["fix_versions"]) or "no version yet"
            found.append(f"{package['name']} {package['version']}: {advisory['id']}, mended in {mended}")
    if found:
        raise StorageError("; ".join(found))
    print(f"audit: no advisory about {len(asked)} of {len(packages)} pinned packages")


def update() -> None:
    """Pin the newest versions that fit together; raises StorageError if the index doesn't give them."""
    extras = tomllib.loads(DIRECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    wanted = [*extras["pipeline"], *extras["test"]]  # all others are among these
    names = [pin.partition("==")[0] for pin in wanted]
    done = _run(*PIP, "--dry-run", "--ignore-installed", "--report", "-", *names)
    if done.returncode:
        raise StorageError(f"{PINNED}: stays as it is: pip found no versions: {done.stderr.strip().splitlines()[-1]}")
    items = [item["metadata"] for item in json.loads(done.stdout)["install"]]
    versions = {item["name"]: item["version"].partition("+")[0] for item in items}
    comment, *before = PINNED.read_text(encoding="utf-8").splitlines()
    pins = sorted((f"{name}=={version}" for name, version in versions.items()), key=str.lower)
    write_text(PINNED, "\n".join([comment, *pins]) + "\n")
    by_name = {_plain(name): version for name, version in versions.items()}
    text = DIRECT.read_text(encoding="utf-8")
    write_text(DIRECT, re.sub(r'"([\w.-]+)==[^"]+"', lambda pin: f'"{pin[1]}=={by_name[_plain(pin[1])]}"', text))
    print("\n".join(sorted({*pins} - {*before}, key=str.lower)) or "update: everything was the newest already")


def _plain(name: str) -> str:
    """A package's name as the index compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _run(*command: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    main()
