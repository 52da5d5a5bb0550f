// What the plugin's Python answers; ring_keras/tensorboard/views.py has the same.

/** Seconds a step; null where a rank was not there. */
type Seconds = number | null;

export const SHARES = ["compute", "input", "wait", "exposed"] as const;
export type Share = (typeof SHARES)[number];

export const SHARE_NAMES: Record<Share, string> = {
  compute: "compute",
  input: "input wait",
  wait: "wait for the last rank",
  exposed: "exposed transfer",
};

/** Who holds the others up; ring_keras/monitoring/stragglers.py has more of it. */
export interface Straggler {
  who: string;
  reason: string;
  pattern: "steady" | "now and then" | "past";
  when: string;
  lost_s: number;
  /** The steps of which that is the mean. */
  lost_in: string;
  remedy: string;
  sentence: string;
}

export interface Event {
  time: number;
  rank: number;
  kind: string;
  text: string;
}

export interface CollectiveTotals {
  kind: string;
  algorithm: string;
  size_class_bytes: number;
  count: number;
  wait_s: number;
  transfer_s: number;
  best_bus_bandwidth: number;
  mean_bus_bandwidth: number;
}

export interface Bucket {
  name: string;
  bytes: number;
  /** From 0 to 1; null where it has no limit. */
  fill: number | null;
}

export interface Curve {
  times: number[];
  values: (number | null)[];
}

export type RankMeans = { rank: number; host: string; waited_for?: Seconds } & {
  [share in Share | "duration"]?: Seconds;
};

export interface Overview {
  headline: string;
  ranks: number[];
  hosts: string[];
  stragglers: Straggler[];
  means: { steps: number[]; times: number[] } & {
    [share in Share | "duration"]?: Seconds[];
  } & { efficiency?: Seconds[]; examples_per_s?: Seconds[] };
  by_rank: RankMeans[];
  /** The steps of those means. */
  by_rank_of: string;
  collectives: CollectiveTotals[];
  buckets: Bucket[];
  events: Event[];
  steps: number[];
  losses: Record<string, Curve>;
}

export interface HeatMap {
  ranks: number[];
  hosts: string[];
  steps: number[];
  seconds: Seconds[][];
}

export interface StepCollective {
  name: string;
  bytes: number;
  last_rank: number | null;
  /** Arrived, matched, first byte, last byte, done: seconds since the step began. */
  at_s: (number | null)[];
}

export interface RankStep {
  rank: number;
  host: string;
  step: number;
  began_at: number;
  duration_s: number;
  input_s: number;
  compute_s: number;
  wait_s: number;
  exposed_s: number;
  last_rank: number | null;
  collectives: StepCollective[];
}

export interface Step {
  step: number;
  ranks: RankStep[];
}

async function ask<T>(path: string, query: Record<string, string>): Promise<T> {
  // Relative to <base>, so that TensorBoard may live under any path.
  const response = await fetch(`./${path}?${new URLSearchParams(query)}`);
  if (!response.ok) {
    throw new Error(`${path}: ${response.status} ${response.statusText}`);
  }
  return (await response.json()) as T;
}

export const runs = () => ask<string[]>("runs", {});
export const overview = (run: string) => ask<Overview>("overview", { run });
export const heatMap = (run: string, value: string) =>
  ask<HeatMap>("heat_map", { run, value });
export const step = (run: string, number: number) =>
  ask<Step>("step", { run, step: String(number) });
