"""What pages take for granted."""

import pytest

from tests.s3servers import bucket, server


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket on a server of ours, which boto3 finds by the environment."""
    account = server("moto")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", account.endpoint_url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", account.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", account.secret_key)
    monkeypatch.setenv("AWS_DEFAULT_REGION", account.region)
    return bucket(account)
