"""torch's distributed checkpointing on a store: what it saves is a commit, and any commit is something it can load.

    import torch.distributed.checkpoint as dcp
    from moonclip.dcp import StorageReader, StorageWriter

    dcp.save(state, checkpoint_id="step-100", storage_writer=StorageWriter("./checkpoints"))
    dcp.load(state, checkpoint_id="step-100", storage_reader=StorageReader("./checkpoints"))

``layout`` says under which names things lie, ``leaves`` takes in what is no tensor, ``shares`` finds what a rank has to
write, ``kept`` is what one save leaves to the next, ``structure`` and ``publishing`` make the commit; ``stored`` is a
commit as torch sees it.
"""

from .reader import StorageReader
from .writer import StorageWriter

__all__ = ["StorageReader", "StorageWriter"]
