"""Runs functions as checks and counts them; the last line says how many passed and failed."""

import sys
import traceback

CHECKS = []


def check(f):
    """Marks a function as a check. Its name is what it claims."""
    CHECKS.append(f)
    return f


def run(client_name):
    """Runs every check and exits with 1 if one failed."""
    failed = 0
    for f in CHECKS:
        try:
            f()
        except Exception:
            failed += 1
            print(f"FAILED {client_name}: {f.__name__}", file=sys.stderr)
            traceback.print_exc()
    print(f"{client_name}: {len(CHECKS) - failed} passed, {failed} failed", flush=True)
    sys.exit(1 if failed else 0)


def raises(kind, f):
    """What f raises, which must be of this kind."""
    try:
        f()
    except kind as e:
        return e
    raise AssertionError(f"nothing was raised; {kind.__name__} was expected")


def first_whole(ask):
    """The first of a few answers that has an end: the built-in model is a toy and may fill its limit with white space."""
    for seed in range(6):
        answer = ask(seed)
        if answer is not None:
            return answer
    raise AssertionError("no answer came to an end")


def lines(text, n):
    """A prompt of many tokens."""
    return "\n".join(f"{text} {i}" for i in range(n))
