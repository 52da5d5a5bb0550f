import { useContext, useEffect, useState } from "preact/hooks";
import * as api from "../api";
import { Chart, Table, ThemeContext } from "../chart";
import { Choice } from "../choice";
import { bytes, integer, rankName, seconds } from "../format";
import { COLORS } from "../theme";

export function StepPage({ run, overview }: { run: string; overview: api.Overview }) {
  // The last one, until another is asked for.
  const [chosen, setChosen] = useState<number | null>(null);
  const [step, setStep] = useState<api.Step | null>(null);
  const number = chosen ?? overview.steps.at(-1);
  const isMissing = step === null || step.step !== number || step.ranks.length === 0;
  useEffect(() => {
    let current = true;
    if (number !== undefined) {
      api.step(run, number).then(
        (found) => current && setStep(found),
        () => {}, // Asked for again with the next overview, which tells of a server that is gone.
      );
    }
    return () => {
      current = false;
    };
  }, [run, number, isMissing ? overview : null]);
  if (number === undefined) return <p>No step has been written down with its collectives yet.</p>;
  return (
    <>
      <div class="controls">
        <Choice label="Step" value={number} choose={(one) => setChosen(Number(one))}>
          {overview.steps.map((one) => (
            <option value={one}>{integer(one)}</option>
          ))}
        </Choice>
        <span class="facts">
          Not every step is written down with its collectives, which takes room: at first one at each update, later
          one whenever the run has grown by a twentieth. So far {integer(overview.steps.length)}.
        </span>
      </div>
      <p class="facts">
        Of a rank's two bars, the upper one is what its step went into. The lower one is when its collectives waited for
        the last rank, and when their bytes moved; it may have computed meanwhile. Between hosts, times are as exact as
        their clocks agree.
      </p>
      {step && <Timeline step={step} />}
    </>
  );
}

function Timeline({ step }: { step: api.Step }) {
  const { ranks } = step;
  const theme = useContext(ThemeContext);
  if (ranks.length === 0) return <p>This step was not written down.</p>;
  const began = Math.min(...ranks.map((one) => one.began_at));
  const names = ranks.map(({ rank, host }) => rankName(rank, host));
  const longest = ranks.reduce((most, one) => (one.compute_s > most.compute_s ? one : most));
  return (
    <Chart
      title={`Step ${integer(step.step)} of all ranks, ms since the first began it`}
      summary={`Rank ${longest.rank} computes longest, ${seconds(longest.compute_s)}`}
      data={[
        ...api.SHARES.map((share) => bars(share, theme.paper, UPPER, shares(ranks, began, share))),
        bars("wait", theme.paper, LOWER, pieces(ranks, began, WAIT)),
        bars("exposed", theme.paper, LOWER, pieces(ranks, began, TRANSFER)),
      ]}
      layout={{
        barmode: "overlay",
        xaxis: { title: { text: "ms" } },
        yaxis: {
          autorange: "reversed",
          ...(names.length <= 32 && { tickvals: names.map((_, index) => index), ticktext: names }),
        },
      }}
      height={Math.min(180 + 48 * ranks.length, 800)}
    >
      <Table
        caption={`Step ${step.step}, by rank`}
        head={["Rank", "Began", "Took", ...api.SHARES.map((share) => api.SHARE_NAMES[share]), "Waited most for"]}
        rows={ranks.map((one, index) => [
          names[index],
          `+${seconds(one.began_at - began)}`,
          seconds(one.duration_s),
          ...api.SHARES.map((share) => seconds(one[`${share}_s`])),
          one.last_rank === null ? "nobody" : `rank ${one.last_rank}`,
        ])}
      />
    </Chart>
  );
}

interface Piece {
  row: number;
  from: number;
  length: number;
  text: string;
}

// Two bars of a rank, from the middle of its row.
const UPPER = -0.2;
const LOWER = 0.2;

function bars(share: api.Share, edge: string, offset: number, found: Piece[]) {
  return {
    type: "bar",
    orientation: "h",
    name: api.SHARE_NAMES[share],
    legendgroup: share,
    // Once for both bars.
    showlegend: offset === UPPER,
    width: 0.36,
    marker: { color: COLORS[share], line: { color: edge, width: 0.5 } },
    y: found.map((one) => one.row + offset),
    base: found.map((one) => one.from * 1e3),
    x: found.map((one) => one.length * 1e3),
    text: found.map((one) => one.text),
    textposition: "none",
    hovertemplate: "%{text}<extra></extra>",
  };
}

/** Behind each other, in the order of SHARES; together they are the step. */
function shares(ranks: api.RankStep[], began: number, share: api.Share): Piece[] {
  return ranks.map((rank, row) => {
    const before = api.SHARES.slice(0, api.SHARES.indexOf(share));
    const from = before.reduce((sum, one) => sum + rank[`${one}_s`], rank.began_at - began);
    const length = rank[`${share}_s`];
    const text = `${rankName(rank.rank, rank.host)}: ${api.SHARE_NAMES[share]} ${seconds(length)} in all`;
    return { row, from, length, text };
  });
}

// From which of a collective's times to which.
const WAIT = [0, 1] as const;
const TRANSFER = [1, 4] as const;

/** Of each collective, within the step. The rank that came last waited for nobody. */
function pieces(ranks: api.RankStep[], began: number, span: readonly [number, number]): Piece[] {
  return ranks.flatMap((rank, row) =>
    rank.collectives.flatMap((one) => {
      const [first, last] = [one.at_s[span[0]], one.at_s[span[1]]];
      if (first == null || last == null) return [];
      const [from, to] = [Math.max(first, 0), Math.min(last, rank.duration_s)];
      if (from >= to) return [];
      if (span === WAIT && (one.last_rank === null || one.last_rank === rank.rank)) return [];
      const who = span === WAIT ? `, for rank ${one.last_rank}` : "";
      const text = `${one.name}, ${bytes(one.bytes)}: ${seconds(to - from)}${who}`;
      return [{ row, from: rank.began_at - began + from, length: to - from, text }];
    }),
  );
}
