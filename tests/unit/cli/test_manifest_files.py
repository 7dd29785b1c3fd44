"""Manifests are read from files, folders and standard input."""

import io
from pathlib import Path

import pytest

from extender.cli.manifest_files import Manifests, read_manifests
from extender.errors import ConfigError

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\n"


def sources(*paths: str) -> list[tuple[str, str]]:
    return [(each.manifest["metadata"]["name"], each.source) for each in read_manifests(paths).objects]


def test_documents_are_counted_and_empty_ones_give_nothing(tmp_path: Path) -> None:
    """Comments alone, values files and empty documents are no objects; the number is the document's in YAML."""
    file = tmp_path / "all.yaml"
    file.write_text(f"# nothing\n---\n---\n{POD % 'a'}---\nreplicas: 3\n---\n{POD % 'b'}---\n")
    assert [source for _, source in sources(str(file))] == [f"{file}, document 2", f"{file}, document 4"]


def test_lists_anchors_and_json_are_read(tmp_path: Path) -> None:
    file = tmp_path / "list.yaml"
    file.write_text(
        "apiVersion: v1\nkind: List\nitems:\n"
        "- &a {apiVersion: v1, kind: Pod, metadata: {name: a, labels: {on: 2026-01-02}}}\n"
        "- {<<: *a, metadata: {name: b}}\n"
    )
    found = read_manifests([str(file)]).objects
    assert [each.manifest["metadata"]["name"] for each in found] == ["a", "b"]
    assert found[0].manifest["metadata"]["labels"] == {"true": "2026-01-02"}
    (tmp_path / "p.json").write_text('{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "c"}}')
    assert sources(str(tmp_path / "p.json"))[0][0] == "c"


def test_a_folder_gives_its_manifests_sorted(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.yaml").write_text(POD % "b")
    (tmp_path / "sub" / "c.yml").write_text(POD % "c")
    (tmp_path / "notes.txt").write_text("{{ not yaml")
    assert [name for name, _ in sources(str(tmp_path))] == ["b", "c"]
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ConfigError, match=r"no file that ends in \.yaml"):
        sources(str(empty))


def test_standard_input_is_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO((POD % "a").encode())))
    assert sources("-") == [("a", "standard input, document 1")]


def test_an_error_names_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("---\nkind: Pod\n\n---\na: [")
    with pytest.raises(ConfigError, match=r"bad\.yaml: it is no YAML of a manifest: line 5: "):
        read_manifests([str(file)])


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_manifests([str(tmp_path / "none.yaml")])


def test_a_workload_without_its_version_is_no_other_document(tmp_path: Path) -> None:
    """The API server would refuse it; a report that passed over it would say that nothing is wrong."""
    pod = "kind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: app:1}]}\n"
    (tmp_path / "a.yaml").write_text(f"{pod}---\nkind: Cluster\n")
    assert [name for name, _ in sources(str(tmp_path / "a.yaml"))] == ["a"]


def test_one_file_that_cannot_be_read_leaves_the_others(tmp_path: Path) -> None:
    """What stands before its error counts; a tag of Python is a text as any other."""
    (tmp_path / "a.yaml").write_text(f"{POD % 'a'}---\na: [")
    (tmp_path / "b.yaml").write_bytes(b"a: \xff")
    (tmp_path / "c.yaml").write_text(f"{POD % 'c'}x: !!python/object:os.system y\nx: &x 1\nz: &x =\n")
    found = read_manifests([str(tmp_path)])
    assert [each.manifest["metadata"]["name"] for each in found.objects] == ["a", "c"]
    assert (found.objects[1].manifest["x"], found.objects[1].manifest["z"]) == (1, "=")
    assert [each.partition(": ")[0] for each in found.unread] == [f"-f {tmp_path}/a.yaml", f"-f {tmp_path}/b.yaml"]
    assert found.repeats == [f"{tmp_path}/c.yaml: line 5: the key 'x' is there a second time; the last counts"]


PATCH = POD % "patch" + "spec: {containers: [{name: c, image: app:2}]}\n"


@pytest.mark.parametrize("name", ["kustomization.yaml", "kustomization.yml", "Kustomization"])
@pytest.mark.parametrize(
    "named",
    [
        "patches: [{path: ../patches/web.yaml, target: {kind: Pod}}, {patch: 'a: 1'}]",
        "patchesStrategicMerge: [../patches/web.yaml, \"kind: Pod\\nspec: {}\\n\"]",
        "patchesJson6902: [{path: ../patches/web.yaml}]",
    ],
)  # fmt: skip
def test_a_patch_that_a_kustomization_names_is_no_object(tmp_path: Path, name: str, named: str) -> None:
    """Of a folder that is read, and beside or above a file."""
    for folder in ("prod", "patches"):
        (tmp_path / "app" / folder).mkdir(parents=True)
    (tmp_path / "app/prod/web.yaml").write_text(POD % "a")
    (tmp_path / "app/patches/web.yaml").write_text(PATCH)
    (tmp_path / "app/prod" / name).write_text(f"resources: [web.yaml]\n{named}\n")
    found = read_manifests([str(tmp_path / "app")])
    assert [each.manifest["metadata"]["name"] for each in found.objects] == ["a"]
    said = f"is a patch that {tmp_path}/app/prod/{name} names, and no object"
    assert found.patches == [f"{tmp_path}/app/patches/web.yaml {said}"]
    (tmp_path / "app/prod" / name).rename(tmp_path / "app" / name)
    (tmp_path / "app" / name).write_text(named.replace("../", "./"))
    found = read_manifests([str(tmp_path / "app/patches/web.yaml"), str(tmp_path / "app/prod/web.yaml")])
    assert ([each.manifest["metadata"]["name"] for each in found.objects], len(found.patches)) == (["a"], 1)


