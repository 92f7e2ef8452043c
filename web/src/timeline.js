// SPDX-License-Identifier: Apache-2.0
// The calls of one run, a lane for each target, to be zoomed and moved.
import { colourOf, onSchemeChange } from "./colours.js";
import { make, makeSvg } from "./dom.js";
import { timeText } from "./model.js";

const LANE = 30;
const HEAD = 20;
const NAMES = 150;
const WIDE = 1200;

export function makeTimeline(profile, targets, onPick) {
  const rows = new Map(profile.rows.map((row) => [JSON.stringify(row.path), row]));
  const calls = profile.run
    .map((call) => ({ ...call, row: rows.get(JSON.stringify(call.path)) }))
    .filter((call) => call.row !== undefined);
  const lanes = [...new Set(calls.map((call) => call.row.target))];
  const end = Math.max(1e-9, ...calls.map((call) => call.start + call.seconds));
  const height = HEAD + lanes.length * LANE + 6;
  const label = `Timeline of one run: ${calls.length} calls in ${timeText(end)}; the table "calls" below has each.`;
  const svg = makeSvg("svg", { viewBox: `0 0 ${WIDE} ${height}`, role: "img", tabindex: "0", "aria-label": label });
  let [from, to] = [0, end];
  const scale = (seconds) => NAMES + ((seconds - from) / (to - from)) * (WIDE - NAMES - 4);
  const paint = () => {
    svg.replaceChildren();
    const step = niceStep((to - from) / 6);
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      svg.append(makeSvg("line", { x1: scale(at), x2: scale(at), y1: HEAD - 4, y2: height }));
      const text = makeSvg("text", { x: scale(at) + 3, y: 13 });
      text.textContent = `${Number((at * 1e3).toPrecision(4))} ms`;
      svg.append(text);
    }
    calls.forEach((call, index) => {
      const left = Math.max(NAMES, scale(call.start));
      const right = Math.min(WIDE, scale(call.start + call.seconds));
      if (right <= NAMES || left >= WIDE) return;
      const depth = Math.min(2, Math.floor((call.path.length - 1) / 2));
      const bar = makeSvg("rect", {
        x: left,
        y: HEAD + lanes.indexOf(call.row.target) * LANE + 3 + 6 * depth,
        width: Math.max(0.7, right - left),
        height: LANE - 6 - 6 * depth,
        fill: call.row.kernel === "copy" ? "var(--mark)" : colourOf(Math.max(0, targets.indexOf(call.row.target))),
        stroke: "var(--soft)",
        "stroke-width": 0.5,
        "data-call": index,
      });
      const title = makeSvg("title");
      title.textContent = `${call.row.kernel}: ${timeText(call.seconds)} from ${timeText(call.start)} on, ${call.row.nodes.join(" + ") || call.row.note}`;
      bar.append(title);
      bar.addEventListener("click", () => pick(index));
      svg.append(bar);
    });
    lanes.forEach((lane, i) => {
      const y = HEAD + i * LANE;
      svg.append(makeSvg("rect", { x: 0, y, width: NAMES, height: LANE, fill: "var(--paper)" }));
      const text = makeSvg("text", { x: 6, y: y + LANE / 2 + 4 });
      text.textContent = lane.length > 18 ? `${lane.slice(0, 17)}…` : lane;
      svg.append(text);
    });
    mark();
  };
  const told = make("p", { role: "status" }, "Pick a call to see what it is.");
  let picked = -1;
  const mark = () => svg.querySelectorAll("rect[data-call]").forEach((bar) => bar.classList.toggle("picked", Number(bar.dataset.call) === picked));
  const pick = (index) => {
    picked = index;
    const { row, start, seconds } = calls[index];
    told.textContent = `${row.kernel} on ${row.target}: began at ${timeText(start)}, took ${timeText(seconds)}${row.nodes.length ? `; ${row.nodes.join(" + ")}` : ""}`;
    mark();
    onPick(row);
  };
  const zoom = (factor, about) => {
    const width = Math.min(end, Math.max(end / 1e5, (to - from) * factor));
    const share = (about - from) / (to - from);
    from = Math.min(Math.max(0, about - share * width), end - width);
    to = from + width;
    paint();
  };
  const move = (by) => {
    const width = to - from;
    from = Math.min(Math.max(0, from + by), end - width);
    to = from + width;
    paint();
  };
  const timeAt = (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * WIDE;
    return from + (Math.min(1, Math.max(0, (x - NAMES) / (WIDE - NAMES))) * (to - from));
  };
  svg.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(event));
  }, { passive: false });
  let grabbed = null;
  svg.addEventListener("pointerdown", (event) => (grabbed = event.clientX));
  window.addEventListener("pointerup", () => (grabbed = null));
  svg.addEventListener("pointermove", (event) => {
    if (grabbed === null) return;
    move(((grabbed - event.clientX) / svg.getBoundingClientRect().width) * (to - from) * 1.15);
    grabbed = event.clientX;
  });
  svg.addEventListener("keydown", (event) => {
    const keys = {
      "+": () => zoom(0.8, (from + to) / 2),
      "-": () => zoom(1.25, (from + to) / 2),
      0: () => zoom(1e9, 0),
      ArrowLeft: () => move(-(to - from) / 8),
      ArrowRight: () => move((to - from) / 8),
      n: () => pick(Math.min(calls.length - 1, picked + 1)),
      p: () => pick(Math.max(0, picked - 1)),
    };
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  paint();
  onSchemeChange(paint);
  return make("div", { class: "run" }, make("h2", {}, "Timeline of one run"), svg, told);
}

function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((one) => one * power).find((step) => step >= least);
}
