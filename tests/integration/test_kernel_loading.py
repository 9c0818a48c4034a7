"""Where compiled kernels come from: compiled in a process of their own, loaded by everybody; safe in threads and forks.

Every scenario runs in a process of its own.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from store import kernels
from store.kernels import verifying

ENGINE = Path(kernels.__file__).parents[1]
CAP_DAC_OVERRIDE, PR_CAPBSET_DROP = 1, 24
PR_SET_MDWE = 65


def obey_permissions() -> None:
    """In a child about to run a program: root, too, may then write only where permissions say so."""
    if os.geteuid() == 0:
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


WORK = """
import hashlib, os, sys, threading
import numpy as np
from store import codec, kernels
from store.format.dtypes import Element

def chunks():
    for element in (Element.FP32, Element.BF16, Element.INT64):
        count = 400_000 // element.width_bytes
        base = (np.arange(count, dtype=np.uint64) ** 2 % 2**31).astype(f"<u{element.width_bytes}")
        yield element, memoryview((base + base % 7).tobytes()), memoryview(base.tobytes())

def work():
    seen = hashlib.sha256()
    for element, raw, base in chunks():
        encoded = codec.encode(raw, element, base)
        payload = b"".join(encoded.payload)
        seen.update(payload)
        out = memoryview(bytearray(len(raw)))
        codec.decode(encoded.transform, encoded.grouped, element, memoryview(payload), len(raw),
                     base if encoded.uses_base else None, out)
        assert out == raw
    return seen.hexdigest()

def in_thread(times=16):
    results = set()
    thread = threading.Thread(target=lambda: results.update(work() for _ in range(times)))
    thread.start()
    thread.join()
    (result,) = results
    return result
"""


@pytest.fixture(scope="module")
def expected_digest() -> str:
    scope: dict[str, object] = {}
    exec(WORK, scope)
    work = scope["work"]
    assert callable(work)
    return str(work())


@pytest.fixture(scope="module")
def warm_file() -> Path:
    """The cache's file for this machine, there and good."""
    if not kernels.warm():
        pytest.skip("numba does not work here")
    place = kernels.cache.directory()
    assert place is not None
    return place / kernels.cache._file_name()


@pytest.fixture
def bare(tmp_path: Path) -> Callable[[str], Path]:
    """Makes a folder with every installed package but one."""

    def without(library: str) -> Path:
        for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
            if not entry.name.startswith(library):
                (tmp_path / entry.name).symlink_to(entry)
        return tmp_path

    return without


