// Writes plotly-licenses.txt: what Plotly's bundle has of other packages, which it does not
// say itself. After `npm install --ignore-scripts plotly.js@VERSION buffer@6` in a folder:
//   node plotly-licenses.mjs FOLDER
import { readdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { build } from "esbuild";

const folder = process.argv[2];
const { metafile } = await build({
  absWorkingDir: folder,
  entryPoints: ["node_modules/plotly.js/lib/index-cartesian.js"],
  bundle: true,
  loader: { ".css": "empty" },
  metafile: true,
  write: false,
});
const [{ inputs }] = Object.values(metafile.outputs);
const directories = new Set(
  Object.entries(inputs)
    .filter(([, { bytesInOutput }]) => bytesInOutput > 0)
    .map(([file]) => file.match(/^.*node_modules\/(@[^/]+\/)?[^/]+/)?.[0]),
);
directories.delete(undefined);
directories.delete("node_modules/plotly.js"); // Its own is in the package that we bundle.

const { version } = await manifest("node_modules/plotly.js");
const texts = await Promise.all([...directories].sort().map(licenseOf));
await writeFile("plotly-licenses.txt", [`plotly.js ${version} contains:\n`, ...texts].join("\n----\n\n"));

async function manifest(directory) {
  return JSON.parse(await readFile(join(folder, directory, "package.json"), "utf8"));
}

async function licenseOf(directory) {
  const { name, version, license, author } = await manifest(directory);
  const files = await readdir(join(folder, directory));
  const file = files.find((one) => /^licen[sc]e/i.test(one));
  const by = (author?.name ?? author ?? "its authors").replace(/ <.*>/, "");
  const text = file
    ? await readFile(join(folder, directory, file), "utf8")
    : `Licence: ${license}. Copyright: ${by}.`;
  return `${name} ${version}\n\n${text.replaceAll("\r", "").trim()}\n`;
}
