// SPDX-License-Identifier: Apache-2.0
// What is known of the node, region, value or edge that was picked.
import { make, makeFacts, makeTable } from "./dom.js";
import { bytesText, copiesTo, timeText, typeText } from "./model.js";

const link = (text, onclick) => make("button", { type: "button", onclick }, text);

export function nodePanel(graph, index, { show, calls, moved }) {
  const node = graph.nodes[index];
  const region = graph.regions[node.region];
  const facts = [
    ["operator", node.op],
    ["target", region.runsOn],
    ["device", region.device],
    ["backend", region.backend],
    ["region", link(`region ${region.index}`, () => show(`r${region.index}`))],
    ["why", node.why],
    ["stands for", node.origins.length ? node.origins.join(", ") : node.name],
  ];
  const before = moved.get(node.name);
  if (before !== undefined) facts.push(["in the first plan", before ?? "not there"]);
  for (const call of calls.get(node.name) ?? []) {
    facts.push(["took", `${timeText(call.seconds)} (${call.kernel}, ${(100 * call.share).toFixed(1)} % of a run)`]);
  }
  const parts = [make("h2", {}, node.name), makeFacts(facts)];
  const ends = (value) => {
    const { producer, source } = graph.values[value];
    return producer < 0 ? source : link(graph.nodes[producer].name, () => show(`n${producer}`));
  };
  const readers = (value) => {
    const found = graph.values[value].readers.slice(0, 8).map((one) => link(graph.nodes[one].name, () => show(`n${one}`)));
    if (graph.outputs.includes(value)) found.push("an output of the graph");
    return make("span", {}, ...found);
  };
  const row = (value, other) => [graph.values[value].name, typeText(graph.values[value]), other(value)];
  if (graph.values.length) {
    parts.push(...makeTable("Reads", ["value", "type", "from"], node.inputs.map((value) => row(value, ends))));
    parts.push(...makeTable("Writes", ["value", "type", "read by"], node.outputs.map((value) => row(value, readers))));
  }
  const unit = graph.units.get(node.name);
  if (unit) {
    const rows = unit.costs.map((cost) => [
      cost.target === unit.target ? `${cost.target} (runs here)` : cost.target,
      timeText(cost.alone_seconds),
      timeText(cost.inside_seconds),
      cost.source || "-",
      timeText(cost.plan_seconds),
      cost.refusal,
    ]);
    const title = unit.nodes.length > 1 ? `Cost of the ${unit.nodes.length} nodes placed together` : "Cost on every target";
    parts.push(...makeTable(title, ["target", "alone", "inside a region", "source", "best plan with it", "refused"], rows));
    if (unit.nodes.length > 1) parts.push(make("p", {}, `Together: ${unit.nodes.join(", ")}`));
  } else {
    parts.push(make("p", { class: "soft" }, "What it costs on other targets is not known: `intarsia tune` measures it."));
  }
  for (const cut of graph.cuts.get(node.name) ?? []) {
    const calls = `${cut.calls} call${cut.calls === 1 ? "" : "s"}`;
    const saves = `would save ${timeText(cut.saved_seconds)} and ${calls}`;
    parts.push(make("p", {}, `If ${cut.other} took it as fast as ${cut.target} does, that ${saves}.`));
  }
  const refusals = graph.refusals.get(node.name) ?? [];
  if (refusals.length) {
    const rows = refusals.map((one) => [one.target, one.code, one.hint ? `${one.reason} (${one.hint})` : one.reason]);
    parts.push(...makeTable("Refused by", ["target", "code", "reason"], rows));
  }
  return parts;
}

export function regionPanel(graph, index, { show, calls }) {
  const region = graph.regions[index];
  const counts = new Map();
  for (const node of region.nodes) counts.set(node.op_type, (counts.get(node.op_type) ?? 0) + 1);
  const operators = [...counts].sort((a, b) => b[1] - a[1]).map(([op, count]) => (count === 1 ? op : `${op} x${count}`));
  const whys = [...new Set(region.nodes.map((node) => node.why))];
  const facts = [
    ["target", region.runsOn],
    ["device", region.device],
    ["backend", region.backend],
    ["nodes", String(region.nodes.length)],
    ["operators", operators.join(", ")],
    ["why", whys.join(", ")],
  ];
  if (region.about) facts.push(["about", region.about]);
  if (region.seconds !== null) facts.push(["took", timeText(region.seconds)]);
  if (region.bodies.length) facts.push(["bodies", region.bodies.join(", ")]);
  const seen = new Set(region.nodes.flatMap((node) => calls.get(node.name) ?? []));
  if (seen.size) facts.push(["calls", timeText([...seen].reduce((sum, call) => sum + call.seconds, 0))]);
  const incoming = graph.edges.filter(({ from, to }) => graph.nodes[to].region === index && graph.nodes[from].region !== index);
  const names = new Set(incoming.flatMap((edge) => edge.values.map((value) => graph.values[value].name)));
  for (const member of region.members) {
    for (const value of graph.nodes[member].inputs) if (graph.values[value].source === "input") names.add(graph.values[value].name);
  }
  const copies = copiesTo(graph, [...names], region);
  const parts = [make("h2", {}, `region ${index}`), makeFacts(facts)];
  if (copies.length) parts.push(...copiesTable(copies));
  const rows = region.members.slice(0, 200).map((member) => [
    link(graph.nodes[member].name, () => show(`n${member}`)),
    graph.nodes[member].op,
  ]);
  const title = rows.length < region.members.length ? `Nodes (first ${rows.length} of ${region.members.length})` : "Nodes";
  parts.push(...makeTable(title, ["node", "operator"], rows));
  return parts;
}

export function edgePanel(graph, data) {
  const rows = data.values.map((value) => [graph.values[value].name, typeText(graph.values[value])]);
  const names = data.values.map((value) => graph.values[value].name);
  const copies = data.region >= 0 ? copiesTo(graph, names, graph.regions[data.region]) : [];
  return [
    make("h2", {}, copies.length ? "copy" : "value"),
    ...makeTable("Values", ["value", "type"], rows),
    ...(copies.length ? copiesTable(copies) : []),
  ];
}

export function valuePanel(graph, index, { show }) {
  const value = graph.values[index];
  const readers = value.readers.map((one) => [link(graph.nodes[one].name, () => show(`n${one}`)), graph.nodes[one].op]);
  const facts = [["type", typeText(value)], ["from", value.source === "input" ? "an input of the graph" : value.source]];
  if (graph.outputs.includes(index)) facts.push(["to", "an output of the graph"]);
  return [make("h2", {}, value.name), makeFacts(facts), ...makeTable("Read by", ["node", "operator"], readers)];
}

function copiesTable(copies) {
  const rows = copies.map((copy) => [
    copy.tensor,
    `${copy.source} → ${copy.destination}`,
    `${copy.nbytes} (${bytesText(copy.nbytes)})`,
    timeText(copy.seconds),
  ]);
  return makeTable("Copied in", ["value", "way", "bytes", "took"], rows);
}
