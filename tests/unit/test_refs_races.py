"""Processes that want the same ref at the same moment."""

import subprocess
import sys
from pathlib import Path

from store.disk.files import Files
from store.ids import CommitId, ObjectId
from store.naming.refs import RefStore

REPOSITORY = Path(__file__).parents[2]
CONTENDERS, ROUNDS = 4, 40

CONTENDER = """
import sys
from pathlib import Path
from store.errors import Conflict
from store.disk.files import Files
from store.ids import CommitId, ObjectId
from store.naming.refs import RefStore

refs, number, rounds = RefStore(Path(sys.argv[1]), Files()), int(sys.argv[2]), int(sys.argv[3])

def commit(round, number):
    return CommitId(ObjectId(bytes([round + 1, number]) * 16))

print(flush=True)
sys.stdin.readline()
for round in range(rounds):
    held = refs.read("branches/main")
    while round and held is None or held is not None and held[0] < round:
        held = refs.read("branches/main")
    if held is not None and held[0] > round:
        continue  # this round is over already
    try:
        refs.update("branches/main", held, commit(round, number), "commit", str(number))
    except Conflict:
        continue
    print(round)
"""


def contender(root: Path, number: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", CONTENDER, str(root), str(number), str(ROUNDS)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)


def won_rounds(process: "subprocess.Popen[str]") -> list[int]:
    output, _ = process.communicate()
    assert process.returncode == 0
    return list(map(int, output.split()))


def test_d10_of_processes_that_swap_one_ref_exactly_one_wins_each_round(tmp_path: Path) -> None:
    refs = RefStore(tmp_path, Files())
    refs.set_head("main")
    processes = [contender(tmp_path, number) for number in range(CONTENDERS)]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    while any(process.poll() is None for process in processes):
        seen = [line.new for line in refs.reflog("HEAD") if line.new]
        assert [value[0] for value in seen] == list(range(len(seen), 0, -1))
    wins = [won_rounds(process) for process in processes]
    won = sorted((turn, number) for number, turns in enumerate(wins) for turn in turns)
    assert [turn for turn, _ in won] == list(range(ROUNDS))
    values = [CommitId(ObjectId(bytes([turn + 1, number]) * 16)) for turn, number in won]
    for name in ("branches/main", "HEAD"):
        lines = list(refs.reflog(name))[::-1]
        assert [line.new for line in lines] == values
        assert [line.old for line in lines] == [None, *values[:-1]]
        assert [line.message for line in lines] == [str(number) for _, number in won]
