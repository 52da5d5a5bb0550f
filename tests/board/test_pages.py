"""Each view of the page, in Chromium, from files whose content is known."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest
from support.synthetic_run import BEGAN_AT, slow_compute, updates, write_run
from support.tensorboard import tensorboard

pytestmark = [pytest.mark.board, pytest.mark.timeout(600)]

TABS = ["Overview", "Ranks", "Stragglers", "Collectives", "Step", "Events"]
EVENT = {"time": BEGAN_AT, "rank": 2, "kind": "stall", "text": "waited 61 s"}


@pytest.fixture(scope="module")
def short_run(browser, tmp_path_factory):
    """The address of a TensorBoard."""
    directory = tmp_path_factory.mktemp("short")
    write_run(directory, updates(slow_compute, count=20))
    with tensorboard(directory) as address:
        yield address


# As for gradients of a few weights; the rest are a callback's and this page's.
TINY = {
    "collectives": [
        {
            "kind": kind,
            "algorithm": "shared_flat",
            "size_class_bytes": size,
            "count": 200,
            "wait_s": 1.0,
            "transfer_s": bandwidth and 0.1,
            "best_bus_bandwidth": bandwidth,
            "mean_bus_bandwidth": bandwidth,
        }
        for kind, size, bandwidth in (
            ("allreduce", 256, 0.0),
            ("allgather", 1024, 1e8),
            ("broadcast", 1024, 1e8),
        )
    ],
    "buckets": [{"name": "gradients/bucket0", "bytes": 392, "fill": 0.1}],
}


def upper_bars(board):
    """Of the picture of a step: the bars of each share, by its name."""
    return board.frame.locator("figure .js-plotly-plot").evaluate(
        """plot => Object.fromEntries(
            plot.data.filter(one => one.showlegend).map(one => [
                one.name,
                one.x.map((x, i) => ({x, base: one.base[i], color: one.marker.color})),
            ]))"""
    )


def test_gradients_that_are_too_small_to_time(tmp_path, open_board):
    write_run(tmp_path, updates(slow_compute, count=20), totals=TINY)
    board = open_board(tmp_path)
    board.open_tab("Collectives")
    [buckets] = board.charts()
    assert buckets.startswith("Buckets of gradients")
    said = board.frame.get_by_role("tabpanel").locator("p").first.inner_text()
    assert said.startswith("The gradients, 392 bytes, are too small to time:")
    rows = board.table("Collectives of the first rank so far")
    assert [row[0].split(",")[0] for row in rows] == [
        *["allreduce", "allgather", "broadcast"]
    ]


def test_every_view_says_what_the_files_say(tmp_path, open_board):
    write_run(tmp_path, updates(slow_compute), (EVENT,))
    board = open_board(tmp_path)
    sentence = board.headline()
    assert sentence.startswith("Rank 3 (host b) is slow: its compute takes 1.4 x the")
    assert "since step 1,191" in sentence
    what_to_do = board.frame.locator(".remedy").inner_text()
    assert what_to_do.startswith("The costs are means of steps 1,501 to 2,000.")
    assert what_to_do.endswith('see docs/doctor.md, "What is checked".')
    assert "4 ranks, step 2,000" in board.frame.locator("header").inner_text()

    assert "compute 55 ms" in board.charts()[0]
    rows = board.table("Seconds a step")
    assert rows[0][0] == "10"
    assert len(rows) == 200

    board.open_tab("Ranks")
    assert "Most: rank 3 (b)" in board.charts()[0]
    board.frame.get_by_label("Show").select_option("wait given to others")
    board.frame.get_by_role("img", name="wait given to others").wait_for()
    board.frame.get_by_label("Rank", exact=True).select_option("rank 3 (b)")
    board.frame.get_by_role("img", name="What a step of rank 3 (b)").wait_for()

    board.open_tab("Stragglers")
    [row] = board.table("Who holds the others up")
    assert row[:2] == ["Rank 3 (host b)", "compute"]
    assert row[2:4] == ["steady", "since step 1,191"]
    assert row[4].endswith(" ms a step (steps 1,501 to 2,000)")
    assert row[5] == sentence
    assert what_to_do.endswith(row[6])
    assert "mean of steps 1,801 to 2,000" in board.charts()[0]

    board.open_tab("Collectives")
    bandwidths, buckets = board.charts()
    assert bandwidths.endswith(
        "Best: 2.20 GB/s with allreduce, shared_flat of 4.00 MiB"
    )
    assert buckets.endswith("3 buckets, 19.0 MiB in all")
    assert board.table("Buckets in their order")[1:] == [
        ["bucket1", "15.0 MiB", "94 % full"],
        ["bucket2", "3.00 MiB", "a group's own"],
    ]
    [small, *_] = board.table("Collectives of the first rank so far")
    assert small[:5] == ["allreduce", "256 B", "2,000", "not timed", "not timed"]

    board.open_tab("Step")
    assert "Rank 3 computes longest, 70 ms" in board.charts()[0]
    parts = upper_bars(board)
    assert list(parts) == [
        *["compute", "input wait", "wait for the last rank", "exposed transfer"]
    ]
    # Behind each other, as the table has them.
    assert [round(bar[0]["x"]) for bar in parts.values()] == [50, 1, 20, 4]
    assert [round(bar[0]["base"]) for bar in parts.values()] == [0, 50, 51, 71]
    assert len({bar[0]["color"] for bar in parts.values()}) == 4
    facts = board.frame.locator(".controls .facts").inner_text()
    assert facts.endswith("whenever the run has grown by a twentieth. So far 1.")
    assert [row[-1] for row in board.table("Step 7, by rank")] == [
        *["rank 3"] * 3,
        "nobody",
    ]

    board.open_tab("Events")
    [row] = board.table("Events, the last one first")
    assert row[1:] == ["stall", "2", "waited 61 s"]
    # By a clock of 24 hours, as below the chart.
    assert re.fullmatch(r"2027-01-1\d \d\d:\d\d:\d\d", row[0])
    assert board.errors == []


def test_nothing_is_asked_of_another_origin(short_run, show):
    board = show(short_run)
    for tab in TABS:
        board.open_tab(tab)
        board.charts()
    own = urlsplit(board.address).netloc
    others = {
        url
        for url in board.requests
        if urlsplit(url).scheme not in {"data", "blob"} and urlsplit(url).netloc != own
    }
    assert others == set()
    assert any("/plugin/ring/overview" in url for url in board.requests)


def test_a_click_on_the_heat_map_chooses_the_rank(short_run, show):
    board = show(short_run)
    board.open_tab("Ranks")
    board.charts()
    plot = board.frame.locator("figure .nsewdrag").first
    box = plot.bounding_box()
    # The second of four rows from above.
    plot.click(position={"x": box["width"] / 2, "y": box["height"] * 3 / 8})
    board.frame.get_by_role("img", name="What a step of rank 1 (a)").wait_for()


def test_the_keyboard_reaches_every_view(short_run, show):
    board = show(short_run)
    board.frame.get_by_role("tab", name="Overview").focus()
    for name in [*TABS[1:], TABS[0]]:
        board.page.keyboard.press("ArrowRight")
        chosen = board.frame.get_by_role("tab", selected=True, name=name)
        chosen.wait_for()
        assert chosen.evaluate("tab => tab === document.activeElement")
    # One stop for all tabs, the next is the view itself.
    board.page.keyboard.press("Tab")
    panel = board.frame.get_by_role("tabpanel")
    assert panel.evaluate("panel => panel === document.activeElement")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_has_tensorboards_colours(short_run, show, dark):
    board = show(short_run, dark=dark)
    board.charts()
    body = board.frame.locator("body")
    background, text = (
        body.evaluate(f"body => getComputedStyle(body).{name}")
        for name in ("backgroundColor", "color")
    )
    paper = board.frame.locator("figure .main-svg").first.evaluate(
        "svg => getComputedStyle(svg).backgroundColor"
    )
    assert paper == background
    dark_ones = ("rgb(48, 48, 48)", "rgb(240, 240, 240)")
    light_ones = ("rgb(255, 255, 255)", "rgb(33, 33, 33)")
    assert (background, text) == (dark_ones if dark else light_ones)


def test_what_is_written_while_the_page_is_open(tmp_path, open_board):
    series = updates(slow_compute)
    write_run(tmp_path, series[:100])
    board = open_board(tmp_path)
    assert board.headline().startswith("No rank holds the others up")
    board.frame.get_by_role("status").evaluate(
        """status => {
            window.changes = 0;
            new MutationObserver(() => { window.changes += 1; }).observe(
                status, {childList: true, characterData: true, subtree: true});
        }"""
    )
    # Another run, which comes first by its name, and is not shown for that.
    write_run(tmp_path / "a", series)
    choice = board.frame.get_by_label("Run")
    choice.locator("option", has_text="a/train").wait_for(state="attached")
    assert choice.input_value() == "train"
    assert board.headline().startswith("No rank holds the others up")
    # A screen reader says it once, though it was read again meanwhile.
    assert board.frame.locator("body").evaluate("() => window.changes") == 0
    choice.select_option("a/train")
    board.wait_for_headline("Rank 3 (host b) is slow")


def test_the_step_of_a_run_is_that_run_s(tmp_path, open_board):
    write_run(tmp_path / "one", updates(slow_compute, count=20), step=7)
    write_run(tmp_path / "two", updates(slow_compute, count=20), step=9)
    board = open_board(tmp_path)
    board.open_tab("Step")
    board.frame.get_by_role("combobox", name="Step").select_option("7")
    assert len(board.table("Step 7, by rank")) == 4
    board.frame.get_by_label("Run").select_option("two/train")
    assert len(board.table("Step 9, by rank")) == 4
    # Who came last waited for nobody.
    bars = board.frame.locator("figure .js-plotly-plot").evaluate(
        """plot => plot.data.find(
            one => one.name.startsWith('wait') && !one.showlegend).text"""
    )
    assert len(bars) == 3 * 2
    assert all(text.endswith("for rank 3") for text in bars)


def test_only_what_a_screen_reader_reads_is_reached_by_the_keyboard(short_run, show):
    board = show(short_run)
    for tab in TABS:
        board.open_tab(tab)
        board.charts()
        hidden = board.frame.locator("[aria-hidden=true]")
        focusable = hidden.locator("button, a, input, select, [tabindex]")
        assert focusable.count() == 0, tab


def test_256_ranks(tmp_path, open_board):
    write_run(tmp_path, updates(slow_compute, size=256, count=130))
    board = open_board(tmp_path)
    assert board.headline().startswith("Rank 3 (host a) is slow")
    board.open_tab("Ranks")
    board.charts()
    assert len(board.table("compute, mean over the run")) == 256
    assert board.errors == []
