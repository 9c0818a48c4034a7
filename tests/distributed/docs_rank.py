"""One rank that runs the scripts of docs/ranks.md, one after another. Run by ``tests/docs/test_ranks_docs.py``."""

import os
import sys
from pathlib import Path

from tests.docpages import ROOT, blocks

if __name__ == "__main__":
    os.chdir(sys.argv[1])
    os.environ |= {"RANK": sys.argv[2], "WORLD_SIZE": sys.argv[3], "MASTER_ADDR": "127.0.0.1"}
    for name, port in zip(("fsdp.py", "stages.py"), sys.argv[4:], strict=True):
        [text] = [block.text for block in blocks(ROOT / "docs" / "ranks.md") if block.name == name]
        os.environ["MASTER_PORT"] = port
        exec(compile(text, str(Path(name)), "exec"), {"__name__": "__main__"})
    print("done", flush=True)
    os._exit(0)  # torch's own threads, of many groups, now and then abort an interpreter that ends
