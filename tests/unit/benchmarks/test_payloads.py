"""The requests that are sent: of the size that is promised, and different where they should be."""

import msgspec

from benchmarks import payloads

IMAGES = ("registry.example.com/bench/multi:1", "registry.example.com/bench/sidecar:1")


def test_a_review_with_two_images_is_some_three_kilobytes() -> None:
    """As the figures say."""
    assert 2_900 < len(payloads.review(IMAGES)) < 3_500


def test_siblings_differ_in_name_and_uid_alone() -> None:
    """As the pods of one Deployment do."""
    one, other = (payloads.pod(IMAGES, serial=serial) for serial in ("00000001", "00000002"))
    assert one["spec"] == other["spec"]
    assert {key for key in one["metadata"] if one["metadata"][key] != other["metadata"][key]} == {
        "name",
        "uid",
        "resourceVersion",
    }


def test_templates_differ_in_labels_owner_and_environment() -> None:
    """So that remembering one is of no use for the other."""
    one, other = (payloads.pod(IMAGES, template=template) for template in ("00000001", "00000002"))
    assert one["metadata"]["labels"] != other["metadata"]["labels"]
    assert one["metadata"]["ownerReferences"] != other["metadata"]["ownerReferences"]
    assert one["spec"]["containers"][0]["env"] != other["spec"]["containers"][0]["env"]


def test_whole_nodes_are_some_eleven_kilobytes_each() -> None:
    """A thousand of them, some 11 MB, half of either architecture."""
    body = payloads.by_nodes(IMAGES, 10)
    assert 100_000 < len(body) < 120_000
    nodes = msgspec.json.decode(body)["Nodes"]["items"]
    assert sum(node["status"]["nodeInfo"]["architecture"] == "arm64" for node in nodes) == 5
