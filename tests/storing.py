"""Small stores, for tests."""

from store.ids import CommitId
from store.naming.refnames import branch_name
from store.repository import Repository
from store.saving.inputs import ItemInput, TensorInput
from store.saving.saver import SaveRequest


def weights_of(step: int) -> bytes:
    """What :func:`save` stores."""
    return bytes(step % 251 for _ in range(4096))


def save(repository: Repository, step: int) -> CommitId:
    """Commit one tensor on the branch ``main``."""
    weight = TensorInput(0, "float32", (1024,), memoryview(weights_of(step)))
    parent = repository.refs.read(branch_name("main"))
    request = SaveRequest([ItemInput("model", {"": weight})], branch="main", parent=parent, step=step)
    return repository.save(request).commit


def load(repository: Repository, revision: str) -> bytes:
    """The tensor of a commit."""
    commit = repository.commit(repository.resolve(revision))
    return bytes(repository.read_tensor(repository.tree(commit, "model")[""]))  # type: ignore[arg-type]