def test_a_kustomization_that_cannot_be_read_names_no_patch(tmp_path: Path) -> None:
    """Of what it has else, nothing counts."""
    for text in ("a: [", "[]", "patches: {path: web.yaml}\npatchesStrategicMerge: [1]\nresources: [web.yaml]\n"):
        (tmp_path / "kustomization.yaml").write_text(text)
        (tmp_path / "web.yaml").write_text(POD % "a")
        assert sources(str(tmp_path / "web.yaml")) == [("a", f"{tmp_path}/web.yaml, document 1")]


def test_a_path_that_leads_nowhere_hides_no_other(tmp_path: Path) -> None:
    """A loop of links, and what is no name of a file."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "kustomization.yaml").write_text('patchesStrategicMerge: ["a\\0b", loop/web.yaml, web.yaml]\n')
    (tmp_path / "web.yaml").write_text(PATCH)
    (tmp_path / "b.yaml").write_text(POD % "b")
    found = read_manifests([str(tmp_path)])
    assert ([each.manifest["metadata"]["name"] for each in found.objects], len(found.patches)) == (["b"], 1)


def test_a_document_with_a_patch_directive_is_no_object(tmp_path: Path) -> None:
    """Wherever it stands, but where an object says itself what is laid over others."""
    file = tmp_path / "all.yaml"
    deleted = PATCH.replace("{name: c", "{$patch: delete, name: c")
    own = "apiVersion: apps.kruise.io/v1alpha1\nkind: UnitedDeployment\nmetadata: {name: own}\n"
    own += "spec: {topology: {subsets: [{patch: {$patch: replace}}]}}\n"
    file.write_text(f"{deleted}---\n{POD % 'b'}$patch: delete\n---\n{own}")
    found = read_manifests([str(file)])
    assert [each.manifest["metadata"]["name"] for each in found.objects] == ["own"]
    assert found.patches == [
        f"{file}, document 1: Pod patch is a patch, and no object",
        f"{file}, document 2: Pod b is a patch, and no object",
    ]


@pytest.mark.parametrize(
    ("text", "is_nothing"),
    [
        ("# a\n\n  # b\n", True),
        ("\ufeff# a\n", True),
        ("\ufeff", True),
        ("%YAML 1.1\n---\n# a\n", True),
        ("---\n# a\n--- # b\n...\n", True),
        ("null\n", True),
        ("\n", False),
        ("---\n", False),
        ("# a\nreplicas: 3\n", False),
    ],
)
def test_nothing_but_comments_is_as_wrong_as_an_empty_input(tmp_path: Path, text: str, is_nothing: bool) -> None:
    """A chart that renders to nothing gives an empty line at least. Another file of the folder may have objects."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(text)
    for path in (tmp_path, tmp_path / "a.yaml"):
        if is_nothing:
            with pytest.raises(ConfigError, match=f"-f {path}: {path} has no objects"):
                read_manifests([str(path)])
        else:
            assert read_manifests([str(path)]) == Manifests()
    (tmp_path / "b.yaml").write_text(POD % "b")
    assert [name for name, _ in sources(str(tmp_path))] == ["b"]


def test_an_object_behind_a_mark_of_the_byte_order_is_not_read(tmp_path: Path) -> None:
    """kubectl takes the mark for a part of the first key, and refuses the object."""
    (tmp_path / "a.yaml").write_text(f"{POD % 'a'}---\n\n# c\n\ufeffkind: Pod\napiVersion: v1\n")
    (tmp_path / "b.yaml").write_text("---\n\ufeffapiVersion: v1\nkind: Pod\nspec: {containers: [{image: a}]}\n")
    (tmp_path / "c.yaml").write_text(f"# c\n---\n\ufeff{POD % 'c'}")
    found = read_manifests([str(tmp_path)])
    assert [each.manifest["metadata"]["name"] for each in found.objects] == ["a", "c"]
    assert [each.rpartition(": ")[0] for each in found.unread] == [
        f"-f {tmp_path}/a.yaml: it is no YAML of a manifest: line 5",
        f"-f {tmp_path}/b.yaml: it is no YAML of a manifest: line 2",
    ]
