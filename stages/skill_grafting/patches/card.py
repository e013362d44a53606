"""README.md of what is handed on: how to use it without this project, and where it comes from."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..modules.heads import as_options
from ..support.errors import printable
from ..support.formatting import as_markdown, small_percent
from ..support.writing import replacing
from .patch_file import PATCH, PatchContent, write_patch

CARD = "README.md"
# how a patch can be handed on
MODEL, AS_PATCH, PEFT = "model", "patch", "peft"
FORMS = {MODEL: "a whole model", AS_PATCH: "a patch", PEFT: "an adapter that peft loads"}
# by the library that loads it
LIBRARIES = {MODEL: "transformers", AS_PATCH: "skill-grafting", PEFT: "peft"}


def write_folder(
    target: Path, patch: PatchContent, form: str, write: Callable[[Path], str] | None = None, compact: bool = False
) -> str:
    """A new folder with the patch, or with what `write` makes of it and says of that, and its card; gives one line about it."""
    with replacing(target, fresh=True) as folder:
        folder.mkdir()
        held = write_files(folder, patch, form, write, compact)
    kilobytes = sum(path.stat().st_size for path in target.iterdir()) / 1000
    about = f"{target}: {form} of {patch.use.base} for {patch.use.title}, {kilobytes:,.0f} kB, {patch.size}"
    return f"{about}; {held}" if held else about


def write_files(
    folder: Path,
    patch: PatchContent,
    form: str = AS_PATCH,
    write: Callable[[Path], str] | None = None,
    compact: bool = False,
) -> str:
    """The patch, or what `write` makes of it, and its card in a folder; gives what `write` says of it."""
    held = write(folder) if write else write_patch(folder / PATCH, patch, compact)
    with replacing(folder / CARD) as partial:
        partial.write_text(card_text(patch, form, held or "", compact), encoding="utf-8")
    return held or ""


def card_text(patch: PatchContent, form: str, held: str = "", compact: bool = False) -> str:
    """The card of a patch in one of FORMS; `held` is a sentence about what an adapter holds."""
    use, found = patch.use, patch.mask.record
    left_out = _table(found, "left_out")
    source = json.dumps(use.base if use.source == "hub" else f"path/to/{use.base}")
    return render(
        "card.md.j2",
        use=use,
        mask=patch.mask,
        size=patch.size,
        head_values=sum(values.numel() for values in patch.head.values()),
        made_with=made_with(found),
        left_out=small_percent(share) if isinstance(share := left_out.get("share"), float) else "",
        most_left_out=left_out.get("most"),
        notes=printable(json.dumps(use.notes, indent=2, ensure_ascii=False)) if use.notes else "",
        form=form,
        name=FORMS[form],
        held=held,
        compact=compact,
        front=_front(patch, form),
        # as Python: settings of the config that differ from those of the base model
        settings=repr(as_options(use.config)),
        patch=PATCH,
        source=source,
        base=f"{source}, revision={json.dumps(use.revision)}" if use.revision else source,
    )


def made_with(found: dict[str, Any]) -> str:
    """How a mask was found, in words: the method with its settings, and the step that was kept."""
    settings = ", ".join(f"{name} {value}" for name, value in _table(found, "settings").items())
    kept = f", the mask of step {found['step']}" if "step" in found else ""
    return f"{found.get('method', '')}{f' ({settings})' if settings else ''}{kept}"


def _table(found: dict[str, Any], name: str) -> dict[str, Any]:
    """A table of a record, which in a stranger's file may be anything."""
    return found[name] if isinstance(found.get(name), dict) else {}


def _front(patch: PatchContent, form: str) -> str:
    """The front matter of a card for the hub, as YAML."""
    on_hub = patch.use.source == "hub"
    return ModelCardData(
        base_model=patch.use.base if on_hub else None,
        base_model_relation=("finetune" if form == MODEL else "adapter") if on_hub else None,
        library_name=LIBRARIES[form],
        tags=["model-grafting"],
    ).to_yaml()


class Code(str):
    """What goes into a card as it is: a line of code, or text that is YAML already."""


def render(template: str, **values: Any) -> str:
    """A template of this folder, filled in; all texts but code read in Markdown as they are."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        finalize=lambda value: as_markdown(value) if isinstance(value, str) and not isinstance(value, Code) else value,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"code": Code, "quoted": lambda value: Code(json.dumps(value)), "grouped": "{:,}".format}
    return environment.get_template(template).render(**values)
