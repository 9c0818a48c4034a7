"""The script that a measured process runs: ``python -I runner.py JOB``, a job being JSON.

It runs in the environments of the peers, where this repository is not installed and must not be found (one of them
has our package's name): of all of it, only ``tools`` can be imported there.
"""

import json
import sys
import types
from pathlib import Path


def main() -> None:
    """Do the job."""
    tools = types.ModuleType("tools")
    tools.__path__ = [str(Path(__file__).resolve().parents[2])]
    sys.modules["tools"] = tools
    from tools.bench.measured.jobs import do

    do(json.loads(sys.argv[1]))


if __name__ == "__main__":
    main()
