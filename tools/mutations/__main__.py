"""`python -m tools.mutations [WORD…]` applies all mutations, or those whose file or promise has one of the words.

Prints a line for each, with the test that fell. Exits 1 if one survived or is stale, 2 if there is none or the
tests fail without one.
"""

import sys
from collections import Counter

from tools.mutations.mutation import Fate, apply, copied, run_tests
from tools.mutations.promises import MUTATIONS
from tools.release.pythons import PROJECT


def main(words: list[str]) -> int:
    """Applies one after the other; returns the exit code."""
    chosen = [each for each in MUTATIONS if not words or any(word in each.file + each.promise for word in words)]
    if not chosen:
        print(f"No mutation has {' or '.join(words)} in its file or promise.", file=sys.stderr)
        return 2
    with copied(PROJECT) as copy:
        unbroken = run_tests(copy, sorted({test for each in chosen for test in each.tests}))
        if unbroken.returncode:
            print(f"Without any mutation:\n{unbroken.stdout[-4000:]}", file=sys.stderr)
            return 2
        fates = Counter[Fate]()
        for each in chosen:
            result = apply(each, copy)
            fates[result.fate] += 1
            print(f"{result.fate:8}  {each.file}: {each.promise}\n          {result.said}", flush=True)
    print(", ".join(f"{count} {fate.lower()}" for fate, count in fates.items()))
    return 0 if fates.total() == fates[Fate.FELL] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
