import Plotly, { type Point } from "plotly.js-cartesian-dist-min";
import type { ComponentChildren } from "preact";
import { createContext } from "preact";
import { useContext, useEffect, useRef } from "preact/hooks";
import type { Theme } from "./theme";

export const ThemeContext = createContext<Theme>(null as unknown as Theme);

interface ChartProps {
  title: string;
  /** What a reader who does not see it should know. */
  summary: string;
  data: object[];
  layout?: object;
  height?: number;
  onClick?: (point: Point) => void;
  /** The numbers as a table. */
  children?: ComponentChildren;
}

/** A chart with its title, and a table of its numbers. */
export function Chart(props: ChartProps) {
  const theme = useContext(ThemeContext);
  const element = useRef<HTMLDivElement>(null);
  const { data, layout, onClick, height = 300 } = props;
  useEffect(() => {
    const target = element.current;
    if (!target) return;
    void Plotly.react(target, data, themed(theme, height, layout), CONFIG).then((plot) => {
      plot.removeAllListeners("plotly_click");
      if (onClick) plot.on("plotly_click", ({ points }) => points[0] && onClick(points[0]));
    });
  });
  useEffect(() => {
    const target = element.current;
    return () => {
      if (target) Plotly.purge(target);
    };
  }, []);
  return (
    <figure>
      <figcaption>{props.title}</figcaption>
      <div role="img" aria-label={`${props.title}. ${props.summary}`}>
        <div ref={element} aria-hidden="true" />
      </div>
      {props.children && (
        <details>
          <summary>As a table</summary>
          {props.children}
        </details>
      )}
    </figure>
  );
}

const CONFIG = {
  responsive: true,
  // Its buttons would be where the keyboard comes and screen readers do not. A drag zooms
  // and a double click goes back without it.
  displayModeBar: false,
};

function themed(theme: Theme, height: number, layout: object = {}): object {
  const axis = {
    gridcolor: theme.grid,
    zerolinecolor: theme.grid,
    linecolor: theme.grid,
    automargin: true,
  };
  const given = layout as { xaxis?: object; yaxis?: object; yaxis2?: object };
  return {
    height,
    margin: { l: 64, r: 16, t: 8, b: 48 },
    paper_bgcolor: theme.paper,
    plot_bgcolor: theme.paper,
    font: { color: theme.text, family: "Roboto, sans-serif", size: 13 },
    hoverlabel: { namelength: -1 },
    // It grows upwards, away from the plot.
    legend: { orientation: "h", y: 1.02, yanchor: "bottom" },
    // A zoom lasts when new numbers come.
    uirevision: "same",
    ...layout,
    xaxis: { ...axis, ...given.xaxis },
    yaxis: { ...axis, ...given.yaxis },
  };
}

interface TableProps {
  caption: string;
  head: string[];
  rows: ComponentChildren[][];
}

/** The first column names the row. */
export function Table({ caption, head, rows }: TableProps) {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={caption}>
      <table>
        <caption>{caption}</caption>
        <thead>
          <tr>
            {head.map((name) => (
              <th scope="col">{name}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map(([first, ...rest]) => (
            <tr>
              <th scope="row">{first}</th>
              {rest.map((cell) => (
                <td>{cell}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
