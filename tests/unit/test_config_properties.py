"""Every variable, with any text in it."""

from __future__ import annotations

import warnings

from hypothesis import strategies as st
from support.properties import QUICK_AND_DEEP, for_any

from ring_keras.config import Config, ConfigError, split_address, variables

USUAL = st.sampled_from(
    [
        *["", " ", "0", "1", "-1", "1e3", "inf", "nan", "1_0", "٣", "9" * 5000, "auto"],
        *["tcp", "debug", "a:1", "[::1]:80", ":80", "a:99999", "eth0,eth1", ","],
    ]
)
TEXTS = USUAL | st.integers().map(str) | st.floats().map(str) | st.text(max_size=9)


@QUICK_AND_DEEP
def test_any_environment_is_settings_or_the_documented_error(examples: int) -> None:
    names = [variable.name for variable in variables()]

    def check(environment: dict[str, str]) -> None:
        try:
            config = Config.from_environment(environment)
        except ConfigError as error:
            assert "RING_KERAS_" in str(error)
            return
        assert config.rank >= 0
        assert config.size >= 1
        assert config.tcp_streams in range(1, 17)
        assert config.init_timeout_s > 0
        assert all(0 <= value <= 1 << 62 for value in config.tuning().values())
        assert all(config.interfaces or ["none"])

    for_any(st.dictionaries(st.sampled_from(names), TEXTS, max_size=6), check, examples)


@QUICK_AND_DEEP
def test_what_a_variable_takes_is_what_it_holds(examples: int) -> None:
    def check(case: tuple[int, float, list[str], bool]) -> None:
        number, seconds, names, switch = case
        config = Config.from_environment(
            {
                "RING_KERAS_DIRECT_MAX_BYTES": str(number),
                "RING_KERAS_INIT_TIMEOUT_S": repr(seconds),
                "RING_KERAS_INTERFACES": " , ".join(names),
                "RING_KERAS_ENCRYPT": "01"[switch],
            }
        )
        assert config.direct_max_bytes == number
        assert config.init_timeout_s == seconds
        assert config.interfaces == tuple(names)
        assert config.encrypt == switch

    seconds = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
    name = st.from_regex(r"[a-z0-9.@:-]+", fullmatch=True)
    lists = st.lists(name, min_size=1, max_size=4)
    inputs = st.tuples(st.integers(0, 1 << 62), seconds, lists, st.booleans())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for_any(inputs, check, examples)


@QUICK_AND_DEEP
def test_any_text_is_an_address_or_the_documented_error(examples: int) -> None:
    def check(text: str) -> None:
        try:
            host, port = split_address(text)
        except ValueError:
            return
        assert host
        assert 0 < port < 65536

    parts = st.sampled_from(["[", "]", ":", "::1", "a", "80"]) | TEXTS
    for_any(st.lists(parts, max_size=5).map("".join), check, examples)
