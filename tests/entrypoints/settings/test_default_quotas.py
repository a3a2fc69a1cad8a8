"""What a tenant may store if nothing is set."""

from __future__ import annotations

import pytest

from antiphon.entrypoints.settings import load


@pytest.mark.parametrize(
    ("options", "quotas"),
    [
        ({}, (None, None)),
        ({"auth": "on"}, (100_000, 2 * 2**30)),
        ({"host": "0.0.0.0"}, (100_000, 2 * 2**30)),
        ({"auth": "on", "quota_responses": "5", "quota_bytes": "0"}, (5, None)),
        ({"quota_responses": "0", "quota_bytes": "7"}, (None, 7)),
    ],
)
def test_a_tenant_stores_a_bounded_amount_where_there_may_be_several(
    options: dict[str, str], quotas: tuple[int | None, int | None]
) -> None:
    assert load(None, {}, options).tenant_quotas == quotas
