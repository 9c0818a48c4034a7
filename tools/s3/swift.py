"""OpenStack Swift with its S3 interface: one node in four processes. Checks all, loses races."""

import getpass
from collections.abc import Callable, Mapping
from pathlib import Path

from .installing import installed_by_pip, run
from .processes import LOOPBACK, environment, free_ports
from .server import REGION, SECRET, Account, Kind, Running, Traits, launched

_TRAITS = Traits(
    atomic_create=False,  # of eight that race several are told that they won
    conditional_replace=False,  # 501
    quoted_if_match=False,
    unquoted_if_match=False,
    atomic_replace=False,
)
_TENANT, _USER = "test", "tester"
_STORES = ("account", "container", "object")
_PARTITION_POWER = "4"  # 16 partitions: more spread nothing on one device

_FILTERS = {
    "catch_errors": {},
    "gatekeeper": {},
    "listing_formats": {},
    "bulk": {},
    "s3api": {
        "location": REGION,
        "s3_acl": "false",
        "check_bucket_owner": "false",
        "allow_multipart_uploads": "true",
    },
    "tempauth": {f"user_{_TENANT}_{_USER}": f"{SECRET} .admin"},
    "copy": {},
    "slo": {},
    "dlo": {},
}
"""What a request passes through on its way to the proxy server, in this order."""


def _prepare(program: Path, directory: Path) -> Callable[[], Running]:
    settings = directory / "settings"
    settings.mkdir()
    (directory / "devices" / "d1").mkdir(parents=True)
    ports = dict(zip((*_STORES, "proxy"), free_ports(4), strict=True))
    hashing = {"swift_hash_path_suffix": "moonclip", "swift_hash_path_prefix": "moonclip"}
    policy = {"name": "one", "default": "yes"}
    _write(settings / "swift.conf", {"swift-hash": hashing, "storage-policy:0": policy})
    for name in _STORES:
        _make_ring(program, settings, name, ports[name])
        _write(settings / f"{name}.conf", _store_settings(name, ports[name], directory))
    _write(settings / "proxy.conf", _proxy_settings(ports["proxy"], settings))
    urls = {name: f"http://{LOOPBACK}:{port}" for name, port in ports.items()}
    account = Account("swift", urls["proxy"], f"{_TENANT}:{_USER}", SECRET, _TRAITS)
    commands = {
        name: [str(program / "python"), str(program / f"swift-{name}-server"), str(settings / f"{name}.conf")]
        for name in ports
    }

    def launch() -> Running:
        return launched(commands, environment(), directory, list(urls.values()), lambda: account)

    return launch


def _make_ring(program: Path, settings: Path, name: str, port: int) -> None:
    builder = [str(program / "python"), str(program / "swift-ring-builder"), f"{name}.builder"]
    replica_count, hours_between_moves = "1", "0"
    run([*builder, "create", _PARTITION_POWER, replica_count, hours_between_moves], folder=settings)
    run([*builder, "add", f"r1z1-{LOOPBACK}:{port}/d1", "1"], folder=settings)
    run([*builder, "rebalance"], folder=settings)


def _common(port: int, settings: Path) -> dict[str, str]:
    return {
        "bind_ip": LOOPBACK,
        "bind_port": str(port),
        "swift_dir": str(settings),
        "user": getpass.getuser(),
        "workers": "0",  # all in the one process that is killed
        "log_level": "WARNING",
    }


def _store_settings(name: str, port: int, directory: Path) -> dict[str, Mapping[str, str]]:
    server = f"{name}-server"
    common = _common(port, directory / "settings")
    own = {"devices": str(directory / "devices"), "mount_check": "false", "fallocate_reserve": "0"}
    return {
        "DEFAULT": common | own,
        "pipeline:main": {"pipeline": server},
        f"app:{server}": {"use": f"egg:swift#{name}"},
    }


def _proxy_settings(port: int, settings: Path) -> dict[str, Mapping[str, str]]:
    filters = {f"filter:{name}": {"use": f"egg:swift#{name}"} | own for name, own in _FILTERS.items()}
    server = {"use": "egg:swift#proxy", "account_autocreate": "true", "allow_account_management": "true"}
    return {
        "DEFAULT": _common(port, settings),
        "pipeline:main": {"pipeline": " ".join([*_FILTERS, "proxy-server"])},
        "app:proxy-server": server,
        **filters,
    }


def _write(path: Path, sections: Mapping[str, Mapping[str, str]]) -> None:
    lines = []
    for title, values in sections.items():
        lines += [f"[{title}]", *(f"{key} = {value}" for key, value in values.items())]
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")


KIND = Kind("swift", _TRAITS, lambda: installed_by_pip("swift"), _prepare)
