"""The most that one pod, or the templates of one object, may have to be decided about.

Whoever may create a pod, as a dry run too, chooses what it has. Beyond these bounds it is admitted as it is, with a
warning: what is decided about all others then takes milliseconds, and kilobytes.
"""

POD_BYTES = 512 * 1024
"""Of a pod in a review, or of the templates of one object. Reading a megabyte of empty containers takes 60 ms."""
OBJECT_BYTES, OBJECT_VALUES = 1024 * 1024, 100_000
"""Of an object that has templates in a review, and of what it was before, together. Decoded, a value takes 80 bytes."""
TOUCHED_BYTES = 64 * 1024
"""Of the parts that a patch changes or depends on, as JSON: tolerations, affinity, selectors, gates, constraints."""
TERMS, REQUIREMENTS = 64, 256
"""Node selector terms of required affinity, and the requirements of all of them, before and after additions."""
RECORD_CHARACTERS, RECORD_ITEMS = 16 * 1024, 64
"""Of the annotation that records what was added. A larger one is none of ours."""
PATCH_BYTES = 144 * 1024
"""A response has it in base64, which makes it a third larger, beside warnings and the record: 256 KiB at most."""
