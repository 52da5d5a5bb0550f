// Bundles the page into the folder that is named on the command line.
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { build } from "esbuild";

const target = process.argv[2];

await build({
  entryPoints: { index: "src/index.tsx" },
  bundle: true,
  format: "esm",
  minify: true,
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  outdir: target,
  logLevel: "warning",
});
await build({
  entryPoints: { index: "src/index.css" },
  minify: true,
  outdir: target,
  logLevel: "warning",
});

// What is in the bundle has its licence beside it.
const { dependencies } = JSON.parse(await readFile("package.json", "utf8"));
const licenses = await Promise.all(
  Object.keys(dependencies).map(async (name) => {
    const directory = join("node_modules", name);
    const { version } = JSON.parse(
      await readFile(join(directory, "package.json"), "utf8"),
    );
    const text = await readFile(join(directory, "LICENSE"), "utf8");
    return `${name} ${version}\n\n${text}`;
  }),
);
const inPlotly = await readFile("plotly-licenses.txt", "utf8");
if (!inPlotly.startsWith(`plotly.js ${dependencies["plotly.js-cartesian-dist-min"]} `)) {
  throw new Error("plotly-licenses.txt is of another version; plotly-licenses.mjs writes it");
}
await writeFile(join(target, "licenses.txt"), [...licenses, inPlotly].join("\n\n----\n\n"));
