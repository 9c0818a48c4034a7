"""How many ranks save together: never guessed where there are several."""

import subprocess
import sys

import pytest

from moonclip.ranks.topology import Stated, Topology, default_group, topology
from store.errors import Incompatible

TORCHRUN = {"WORLD_SIZE": "4", "RANK": "2", "LOCAL_RANK": "0"}
SLURM = {"SLURM_NTASKS": "8", "SLURM_PROCID": "5"}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "1"}
ALONE = Topology(1, 0)


@pytest.mark.parametrize("surrounding", [{}, {"WORLD_SIZE": "1"}, {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}])
@pytest.mark.parametrize("said", [(None, None), ("auto", None), ("auto", "auto"), (1, None), (1, 0)])
def test_a_single_process_needs_nothing(surrounding: dict[str, str], said: tuple[Stated, Stated]) -> None:
    assert topology(*said, surrounding) == ALONE


@pytest.mark.parametrize(
    ("surrounding", "told"),
    [
        (TORCHRUN, r"rank 2 of 4 processes \(torchrun\)"),
        (SLURM, r"rank 5 of 8 processes \(Slurm\)"),
        (OPEN_MPI, r"rank 1 of 3 processes \(Open MPI\)"),
        ({"WORLD_SIZE": "1", **SLURM}, r"rank 5 of 8 processes \(Slurm\)"),
    ],
)
def test_several_processes_and_nothing_said(surrounding: dict[str, str], told: str) -> None:
    with pytest.raises(Incompatible, match=f'{told}.*world_size="auto".*numbers.*world_size=1') as caught:
        topology(None, None, surrounding)
    assert {"world_size", "rank"} <= caught.value.details.keys()


def test_a_group_that_is_initialised_counts_as_several_processes() -> None:
    with pytest.raises(Incompatible, match=r"rank 1 of 2 processes \(torch.distributed\)"):
        topology(None, None, {}, Topology(2, 1))


@pytest.mark.parametrize("said", [("auto", None), ("auto", "auto"), ("auto", 2), (4, "auto"), (4, 2)])
def test_torchrun_is_believed_when_asked(said: tuple[Stated, Stated]) -> None:
    assert topology(*said, TORCHRUN) == Topology(4, 2)


def test_a_group_is_believed_before_a_launcher() -> None:
    assert topology("auto", None, TORCHRUN, Topology(2, 0)) == Topology(2, 0)
    assert topology("auto", None, SLURM, Topology(8, 5)) == Topology(8, 5)


@pytest.mark.parametrize("surrounding", [SLURM, OPEN_MPI])
def test_auto_does_not_go_by_launchers_whose_ranks_cannot_be_talked_with(surrounding: dict[str, str]) -> None:
    with pytest.raises(Incompatible, match=r"initialise torch\.distributed first, or give world_size and rank"):
        topology("auto", None, surrounding)


@pytest.mark.parametrize("rank", [None, 0, "auto"])
@pytest.mark.parametrize("surrounding", [TORCHRUN, SLURM])
def test_a_store_for_each_process(rank: Stated, surrounding: dict[str, str]) -> None:
    assert topology(1, rank, surrounding, Topology(4, 2)) == ALONE


def test_numbers_are_taken_as_they_are() -> None:
    assert topology(2, 1, TORCHRUN) == Topology(2, 1)
    assert topology(2, 1, {}) == Topology(2, 1)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ((4, None), "rank has to be given"),
        ((None, 2), "world_size has to be given"),
        ((None, "auto"), "world_size has to be given"),
        ((8, "auto"), "do not fit: this is rank 2 of 4"),
        (("auto", 3), "do not fit: this is rank 2 of 4"),
        ((4, 4), "rank 4 of 4"),
        ((4, -1), "rank -1 of 4"),
        ((0, 0), "rank 0 of 0"),
    ],
)
def test_what_does_not_fit_is_refused(said: tuple[Stated, Stated], told: str) -> None:
    with pytest.raises(Incompatible, match=told):
        topology(*said, TORCHRUN)


@pytest.mark.parametrize("surrounding", [{"WORLD_SIZE": "four", "RANK": "0"}, {"WORLD_SIZE": "4"}])
def test_a_launcher_that_makes_no_sense_is_told_of(surrounding: dict[str, str]) -> None:
    with pytest.raises(Incompatible, match="torchrun says WORLD_SIZE='"):
        topology("auto", None, surrounding)


def test_looking_for_a_group_loads_nothing() -> None:
    program = "import sys; from moonclip.ranks import topology; print(topology.default_group(), 'torch' in sys.modules)"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout.split() == ["None", "False"]


def test_without_a_group_there_is_none() -> None:
    import torch.distributed

    assert not torch.distributed.is_initialized()
    assert default_group() is None
