"""Which texts need quotes in YAML: kubectl reads YAML 1.1, where `yes`, `on` and `1_000` are no texts."""

import re

# Words and the first characters of numbers, dates and marks, in YAML 1.1 and 1.2. Kubernetes' YAML reader takes y and
# n as booleans, which other readers of YAML 1.1 do not.
# https://yaml.org/type/ and https://github.com/yaml/go-yaml/blob/v2.4.3/resolve.go
_READ_OTHERWISE = re.compile(r"(?i:y|n|yes|no|on|off|true|false|null)|[-+.0-9~=<][-+.:~=<\w]*|")


def needs_quotes(text: str) -> bool:
    """Whether a reader could take the bare text for a boolean, a number, a date or nothing."""
    return _READ_OTHERWISE.fullmatch(text) is not None
