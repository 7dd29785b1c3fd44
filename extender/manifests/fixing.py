"""Fixes a stream of manifests: finds its pod templates, and writes what was decided about them into its text."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from extender.bounded_yaml import InvalidYaml, check_yaml
from extender.kubernetes.pod_templates import Path, PodTemplate, namespace_annotations, pod_templates
from extender.manifests.editing import edit_document, read_document
from extender.manifests.stream import DocumentText, ManifestError, split_documents
from extender.placement.facts import ImageFact, PodImage
from extender.placement.patch import Json, Operation
from extender.placement.template_changes import TemplateChange, TemplateMutator, TemplateQuestion

FactsOf = Callable[[Sequence[PodImage]], list[ImageFact]]
"""Gives the facts of images, in order."""


class FoundTemplate(msgspec.Struct, frozen=True):
    """A template in a stream: in which document, counted from 0, and the line on which that begins.

    `question` is None for a template that cannot be decided about, and `problem` then says why.
    """

    document: int
    line: int
    template: PodTemplate
    question: TemplateQuestion | None
    problem: str = ""


class FixedTemplate(msgspec.Struct, frozen=True):
    """What became of one template."""

    line: int
    template: PodTemplate
    change: TemplateChange


class ManifestStream:
    """A stream of manifests and the pod templates in it. Raises ManifestError if it cannot be read.

    `namespace` is that of objects that name none.
    """

    def __init__(self, text: str, mutator: TemplateMutator, namespace: str = "") -> None:
        self._mutator = mutator
        self._namespace = namespace
        try:
            check_yaml(text)
        except InvalidYaml as exc:
            raise ManifestError(str(exc)) from exc
        self._documents: list[DocumentText] = list(split_documents(text))
        self._values: dict[int, Json] = {
            index: read_document(document.body, document.line)
            for index, document in enumerate(self._documents)
            if document.may_have_templates
        }
        self.templates = list(self._find(namespace_annotations(self._values.values())))

    @property
    def images(self) -> list[PodImage]:
        """The images to look up, without repeats."""
        questions = [found.question for found in self.templates if found.question]
        return list(dict.fromkeys(image for question in questions for image in question.images))

    def fix(self, facts_of: FactsOf) -> tuple[str, list[FixedTemplate]]:
        """The stream with its templates fixed, and what became of each template."""
        findings = []
        operations: dict[int, list[tuple[Path, Operation]]] = {}
        for found in self.templates:
            change = self._change(found, facts_of)
            findings.append(FixedTemplate(found.line, found.template, change))
            pairs = [(found.template.path, operation) for operation in change.operations]
            operations.setdefault(found.document, []).extend(pairs)
        text = "".join(
            document.marker + self._edit(document, operations.get(index, []))
            for index, document in enumerate(self._documents)
        )
        return text, findings

    def _find(self, namespaces: Mapping[str, Mapping[str, str]]) -> Iterator[FoundTemplate]:
        for index, value in self._values.items():
            line = self._documents[index].line
            for template in pod_templates(value):
                try:
                    question = self._mutator.question(template, namespaces.get(template.namespace or self._namespace))
                    yield FoundTemplate(index, line, template, question)
                except (msgspec.ValidationError, RecursionError) as exc:
                    yield FoundTemplate(index, line, template, None, f"its pod template cannot be read: {exc}")

    def _change(self, found: FoundTemplate, facts_of: FactsOf) -> TemplateChange:
        if found.question is None:
            return TemplateChange(warnings=(found.problem,))
        return self._mutator.change(found.template, found.question, facts_of(found.question.images))

    @staticmethod
    def _edit(document: DocumentText, operations: Sequence[tuple[Path, Operation]]) -> str:
        try:
            return edit_document(document.body, operations) if operations else document.body
        except ManifestError as exc:
            raise ManifestError(f"line {document.line} and after: {exc}") from exc
