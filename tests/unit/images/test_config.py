"""Image configs: the platform they state, or that they state none."""

import pytest

from extender.errors import InvalidManifest
from extender.images.image_config import read_config
from extender.images.platform import Platform, parse_platform


@pytest.mark.parametrize(
    ("body", "platform"),
    [
        pytest.param(b'{"os":"linux","architecture":"amd64"}', "linux/amd64", id="the usual"),
        pytest.param(b'{"os":"linux","architecture":"arm64","variant":"v8"}', "linux/arm64", id="normalised"),
        pytest.param(b'{"os":"linux","architecture":"arm","variant":"v6"}', "linux/arm/v6", id="with a variant"),
        pytest.param(b'{"os":"linux","architecture":"arm","variant":null}', "linux/arm/v7", id="null variant"),
        pytest.param(b'{"os":"linux","architecture":"fake"}', "linux/fake", id="an architecture nobody knows"),
        pytest.param(
            b'{"os":"windows","os.version":"10.0.20348.2340","os.features":null,"architecture":"amd64"}',
            "windows/amd64",
            id="the Windows build is not compared",
        ),
        pytest.param(
            b'{"architecture":"amd64","config":{"OnBuild":null,"Labels":{"os":"plan9"}},"os":"linux"}',
            "linux/amd64",
            id="only the top level counts",
        ),
    ],
)
def test_a_config_states_a_platform(body: bytes, platform: str) -> None:
    """Operating system, architecture and variant are read, everything else is passed over."""
    assert read_config(body) == parse_platform(platform)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"{}", id="nothing in it"),
        pytest.param(b'{"os":"","architecture":""}', id="a cosign signature"),
        pytest.param(b'{"os":null,"architecture":null}', id="nulls"),
        pytest.param(b'{"os":"unknown","architecture":"unknown"}', id="an old attestation"),
    ],
)
def test_a_config_without_a_platform_belongs_to_an_artifact(body: bytes) -> None:
    """A normal config type with no platform in it is how signatures and attestations look."""
    assert read_config(body) is None


@pytest.mark.parametrize(
    ("body", "why"),
    [
        pytest.param(b'{"os":"linux"}', "no platform", id="no architecture"),
        pytest.param(b'{"architecture":"amd64"}', "no platform", id="no operating system"),
        pytest.param(b'{"os":"linux","architecture":"a/b"}', "no platform", id="a slash"),
        pytest.param(b'{"os":"linux","architecture":"x\\n"}', "no platform", id="a line break"),
        pytest.param(b'{"os":1,"architecture":"amd64"}', "Expected `str", id="a number"),
        pytest.param(b"<html>", "malformed", id="no document"),
        pytest.param(b'{"os":"\xff","architecture":"amd64"}', "utf-8", id="no UTF-8"),
    ],
)
def test_a_config_that_says_half_is_refused(body: bytes, why: str) -> None:
    """What is missing is never guessed, and what is no word is no platform."""
    with pytest.raises(InvalidManifest, match=why):
        read_config(body)


def test_bytes_that_are_not_utf8_do_not_matter_where_nothing_is_read() -> None:
    """Runtimes run an image whose label is in Latin-1, so it has a platform here too."""
    body = b'{"os":"linux","architecture":"amd64","config":{"Labels":{"maintainer":"J\xf8rn"}}}'
    assert read_config(body) == Platform("linux", "amd64")
