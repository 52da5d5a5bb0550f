import { useEffect, useState } from "preact/hooks";
import * as api from "../api";
import { Chart, Table } from "../chart";
import { Choice } from "../choice";
import { integer, rankName, seconds } from "../format";
import { COLORS } from "../theme";

const VALUES = {
  duration: "step time",
  ...api.SHARE_NAMES,
  waited_for: "wait given to others",
};
type Value = keyof typeof VALUES;

export function RanksPage({ run, overview }: { run: string; overview: api.Overview }) {
  const [value, setValue] = useState<Value>("compute");
  const [rank, setRank] = useState<number | null>(null);
  const [maps, setMaps] = useState<Partial<Record<Value, api.HeatMap>>>({});
  // All of them for one rank, otherwise the one that is shown.
  useEffect(() => {
    let current = true;
    const wanted = rank === null ? [value] : (Object.keys(VALUES) as Value[]);
    void Promise.all(wanted.map(async (name) => [name, await api.heatMap(run, name)] as const)).then(
      (found) => current && setMaps(Object.fromEntries(found)),
      () => {}, // Asked for again with the next overview, which tells of a server that is gone.
    );
    return () => {
      current = false;
    };
  }, [run, value, rank, overview]);
  const map = maps[value];
  return (
    <>
      <div class="controls">
        <Choice label="Show" value={value} choose={(name) => setValue(name as Value)}>
          {Object.entries(VALUES).map(([name, words]) => (
            <option value={name}>{words}</option>
          ))}
        </Choice>
        <Choice
          label="Rank"
          value={rank ?? ""}
          choose={(number) => setRank(number === "" ? null : Number(number))}
        >
          <option value="">all</option>
          {overview.ranks.map((number, index) => (
            <option value={number}>{rankName(number, overview.hosts[index] ?? "")}</option>
          ))}
        </Choice>
      </div>
      {map && <Map map={map} title={VALUES[value]} choose={setRank} />}
      {rank !== null && <OneRank rank={rank} maps={maps} />}
    </>
  );
}

interface MapProps {
  map: api.HeatMap;
  title: string;
  choose: (rank: number) => void;
}

function Map({ map, title, choose }: MapProps) {
  const names = map.ranks.map((rank, index) => rankName(rank, map.hosts[index] ?? ""));
  const means = map.seconds.map(mean);
  const slowest = means.indexOf(Math.max(...means));
  const brightest = Math.max(...map.seconds.map(usualMost));
  const isClipped = map.seconds.some((row) => row.some((value) => (value ?? 0) > brightest));
  return (
    <Chart
      title={`Ranks by time: ${title}, ms a step. Click a rank to see it alone`}
      summary={`Most: ${names[slowest] ?? "none"} with ${seconds(means[slowest])} a step on average`}
      data={[
        {
          type: "heatmap",
          x: map.steps,
          y: map.ranks.map((_, index) => index),
          z: map.seconds.map((row) => row.map((value) => (value === null ? null : value * 1e3))),
          text: map.seconds.map((row, index) => row.map(() => names[index])),
          colorscale: "Cividis",
          zmax: brightest * 1e3,
          zmin: Math.min(...map.seconds.flat().map((value) => value ?? brightest)) * 1e3,
          colorbar: { title: { text: isClipped ? `ms (brightest:<br>${(brightest * 1e3).toPrecision(3)} or more)` : "ms" } },
          hovertemplate: "%{text}<br>step %{x}<br>%{z:.3~f} ms<extra></extra>",
        },
      ]}
      layout={{
        xaxis: { title: { text: "step" } },
        yaxis: {
          autorange: "reversed",
          // 256 names do not fit beside each other.
          ...(names.length <= 32 && { tickvals: names.map((_, index) => index), ticktext: names }),
        },
      }}
      height={Math.min(220 + 22 * names.length, 720)}
      onClick={(point) => choose(map.ranks[Number(point.y)] ?? 0)}
    >
      <Table
        caption={`${title}, mean over the run`}
        head={["Rank", "A step"]}
        rows={names.map((name, index) => [name, seconds(means[index])])}
      />
    </Chart>
  );
}

function OneRank({ rank, maps }: { rank: number; maps: Partial<Record<Value, api.HeatMap>> }) {
  const index = maps.duration?.ranks.indexOf(rank) ?? -1;
  if (index < 0) return null;
  const host = maps.duration?.hosts[index] ?? "";
  const steps = maps.duration?.steps ?? [];
  const series = (name: Value) => maps[name]?.seconds[index] ?? [];
  return (
    <Chart
      title={`What a step of ${rankName(rank, host)} goes into`}
      summary={api.SHARES.map((share) => `${VALUES[share]} ${seconds(mean(series(share)))}`).join(", ")}
      data={api.SHARES.map((share) => ({
        type: "scatter",
        mode: "lines",
        stackgroup: "step",
        name: VALUES[share],
        x: steps,
        y: series(share).map((value) => (value === null ? null : value * 1e3)),
        line: { color: COLORS[share], width: 1 },
        hovertemplate: "%{y:.3~f} ms",
      }))}
      layout={{
        hovermode: "x unified",
        xaxis: { title: { text: "step" } },
        yaxis: { title: { text: "ms a step" }, rangemode: "tozero" },
      }}
    >
      <Table
        caption={`Seconds a step of rank ${rank}`}
        head={["Step", ...Object.values(VALUES)]}
        rows={steps.map((step, column) => [
          integer(step),
          ...(Object.keys(VALUES) as Value[]).map((name) => seconds(series(name)[column])),
        ])}
      />
    </Chart>
  );
}

/** What a rank takes in all but the twentieth part of the time: what was once does not darken all. */
function usualMost(values: (number | null)[]): number {
  const known = values.filter((value) => value !== null).sort((a, b) => a - b);
  return known[Math.ceil(known.length * 0.95) - 1] ?? 0;
}

function mean(values: (number | null)[]): number {
  const known = values.filter((value) => value !== null);
  return known.reduce((sum, value) => sum + value, 0) / (known.length || 1);
}
