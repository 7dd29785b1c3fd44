"""Fixes a stream of manifests: finds its pod templates, and writes what was decided about them into its text."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from extender.kubernetes.pod_templates import (
    Path,
    PodTemplate,
    is_patch,
    named,
    namespace_annotations,
    objects_in,
    pod_templates,
    unread_images,
)
from extender.manifests.editing import edit_document
from extender.manifests.stream import ManifestError, StreamDocument, read_stream
from extender.placement.facts import ImageFact, PodImage
from extender.placement.patch import Operation
from extender.placement.templates import TemplateAnswer, TemplateQuestion

FactsOf = Callable[[Sequence[PodImage]], list[ImageFact]]
"""Gives the facts of images, in order."""


class TemplateFixer(Protocol):
    """Decides what happens to templates: `Templates`, which adds what their pods would get, or `Relaxer`."""

    def question(self, template: PodTemplate, namespace: Mapping[str, str] | None, /) -> TemplateQuestion: ...

    def fix(
        self, template: PodTemplate, question: TemplateQuestion, facts: Sequence[ImageFact], /
    ) -> TemplateAnswer: ...


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
    change: TemplateAnswer


class ManifestStream:
    """A stream of manifests and the pod templates in it. Raises ManifestError if it cannot be read.

    `namespace` is that of objects that name none. `notes` are lines about objects whose images nobody reads, and about
    keys that are there twice.
    """

    def __init__(self, text: str, fixer: TemplateFixer, namespace: str = "") -> None:
        self._fixer = fixer
        self._namespace = namespace
        self._text = text
        self._documents: list[StreamDocument] = list(read_stream(text))
        for each in self._documents:
            each.check_object()
        self.notes = [note for each in self._documents for note in _notes(each)]
        self.templates = list(self._find(namespace_annotations(each.value for each in self._documents)))

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
        made, at = list[str](), 0
        for index, document in enumerate(self._documents):
            if document_operations := operations.get(index):
                try:
                    edited = edit_document(document.text, document_operations)
                except ManifestError as exc:
                    left = TemplateAnswer(warnings=(f"it is left as it is: {exc}",))
                    findings = [
                        msgspec.structs.replace(each, change=left) if found.document == index else each
                        for found, each in zip(self.templates, findings, strict=True)
                    ]
                else:
                    made += self._text[at : document.start], edited
                    at = document.start + len(document.text)
        return "".join([*made, self._text[at:]]), findings

    def _find(self, namespaces: Mapping[str, Mapping[str, str]]) -> Iterator[FoundTemplate]:
        for index, document in enumerate(self._documents):
            line = document.line
            patches = {path for path, found in objects_in(document.value) if is_patch(found)}
            for template in pod_templates(document.value):
                if template.item in patches:
                    continue
                try:
                    question = self._fixer.question(template, namespaces.get(template.namespace or self._namespace))
                    yield FoundTemplate(index, line, template, question)
                except (msgspec.ValidationError, RecursionError) as exc:
                    yield FoundTemplate(index, line, template, None, f"its pod template cannot be read: {exc}")

    def _change(self, found: FoundTemplate, facts_of: FactsOf) -> TemplateAnswer:
        if found.question is None:
            return TemplateAnswer(warnings=(found.problem,))
        return self._fixer.fix(found.template, found.question, facts_of(found.question.images))


def _notes(document: StreamDocument) -> Iterator[str]:
    yield from document.repeats
    for _, found in objects_in(document.value):
        if is_patch(found):
            yield f"line {document.line}: {named(found)} is a patch, and no object"
        elif path := unread_images(found):
            yield (
                f"line {document.line}: {named(found)} is not read: it names an image at {path}, which is no pod "
                "template"
            )
