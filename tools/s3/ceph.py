"""Ceph's radosgw over one monitor and one OSD, from Debian packages: a production server with real persistence."""

import platform
import re
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from .debian import unpack
from .installing import Unavailable, installed, run
from .processes import LOOPBACK, environment, free_ports
from .server import SECRET, Account, Kind, Running, Traits, launched

_TRAITS = Traits(
    decodes_chunked=False,  # 411
    checks_crc32=False,
    quoted_if_match=False,  # 412 for the very ETag that it gave
    conditional_complete=False,  # ignored
)
_ACCESS_KEY = "testkey"
_ROOTS = ("radosgw", "ceph-mon", "ceph-osd")
_UNWANTED = re.compile(
    r"cryptsetup-bin|gdisk|hdparm|logrotate|uuid-runtime|libnvme1|nvme-cli|dmidecode|libparted2|parted|smartmontools"
    r"|sudo|xfsprogs|lvm2|dmeventd|libdevmapper-event1\.02\.1|liblvm2cmd2\.03|libinih1|python3-.*"
)
"""What only `ceph-volume` needs, which prepares real disks."""

_BLOCK_DEVICE_BYTES = 10 << 30  # a sparse file
_MEMORY_TARGET_BYTES = 896 << 20  # the least that BlueStore takes


def _install() -> Path:
    if platform.machine() != "x86_64":
        raise Unavailable(f"its libraries are looked for where x86_64 has them, and this is {platform.machine()}")
    recipe = f"{' '.join(_ROOTS)}\n{_UNWANTED.pattern}"
    return installed("ceph", recipe, _build) / "root"


def _build(folder: Path) -> None:
    root = unpack(_ROOTS, _UNWANTED, folder)
    # Says which library is missing, where another release of Debian has other ones.
    for program in ("ceph-mon", "ceph-osd", "radosgw", "radosgw-admin", "monmaptool", "osdmaptool"):
        run(["env", *_library_path(root), str(root / "usr" / "bin" / program), "--version"])


def _libraries(root: Path) -> Path:
    return root / "usr" / "lib" / "x86_64-linux-gnu"


def _library_path(root: Path) -> list[str]:
    libraries = _libraries(root)
    folders = (libraries, libraries / "ceph", root / "lib" / "x86_64-linux-gnu")
    return [f"LD_LIBRARY_PATH={':'.join(map(str, folders))}"]


def _prepare(root: Path, directory: Path) -> Callable[[], Running]:
    port, monitor_port, old_monitor_port = free_ports(3)
    monitor = f"[v2:{LOOPBACK}:{monitor_port},v1:{LOOPBACK}:{old_monitor_port}]"
    fsid = str(uuid.uuid4())
    (directory / "gateway").mkdir()
    configuration = directory / "ceph.conf"
    _write(configuration, _settings(root, directory, fsid=fsid, monitor=monitor, port=port))
    library_path = _library_path(root)[0].partition("=")[2]
    env = environment(LD_LIBRARY_PATH=library_path, CEPH_CONF=str(configuration))

    def program(name: str, *arguments: str) -> list[str]:
        return [str(root / "usr" / "bin" / name), *arguments]

    def do(name: str, *arguments: str) -> None:
        run(["env", f"LD_LIBRARY_PATH={library_path}", f"CEPH_CONF={configuration}", *program(name, *arguments)])

    monitors, devices = str(directory / "monmap"), str(directory / "osdmap")
    do("monmaptool", "--create", "--fsid", fsid, "--addv", "a", monitor, monitors)
    # The one OSD stands in the first map of the cluster: it need not be announced, nor have a key.
    do("osdmaptool", "--createsimple", "1", devices)
    (directory / "monitor").mkdir()
    (directory / "device").mkdir()
    do("ceph-mon", "--mkfs", "-i", "a", "--monmap", monitors, "--osdmap", devices)
    do("ceph-osd", "--mkfs", "-i", "0", "--osd-uuid", str(uuid.uuid4()), "--no-mon-config", "--monmap", monitors)
    account = Account("ceph", f"http://{LOOPBACK}:{port}", _ACCESS_KEY, SECRET, _TRAITS)
    commands = {
        "monitor": program("ceph-mon", "-f", "-i", "a"),
        "device": program("ceph-osd", "-f", "-i", "0"),
        "gateway": program("radosgw", "-f", "-n", "client.rgw"),
    }
    made = directory / "user-made"

    def made_account() -> Account:
        if not made.exists():
            keys = ["--access-key", _ACCESS_KEY, "--secret-key", SECRET]
            do("radosgw-admin", "-n", "client.rgw", "user", "create", "--uid=test", "--display-name=test", *keys)
            made.touch()
        return account

    def launch() -> Running:
        return launched(commands, env, directory, [account.endpoint_url], made_account)

    return launch


