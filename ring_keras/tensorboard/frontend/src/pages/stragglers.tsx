import { type Overview, SHARE_NAMES, SHARES } from "../api";
import { Chart, Table } from "../chart";
import { rankName, seconds } from "../format";
import { COLORS } from "../theme";

export function StragglersPage({ overview }: { overview: Overview }) {
  const { stragglers, by_rank, by_rank_of } = overview;
  const names = by_rank.map(({ rank, host }) => rankName(rank, host));
  return (
    <>
      {stragglers.length === 0 ? (
        <p>Nobody holds the others up.</p>
      ) : (
        <Table
          caption="Who holds the others up, the one that costs most first"
          head={["Who", "Reason", "How", "When", "Each other rank loses", "In words", "What to do"]}
          rows={stragglers.map((one) => [
            one.who,
            one.reason,
            one.pattern,
            one.when,
            `${seconds(one.lost_s)} a step (${one.lost_in})`,
            one.sentence,
            one.remedy,
          ])}
        />
      )}
      <Chart
        title={`By rank, mean of ${by_rank_of}: what a step goes into, and how long others wait for the rank`}
        summary={`Waited for most: ${most(by_rank, names)}`}
        data={[
          ...SHARES.map((share) => ({
            type: "bar",
            name: SHARE_NAMES[share],
            x: names,
            y: by_rank.map((means) => (means[share] ?? 0) * 1e3),
            marker: { color: COLORS[share] },
            hovertemplate: "%{y:.3~f} ms",
          })),
          {
            type: "scatter",
            mode: "markers",
            name: "others wait for it",
            x: names,
            y: by_rank.map((means) => (means.waited_for ?? 0) * 1e3),
            marker: { color: COLORS.other, symbol: "diamond", size: 10, line: { width: 1 } },
            hovertemplate: "%{y:.3~f} ms",
          },
        ]}
        layout={{
          barmode: "stack",
          hovermode: "x unified",
          yaxis: { title: { text: "ms a step" }, rangemode: "tozero" },
        }}
        height={380}
      >
        <Table
          caption={`A step, mean of ${by_rank_of}`}
          head={["Rank", ...SHARES.map((share) => SHARE_NAMES[share]), "others wait for it"]}
          rows={by_rank.map((means, index) => [
            names[index],
            ...SHARES.map((share) => seconds(means[share])),
            seconds(means.waited_for),
          ])}
        />
      </Chart>
    </>
  );
}

function most(ranks: Overview["by_rank"], names: string[]): string {
  const waits = ranks.map((means) => means.waited_for ?? 0);
  const index = waits.indexOf(Math.max(...waits));
  return index < 0 ? "none" : `${names[index]}, ${seconds(waits[index])} a step`;
}
