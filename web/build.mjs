// SPDX-License-Identifier: Apache-2.0
// Builds the program of the HTML report: our modules and the libraries that they use as one script,
// with the libraries' licences in front, compressed. The same sources give the same bytes.
import { build } from "esbuild";
import { readFileSync, writeFileSync, existsSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const here = dirname(fileURLToPath(import.meta.url));
const output = join(here, "../src/intarsia/report/page/report.js.gz");

const built = await build({
  absWorkingDir: here,
  entryPoints: ["src/main.js"],
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2020",
  charset: "ascii",
  legalComments: "eof", // of what libraries have inside of them
  metafile: true,
  write: false,
});

const folders = new Set(["@dagrejs/graphlib"]); // which is inside of dagre's file
for (const input of Object.keys(built.metafile.inputs)) {
  const found = input.match(/^node_modules\/(@[^/]+\/[^/]+|[^/]+)\//);
  if (found) folders.add(found[1]);
}
const licences = [...folders].sort().map((name) => {
  const folder = join(here, "node_modules", name);
  const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const file = ["LICENSE", "LICENSE.md", "LICENSE.txt"].map((one) => join(folder, one)).find(existsSync);
  if (!file) throw new Error(`${name} has no licence to put into the bundle`);
  return `${name} ${version} (${license})\n\n${readFileSync(file, "utf8").trim()}`;
});
for (const input of Object.keys(built.metafile.inputs)) {
  const legal = join(here, `${input}.LEGAL.txt`); // of what is inside of a library's own bundle
  if (existsSync(legal)) licences.push(`${input}\n\n${readFileSync(legal, "utf8").trim()}`);
}
const own = "The program of Intarsia's HTML report, SPDX-License-Identifier: Apache-2.0. It contains:";
const banner = `/*!\n${[own, ...licences].join("\n\n").replaceAll("*/", "* /").replaceAll("\r", "")}\n*/\n`;
const text = banner + built.outputFiles[0].text;
// It stands between the tags of a page.
if (/<\/script|<!--|\r|\0/i.test(text)) throw new Error("the program cannot stand inside of a page");
const packed = gzipSync(text, { level: 9 });
writeFileSync(output, packed);
console.log(`${output}: ${packed.length} bytes, ${text.length} unpacked, of ${[...folders].sort().join(", ")}`);
