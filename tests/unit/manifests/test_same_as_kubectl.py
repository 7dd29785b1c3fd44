"""Manifests are read as kubectl reads them: what it refuses, and every value.

The program is built with `python -m testbed.binaries --only read-manifests`.
"""

import base64
import json
import random
import subprocess
from collections.abc import Iterator

import pytest

from extender.manifests.stream import ManifestError, decode_stream, read_stream
from testbed.binaries import READ_MANIFESTS, find_built

PROGRAM = find_built(READ_MANIFESTS) / "read-manifests"
DOCUMENTS = 10_000

SCALARS = """a|b c|8080|"8080"|'it''s'|=|~|null|Null|y|Y|n|yes|No|on|OFF|true|False|2001-01-01|2001-1-1|2001-13-99
2001-12-14t21:59:43.10-05:00|2001-12-14 21:59:43|12:30|1:20:30|0|-0|+1|-1|017|08|0o17|0O7|0x1F|-0x1f|0b11|-0b11|0b12
1_000|1__0|_1|1_|1.|.5|-.5|+.5|1e3|1E-3|1.5e+2|1e|1e999|-1e999|.|..5|.e1|.inf|-.INF|.nan|.NaN|0x|18446744073709551615
18446744073709551616|9223372036854775808|-9223372036854775809|<<|"<<"|a:b|http://x/y|a#b|a #b|-a|?a|:a|- a
*x|*y|&x 1|&x a|&y {a: 1}|&x|!!str 80|!!str|!!int 7|!!int "7"|!!int a|!!float 3|!!float a|!!bool yes|!!bool "no"|!!bool 1
!!null ""|!!null a|!!binary aGk=|!!binary a|!!timestamp 2001-01-01|!!timestamp a|!foo bar|!foo 1|! 5|! "5"|!<tag:yaml.org,2002:str> 5
!!set {a, b}|!!omap [a: 1]|!!map [a]|!!seq {a: 1}|{}|[]|[a, b]|[a, b,]|{a: 1, b: }|{a, b}|{"a":1}|{a: {b: [c]}}|[a: 1, {b: 2}]
[? a : b]|"\\x41\\u00e9\\/\\n"|"\\q"|"\\ud83d"|'a|"a|@a|`a|%a|{a|[a|a]|a}|{a b: c}|é|\u2028x|\x07|\ufeffa|\tb|a\tb|a\t|[a,\tb]
{\ta: 1\t}|"a\tb"|"a: b"|a: b|&x *x|*x a|&a &b c|!!str !!int 1|&x [*x]|!!str &x 5|&x !!str 5|!e!t 1|[x:]
{a: b:}|{a:}|{a:, b: 1}|[http://x:, a:]|[a::]|{a: {b: c:}}|[[a:], b:]|{a: b:,c: d:}|[a:[b]]|[a?]|[a?b, c]|{a?: b}|[a, ?]|{"a":[b:]}
{"a" :[1]}|{'a':{b: c}}|["a:", 'b:', c:]|{a: :}|[::]|a:,|a:]|"a:,"|a?|a?,b|--x=:,|[--x=:, --y=a:]|\ufeff"""  # noqa: E501
VALUES = [each for line in SCALARS.split("\n") for each in line.split("|")]
BLOCKS = [
    "|\n    a\n     b\n\n    c\n", "|-\n    a\n", "|+\n    a\n\n", ">\n    a\n    b\n\n     c\n", ">-\n    a\n",
    "|2\n     a\n", "|\n  a\n", "|\n", "\n  - a\n  - b\n", "\n  -\n  - - a\n    - b\n",
    "\n- a\n- b: c\n  d: e\n", "\n  a: 1\n  b: 2\n", "\n  a: 1\n b: 2\n", "\n  a\n  b\n", "a\n  b\n",
    "\n\ta: 1\n", "\n  - a\n - b\n", '"a\n  b\n\n  c"\n', "'a\n\tb'\n", "&x\n  a: 1\n", "!!map\n  a: 1\n",
    "&y # c\n  a: 1\n", "[a,\n  b]\n", "{a: 1,\n b: 2}\n", "[\n\ta]\n", "[a, # c\n b]\n",
]  # fmt: skip
KEYS = [
    "a", "b", "'c'", '"d"', "<<", "1", "1.5", "y", "null", "~", "? a\n", "? [a]\n", "&x a", "*x ", "!!str 2",
    "0x10", "2001-01-01", "1e3", "a b", '"<<"', "", "- a", "é", "18446744073709551615", "!!binary aGk=", "a\t",
    "100000", "1e6",
]  # fmt: skip
LINES = [
    "---\n", "--- \n", "---\t# c\n", "...\n", "--- a\n", "---a\n", "# c\n", "\n", "  # c\n", " \t\n",
    "%YAML 1.1\n", "--- |\n", "... # c\n", "---\r\n", "\ufeffa: 1\n", "\ufeff# c\n", "\ufeff---\n", "---\ufeff\n",
    "\ufeff{a: b}\n", "\ufeff- a\n", "\ufeff\n", "# \ufeff\n",
]  # fmt: skip
JSON = [
    '{"a": 1}', '{"a": [1, 2.50, -0, 1e3, true, null]}', '{"a": "\\ud83d\\ude00\\u003c\\/"}', '{"a": NaN}',
    '{"a": 1,}', "{'a': 1}", '{"a": {"b": {}}}', "{}", "null", '{"a": 1, "a": 2}', "x", "a: 1\n", "---\n",
    "[1]", '{"a":\t1}', "\n", " ", '{"a": 01}', '{"a": "\t"}',
]  # fmt: skip
# What may differ, and why: each is what a document has.
REASONS = {
    b"\xff\xfe": "kubectl puts a byte behind the last line, after which UTF-16 is incomplete; here it is read",
    b"\xfe\xff": "as above",
    b"\xef\xbb\xbf\xef\xbb\xbf": "behind two marks kubectl leaves the first character of each line out",
    b"\xef\xbb\xbf{}": "behind a map in flow style kubectl passes over what it does not read; here it is refused",
    rb"\/": "an escape of JSON and YAML 1.2, which kubectl takes in JSON alone",
}


