// SPDX-License-Identifier: Apache-2.0
// The picture of one graph: regions as boxes in the colour of their target, nodes in them.
import cytoscape from "cytoscape";
import { FONT, makeBoxes } from "./boxes.js";
import { colourOf, scheme } from "./colours.js";
import { makeLines } from "./lines.js";
import { place } from "./layout.js";
import { bytesText, copiesTo } from "./model.js";

const HEAD = 26; // above the nodes of a box
const EDGE = 14; // around them
const SHARED = 8; // what more nodes read, as a mask, is drawn faintly
const BORDER = 24; // around the picture, in pixels of the screen
const WIDEST = 170; // a node

const width = (text, most) => Math.min(most, 18 + 6.6 * text.length);

/** A text that fits into a box; measuring every one of them would take long. */
function fitted(text, most) {
  const count = Math.floor((most - 18) / 6.6);
  return text.length > count ? `${text.slice(0, count - 1)}…` : text;
}

/** Where everything is, computed once for each view of a graph. */
function arrange(graph, view) {
  const known = new Map();
  const boxes = [];
  const regionAt = [];
  const inputs = graph.values.map((value, index) => ({ value, index })).filter(({ value }) => value.source === "input");
  inputs.forEach(({ value }) => boxes.push({ w: width(value.name, 200), h: 24 }));
  const inner = graph.regions.map((region) => {
    if (view === "regions") return { w: 190, h: 40, x: [], y: [] };
    const position = new Map(region.members.map((node, i) => [node, i]));
    const edges = graph.edges
      .filter((edge) => position.has(edge.from) && position.has(edge.to))
      .map((edge) => [position.get(edge.from), position.get(edge.to)]);
    const sizes = region.members.map((node) => ({ w: width(graph.nodes[node].op, WIDEST), h: 24 }));
    return place(sizes, chained(graph, edges, region.members.length), known);
  });
  inner.forEach((one, i) => {
    regionAt[i] = boxes.length;
    boxes.push({ w: Math.max(one.w, 170) + 2 * EDGE, h: one.h + HEAD + EDGE });
  });
  const outputAt = boxes.length;
  graph.outputs.forEach((value) => boxes.push({ w: width(graph.values[value].name, 200), h: 24 }));
  const pairs = new Set();
  const join = (from, to) => from !== to && pairs.add(`${from} ${to}`);
  inputs.forEach(({ value }, i) => value.readers.forEach((node) => join(i, regionAt[graph.nodes[node].region])));
  graph.edges.forEach(({ from, to }) => join(regionAt[graph.nodes[from].region], regionAt[graph.nodes[to].region]));
  graph.outputs.forEach((value, i) => {
    const { producer } = graph.values[value];
    if (producer >= 0) join(regionAt[graph.nodes[producer].region], outputAt + i);
  });
  const outer = place(boxes, [...pairs].map((pair) => pair.split(" ").map(Number)), known, 1);
  return { boxes, inner, inputs, regionAt, outputAt, outer };
}

/** Without wiring, as in packages of older versions, nodes follow one another. */
function chained(graph, edges, count) {
  return graph.values.length ? edges : Array.from({ length: Math.max(0, count - 1) }, (_, i) => [i, i + 1]);
}

/** What Cytoscape draws, which are regions and the graph's inputs and outputs; nodes; and edges. */
function elementsOf(graph, view, moved) {
  const { boxes, inner, inputs, regionAt, outputAt, outer } = arrange(graph, view);
  const elements = [];
  const nodes = [];
  const lines = [];
  const placed = new Map();
  const target = (text) => graph.targets.indexOf(text);
  const box = (id, classes, x, y, data) => {
    placed.set(id, { x, y, w: data.w, h: data.h });
    elements.push({ data: { id, ...data }, position: { x, y }, classes });
  };
  graph.regions.forEach((region, i) => {
    const at = regionAt[i];
    const count = `${region.nodes.length} node${region.nodes.length === 1 ? "" : "s"}`;
    const kind = region.backend === "plan" ? region.runsOn : region.runsOn.split(" ")[0];
    const label = `${i}: ${kind}, ${count}`;
    box(`r${i}`, "region", outer.x[at], outer.y[at], { label, t: target(region.runsOn), w: boxes[at].w, h: boxes[at].h });
    if (view === "regions") return;
    const left = outer.x[at] - inner[i].w / 2;
    const top = outer.y[at] - boxes[at].h / 2 + HEAD;
    region.members.forEach((member, k) => {
      const { op, name } = graph.nodes[member];
      const id = `n${member}`;
      const made = { id, x: left + inner[i].x[k], y: top + inner[i].y[k], w: width(op, WIDEST), h: 24 };
      placed.set(id, made);
      nodes.push(Object.assign(made, { label: fitted(op, WIDEST), t: target(region.runsOn), isMoved: moved.has(name) }));
    });
  });
  const end = (id, value, at) =>
    box(id, "end", outer.x[at], outer.y[at], { label: fitted(value.name, 200), w: boxes[at].w, h: 24 });
  inputs.forEach(({ value, index }, i) => end(`i${index}`, value, i));
  graph.outputs.forEach((value, i) => end(`o${i}`, graph.values[value], outputAt + i));
  const seen = new Set();
  const edge = (source, to, values, region) => {
    if (source === to || seen.has(`${source} ${to}`)) return;
    seen.add(`${source} ${to}`);
    const copies = region ? copiesTo(graph, values.map((value) => graph.values[value].name), region) : [];
    const bytes = copies.reduce((sum, copy) => sum + copy.nbytes, 0);
    const data = { id: `e${seen.size}`, source, target: to, values, region: region?.index ?? -1 };
    const isShared = values.every((value) => graph.values[value].readers.length > SHARED);
    const kind = copies.length ? "copy" : isShared ? "shared" : "plain";
    const label = copies.length ? bytesText(bytes) : "";
    lines.push({ data, kind, label, from: placed.get(source), to: placed.get(to) });
  };
  const idOf = (index) => (view === "regions" ? `r${graph.nodes[index].region}` : `n${index}`);
  const regionOf = (index) => graph.regions[graph.nodes[index].region];
  for (const { from, to, values } of graph.edges) {
    const crosses = graph.nodes[from].region !== graph.nodes[to].region;
    edge(idOf(from), idOf(to), values, crosses ? regionOf(to) : null);
  }
  for (const { value, index } of inputs) {
    for (const reader of value.readers) edge(`i${index}`, idOf(reader), [index], regionOf(reader));
  }
  graph.outputs.forEach((value, i) => {
    const { producer } = graph.values[value];
    if (producer >= 0) edge(idOf(producer), `o${i}`, [value], null);
  });
  return { elements, nodes, lines, w: outer.w, h: outer.h };
}

