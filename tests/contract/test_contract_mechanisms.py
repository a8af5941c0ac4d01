"""What the mechanisms of an engine emit is clean and folds to what the engine knows; and each has
twins with one thing wrong, which is found and blamed on the right event."""

from __future__ import annotations

import json

import pytest
from breaking import renumbered
from mechanisms import MODULES, SCENES, TWINS, Scene, Twin
from told import told_right


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_a_sound_engine_is_clean_and_folds_to_what_it_knows(scene: Scene) -> None:
    told_right(scene())


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
def test_one_thing_wrong_is_found_and_blamed(twin: Twin) -> None:
    trace = twin.scene()
    culprit = twin.breaks(trace)
    report = renumbered(trace).judged()
    listing = json.dumps(report, indent=1)
    assert report["verdict"] == twin.verdict, listing
    roots = [(f["check"], f["class"], f["culprit_seq"]) for f in report["findings"] if f["root"]]
    assert roots == [(twin.check, twin.fault_class, culprit["seq"])], listing


def test_every_mechanism_has_a_twin() -> None:
    for module in MODULES:
        broken = {twin[0] for twin in module.TWINS}
        assert broken, f"nothing looks at {module.__name__}"
        assert broken <= set(module.SCENES)
