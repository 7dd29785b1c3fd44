"""Image configs: the platform they state, that they state none, or that their words tell nothing."""

import pytest

from extender.errors import InvalidManifest
from extender.images.image_config import ConfigClaim, read_config
from extender.images.platform import ARCHITECTURES, OPERATING_SYSTEMS, parse_platform, variants_of

STATED = [
    (b'{"os":"linux","architecture":"amd64"}', "linux/amd64"),
    (b'{"os":"linux","architecture":"arm64","variant":"v8"}', "linux/arm64"),
    (b'{"os":"linux","architecture":"arm","variant":"v6"}', "linux/arm/v6"),
    (b'{"os":"linux","architecture":"arm","variant":null}', "linux/arm/v7"),
    (b'{"os":"linux","architecture":"amd64","variant":"v3"}', "linux/amd64/v3"),
    (b'{"os":"linux","architecture":"arm64","variant":"v8.2"}', "linux/arm64/v8.2"),
    (b'{"os":"Linux","architecture":"X86_64","variant":"V2"}', "linux/amd64/v2"),
    (b'{"architecture":"arm64"}', "linux/arm64"),
    (b'{"os":"","architecture":"arm64"}', "linux/arm64"),
    (b'{"os":"windows","os.version":"10.0.20348.2340","os.features":null,"architecture":"amd64"}', "windows/amd64"),
    # only the top level counts, and text that is no text is none of ours where nothing is read
    (b'{"os":"linux","architecture":"amd64","config":null}', "linux/amd64"),
    (b'{"os":"linux","architecture":"amd64","config":{"Labels":{"m":null}}}', "linux/amd64"),
    (b'{"architecture":"amd64","config":{"OnBuild":null,"Labels":{"os":"plan9"}},"os":"linux"}', "linux/amd64"),
    (b'{"os":"linux","architecture":"amd64","config":{"Labels":{"m":"J\xf8rn \\ud800"}}}', "linux/amd64"),
]


def test_a_config_states_a_platform() -> None:
    for body, platform in STATED:
        assert read_config(body) == ConfigClaim(parse_platform(platform)), body


OF_ARTIFACTS = (
    b"{}", b"null", b'{"os":"","architecture":""}', b'{"os":null,"architecture":null}',
    b'{"os":"unknown","architecture":"unknown"}',
)  # fmt: skip


def test_a_config_without_a_platform_belongs_to_an_artifact() -> None:
    """A normal config type with no platform in it is how signatures and attestations look."""
    for claim in map(read_config, OF_ARTIFACTS):
        assert claim.is_artifact
        assert claim.platform is None


DOUBTED = [
    (b'{"os":"linux","architecture":"amd64","variant":"v8"}', "linux/amd64/v8"),  # built on a Mac
    (b'{"os":"linux","architecture":"arm32v7"}', "linux/arm32v7"),  # the name of a repository
    (b'{"os":"linux","architecture":"arm64v8"}', "linux/arm64v8"),
    (b'{"os":"linux","architecture":"arm","variant":"v7l"}', "linux/arm/v7l"),  # uname's
    (b'{"os":"linux","architecture":"386","variant":"i686"}', "linux/386/i686"),
    (b'{"os":"linux","architecture":"s390x","variant":"z13"}', "linux/s390x/z13"),
    (b'{"os":"ubuntu","architecture":"amd64"}', "ubuntu/amd64"),
    (b'{"os":"unknown","architecture":"amd64"}', "unknown/amd64"),
    (b'{"os":"linux","architecture":"unknown"}', "linux/unknown"),
    (b'{"os":"linux","architecture":"all"}', "linux/all"),
    (b'{"os":"linux"}', None),
    (b'{"os":"linux","architecture":"a/b"}', None),
    (b'{"os":"linux","architecture":"x\\n"}', None),
    (b'{"os":"\xff","architecture":"amd64"}', None),
]


def test_words_that_no_platform_has_are_in_doubt() -> None:
    """They are told, for an index's entry that states none itself, and say nothing of a single manifest."""
    for body, platform in DOUBTED:
        claim = read_config(body)
        assert claim.doubt, body
        assert claim.platform == (parse_platform(platform) if platform else None)
        assert not claim.is_artifact


def test_every_word_that_go_has_is_known() -> None:
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
    assert not read_config(body.replace(b"mediatype.v1", b"Mediatype.v1")).is_data


@pytest.mark.parametrize("body", [b'{"os":1,"architecture":"amd64"}', b"<html>", b"[]"])
def test_what_is_no_config_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidManifest, match="cannot be read"):
        read_config(body)