def mapping(draw: random.Random) -> str:
    lines = []
    for _ in range(draw.randint(1, 4)):
        key = draw.choice(KEYS[:5]) if draw.random() < 0.8 else draw.choice(KEYS)
        if draw.random() < 0.3:
            lines.append(f"{key}: {draw.choice(BLOCKS)}")
        else:
            lines.append(f"{key}: {draw.choice(VALUES)}{draw.choice(['', '', '', ' # c', ' '])}\n")
    return "".join(lines)


def merging(draw: random.Random) -> str:
    merges = ["*x", "*y", "[*x, *y]", "[*y, *x]", "{a: 7, e: 8}", "[{a: 7}, *x]", "a", "[a]", "*z", "[[]]", ""]
    body = [f"  <<: {draw.choice(merges)}\n", f"  {draw.choice('abc')}: 3\n", f"  <<: {draw.choice(merges)}\n"]
    draw.shuffle(body)
    return "x: &x {a: 1, b: 2}\ny: &y\n  b: 4\n  <<: *x\nz: &z 1\nm:\n" + "".join(body[: draw.randint(1, 3)])


def made(draw: random.Random) -> bytes:
    kind = draw.random()
    if kind < 0.1:
        text = "".join(draw.choice(JSON) for _ in range(draw.randint(1, 4)))
    elif kind < 0.2:
        text = merging(draw)
    elif kind < 0.3:
        text = "".join(draw.choice([mapping(draw), draw.choice(LINES)]) for _ in range(draw.randint(2, 5)))
    elif kind < 0.4:
        text = "".join(f"- {draw.choice(VALUES + BLOCKS)}\n" for _ in range(draw.randint(1, 4)))
    else:
        text = mapping(draw)
    encoding = draw.random()
    if encoding < 0.03:
        text = text.replace("\n", "\r\n")
    if encoding < 0.06:
        return text.encode("utf-8-sig", "surrogatepass")
    if encoding < 0.1:
        return ("\ufeff" + text).encode(draw.choice(["utf-16-le", "utf-16-be"]), "surrogatepass")
    if encoding > 0.995:
        return text.encode("latin-1", "replace")
    return text.encode("utf-8", "surrogatepass")


def read(data: bytes) -> Iterator[object]:
    try:
        yield from (document.value for document in read_stream(decode_stream(data)[0]))
    except ManifestError:
        yield ManifestError


@pytest.mark.skipif(not PROGRAM.exists(), reason="python -m testbed.binaries --only read-manifests builds the program")
def test_every_document_is_read_as_kubectl_reads_it() -> None:
    """Ten thousand documents over the features of YAML: readable or not, and the same values."""
    draw = random.Random(1)
    texts = [made(draw) for _ in range(DOCUMENTS)]
    asked = "".join(json.dumps(base64.b64encode(each).decode()) + "\n" for each in texts)
    done = subprocess.run([PROGRAM], input=asked.encode(), capture_output=True, check=True)
    different = []
    for text, line in zip(texts, done.stdout.splitlines(), strict=True):
        answer = json.loads(line)
        theirs = [*answer["documents"], *([ManifestError] if answer["error"] else [])]
        ours = list(read(text))
        if ours != theirs and not any(each in text for each in REASONS):
            different.append((text, ours, theirs, answer["error"]))
    assert not different[:5], len(different)
