"""A process that examines cases one after the other: ``python -m ... FIRST LAST [nodes]``."""

from __future__ import annotations

import faulthandler
import json
import resource
import signal
import sys
from dataclasses import asdict

from tests.frontends.mutation.judge import examine
from tests.frontends.mutation.seeds import node_seeds, own_seeds

#: Wall time after which a case that uses no processor counts as hanging.
_WALL_SECONDS = 120

#: Bytes that a process may allocate: an allocation without bounds fails and does no harm.
_MOST_DATA = 4 << 30


def main(first: int, last: int, *, nodes: bool) -> None:
    """Examine the cases ``first..last - 1``; one line of JSON before and after each."""
    seeds = (*own_seeds(), *node_seeds()) if nodes else own_seeds()
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_DATA, _MOST_DATA))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    faulthandler.register(signal.SIGPROF, chain=True)
    for number in range(first, last):
        faulthandler.dump_traceback_later(_WALL_SECONDS, exit=True)
        verdict = examine(number, seeds, lambda phase, number=number: _say(number, phase=phase))
        _say(number, **asdict(verdict))


def _say(number: int, **entries: str) -> None:
    print(json.dumps({"case": number, **entries}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), nodes="nodes" in sys.argv[3:])
