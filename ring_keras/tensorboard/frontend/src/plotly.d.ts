// The part of Plotly that the page uses; the bundle brings no types.
declare module "plotly.js-cartesian-dist-min" {
  export interface Point {
    x: unknown;
    y: unknown;
    customdata?: unknown;
  }
  export interface PlotElement extends HTMLElement {
    on(event: "plotly_click", handler: (event: { points: Point[] }) => void): void;
    removeAllListeners(event: "plotly_click"): void;
  }
  const Plotly: {
    react(element: HTMLElement, data: object[], layout: object, config: object): Promise<PlotElement>;
    purge(element: HTMLElement): void;
    Plots: { resize(element: HTMLElement): void };
  };
  export default Plotly;
}