def run(code: str, root: Path = ENGINE.parent, *, site: bool = True, **environment: str) -> str:
    """What a process printed that works with the engine in ``root``, without a home unless given one."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HOME", "XDG", "MOONCLIP"))
    }
    clean.update(PYTHONPATH=str(root), PYTHONDONTWRITEBYTECODE="1", **environment)
    if clean.get("EXTRA_PATH"):
        clean["PYTHONPATH"] = os.pathsep.join((clean.pop("EXTRA_PATH"), str(root)))
    command = [sys.executable, *([] if site else ["-S"]), "-c", WORK + code]
    done = subprocess.run(
        command,
        env=clean,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        preexec_fn=obey_permissions,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


NO_HELPER = "\nsys.executable = ''\n"
COMPILERS = "any(name in sys.modules for name in ('numba', 'llvmlite'))"
REPORT = f"\nprint(in_thread(), kernels.is_compiled(), {COMPILERS})"
NOWHERE = "/proc/nowhere"


def test_e4_little_work_loads_nothing() -> None:
    loaded = "'store.kernels.native' in sys.modules"
    assert run(f"\nwork()\nprint(kernels.is_compiled(), {COMPILERS}, {loaded})") == "False False False"


def test_e4_a_warm_cache_is_used_without_a_compiler(warm_file: Path, expected_digest: str) -> None:
    assert run(REPORT) == f"{expected_digest} True False"
    assert run(f"\nfor _ in range(16): work()\nprint(kernels.is_compiled(), {COMPILERS})") == "True False"


def test_e4_a_process_that_will_work_can_load_first(warm_file: Path) -> None:
    assert run(f"\nkernels.prepare()\nprint(kernels.is_compiled(), {COMPILERS})") == "True False"


def test_e4_a_cold_cache_means_twins_and_no_compiling(tmp_path: Path, expected_digest: str) -> None:
    assert run(NO_HELPER + REPORT, MOONCLIP_CACHE=str(tmp_path)) == f"{expected_digest} False False"
    assert list(tmp_path.iterdir()) == []


def test_e4_no_writable_cache(expected_digest: str) -> None:
    assert run(REPORT, MOONCLIP_CACHE=NOWHERE) == f"{expected_digest} False False"


def test_e4_read_only_installation_without_a_home(tmp_path: Path, expected_digest: str) -> None:
    root = tmp_path / "installation"
    shutil.copytree(ENGINE, root / "store", ignore=shutil.ignore_patterns("__pycache__"))
    folders = [Path(folder) for folder, _, _ in os.walk(root)]
    for folder in folders:
        folder.chmod(0o555)
    try:
        assert run(REPORT, root, HOME=NOWHERE) == f"{expected_digest} False False"
    finally:
        for folder in folders:
            folder.chmod(0o755)  # so that pytest can remove it


def test_e4_a_read_only_installation_that_was_compiled_once(
    warm_file: Path, tmp_path: Path, expected_digest: str
) -> None:
    shutil.copytree(ENGINE, tmp_path / "store", ignore=shutil.ignore_patterns("__pycache__"))
    cache = tmp_path / "store/kernels/__pycache__"
    cache.mkdir()
    shutil.copy(warm_file, cache)
    cache.chmod(0o555)
    try:
        assert run(REPORT, tmp_path, HOME=NOWHERE) == f"{expected_digest} True False"
    finally:
        cache.chmod(0o755)


@pytest.mark.parametrize("library", ["numba", "llvmlite"])
def test_e4_a_library_is_absent(bare: Callable[[str], Path], library: str, expected_digest: str) -> None:
    assert run(REPORT, site=False, EXTRA_PATH=str(bare(library))) == f"{expected_digest} False False"


def test_e4_llvm_that_does_not_work(bare: Callable[[str], Path], tmp_path: Path, expected_digest: str) -> None:
    place = bare("llvmlite")
    (place / "llvmlite.py").write_text("raise OSError('libLLVM.so: cannot open shared object file')")
    report = "\nassert kernels.cache.can_fill() and not kernels.warm()" + REPORT
    cache = str(tmp_path / "cache")
    assert run(report, site=False, EXTRA_PATH=str(place), MOONCLIP_CACHE=cache) == f"{expected_digest} False False"


def test_e4_a_system_that_runs_no_new_code(warm_file: Path, expected_digest: str) -> None:
    """SELinux and systemd can refuse it; here the process has Linux do so (``PR_SET_MDWE``)."""
    hardened = f"\nimport ctypes\nhas_switch = not ctypes.CDLL(None).prctl({PR_SET_MDWE}, 1, 0, 0, 0)"
    if run(hardened + "\nprint(has_switch)") != "True":
        pytest.skip("this Linux has no such switch")
    assert run(hardened + REPORT) == f"{expected_digest} False False"


@pytest.mark.parametrize("fault", ["cut short", "flipped", "empty", "without its head"])
def test_e4_a_damaged_cache_is_a_cold_one(warm_file: Path, tmp_path: Path, fault: str, expected_digest: str) -> None:
    good = warm_file.read_bytes()
    middle = len(good) // 2
    damaged = {
        "cut short": good[:middle],
        "flipped": good[:middle] + bytes([good[middle] ^ 4]) + good[middle + 1 :],
        "empty": b"",
        "without its head": good[64:],
    }[fault]
    (tmp_path / warm_file.name).write_bytes(damaged)
    assert run(NO_HELPER + REPORT, MOONCLIP_CACHE=str(tmp_path)) == f"{expected_digest} False False"


MEANWHILE = """
import select, time
end = time.monotonic() + 200
def until_compiled():
    while not kernels.is_compiled() and time.monotonic() < end:
        results.add(work())
        select.select([], [], [], 0.2)  # the helper has the lowest priority of all
results = set()
thread = threading.Thread(target=until_compiled)
thread.start()
thread.join()
results.add(work())
print(*results, kernels.is_compiled(), any(name in sys.modules for name in ('numba', 'llvmlite')))
"""

UNTIL_ANOTHER_COMPILES = """
import select
from pathlib import Path
lock = Path(os.environ["MOONCLIP_CACHE"], "moonclip-compiling.lock")
def is_held():
    return lock.exists() and f":{lock.stat().st_ino} " in Path("/proc/locks").read_text()
while not is_held():
    select.select([], [], [], 0.01)
assert kernels.cache.read() is None
"""


@pytest.mark.slow
def test_e4_a_helper_process_compiles_meanwhile_whatever_lies_about(
    warm_file: Path, tmp_path: Path, expected_digest: str
) -> None:
    """The process goes on with the twins and picks the compiled kernels up by itself, without compiling any.

    A damaged cache is replaced; a setting that turns numba's compiler off is for the user's functions, not for ours; a
    stray file in site-packages stands in for no part of the standard library, nor another ``store`` for this one; who
    asks for warm kernels meanwhile waits for them.
    """
    root, other, cache = tmp_path / "packages", tmp_path / "other", tmp_path / "cache"
    shutil.copytree(ENGINE, root / "store", ignore=shutil.ignore_patterns("__pycache__"))
    cache.mkdir()
    (cache / warm_file.name).write_bytes(warm_file.read_bytes()[:1000])
    strays = f"""
from pathlib import Path
for name in ("dis", "pickle", "typing", "uuid", "fractions", "contextlib"):
    Path({str(root)!r}, name + ".py").write_text("raise SystemExit('a stray file')")
