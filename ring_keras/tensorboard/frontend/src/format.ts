const INTEGER = new Intl.NumberFormat("en");

export const integer = (value: number) => INTEGER.format(value);

export function seconds(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (value >= 1) return `${value.toFixed(2)} s`;
  if (value >= 1e-3) return `${(value * 1e3).toFixed(value >= 1e-2 ? 0 : 1)} ms`;
  return `${(value * 1e6).toFixed(0)} µs`;
}

export function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const index = value < 1 ? 0 : Math.min(Math.floor(Math.log2(value) / 10), units.length - 1);
  const scaled = value / 2 ** (10 * index);
  return `${index === 0 || scaled >= 100 ? scaled.toFixed(0) : scaled.toPrecision(3)} ${units[index]}`;
}

/** Bandwidths count in powers of ten. */
export function rate(bytesPerSecond: number): string {
  if (bytesPerSecond >= 1e9) return `${(bytesPerSecond / 1e9).toPrecision(3)} GB/s`;
  if (bytesPerSecond >= 1e6) return `${(bytesPerSecond / 1e6).toPrecision(3)} MB/s`;
  return `${(bytesPerSecond / 1e3).toPrecision(3)} kB/s`;
}

export const percent = (value: number | null | undefined) =>
  value === null || value === undefined ? "–" : `${(value * 100).toFixed(0)} %`;

export const rankName = (rank: number, host: string) =>
  host ? `rank ${rank} (${host})` : `rank ${rank}`;

/** As the charts' axes have it: 2026-11-26 19:54:32. */
export const clock = (unixSeconds: number) =>
  new Date(unixSeconds * 1000).toLocaleString("sv");
