import type { Bucket, CollectiveTotals, Overview } from "../api";
import { Chart, Table } from "../chart";
import { bytes, integer, percent, rate, seconds } from "../format";
import { COLORS } from "../theme";

const PALETTE = Object.values(COLORS);

export function CollectivesPage({ overview }: { overview: Overview }) {
  return (
    <>
      <Bandwidths totals={overview.collectives} buckets={overview.buckets} />
      <Buckets buckets={overview.buckets} />
    </>
  );
}

// What ranks that train exchange beside gradients: metrics, weights, what this page shows.
const BESIDE_GRADIENTS = ["allgather", "broadcast"];
// The engine times what is larger.
const TIMED_ABOVE = 512;

interface BandwidthsProps {
  totals: CollectiveTotals[];
  buckets: Bucket[];
}

function Bandwidths({ totals: all, buckets }: BandwidthsProps) {
  const totals = all.filter((one) => one.mean_bus_bandwidth > 0);
  const areTooSmall = buckets.length > 0 && buckets.every((one) => one.bytes <= TIMED_ABOVE);
  if (totals.every(({ kind }) => areTooSmall && BESIDE_GRADIENTS.includes(kind))) {
    return (
      <>
        <p>
          {areTooSmall
            ? `The gradients, ${integer(sum(buckets))} bytes, are too small to time: `
            : "No bandwidth has been measured yet: "}
          collectives of up to {TIMED_ABOVE} bytes are not timed.
        </p>
        {all.length > 0 && <Totals totals={all} />}
      </>
    );
  }
  const names = [...new Set(totals.map(nameOf))];
  const best = totals.reduce((most, one) =>
    one.best_bus_bandwidth > most.best_bus_bandwidth ? one : most,
  );
  return (
    <Chart
      title={`Bus bandwidth by size and algorithm, above ${TIMED_ABOVE} bytes: mean, and the best seen in this job`}
      summary={`Best: ${rate(best.best_bus_bandwidth)} with ${nameOf(best)} of ${bytes(best.size_class_bytes)}`}
      data={names.flatMap((name, index) => {
        const own = totals.filter((one) => nameOf(one) === name);
        own.sort((a, b) => a.size_class_bytes - b.size_class_bytes);
        const color = PALETTE[index % PALETTE.length];
        const text = own.map((one) => bytes(one.size_class_bytes));
        const x = own.map((one) => Math.max(one.size_class_bytes, 1));
        const common = { type: "scatter", x, text, legendgroup: name };
        return [
          {
            ...common,
            mode: "lines+markers",
            name,
            y: own.map((one) => one.mean_bus_bandwidth / 1e9),
            line: { color },
            hovertemplate: "%{text}: mean %{y:.3~f} GB/s",
          },
          {
            ...common,
            mode: "markers",
            name: `${name}, best`,
            y: own.map((one) => one.best_bus_bandwidth / 1e9),
            marker: { color, symbol: "circle-open", size: 10 },
            hovertemplate: "%{text}: best %{y:.3~f} GB/s",
          },
        ];
      })}
      layout={{
        xaxis: { type: "log", title: { text: "bytes" }, dtick: 1, exponentformat: "SI" },
        yaxis: { title: { text: "GB/s" }, rangemode: "tozero" },
      }}
      height={360}
    >
      <Totals totals={all} />
    </Chart>
  );
}

function Totals({ totals }: { totals: CollectiveTotals[] }) {
  return (
    <Table
      caption="Collectives of the first rank so far, those of the page and of callbacks too"
      head={["Collective", "Size from", "Count", "Mean bandwidth", "Best", "Wait, mean", "Transfer, mean"]}
      rows={totals.map((one) => [
        nameOf(one),
        bytes(one.size_class_bytes),
        integer(one.count),
        ...(one.mean_bus_bandwidth > 0
          ? [rate(one.mean_bus_bandwidth), rate(one.best_bus_bandwidth)]
          : ["not timed", "not timed"]),
        seconds(one.wait_s / (one.count || 1)),
        one.mean_bus_bandwidth > 0 ? seconds(one.transfer_s / (one.count || 1)) : "not timed",
      ])}
    />
  );
}

function Buckets({ buckets }: { buckets: Overview["buckets"] }) {
  if (buckets.length === 0) return <p>No gradient buckets have been seen yet.</p>;
  const names = buckets.map(({ name }) => name.replace("gradients/", ""));
  return (
    <Chart
      title="Buckets of gradients, in the order in which they start"
      summary={`${buckets.length} buckets, ${bytes(sum(buckets))} in all`}
      data={[
        {
          type: "bar",
          x: names,
          y: buckets.map((one) => (one.fill === null ? 100 : one.fill * 100)),
          text: buckets.map((one) => `${bytes(one.bytes)}, ${fill(one)}`),
          textposition: "none",
          marker: { color: COLORS.compute },
          hovertemplate: "%{x}: %{text}<extra></extra>",
        },
      ]}
      layout={{ yaxis: { title: { text: "% full" }, range: [0, 105] } }}
      height={260}
    >
      <Table
        caption="Buckets in their order"
        head={["Bucket", "Bytes", "Fill"]}
        rows={buckets.map((one, index) => [names[index], bytes(one.bytes), fill(one)])}
      />
    </Chart>
  );
}

const sum = (buckets: Bucket[]) => buckets.reduce((total, one) => total + one.bytes, 0);

const fill = (one: Bucket) => (one.fill === null ? "a group's own" : `${percent(one.fill)} full`);

function nameOf(one: CollectiveTotals): string {
  return one.algorithm ? `${one.kind}, ${one.algorithm}` : one.kind;
}
