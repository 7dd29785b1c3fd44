"""Image configs: the platform they state, that they state none, or that their words tell nothing."""

import pytest

from extender.errors import InvalidManifest
from extender.images.image_config import ConfigClaim, read_config
from extender.images.platform import ARCHITECTURES, OPERATING_SYSTEMS, parse_platform, variants_of


@pytest.mark.parametrize(
    ("body", "platform"),
    [
        pytest.param(b'{"os":"linux","architecture":"amd64"}', "linux/amd64", id="the usual"),
        pytest.param(b'{"os":"linux","architecture":"arm64","variant":"v8"}', "linux/arm64", id="normalised"),
        pytest.param(b'{"os":"linux","architecture":"arm","variant":"v6"}', "linux/arm/v6", id="with a variant"),
        pytest.param(b'{"os":"linux","architecture":"arm","variant":null}', "linux/arm/v7", id="null variant"),
        pytest.param(b'{"os":"linux","architecture":"amd64","variant":"v3"}', "linux/amd64/v3", id="a level"),
        pytest.param(b'{"os":"linux","architecture":"arm64","variant":"v8.2"}', "linux/arm64/v8.2", id="of Arm"),
        pytest.param(b'{"os":"Linux","architecture":"X86_64","variant":"V2"}', "linux/amd64/v2", id="other spellings"),
        pytest.param(b'{"architecture":"arm64"}', "linux/arm64", id="no operating system"),
        pytest.param(b'{"os":"","architecture":"arm64"}', "linux/arm64", id="an empty one"),
        pytest.param(
            b'{"OS":"linux","Architecture":"arm64","VARIANT":"v8"}', "linux/arm64", id="keys as Go writes them"
        ),
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
        pytest.param(
            b'{"os":"linux","architecture":"amd64","config":{"Labels":{"maintainer":"J\xf8rn \\ud800"}}}',
            "linux/amd64",
            id="text that is no text where nothing is read",
        ),
    ],
)
def test_a_config_states_a_platform(body: bytes, platform: str) -> None:
    """Operating system, architecture and variant are read, everything else is passed over."""
    assert read_config(body) == ConfigClaim(parse_platform(platform))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"{}", id="nothing in it"),
        pytest.param(b"null", id="nothing at all"),
        pytest.param(b'{"os":"","architecture":""}', id="a cosign signature"),
        pytest.param(b'{"os":null,"architecture":null}', id="nulls"),
        pytest.param(b'{"os":"unknown","architecture":"unknown"}', id="an old attestation"),
    ],
)
def test_a_config_without_a_platform_belongs_to_an_artifact(body: bytes) -> None:
    """A normal config type with no platform in it is how signatures and attestations look."""
    claim = read_config(body)
    assert claim.is_artifact
    assert claim.platform is None


@pytest.mark.parametrize(
    ("body", "platform"),
    [
        pytest.param(b'{"os":"linux","architecture":"amd64","variant":"v8"}', "linux/amd64/v8", id="built on a Mac"),
        pytest.param(b'{"os":"linux","architecture":"arm32v7"}', "linux/arm32v7", id="the name of a repository"),
        pytest.param(b'{"os":"linux","architecture":"arm64v8"}', "linux/arm64v8", id="and for 64 bits"),
        pytest.param(b'{"os":"linux","architecture":"arm","variant":"v7l"}', "linux/arm/v7l", id="uname's variant"),
        pytest.param(b'{"os":"linux","architecture":"386","variant":"i686"}', "linux/386/i686", id="none has variants"),
        pytest.param(b'{"os":"linux","architecture":"s390x","variant":"z13"}', "linux/s390x/z13", id="nor has this"),
        pytest.param(b'{"os":"ubuntu","architecture":"amd64"}', "ubuntu/amd64", id="a distribution"),
        pytest.param(b'{"os":"unknown","architecture":"amd64"}', "unknown/amd64", id="half unknown"),
        pytest.param(b'{"os":"linux","architecture":"unknown"}', "linux/unknown", id="the other half"),
        pytest.param(b'{"os":"linux","architecture":"all"}', "linux/all", id="all"),
        pytest.param(b'{"os":"linux"}', None, id="no architecture"),
        pytest.param(b'{"os":"linux","architecture":"a/b"}', None, id="a slash"),
        pytest.param(b'{"os":"linux","architecture":"x\\n"}', None, id="a line break"),
        pytest.param(b'{"os":"\xff","architecture":"amd64"}', None, id="no UTF-8"),
    ],
)
def test_words_that_no_platform_has_are_in_doubt(body: bytes, platform: str | None) -> None:
    """They are told, for an index's entry that states none itself, and say nothing of a single manifest."""
    claim = read_config(body)
    assert claim.doubt
    assert claim.platform == (parse_platform(platform) if platform else None)
    assert not claim.is_artifact


def test_every_word_that_go_has_is_known() -> None:
    """Each architecture with each of its variants, and each operating system."""
    words = [("linux", name, variant) for name in ARCHITECTURES for variant in ("", *variants_of(name))]
    words += [(os, "amd64", "") for os in OPERATING_SYSTEMS] + [("wasi", "wasm", "")]
    for os, architecture, variant in words:
        body = f'{{"os":"{os}","architecture":"{architecture}","variant":"{variant}"}}'
        assert not read_config(body.encode()).doubt


def test_a_bundle_is_known_by_its_label() -> None:
    """An operator's manifests for OLM, in an image whose platform means nothing."""
    label = b'"operators.operatorframework.io.bundle.mediatype.v1":"registry+v1"'
    body = b'{"os":"linux","architecture":"amd64","config":{"Labels":{%s}}}' % label
    assert read_config(body).is_data
    assert read_config(body.replace(b"config", b"Config").replace(b"Labels", b"labels")).is_data
    assert not read_config(body.replace(b"mediatype.v1", b"Mediatype.v1")).is_data


@pytest.mark.parametrize("body", [b'{"os":1,"architecture":"amd64"}', b"<html>", b"[]"])
def test_what_is_no_config_is_refused(body: bytes) -> None:
    """It is not what the manifest says."""
    with pytest.raises(InvalidManifest, match="cannot be read"):
        read_config(body)
