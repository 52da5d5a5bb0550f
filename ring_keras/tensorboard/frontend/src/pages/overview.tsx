import { type Overview, SHARE_NAMES as NAMES, SHARES } from "../api";
import { Chart, Table } from "../chart";
import { integer, percent, seconds } from "../format";
import { COLORS } from "../theme";

export function OverviewPage({ overview }: { overview: Overview }) {
  const { means, stragglers } = overview;
  const last = means.steps.length - 1;
  return (
    <>
      {stragglers.length > 1 && (
        <ul class="others">
          {stragglers.slice(1, 4).map(({ sentence }) => (
            <li>{sentence}</li>
          ))}
        </ul>
      )}
      <Chart
        title="What a step's time goes into, mean over ranks"
        summary={SHARES.map((share) => `${NAMES[share]} ${seconds(means[share]?.[last])}`).join(", ")}
        data={SHARES.map((share) => ({
          type: "scatter",
          mode: "lines",
          stackgroup: "step",
          name: NAMES[share],
          x: means.steps,
          y: means[share]?.map(milliseconds),
          line: { color: COLORS[share], width: 1 },
          hovertemplate: "%{y:.3~f} ms",
        }))}
        layout={{
          hovermode: "x unified",
          xaxis: { title: { text: "step" } },
          yaxis: { title: { text: "ms a step" }, rangemode: "tozero" },
        }}
        height={340}
      >
        <Table
          caption="Seconds a step"
          head={["Step", ...SHARES.map((share) => NAMES[share]), "efficiency", "examples per second"]}
          rows={means.steps.map((step, index) => [
            integer(step),
            ...SHARES.map((share) => seconds(means[share]?.[index])),
            percent(means.efficiency?.[index]),
            means.examples_per_s?.[index]?.toFixed(0) ?? "unknown",
          ])}
        />
      </Chart>
      <div class="pair">
        <Chart
          title="Scaling efficiency: compute's part of a step"
          summary={`Now ${percent(means.efficiency?.[last])}`}
          data={[line(means.steps, means.efficiency?.map(hundredfold), COLORS.good, "%{y:.1f} %")]}
          layout={{
            xaxis: { title: { text: "step" } },
            yaxis: { title: { text: "%" }, range: [0, 105] },
          }}
          height={260}
        />
        {!!means.examples_per_s?.length && (
          <Chart
            title="Examples per second, all ranks"
            summary={`Now ${means.examples_per_s[last]?.toFixed(0) ?? "unknown"}`}
            data={[line(means.steps, means.examples_per_s, COLORS.compute, "%{y:.4~s}/s")]}
            layout={{
              xaxis: { title: { text: "step" } },
              yaxis: { title: { text: "1/s" }, rangemode: "tozero" },
            }}
            height={260}
          />
        )}
      </div>
    </>
  );
}

const milliseconds = (value: number | null) => (value === null ? null : value * 1e3);
const hundredfold = (value: number | null) => (value === null ? null : value * 100);

function line(x: number[], y: (number | null)[] | undefined, color: string, hovertemplate: string) {
  return { type: "scatter", mode: "lines", x, y, line: { color }, hovertemplate, name: "" };
}
