// SPDX-License-Identifier: Apache-2.0
// Edges, on a canvas of their own below Cytoscape's: a few strokes draw all of them, where Cytoscape
// keeps a style and a box of each.
import { FONT } from "./boxes.js";
import { makeCanvas } from "./canvas.js";
import { scheme } from "./colours.js";

const NEAR = 5; // pixels of the screen from a line at which it is picked
const READABLE = 0.3; // the zoom from which arrowheads can be seen
const LEGIBLE = 0.6; // from which bytes are written: 6 of 10 pixels
const ARROW = 7;
const DASHES = [6, 4];

/**
 * @param {object} picture Cytoscape's.
 * @param {HTMLElement} container Where it draws.
 * @param {{data: object, kind: "plain" | "shared" | "copy", label: string, from: object,
 *   to: object}[]} lines With the boxes at their ends: `x` and `y` of the middle, `w` and `h`.
 */
export function makeLines(picture, container, lines) {
  const canvas = makeCanvas(picture, container, false);
  const { context } = canvas;
  const path = (kind) => pathOf(lines.filter((line) => line.kind === kind));
  const [plain, shared, copies] = [path("plain"), path("shared"), path("copy")];
  let selected = null;
  const stroke = (path, colour, width, opacity, dashes = []) => {
    context.globalAlpha = opacity;
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.setLineDash(dashes);
    context.stroke(path);
  };
  const paint = () => {
    const { zoom, isSeen } = canvas.begin();
    const { ink, soft, accent, mark } = scheme();
    stroke(shared, soft, 1, 0.3);
    stroke(plain, soft, 1, 1);
    stroke(copies, mark, 2, 1, DASHES);
    if (selected) stroke(pathOf([selected]), accent, 3, 1, selected.kind === "copy" ? DASHES : []);
    if (zoom < READABLE) return;
    context.setLineDash([]);
    context.font = `10px ${FONT}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    const colours = { plain: ink, shared: ink, copy: mark };
    for (const line of lines) {
      const middle = line.label && zoom >= LEGIBLE ? middleOf(line) : null;
      if (!isSeen(line.to) && !(middle && isSeen({ ...middle, w: 100, h: 10 }))) continue;
      context.globalAlpha = line.kind === "shared" && line !== selected ? 0.3 : 1;
      context.fillStyle = line === selected ? accent : colours[line.kind];
      arrow(context, line);
      if (middle) context.fillText(line.label, middle.x, middle.y);
    }
  };
  picture.on("render", paint);
  return {
    /** The line nearest to a place of the picture, if it is near. */
    near(at) {
      let [found, least] = [null, NEAR / picture.zoom()];
      for (const line of lines) {
        const away = distance(at, line.from, line.to);
        if (away <= least) [found, least] = [line, away];
      }
      return found;
    },
    select(line) {
      if (line === selected) return;
      selected = line;
      paint();
    },
    hasSelected: () => selected !== null,
    /** The middle of the part of a line that is seen. */
    middle(id) {
      const line = lines.find((one) => one.data.id === id);
      return line ? middleOf(line) : null;
    },
    remove: canvas.remove,
  };
}

function pathOf(lines) {
  const path = new Path2D();
  for (const { from, to } of lines) {
    path.moveTo(from.x, from.y);
    path.lineTo(to.x, to.y);
  }
  return path;
}

function middleOf(line) {
  const [start, end] = [border(line.to, line.from), border(line.from, line.to)];
  return { x: (start.x + end.x) / 2, y: (start.y + end.y) / 2 };
}

/** Where a line that comes from one box reaches another. */
function border(from, to) {
  const [dx, dy] = [from.x - to.x, from.y - to.y];
  const most = Math.max(Math.abs(dx) / (to.w / 2), Math.abs(dy) / (to.h / 2));
  return most > 1 ? { x: to.x + dx / most, y: to.y + dy / most } : to;
}

function arrow(context, { from, to }) {
  const tip = border(from, to);
  const length = Math.hypot(to.x - from.x, to.y - from.y) || 1;
  const [ux, uy] = [(to.x - from.x) / length, (to.y - from.y) / length];
  const [x, y] = [tip.x - ARROW * ux, tip.y - ARROW * uy];
  context.beginPath();
  context.moveTo(tip.x, tip.y);
  context.lineTo(x - (ARROW / 2) * uy, y + (ARROW / 2) * ux);
  context.lineTo(x + (ARROW / 2) * uy, y - (ARROW / 2) * ux);
  context.fill();
}

function distance(at, from, to) {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const share = ((at.x - from.x) * dx + (at.y - from.y) * dy) / (dx * dx + dy * dy || 1);
  const along = Math.min(1, Math.max(0, share));
  return Math.hypot(at.x - from.x - along * dx, at.y - from.y - along * dy);
}
