// SPDX-License-Identifier: Apache-2.0
// The top of a report: the graph with its search, its legend and what was picked; the timeline.
import { colourOf, onSchemeChange } from "./colours.js";
import { make } from "./dom.js";
import { draw } from "./graph.js";
import { graphsOf } from "./model.js";
import { edgePanel, nodePanel, regionPanel, valuePanel } from "./panel.js";
import { makeSearch } from "./search.js";
import { makeTimeline } from "./timeline.js";

const FEW = 4000; // of more nodes, regions are drawn first

const KEYS =
  "In the graph: arrows move it, + and - zoom, 0 shows all of it, n and p go to the next and the " +
  "previous node, Enter to what is told of it, from where Escape leads back; / searches. " +
  "In the timeline: arrows, +, -, 0, n and p likewise.";

function start() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const graphs = graphsOf(data.explanation);
  const moved = new Map((data.difference?.moves ?? []).flatMap((move) => move.nodes.map((name) => [name, move.before])));
  const calls = new Map();
  for (const row of data.profile?.rows ?? []) {
    for (const name of row.nodes) calls.set(name, [...(calls.get(name) ?? []), row]);
  }
  let graph = graphs[0];
  let picture = null;
  let current = -1; // the node that was picked last

  const app = document.getElementById("app");
  const panel = make("aside", { "aria-label": "What was picked", tabindex: "0", "aria-live": "polite" });
  const container = make("div", { class: "graph", role: "application", tabindex: "0", "aria-label": "Graph of the model" });
  const legend = make("ul", { class: "legend", "aria-label": "Colours of targets" });
  const search = makeSearch(() => graph.nodes, (node) => {
    show(`n${node.index}`);
    container.focus({ preventScroll: true });
  });
  const view = make("select", { id: "view", onchange: () => redraw() }, make("option", { value: "nodes" }, "nodes"), make("option", { value: "regions" }, "regions"));
  if (graph.nodes.length > FEW) view.value = "regions";
  const which = make("select", { id: "which", onchange: () => { graph = graphs[Number(which.value)]; search.reset(); redraw(); } },
    ...graphs.map((one, i) => make("option", { value: String(i) }, one.title)));
  const button = (label, text, onclick) => make("button", { type: "button", title: label, onclick }, text);
  const bar = make("div", { class: "bar" },
    search.element,
    make("span", {}, make("label", { for: "view" }, "Show "), view),
    ...(graphs.length > 1 ? [make("span", {}, make("label", { for: "which" }, "of "), which)] : []),
    make("span", { class: "buttons" },
      button("Zoom in (+)", "+", () => picture.zoom(1.4)),
      button("Zoom out (-)", "−", () => picture.zoom(1 / 1.4)),
      button("Show the whole graph (0)", "fit", () => picture.fit())),
    search.count);
  const section = make("section", { "aria-label": "Graph" }, bar, legend, make("div", { class: "stage" }, container, panel));
  app.append(section);

  function tell(...parts) {
    panel.replaceChildren(...parts);
    panel.scrollTop = 0;
  }

  function describe(id, edge) {
    const index = Number(id.slice(1));
    const ways = { show, calls, moved };
    if (id[0] === "n") {
      current = index;
      return nodePanel(graph, index, ways);
    }
    if (id[0] === "r") return regionPanel(graph, index, ways);
    if (id[0] === "i") return valuePanel(graph, index, ways);
    if (id[0] === "o") return valuePanel(graph, graph.outputs[index], ways);
    return edgePanel(graph, edge);
  }

  /** Picks a node or region, and brings it into sight. */
  function show(id) {
    tell(...describe(id));
    const isInside = id[0] === "n" && view.value === "regions";
    picture.show(isInside ? `r${graph.nodes[Number(id.slice(1))].region}` : id);
  }

  function paintLegend() {
    const used = new Map();
    for (const region of graph.regions) used.set(region.runsOn, (used.get(region.runsOn) ?? 0) + region.nodes.length);
    legend.replaceChildren(...graph.targets.map((target, i) => {
      const swatch = make("i");
      swatch.style.background = colourOf(i);
      const count = used.get(target) ?? 0;
      return make("li", {}, swatch, `${target}: ${count} node${count === 1 ? "" : "s"}`);
    }));
  }

  function redraw() {
    picture?.destroy();
    picture = draw(graph, view.value, container, { moved, onPick: (id, edge) => tell(...describe(id, edge)) });
    paintLegend();
    tellAll();
  }

  /** Picks nothing, and tells what the graph is. */
  function tellAll() {
    current = -1;
    picture.unselect();
    tell(
      make("h2", {}, graph.title),
      make("p", {}, graph.explanation.summary),
      ...(moved.size ? [make("p", {}, `${moved.size} nodes run elsewhere than in the first plan; their borders are double.`)] : []),
      make("p", { class: "soft" }, "Pick a node, a region or an edge."),
      make("p", { class: "soft" }, KEYS),
    );
  }

  container.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = 80;
    const go = (by) => show(`n${(current + by + graph.nodes.length) % graph.nodes.length}`);
    const keys = {
      ArrowLeft: () => picture.pan(step, 0),
      ArrowRight: () => picture.pan(-step, 0),
      ArrowUp: () => picture.pan(0, step),
      ArrowDown: () => picture.pan(0, -step),
      "+": () => picture.zoom(1.25),
      "-": () => picture.zoom(0.8),
      0: () => picture.fit(),
      n: () => graph.nodes.length && go(1),
      p: () => graph.nodes.length && go(current < 0 ? 0 : -1),
      Enter: () => panel.focus(),
      Escape: tellAll,
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  panel.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.preventDefault();
    container.focus();
  });
  document.addEventListener("keydown", (event) => {
    const isTyping = /^(input|select|textarea)$/i.test(event.target.tagName);
    if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    search.focus();
  });
  onSchemeChange(() => {
    picture.restyle();
    paintLegend();
  });
  redraw();
  if (data.profile) {
    app.append(makeTimeline(data.profile, graph.targets, (row) => {
      const node = graph.nodes.find((one) => row.nodes.includes(one.name));
      if (node) show(`n${node.index}`);
    }));
  }
  // For tests and the curious: where an element is drawn, and how long drawing took.
  window.intarsiaReport = {
    at: (id) => picture.at(id),
    edge: (source, target) => picture.edge(source, target),
    find: (name) => graph.nodes.findIndex((node) => node.name === name),
    spent: () => picture.spent,
  };
}

start();