def _settings(root: Path, directory: Path, *, fsid: str, monitor: str, port: int) -> dict[str, Mapping[str, object]]:
    libraries = _libraries(root)
    nobody_signs = {f"auth_{who}_required": "none" for who in ("cluster", "service", "client")}
    nothing_is_encrypted = {
        f"ms_{who}_mode": "crc" for who in ("mon_client", "client", "cluster", "service", "mon_cluster", "mon_service")
    }
    one_copy = {
        "osd_pool_default_size": 1,
        "osd_pool_default_min_size": 1,
        "osd_pool_default_pg_num": 4,
        "osd_pool_default_pgp_num": 4,
        "osd_pool_default_pg_autoscale_mode": "off",
        "osd_crush_chooseleaf_type": 0,
        "mon_allow_pool_size_one": "true",
        "mon_max_pg_per_osd": 2000,
        "mon_warn_on_pool_no_redundancy": "false",
    }
    places = {
        "run_dir": directory,
        "admin_socket": "",  # a path as long as those of tests fits into no socket's address
        "log_file": directory / "$name.log",
        "pid_file": "",
        "osd_class_dir": libraries / "rados-classes",
        "erasure_code_dir": libraries / "ceph" / "erasure-code",
        "plugin_dir": libraries / "ceph",
    }
    addresses = {"fsid": fsid, "mon_host": monitor, "public_addr": LOOPBACK, "cluster_addr": LOOPBACK}
    return {
        "global": addresses | nobody_signs | nothing_is_encrypted | places | one_copy,
        "mon.a": {
            "mon_data": directory / "monitor",
            "mon_data_avail_crit": 1,
            "mon_data_avail_warn": 2,
            "paxos_propose_interval": 0.05,  # else each new pool waits for a second
            "paxos_min_wait": 0.01,
        },
        "osd": {
            "osd_data": directory / "device",
            "osd_objectstore": "bluestore",
            "osd_memory_target": _MEMORY_TARGET_BYTES,
            "osd_op_num_shards": 2,
            "bluestore_block_size": _BLOCK_DEVICE_BYTES,
            "bluestore_prefer_deferred_size": 0,
            "osd_max_object_name_len": 2048,
            "osd_class_update_on_start": "false",
        },
        "client.rgw": {
            "rgw_frontends": f"beast endpoint={LOOPBACK}:{port}",
            "rgw_data": directory / "gateway",
            "rgw_rados_pool_pg_num_min": 1,
            "rgw_dynamic_resharding": "false",
            "rgw_gc_obj_min_wait": 60,
            "rgw_enable_usage_log": "false",
            "rgw_enable_ops_log": "false",
        },
    }


def _write(path: Path, sections: Mapping[str, Mapping[str, object]]) -> None:
    lines = []
    for title, values in sections.items():
        lines += [f"[{title}]", *(f"{key} = {value}" for key, value in values.items())]
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")


KIND = Kind("ceph", _TRAITS, _install, _prepare)