Path({str(other)!r}).mkdir()
Path({str(other)!r}, "store.py").write_text("raise SystemExit('another store')")
os.environ["PYTHONPATH"] = {str(other)!r}
"""
    settings = {"MOONCLIP_CACHE": str(cache), "NUMBA_DISABLE_JIT": "1"}
    with ThreadPoolExecutor(1) as beside:
        asking = f"{UNTIL_ANOTHER_COMPILES}\nprint(kernels.warm(), {COMPILERS})"
        asked = beside.submit(run, asking, **settings)
        assert run(strays + MEANWHILE, root, **settings) == f"{expected_digest} True False"
        assert asked.result() == "True False"


def test_e4_kernels_that_are_wrong_are_not_used(warm_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "exercise", lambda kernel: iter([np.array([kernel is kernels.reference])]))
    loader = kernels._Loader()
    assert loader.load()
    assert loader.chosen is kernels.reference


def test_e4_code_that_needs_more_than_a_c_library_is_refused() -> None:
    """Whoever loads it has no numba in its process: a call into it would end that process."""
    code = """
from store.kernels import building
def allocating(base, count, first_bit, mask, keys, counts, tables):
    for i in range(count):
        counts[i] = np.ones(count).sum()
building._source = lambda name: allocating
building.llvm.initialize_native_target()
machine = building.llvm.Target.from_default_triple().create_target_machine()
try:
    building._compiled("exponent_keys", 4, machine)
except RuntimeError as error:
    print("would need" in str(error))
"""
    if not kernels.cache.can_fill():
        pytest.skip("numba is absent")
    assert run(code) == "True"


def test_e4_other_sources_have_another_cache(warm_file: Path, tmp_path: Path) -> None:
    name = "\nfrom store.kernels import cache\nprint(cache._file_name())"
    shutil.copytree(ENGINE, tmp_path / "store", ignore=shutil.ignore_patterns("__pycache__"))
    assert run(name, tmp_path) == warm_file.name
    with (tmp_path / "store/kernels/source_words.py").open("a") as source:
        source.write("# another version")
    assert run(name, tmp_path) != warm_file.name


def test_e4_other_limits_have_another_cache(warm_file: Path, tmp_path: Path) -> None:
    """Kernels have them compiled in; old ones would differ from their twins and be refused for ever."""
    shutil.copytree(ENGINE, tmp_path / "store", ignore=shutil.ignore_patterns("__pycache__"))
    limits = tmp_path / "store/limits.py"
    limits.write_text(limits.read_text().replace("MIN_PLANE_GAIN: Final = 0.0", "MIN_PLANE_GAIN: Final = 0.1"))
    assert run("\nfrom store.kernels import cache\nprint(cache._file_name())", tmp_path) != warm_file.name


def test_e4_others_may_use_what_one_has_compiled(tmp_path: Path) -> None:
    kernels.cache.write(tmp_path, b"an image")
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o644


FORKS = """
import signal
signal.alarm(200)  # a hang becomes a failure

def child():
    pid = os.fork()
    if pid:
        return pid
    signal.alarm(60)
    status = 1
    try:
        status = 0 if in_thread(1) == work() == expected else 1
    finally:
        sys.stderr.flush()
        os._exit(status)

def threads_and_forks(expected_now):
    global expected
    expected = expected_now
    pids = [child()]
    threads = [threading.Thread(target=lambda: [work() for _ in range(20)]) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) and len(pids) < 25:
        pids.append(child())  # before kernels are loaded, while they are, while they run
    for thread in threads:
        thread.join()
    pids.append(child())
    return [os.waitpid(pid, 0)[1] for pid in pids]
"""


@pytest.mark.parametrize("environment", [{}, {"MOONCLIP_CACHE": NOWHERE}], ids=["compiled", "twins"])
def test_e5_forks_before_during_and_after_first_use(expected_digest: str, environment: dict[str, str]) -> None:
    is_warm = kernels.warm() and not environment
    statuses, is_compiled = run(
        FORKS + f"\nprint(sum(threads_and_forks({expected_digest!r})), kernels.is_compiled())", **environment
    ).split()
    assert (statuses, is_compiled) == ("0", str(is_warm))


def test_e6_64_threads_share_nothing() -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor
def one(seed):
    random = np.random.default_rng(seed)
    element = list(Element)[seed % len(Element)]
    base = (random.standard_normal(5000) * 100).astype("<f8").tobytes()
    raw = (np.frombuffer(base, np.uint64) + random.integers(0, 2**20, 5000, np.uint64)).tobytes()
    encoded = codec.encode(memoryview(raw), element, memoryview(base))
    payload = memoryview(b"".join(encoded.payload))
    out = memoryview(bytearray(len(raw)))
    used = memoryview(base) if encoded.uses_base else None
    codec.decode(encoded.transform, encoded.grouped, element, payload, len(raw), used, out)
    return bytes(out) == raw
with ThreadPoolExecutor(64) as pool:
    print(all(pool.map(one, range(1500))), kernels.is_compiled())
"""
    assert run(code) == f"True {kernels.warm()}"
