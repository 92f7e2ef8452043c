// SPDX-License-Identifier: Apache-2.0
// Where boxes of a long graph go. dagre lays out pieces of some dozen nodes; networks repeat their
// blocks, and a piece that is like one before has its places already. Pieces are stacked into
// columns, so that a deep network is a page rather than a thread.
import dagre from "@dagrejs/dagre";

const GAP = 26;
const LONG = 12; // an edge over so many ranks does not pull its ends together
const MEDIUM = 36;
const LARGE = 90;

/**
 * @param {{w: number, h: number}[]} boxes In topological order.
 * @param {[number, number][]} edges Pairs of positions, from earlier to later.
 * @param {Map<string, object>} known Layouts of pieces that are known, to be filled.
 * @param {number} small How many boxes a piece has at least, if there are as many.
 * @param {number} aspect Width by height that the whole should have.
 * @returns {{x: number[], y: number[], w: number, h: number}} Centres, and the size of the whole.
 */
export function place(boxes, edges, known, small = 6, aspect = 1.5) {
  const count = boxes.length;
  const ranks = rank(count, edges);
  const pieces = cut(boxes, edges, ranks, small);
  const x = new Array(count).fill(0);
  const y = new Array(count).fill(0);
  const shapes = pieces.map((piece) => arrange(piece, boxes, known));
  const tall = shapes.reduce((sum, shape) => sum + shape.h + GAP, 0);
  const wide = Math.max(1, ...shapes.map((shape) => shape.w));
  const columns = Math.max(1, Math.round(Math.sqrt((tall * aspect) / (wide + 2 * GAP))));
  const limit = tall / columns;
  let [left, top, bottom] = [0, 0, 0];
  let column = [];
  const finish = () => {
    const low = Math.min(...column.map(({ shift }) => shift));
    column.forEach(({ piece, shift }) => piece.nodes.forEach((node) => (x[node] += left + shift - low)));
    left += Math.max(...column.map(({ shift, shape }) => shift + shape.w)) - low + 2 * GAP;
    [top, column] = [0, []];
  };
  pieces.forEach((piece, i) => {
    const shape = shapes[i];
    if (column.length && top + shape.h / 2 > limit) finish();
    piece.nodes.forEach((node, at) => {
      x[node] = shape.x[at];
      y[node] = top + shape.y[at];
    });
    column.push({ piece, shape, shift: shiftOf(piece, shape, column.at(-1), x, wide) });
    top += shape.h + GAP;
    bottom = Math.max(bottom, top - GAP);
  });
  if (column.length) finish();
  return { x, y, w: Math.max(0, left - 2 * GAP), h: bottom };
}

/** How far right a piece goes, so that what leads to it from the one above is straight. */
function shiftOf(piece, shape, above, x, wide) {
  const middle = (wide - shape.w) / 2;
  const entry = above && piece.entries.find(([from]) => above.piece.members.has(from));
  if (!entry) return middle;
  const shift = x[entry[0]] + above.shift - x[entry[1]];
  return Math.abs(shift - middle) <= wide ? shift : middle;
}

/** How deep each node is; what is read late only is as late as it can be. */
function rank(count, edges) {
  const before = Array.from({ length: count }, () => []);
  const after = Array.from({ length: count }, () => []);
  for (const [from, to] of edges) {
    after[from].push(to);
    before[to].push(from);
  }
  const ranks = new Array(count).fill(0);
  for (let i = 0; i < count; i++) for (const one of before[i]) ranks[i] = Math.max(ranks[i], ranks[one] + 1);
  for (let i = count - 1; i >= 0; i--) {
    if (after[i].length && after[i].length >= before[i].length) {
      ranks[i] = Math.max(ranks[i], Math.min(...after[i].map((one) => ranks[one])) - 1);
    }
  }
  return ranks;
}

/** Cuts the graph where few values are alive, into pieces of a size that is laid out at once. */
function cut(boxes, edges, ranks, small) {
  const count = boxes.length;
  const order = [...boxes.keys()].sort((a, b) => ranks[a] - ranks[b] || a - b);
  const last = new Array(count).fill(-1); // the last rank at which a node's value is read
  for (const [from, to] of edges) if (ranks[to] - ranks[from] <= LONG) last[from] = Math.max(last[from], ranks[to]);
  const pieces = [];
  let nodes = [];
  for (let i = 0; i < order.length; ) {
    const now = ranks[order[i]];
    for (; i < order.length && ranks[order[i]] === now; i++) nodes.push(order[i]);
    const alive = nodes.filter((node) => last[node] > now).length;
    const isFull =
      (nodes.length >= small && alive <= 1) || (nodes.length >= MEDIUM && alive <= 3) || nodes.length >= LARGE;
    if (isFull || i === order.length) {
      pieces.push({ nodes: nodes.sort((a, b) => a - b), edges: [], entries: [], members: new Set(nodes) });
      nodes = [];
    }
  }
  const pieceOf = new Array(count);
  const position = new Array(count);
  for (const piece of pieces) {
    piece.nodes.forEach((node, i) => {
      pieceOf[node] = piece;
      position[node] = i;
    });
  }
  for (const [from, to] of edges) {
    if (ranks[to] - ranks[from] > LONG) continue;
    if (pieceOf[from] === pieceOf[to]) pieceOf[from].edges.push([position[from], position[to]]);
    else pieceOf[to].entries.push([from, to]);
  }
  return pieces;
}

/** Lays out a piece, unless one like it has been. */
function arrange(piece, boxes, known) {
  const sizes = piece.nodes.map((node) => [boxes[node].w, boxes[node].h]);
  const key = JSON.stringify([sizes, piece.edges]);
  if (!known.has(key)) known.set(key, layOut(sizes, piece.edges));
  return known.get(key);
}

function layOut(sizes, edges) {
  if (sizes.length === 1) return { x: [sizes[0][0] / 2], y: [sizes[0][1] / 2], w: sizes[0][0], h: sizes[0][1] };
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ nodesep: 18, ranksep: GAP, marginx: 0, marginy: 0 });
  graph.setDefaultEdgeLabel(() => ({}));
  sizes.forEach(([width, height], i) => graph.setNode(String(i), { width, height }));
  edges.forEach(([from, to]) => graph.setEdge(String(from), String(to)));
  dagre.layout(graph);
  const at = sizes.map((_, i) => graph.node(String(i)));
  const { width, height } = graph.graph();
  return { x: at.map((one) => one.x), y: at.map((one) => one.y), w: width, h: height };
}
