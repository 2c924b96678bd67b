from __future__ import annotations

import pytest

from orchestrator.cli.values import check_choice, parse_size
from orchestrator.errors import EnginefarmError


@pytest.mark.parametrize(
    ("text", "count"), [("1048576", 1 << 20), ("8 GiB", 8 << 30), ("500MB", 500_000_000), ("1.5G", 1_500_000_000), (" 64 KiB ", 65536)]
)
def test_sizes_take_decimal_and_binary_units(text: str, count: int) -> None:
    assert parse_size("--memory", text) == count


@pytest.mark.parametrize("text", ["", "much", "-1 GB", "8 GiBi", "0", "1e9", "GiB"])
def test_a_bad_size_is_a_usage_error_with_an_example(text: str) -> None:
    with pytest.raises(EnginefarmError) as caught:
        parse_size("--memory", text)
    assert caught.value.exit == 2
    assert '--memory "8 GiB"' in str(caught.value.fix)


def test_a_choice_is_checked_with_the_closest_name() -> None:
    check_choice("--precision", None, ("fp32", "fp16"))
    check_choice("--precision", "fp16", ("fp32", "fp16"))
    with pytest.raises(EnginefarmError, match="fp-16") as caught:
        check_choice("--precision", "fp-16", ("fp32", "fp16"))
    assert "did you mean fp16" in str(caught.value.fix)
