"""The two figures, PNG and SVG, from what `analysis` computed. Needs matplotlib."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator  # noqa: E402

from vllm_ascend_split_batch.cascade.cost_model import AttentionShape, CostModel  # noqa: E402
from vllm_ascend_split_batch.cascade.profiles import Profile  # noqa: E402

COLOURS = {"current": "#0072B2", "older": "#D55E00", "dev605": "#009E73"}
MARKERS = {"current": "o", "older": "s", "dev605": "^"}
NAMES = {"current": "dev125, CANN 9.1.0", "older": "0.23, CANN 9.0.1", "dev605": "dev605"}

plt.rcParams.update(
    {
        "font.size": 11,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "svg.hashsalt": "cascade-decision",
        "svg.fonttype": "none",
        "font.family": "DejaVu Sans",
    }
)


def save(figure: Any, name: str, folder: Path) -> None:
    figure.savefig(folder / f"{name}.png", dpi=150, metadata={"Software": None})
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


def predicted_against_published(splits: list[dict[str, Any]], bands: dict[str, float], folder: Path) -> None:
    """Each cell of each base, predicted by the fit to the other two bases (left) and to one other base (right)."""
    figure, axes = plt.subplots(1, 2, figsize=(13, 6.4), sharex=True, sharey=True, layout="constrained")
    for axis, size, title in (
        (axes[0], 2, "predicted from the other two bases"),
        (axes[1], 1, "predicted from one other base"),
    ):
        rows = [row for split in splits if len(split["fitted_on"]) == size for row in split["rows"]]
        band = 100 * bands["stock_against_itself"]
        axis.axvspan(-band, band, color="#dddddd", zorder=0)
        axis.plot([-50, 20], [-50, 20], color="#888888", linewidth=1, zorder=1)
        axis.axhline(0, color="#888888", linewidth=0.8)
        axis.axvline(0, color="#888888", linewidth=0.8)
        for base in COLOURS:
            chosen = [row for row in rows if row["base"] == base]
            axis.scatter(
                [100 * row["published_change"] for row in chosen],
                [100 * row["predicted_change"] for row in chosen],
                color=COLOURS[base], marker=MARKERS[base], s=52, alpha=0.85, label=NAMES[base], zorder=3,
            )  # fmt: skip
        wrong = [row for row in rows if not row["right"] and abs(row["published_change"]) > bands["stock_against_itself"]]
        axis.scatter(
            [100 * row["published_change"] for row in wrong],
            [100 * row["predicted_change"] for row in wrong],
            s=210, facecolors="none", edgecolors="black", linewidths=1.6, zorder=4, label="wrong arm, outside the band",
        )  # fmt: skip
        axis.set_title(f"{title}: {len(rows)} predictions", fontsize=12)
        axis.set_xlabel("published change of the run's time, cascade on against off (%)")
        axis.text(0, -49.5, f"noise\n±{band:.1f} %", ha="center", va="bottom", fontsize=9, color="#555555")
        axis.text(-34, 17, "predicted to lose", fontsize=10, color="#555555")
        axis.text(-15, -46, "predicted to win", fontsize=10, color="#555555", ha="right")
    axes[0].set_ylabel("predicted change (%)")
    axes[0].set_xlim(-50, 20)
    axes[0].set_ylim(-50, 20)
    axes[0].legend(loc="upper left", bbox_to_anchor=(0.02, 0.93), frameon=False, fontsize=10)
    figure.suptitle("Ascend 910B2, kernel wheel, captured graphs: the cost model on measurements it was not fitted to")
    save(figure, "predicted-against-published", folder)


def break_even(
    profile: Profile, shape: AttentionShape, cells: dict[str, list[Any]], band: float, suffix: int, folder: Path
) -> None:
    """Where cascade begins to pay, with the published cells, and what disjoint blocks would have made of it."""
    assert profile.coefficients is not None
    assert profile.coverage is not None
    model = CostModel(profile.coefficients, shape)
    disjoint = CostModel(
        replace(profile.coefficients, reuse_gb_s=profile.coefficients.read_gb_s, cache_mib=None), shape
    )
    figure, axis = plt.subplots(figsize=(12.5, 6.4), layout="constrained")
    batches = [16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128]
    for chosen, margin, style, label in (
        (model, profile.margin, {"color": "black", "linewidth": 2.2}, f"switched on from here\n(margin {profile.margin:.0%})"),
        (model, 0.0, {"color": "black", "linewidth": 1.2, "linestyle": "--"}, "predicted equal"),
        (disjoint, 0.0, {"color": "#999999", "linewidth": 1.2, "linestyle": ":"}, "predicted equal if no shared\nblock were found in the cache"),
    ):  # fmt: skip
        axis.plot(batches, [chosen.break_even(b, suffix * b, margin=margin) for b in batches], label=label, **style)
    low = profile.coverage
    axis.axvspan(16, low.requests.low, color="#eeeeee", zorder=0)
    axis.axhspan(2000, low.prefix_tokens.low, color="#eeeeee", zorder=0)
    axis.text(16.4, 2150, "not measured: off", fontsize=10, color="#555555")
    for offset, base in zip((0.925, 1.0, 1.08), COLOURS, strict=True):
        for cell in cells[base]:
            change = 100 * cell.change
            inside = abs(cell.change) <= band
            face = "none" if inside else ("#1a9850" if change < 0 else "#d73027")
            axis.scatter(
                cell.requests * offset, cell.prefix_tokens, marker=MARKERS[base], s=70, facecolors=face,
                edgecolors="black", linewidths=0.8, zorder=4,
            )  # fmt: skip
            axis.annotate(
                f"{change:+.1f}", (cell.requests * offset, cell.prefix_tokens), textcoords="offset points",
                xytext=(0, -17 if cell.prefix_tokens < 5000 else 8), ha="center", fontsize=8,
            )  # fmt: skip
    for base in COLOURS:
        axis.scatter([], [], marker=MARKERS[base], s=60, facecolors="white", edgecolors="black", label=NAMES[base])
    axis.scatter([], [], marker="o", s=60, facecolors="#1a9850", edgecolors="black", label="published: cascade faster (%)")
    axis.scatter([], [], marker="o", s=60, facecolors="#d73027", edgecolors="black", label="published: cascade slower (%)")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set_xlim(16, 128)
    axis.set_ylim(2000, 22000)
    for dimension, ticks in ((axis.xaxis, [16, 32, 64, 128]), (axis.yaxis, [2048, 4096, 8192, 16384])):
        dimension.set_major_locator(FixedLocator(ticks))
        dimension.set_minor_locator(NullLocator())
        dimension.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axis.set_xlabel("requests in the batch (cells of 32 and 64; the three bases are drawn side by side)")
    axis.set_ylabel("shared tokens")
    axis.set_title("Ascend 910B2, kernel wheel, captured graphs, 14B attention: break-even", fontsize=12)
    axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=10)
    save(figure, "break-even", folder)


def emulated(profile: Profile, cells: list[Any], folder: Path) -> None:
    """The emulated NPU: measured and predicted time per layer of both arms over the shared tokens."""
    assert profile.coefficients is not None
    assert profile.coverage is not None
    model = CostModel(profile.coefficients, profile.coverage.shape)
    suffix = min(cell.suffix_tokens // cell.requests for cell in cells)
    batches = sorted({cell.requests for cell in cells})
    chosen = list(dict.fromkeys([batches[0], batches[len(batches) // 2], batches[-1]]))
    figure, axes = plt.subplots(1, len(chosen), figsize=(4.5 * len(chosen), 4.8), layout="constrained")
    for axis, requests in zip(axes, chosen, strict=True):
        here = sorted(
            (c for c in cells if c.requests == requests and c.suffix_tokens == suffix * requests),
            key=lambda cell: cell.prefix_tokens,
        )
        prefixes = [cell.prefix_tokens for cell in here]
        fine = range(min(prefixes), max(prefixes) + 1, 32)
        for name, colour, marker, predict in (
            ("stock", "#D55E00", "o", model.stock_us),
            ("cascade", "#0072B2", "s", model.cascade_us),
        ):
            axis.scatter(prefixes, [getattr(c, f"{name}_us") / 1e3 for c in here], color=colour, marker=marker, s=40,
                         label=f"{name}, measured")  # fmt: skip
            axis.plot(fine, [predict(requests, p, suffix * requests) / 1e3 for p in fine], color=colour,
                      label=f"{name}, predicted")  # fmt: skip
        axis.set_title(f"{requests} requests, {suffix} own tokens each", fontsize=11)
        axis.set_xlabel("shared tokens")
        axis.set_ylim(bottom=0)
    axes[0].set_ylabel("milliseconds per layer")
    axes[0].legend(frameon=False, fontsize=9)
    figure.suptitle("Emulated NPU, eager, SmolLM2 attention: shipped profile and its cells", fontsize=12)
    save(figure, "emulated", folder)
