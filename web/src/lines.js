// SPDX-License-Identifier: Apache-2.0
// Edges that are only lines, on a canvas of their own below Cytoscape's: a few strokes draw all of
// them, where Cytoscape keeps a style and a box of each.
import { scheme } from "./colours.js";

const NEAR = 5; // pixels of the screen from a line at which it is picked
const READABLE = 0.3; // the zoom from which arrowheads can be seen
const ARROW = 7;

/**
 * @param {object} picture Cytoscape's.
 * @param {HTMLElement} container Where it draws.
 * @param {{data: object, isShared: boolean, from: object, to: object}[]} lines With the boxes at
 *   their ends: `x` and `y` of the middle, `w` and `h`.
 */
export function makeLines(picture, container, lines) {
  const canvas = document.createElement("canvas");
  canvas.className = "lines";
  canvas.setAttribute("aria-hidden", "true");
  container.prepend(canvas);
  const context = canvas.getContext("2d");
  const plain = pathOf(lines.filter((line) => !line.isShared));
  const shared = pathOf(lines.filter((line) => line.isShared));
  let selected = null;
  const stroke = (path, colour, width, opacity) => {
    context.globalAlpha = opacity;
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.stroke(path);
  };
  const paint = () => {
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [container.clientWidth, container.clientHeight];
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    const { ink, soft, accent } = scheme();
    const zoom = picture.zoom();
    const { x, y } = picture.pan();
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.setTransform(zoom * ratio, 0, 0, zoom * ratio, x * ratio, y * ratio);
    stroke(shared, soft, 1, 0.3);
    stroke(plain, soft, 1, 1);
    if (selected) stroke(pathOf([selected]), accent, 3, 1);
    if (zoom < READABLE) return;
    const [left, top, right, bottom] = [-x / zoom, -y / zoom, (width - x) / zoom, (height - y) / zoom];
    for (const line of lines) {
      const at = line.to;
      if (at.x + at.w < left || at.x - at.w > right || at.y + at.h < top || at.y - at.h > bottom) continue;
      context.globalAlpha = line.isShared && line !== selected ? 0.3 : 1;
      context.fillStyle = line === selected ? accent : ink;
      arrow(context, line);
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
      if (line) picture.elements(":selected").unselect();
      paint();
    },
    hasSelected: () => selected !== null,
    /** The middle of the part of a line that is seen. */
    middle(id) {
      const line = lines.find((one) => one.data.id === id);
      if (!line) return null;
      const [start, end] = [border(line.to, line.from), border(line.from, line.to)];
      return { x: (start.x + end.x) / 2, y: (start.y + end.y) / 2 };
    },
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
