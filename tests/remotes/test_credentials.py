"""Keys to S3 servers."""

import pytest

from store.errors import RemoteDenied
from store.remotes.storages.credentials import ACCESS_KEY, SECRET_KEY, SESSION_TOKEN, Keys, keys_from_environment


def test_keys_come_from_the_environment_whole() -> None:
    assert keys_from_environment({}) is None
    assert keys_from_environment({ACCESS_KEY: "", SECRET_KEY: ""}) is None
    assert keys_from_environment({ACCESS_KEY: "a", SECRET_KEY: "b"}) == Keys("a", "b")
    assert keys_from_environment({ACCESS_KEY: "a", SECRET_KEY: "b", SESSION_TOKEN: "c"}) == Keys("a", "b", "c")


@pytest.mark.parametrize("given", [[ACCESS_KEY], [SECRET_KEY], [SESSION_TOKEN], [ACCESS_KEY, SESSION_TOKEN]])
def test_half_of_an_account_is_none(given: list[str]) -> None:
    with pytest.raises(RemoteDenied) as caught:
        keys_from_environment(dict.fromkeys(given, "hunter2"))
    missing = {ACCESS_KEY, SECRET_KEY} - set(given)
    assert all(name in str(caught.value) for name in missing)
    assert "hunter2" not in str(caught.value)


def test_f7_keys_do_not_show_in_a_repr() -> None:
    assert "hunter" not in f"{Keys('hunter1', 'hunter2', 'hunter3')!r}"
