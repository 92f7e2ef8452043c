// SPDX-License-Identifier: Apache-2.0
// Opens a report in headless Chromium as a reader would, and prints as JSON what is seen there.
//   node look.mjs REPORT.html CHROMIUM PROFILE [--node NAME [--from NAME]] [--keys] [--picture FILE.png]
//        [--dark] [--axe] [--below] [--view nodes|regions]
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";
import { chromium } from "playwright-core";

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    node: { type: "string" },
    from: { type: "string" }, // whose edge to the node is clicked
    keys: { type: "boolean" },
    picture: { type: "string" },
    dark: { type: "boolean" },
    axe: { type: "boolean" },
    below: { type: "boolean" },
    view: { type: "string" },
  },
});
const [file, executablePath, profile] = positionals;

const context = await chromium.launchPersistentContext(profile, {
  executablePath,
  headless: true,
  args: [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
  ],
  viewport: { width: 1400, height: 900 },
  colorScheme: values.dark ? "dark" : "light",
  bypassCSP: values.axe, // axe is put into the page, whose policy lets nothing in
  timeout: 120_000,
});
const seen = { errors: [], requests: [], dialogs: [] };
const page = context.pages()[0] ?? (await context.newPage());
page.setDefaultTimeout(120_000);
page.on("pageerror", (error) => seen.errors.push(String(error)));
page.on("console", (message) => message.type() === "error" && seen.errors.push(message.text()));
page.on("request", (request) => seen.requests.push(request.url()));
page.on("dialog", (dialog) => {
  seen.dialogs.push(dialog.message());
  return dialog.dismiss();
});

/** Opens the page, and counts the processor's seconds of what ran in it until it stood still. */
async function open() {
  const session = await context.newCDPSession(page);
  await session.send("Performance.enable", { timeDomain: "threadTicks" });
  const start = Date.now();
  await page.goto(pathToFileURL(file).href);
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
  seen.openMilliseconds = Date.now() - start;
  const { metrics } = await session.send("Performance.getMetrics");
  const metric = Object.fromEntries(metrics.map(({ name, value }) => [name, value]));
  seen.busySeconds = metric.TaskDuration;
}

const readTables = () =>
  page.locator("aside .frame").evaluateAll((frames) =>
    Object.fromEntries(
      frames.map((frame) => [
        frame.getAttribute("aria-label"),
        [...frame.querySelectorAll("tbody tr")].map((row) => [...row.cells].map((cell) => cell.textContent)),
      ]),
    ),
  );
const readPanel = async () => ({
  heading: await page.locator("aside h2").first().textContent(),
  facts: await page.locator("aside dl").first().evaluate((list) =>
    Object.fromEntries([...list.querySelectorAll("dt")].map((term) => [term.textContent, term.nextElementSibling.textContent])),
  ),
  tables: await readTables(),
});

await open();
seen.tables = await page.locator("section .frame").evaluateAll((frames) =>
  Object.fromEntries(frames.map((frame) => [frame.getAttribute("aria-label"), frame.querySelectorAll("tbody tr").length])),
);
seen.hasPicture = (await page.locator("#app canvas").count()) > 0;
seen.calls = await page.locator("rect[data-call]").count();
if (seen.hasPicture) seen.spent = await page.evaluate(() => window.intarsiaReport.spent());
if (values.view) await page.locator("#view").selectOption(values.view);
if (values.keys) {
  // Where the keyboard leads: Tab from the top of the page; then what Enter and Escape do.
  const focused = () =>
    page.evaluate(() => {
      const { id, tagName, title, className } = document.activeElement;
      return id || title || document.activeElement.getAttribute("aria-label") || className || tagName.toLowerCase();
    });
  const heading = () => page.locator("aside h2").first().textContent();
  const tabs = [];
  for (let i = 0; i < 8; i++) {
    await page.keyboard.press("Tab");
    tabs.push(await focused());
  }
  await page.keyboard.press("Shift+Tab");
  const back = await focused();
  await page.locator(".graph").focus();
  await page.keyboard.press("n");
  const picked = await heading();
  await page.keyboard.press("Enter");
  const entered = await focused();
  await page.keyboard.press("Escape");
  const left = await focused();
  await page.keyboard.press("Escape");
  const nothing = await heading();
  await page.keyboard.press("/");
  const searching = await focused();
  await page.keyboard.type("a");
  await page.keyboard.press("Escape");
  const isClosed = await page.locator("#found").isHidden();
  await page.locator(".graph").focus();
  seen.keys = { tabs, back, picked, entered, left, nothing, searching, isClosed };
}
if (values.node !== undefined) {
  // By the keyboard alone.
  await page.keyboard.press("/");
  await page.keyboard.type(values.node);
  seen.found = await page.locator("#found li").allTextContents();
  await page.keyboard.press("Enter"); // which leads to the graph
  seen.searched = await readPanel();
  await page.keyboard.press("n");
  seen.next = await readPanel();
  await page.keyboard.press("p");
  // By the mouse, where it is drawn, after something else was picked.
  const index = await page.evaluate((name) => window.intarsiaReport.find(name), seen.searched.heading);
  const at = await page.evaluate((id) => window.intarsiaReport.at(id), `n${index}`);
  const box = await page.locator(".graph").boundingBox();
  await page.mouse.click(box.x + at.x, box.y + at.y);
  seen.clicked = await readPanel();
}
if (values.from !== undefined) {
  const id = await page.evaluate(([from, to]) => {
    const { edge, find } = window.intarsiaReport;
    return edge(`n${find(from)}`, `n${find(to)}`);
  }, [values.from, seen.searched.heading]);
  const at = await page.evaluate((edge) => window.intarsiaReport.at(edge), id);
  const box = await page.locator(".graph").boundingBox();
  await page.mouse.click(box.x + at.x, box.y + at.y);
  seen.edge = { heading: await page.locator("aside h2").first().textContent(), tables: await readTables() };
}
if (values.axe) {
  await page.evaluate(readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8"));
  const { violations, passes } = await page.evaluate(() => window.axe.run());
  seen.violations = violations.map((one) => ({ id: one.id, help: one.help, nodes: one.nodes.map((node) => node.html.slice(0, 200)) }));
  seen.passes = passes.length;
}
if (values.below) await page.locator("#regions, #second-regions, #run").first().scrollIntoViewIfNeeded();
if (values.picture) await page.screenshot({ path: values.picture });
await context.close();
console.log(JSON.stringify(seen));
