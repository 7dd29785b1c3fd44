"""The recording in the documentation."""

import re
from xml.etree import ElementTree

from testbed.demo.story import SCENES
from tools.docs.pages import DOCS


def words_of(svg: str) -> list[str]:
    """The texts of a picture, in order."""
    found = [text.replace("\xa0", " ").strip() for text in ElementTree.fromstring(svg).itertext()]
    return [text for text in found if text]


def test_the_recording_is_of_the_demo() -> None:
    """It shows each of the demo's images and why nodes were refused; ports and times are those of one run."""
    shown = "".join(words_of((DOCS / "pictures" / "demo.svg").read_text()))
    for scene in SCENES:
        assert scene.title in shown
        assert scene.refusal in shown
    named = set(re.findall(r"127\.0\.0\.1:\d+/([a-z/]+):1\.0", shown))
    assert named == {scene.repository for scene in SCENES if scene.refusal or scene.error}
