import type { Event, Overview } from "../api";
import { Chart, Table } from "../chart";
import { clock } from "../format";
import { COLORS } from "../theme";

const SYMBOLS: Record<string, { color: string; symbol: string }> = {
  stall: { color: COLORS.input, symbol: "triangle-up" },
  fault: { color: COLORS.wait, symbol: "x" },
  membership: { color: COLORS.compute, symbol: "square" },
  checkpoint: { color: COLORS.good, symbol: "star" },
};
const OTHER = { color: COLORS.other, symbol: "circle" };

export function EventsPage({ overview }: { overview: Overview }) {
  const { events, losses } = overview;
  const kinds = [...new Set(events.map(({ kind }) => kind))];
  return (
    <>
      <Chart
        title="Events, on the time axis of the loss"
        summary={`${events.length} events: ${kinds.map((kind) => count(events, kind)).join(", ")}`}
        data={[
          ...Object.entries(losses).map(([tag, curve]) => ({
            type: "scatter",
            mode: "lines+markers",
            name: tag,
            x: curve.times.map(date),
            y: curve.values,
            marker: { size: 4 },
          })),
          ...kinds.map((kind) => {
            const own = events.filter((event) => event.kind === kind);
            return {
              type: "scatter",
              mode: "markers",
              name: kind,
              x: own.map((event) => date(event.time)),
              // On a line of their own below the curves.
              y: own.map(() => 0),
              yaxis: "y2",
              text: own.map((event) => `rank ${event.rank}: ${event.text}`),
              hovertemplate: "%{text}<extra></extra>",
              marker: { size: 12, ...(SYMBOLS[kind] ?? OTHER) },
            };
          }),
        ]}
        layout={{
          xaxis: { type: "date", anchor: "y2" },
          yaxis: { title: { text: "loss" }, domain: [0.2, 1] },
          yaxis2: { domain: [0, 0.12], visible: false, range: [-1, 1], fixedrange: true },
        }}
        height={380}
      />
      {events.length === 0 ? (
        <p>Nothing has happened but training.</p>
      ) : (
        <Table
          caption="Events, the last one first"
          head={["When", "Kind", "Rank", "What"]}
          rows={[...events]
            .reverse()
            .map((event) => [clock(event.time), event.kind, event.rank, event.text])}
        />
      )}
    </>
  );
}

const date = (unixSeconds: number) => new Date(unixSeconds * 1000);

const count = (events: Event[], kind: string) =>
  `${kind} ${events.filter((event) => event.kind === kind).length}`;
