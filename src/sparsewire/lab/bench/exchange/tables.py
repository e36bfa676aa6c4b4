"""The tables of `bench exchange`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sparsewire.lab import measure
from sparsewire.lab.tables import number, table

from .steps import DENSE

Row = Mapping[str, Any]
Cell = Callable[[Row], str]
FEW, MANY = 4, 16  # ranks whose bytes are compared
AHEAD = (32, 100, 1000, 10_000)  # ranks that the model is shown for


def show(result: Mapping[str, Any]) -> str:
    load = f"{result['entries']:,} of {result['numel']:,} float32 per rank, {result['codecs']}"
    speeds = ", ".join(f"{name} {1e9 * spent:,.1f}" for name, spent in result["speeds"].items() if name != "reduce")
    parts = [f"{measure.machine_line(result['machine'])}\n{load}\nns per entry, or per frame: {speeds}"]
    parts.append(f"bytes in + out of the busiest rank, KB: counted / model\n\n{_bytes_table(result['bytes'])}")
    parts += [_times_part(link, rows) for link, rows in _by(result["times"], "link").items()]
    parts += [f"{link}: not timed, {why}" for link, why in result["not_timed"].items()]
    return "\n\n".join([*parts, *_ahead_parts(result["ahead"])])


def _bytes_table(rows: Sequence[Row]) -> str:
    sizes = _sizes(rows)
    headers = ["exchange", "supports", *(f"{size} ranks" for size in sizes)]
    compared = {FEW, MANY} <= set(sizes)
    if compared:
        headers += [f"{MANY} : {FEW}", "mean of ranks"]
    lines = [[*name, *(_pair(row, "both", 1e3, 1) for row in own.values()), *(_growth(own) if compared else [])]
             for name, own in _cases(rows)]  # fmt: skip
    return table(headers, lines)


def _growth(own: Mapping[int, Row]) -> list[str]:
    """How much more bytes there are at many ranks than at few, on the busiest rank and on average."""
    return [f"{own[MANY][key] / own[FEW][key]:.2f} ×" for key in ("both", "mean")]


def _times_part(link: str, rows: Sequence[Row]) -> str:
    sizes = _sizes(rows)
    links = {row["ranks"]: (1e6 * row["latency"], 8e-6 / row["byte"] if row["byte"] else 0.0) for row in rows}
    fitted = "; ".join(f"{size} processes: {us:,.0f} µs, {rate:,.0f} Mbit/s" for size, (us, rate) in links.items())
    headers = ["exchange", "supports", *(f"step, {size}" for size in sizes), *(f"decode, {size}" for size in sizes)]
    lines = [[*name, *(_pair(row, "seconds", 1e-3, 1) for row in own.values()),
              *(_pair(row, "decode", 1e-3, 2) for row in own.values()), _pair(own[sizes[-1]], "sent", 1e3, 1)]
             for name, own in _cases(rows)]  # fmt: skip
    title = f"links: {link}; ms: measured / model\nα per round and 1/β as an all_gather finds them: {fitted}"
    return f"{title}\n\n{table([*headers, f'KB sent, {sizes[-1]}'], lines)}"


def _ahead_parts(rows: Sequence[Row]) -> list[str]:
    first, *_ = links = list(_by(rows, "link").values())
    parts = [_ahead("MB in + out of the busiest rank", first, "both", 1e6, 2)]
    for own in links:
        what = f"seconds per step on links of {own[0]['link']}, α = {1e6 * own[0]['latency']:,.0f} µs, a core per rank"
        parts.append(_ahead(f"{what}; rings", own, "seconds", 1.0, 3))
        parts.append(_ahead(f"{what}; the fewest rounds for the same bytes", own, "seconds_fewest", 1.0, 3))
    return parts


def _ahead(what: str, rows: Sequence[Row], key: str, scale: float, digits: int) -> str:
    headers = ["exchange", "supports", *(f"{size:,} ranks" for size in AHEAD)]
    lines = [[*name, *(number(own[size][key] / scale, digits) for size in AHEAD)] for name, own in _cases(rows)]
    return f"model: {what}\n\n{table(headers, lines)}"


def _pair(row: Row, key: str, scale: float, digits: int) -> str:
    """Measured / model."""
    values = [row[key], row["model"] and row["model"][key]]
    return " / ".join("–" if value is None else number(value / scale, digits) for value in values)


def _cases(rows: Iterable[Row]) -> list[tuple[list[str], dict[int, Row]]]:
    """(exchange and supports, its rows by number of ranks); the dense baseline knows no supports."""
    cases: dict[tuple[str, str], dict[int, Row]] = {}
    for row in rows:
        cases.setdefault((row["exchange"], row["supports"]), {})[row["ranks"]] = row
    return [([exchange, "" if exchange == DENSE else supports], own) for (exchange, supports), own in cases.items()]


def _by(rows: Iterable[Row], key: str) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[key], []).append(row)
    return groups


def _sizes(rows: Iterable[Row]) -> list[int]:
    return list(dict.fromkeys(row["ranks"] for row in rows))
