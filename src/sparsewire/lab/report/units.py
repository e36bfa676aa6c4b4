"""Numbers as the report writes them."""

from __future__ import annotations


def compact(value: float, digits: int = 3) -> str:
    """
    >>> compact(0.25), compact(1500), compact(2e7), compact(0)
    ('0.25', '1.5k', '20M', '0')
    >>> compact(999_700), compact(2.5e12), compact(999_700, 4)
    ('1M', '2.5T', '999.7k')
    """
    rounded = float(f"{value:.{digits}g}")
    for power, unit in ((15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if 10**power <= abs(rounded) < 1e18:
            return f"{rounded / 10**power:.{digits}g}{unit}"
    return f"{rounded:.{digits}g}"


def seconds(value: float) -> str:
    """
    >>> seconds(0.00024), seconds(0.0024), seconds(0.00997), seconds(0.043), seconds(0.9997), seconds(13.07)
    ('0.24 ms', '2.4 ms', '10 ms', '43 ms', '1.0 s', '13.1 s')
    """
    if value >= 0.9995:
        return f"{value:,.1f} s"
    if value < 0.000995:
        return f"{value * 1e3:.2g} ms"
    return f"{value * 1e3:.{int(value < 0.00995)}f} ms"