function styleOf(targets) {
  const { ink, soft, paper, accent } = scheme();
  const text = { color: ink, "font-family": FONT, "font-size": 11 };
  return [
    { selector: "node", style: { ...text, label: "data(label)", shape: "round-rectangle", width: "data(w)", height: "data(h)", "border-width": 1, "border-color": soft, "text-valign": "center", "min-zoomed-font-size": 6, "z-index": 2 } },
    { selector: ".region", style: { "background-opacity": 0.3, "text-valign": "top", "text-margin-y": 20, "font-size": 13, "font-weight": "bold", "z-index": 0, "min-zoomed-font-size": 5, "border-width": 1.5 } },
    { selector: ".end", style: { shape: "round-tag", "background-color": paper } },
    ...targets.map((_, i) => ({ selector: `node[t = ${i}]`, style: { "background-color": colourOf(i) } })),
    { selector: "node:selected", style: { "border-width": 4, "border-color": accent } },
  ];
}

/** Draws a graph into an element, and returns what can be done with the picture. */
export function draw(graph, view, container, { moved, onPick }) {
  const start = performance.now();
  const { elements, nodes, lines, w, h } = elementsOf(graph, view, moved);
  const laidOut = performance.now();
  /** Where the whole is seen. Cytoscape would go through all labels and edges to find it out. */
  const whole = () => {
    const [width, height] = [container.clientWidth, container.clientHeight];
    const least = Math.min((width - 2 * BORDER) / Math.max(1, w), (height - 2 * BORDER) / Math.max(1, h));
    const zoom = Math.min(1.2, Math.max(0.01, least));
    return { zoom, pan: { x: (width - zoom * w) / 2, y: (height - zoom * h) / 2 } };
  };
  const picture = cytoscape({
    container,
    elements,
    style: styleOf(graph.targets),
    layout: { name: "preset", fit: false },
    autoungrabify: true,
    boxSelectionEnabled: false,
    selectionType: "single",
    minZoom: 0.01,
    maxZoom: 4,
    ...whole(),
  });
  const edges = makeLines(picture, container, lines);
  const boxes = makeBoxes(picture, container, nodes);
  const select = (box, line) => {
    boxes.select(box);
    edges.select(line);
    if (box || line) picture.elements(":selected").unselect();
  };
  picture.on("tap", ({ target, position }) => {
    const box = boxes.over(position);
    // A line is below the picture, and runs through regions.
    const isOpen = target === picture || (view === "nodes" && target.hasClass("region"));
    const line = isOpen && !box ? edges.near(position) : null;
    select(box, line);
    if (box) onPick(box.id);
    else if (line) onPick(line.data.id, line.data);
    else if (target !== picture) onPick(target.id());
  });
  // The region around what was picked is not picked with it.
  picture.on("select", ({ target }) => (boxes.hasSelected() || edges.hasSelected()) && target.unselect());
  return {
    spent: { layout: laidOut - start, picture: performance.now() - laidOut },
    fit: () => picture.viewport(whole()),
    restyle: () => picture.style(styleOf(graph.targets)),
    resize: () => picture.resize(),
    destroy() {
      picture.destroy();
      edges.remove();
      boxes.remove();
    },
    pan: (x, y) => picture.panBy({ x, y }),
    zoom: (factor) => picture.zoom({ level: picture.zoom() * factor, renderedPosition: { x: picture.width() / 2, y: picture.height() / 2 } }),
    /** Selects a node, region, input or output, and brings it into sight. */
    show(id) {
      const box = boxes.get(id);
      const element = picture.getElementById(id);
      if (!box && element.empty()) return;
      this.unselect();
      if (box) boxes.select(box);
      else element.select();
      const { x, y } = box ?? element.position();
      const zoom = picture.zoom() < 0.7 ? 0.9 : picture.zoom();
      picture.viewport({ zoom, pan: { x: picture.width() / 2 - zoom * x, y: picture.height() / 2 - zoom * y } });
    },
    unselect() {
      select(null, null);
      picture.elements(":selected").unselect();
    },
    /** Where something is drawn: its middle, in pixels. */
    at(id) {
      const element = picture.getElementById(id);
      if (!element.empty()) return element.renderedPosition();
      const middle = boxes.get(id) ?? edges.middle(id);
      return middle && { x: middle.x * picture.zoom() + picture.pan().x, y: middle.y * picture.zoom() + picture.pan().y };
    },
    /** The edge between two elements, if there is one. */
    edge: (source, target) => lines.find(({ data }) => data.source === source && data.target === target)?.data.id ?? null,
  };
}
