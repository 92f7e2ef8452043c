// SPDX-License-Identifier: Apache-2.0
// Nodes, on a canvas of their own above Cytoscape's, which has regions and what comes in and goes
// out: Cytoscape keeps a style, a box and textures of each element, which of 2,000 nodes was most of
// the time until a picture stood still.
import { makeCanvas } from "./canvas.js";
import { colourOf, scheme } from "./colours.js";

export const FONT = "system-ui, DejaVu Sans, sans-serif";

const READABLE = 0.55; // the zoom from which names of operators are written: 6 of 11 pixels
const ROUND = 0.3; // from which round corners can be seen
const CORNER = 5;

/**
 * @param {object} picture Cytoscape's.
 * @param {HTMLElement} container Where it draws.
 * @param {{id: string, x: number, y: number, w: number, h: number, label: string, t: number,
 *   isMoved: boolean}[]} boxes Middles and sizes; `t` is the position of the target.
 */
export function makeBoxes(picture, container, boxes) {
  const canvas = makeCanvas(picture, container, true);
  const { context } = canvas;
  const byId = new Map(boxes.map((box) => [box.id, box]));
  let selected = null;
  const outline = ({ x, y, w, h }, isRound, by = 0) => {
    const corner = isRound ? CORNER : 0;
    context.beginPath();
    context.roundRect(x - w / 2 + by, y - h / 2 + by, w - 2 * by, h - 2 * by, corner);
  };
  const stroke = (colour, width) => {
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.stroke();
  };
  const paint = () => {
    const { zoom, isSeen } = canvas.begin();
    const { ink, soft, accent, mark } = scheme();
    const isRound = zoom >= ROUND;
    context.font = `11px ${FONT}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (const box of boxes) {
      if (!isSeen(box)) continue;
      context.fillStyle = colourOf(box.t);
      outline(box, isRound);
      context.fill();
      if (box.isMoved) {
        stroke(mark, 1);
        outline(box, isRound, 3);
        stroke(mark, 1);
      } else stroke(soft, 1);
      if (box === selected) {
        outline(box, isRound);
        stroke(accent, 4);
      }
      if (zoom < READABLE) continue;
      context.fillStyle = ink;
      context.fillText(box.label, box.x, box.y);
    }
  };
  picture.on("render", paint);
  return {
    /** The box at a place of the picture. */
    over: (at) => boxes.find(({ x, y, w, h }) => Math.abs(at.x - x) <= w / 2 && Math.abs(at.y - y) <= h / 2) ?? null,
    get: (id) => byId.get(id) ?? null,
    select(box) {
      if (box === selected) return;
      selected = box;
      paint();
    },
    hasSelected: () => selected !== null,
    remove: canvas.remove,
  };
}
