"""A short part of the campaign in tests/chaos, the same cases every time."""

from dataclasses import replace

from stages.commands.graft.build_patch import KEY
from stages.lib.graft.mask_file import content_digest, write_mask
from tests.chaos import patches


def test_damaged_patches_are_refused_in_words():
    found = patches.run(300, 0)
    assert [kind for kind, cases, failures in found if cases < 50 or failures] == []


def test_the_campaign_sees_a_patch_of_other_values(tmp_path):
    whole = patches.make_patch()
    other = replace(whole, values={name: values + 1 for name, values in whole.values.items()})
    about = whole.about | {KEY: whole.about[KEY] | {"content": content_digest(other)}}
    write_mask(tmp_path / "p.safetensors", replace(other, about=about))
    assert patches.problem(tmp_path / "p.safetensors", whole) == "other tensors were read without a word"
    write_mask(tmp_path / "p.safetensors", whole)
    assert patches.problem(tmp_path / "p.safetensors", whole) == ""
