import { useEffect, useState } from "preact/hooks";
import * as api from "../api";
import { Chart, Table } from "../chart";
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
      </div>
      {step && <Timeline step={step} />}
    </>
  );
}

function Timeline({ step }: { step: api.Step }) {
  const { ranks } = step;
  if (ranks.length === 0) return <p>This step was not written down.</p>;
  const began = Math.min(...ranks.map((one) => one.began_at));
  const names = ranks.map(({ rank, host }) => rankName(rank, host));
  const longest = ranks.reduce((most, one) => (one.compute_s > most.compute_s ? one : most));
  return (
    <Chart
      title="One step of all ranks, ms since the first began it. Between hosts, as far as their clocks agree"
      summary={`Rank ${longest.rank} computes longest, ${seconds(longest.compute_s)}`}
      data={[
        bars("step", COLORS.other, 0.8, 0.35, ranks.map((one, index) => ({
          row: index,
          from: one.began_at - began,
          length: one.duration_s,
          text: `${names[index]}: ${seconds(one.duration_s)}`,
        }))),
        bars("waits for the last rank", COLORS.wait, 0.6, 1, pieces(ranks, began, WAIT)),
        bars("transfer", COLORS.exposed, 0.6, 1, pieces(ranks, began, TRANSFER)),
      ]}
      layout={{
        barmode: "overlay",
        xaxis: { title: { text: "ms" } },
        yaxis: {
          autorange: "reversed",
          ...(names.length <= 32 && { tickvals: names.map((_, index) => index), ticktext: names }),
        },
      }}
      height={Math.min(180 + 40 * ranks.length, 800)}
    >
      <Table
        caption={`Step ${step.step}, by rank`}
        head={["Rank", "Began", "Took", "Compute", "Input", "Wait", "Exposed", "Waited most for"]}
        rows={ranks.map((one, index) => [
          names[index],
          `+${seconds(one.began_at - began)}`,
          seconds(one.duration_s),
          seconds(one.compute_s),
          seconds(one.input_s),
          seconds(one.wait_s),
          seconds(one.exposed_s),
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

function bars(name: string, color: string, width: number, opacity: number, found: Piece[]) {
  return {
    type: "bar",
    orientation: "h",
    name,
    width,
    opacity,
    marker: { color },
    y: found.map((one) => one.row),
    base: found.map((one) => one.from * 1e3),
    x: found.map((one) => one.length * 1e3),
    text: found.map((one) => one.text),
    textposition: "none",
    hovertemplate: "%{text}<extra></extra>",
  };
}

// From which of a collective's times to which.
const WAIT = [0, 1] as const;
const TRANSFER = [1, 4] as const;

/** Of each collective. The rank that came last waited for nobody. */
function pieces(ranks: api.RankStep[], began: number, span: readonly [number, number]): Piece[] {
  return ranks.flatMap((rank, row) =>
    rank.collectives.flatMap((one) => {
      const [from, to] = [one.at_s[span[0]], one.at_s[span[1]]];
      if (from == null || to == null) return [];
      if (span === WAIT && (one.last_rank === null || one.last_rank === rank.rank)) return [];
      const who = span === WAIT ? `, for rank ${one.last_rank}` : "";
      const text = `${one.name}, ${bytes(one.bytes)}: ${seconds(to - from)}${who}`;
      return [{ row, from: rank.began_at - began + from, length: to - from, text }];
    }),
  );
}
