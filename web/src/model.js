// SPDX-License-Identifier: Apache-2.0
// The graphs of an explanation, as `intarsia explain --json` prints it, with what is known of each
// node gathered. Nodes, regions and values are known by their positions; names are only shown.

/** All graphs: the model's own, then those of the bodies of If, Loop and Scan. */
export function graphsOf(explanation, title = "the model") {
  const graphs = [makeGraph(explanation, title)];
  for (const body of explanation.bodies) {
    const inner = `${body.name} of region ${body.region}${title === "the model" ? "" : ` in ${title}`}`;
    graphs.push(...graphsOf(body.explanation, inner));
  }
  return graphs;
}

function makeGraph(explanation, title) {
  const { placement, wiring, tuning } = explanation;
  const nodes = [];
  const regions = placement.regions.map((region, index) => ({
    ...region,
    index,
    runsOn: region.backend === "plan" ? "the plan" : region.target,
    about: explanation.regions[index] ?? "",
    seconds: explanation.region_seconds?.[index] ?? null,
    bodies: explanation.bodies.filter((body) => body.region === index).map((body) => body.name),
    members: [],
  }));
  const placed = new Map();
  for (const region of regions) for (const node of region.nodes) placed.set(node.name, [region, node]);
  const wires = wiring?.nodes ?? [...placed.keys()].map((name) => ({ name, inputs: [], outputs: [] }));
  for (const wire of wires) {
    const found = placed.get(wire.name);
    if (!found) continue;
    const [region, node] = found;
    const made = { ...node, index: nodes.length, region: region.index, target: region.runsOn, ...wire };
    made.op = node.op_type;
    region.members.push(made.index);
    nodes.push(made);
  }
  const values = (wiring?.values ?? []).map((value) => ({ ...value, producer: -1, readers: [] }));
  for (const node of nodes) {
    for (const value of node.outputs) values[value].producer = node.index;
    for (const value of new Set(node.inputs)) values[value].readers.push(node.index);
  }
  return {
    title,
    explanation,
    nodes,
    regions,
    values,
    outputs: wiring?.outputs ?? [],
    edges: edgesOf(values),
    copies: copiesOf(explanation),
    refusals: groupBy(placement.refusals, (refusal) => refusal.node),
    units: groupUnits(tuning),
    cuts: groupCuts(tuning),
    targets: [...new Set([...placement.targets, ...regions.map((region) => region.runsOn)])],
  };
}

/** Pairs of nodes with the values that one writes and the other reads. */
function edgesOf(values) {
  const found = new Map();
  values.forEach((value, index) => {
    if (value.producer < 0) return;
    for (const reader of value.readers) {
      const key = `${value.producer} ${reader}`;
      if (!found.has(key)) found.set(key, { from: value.producer, to: reader, values: [] });
      found.get(key).values.push(index);
    }
  });
  return [...found.values()];
}

/** By name of a value and the device that it goes to, its copy. */
function copiesOf(explanation) {
  const found = new Map();
  for (const copy of explanation.copies) found.set(JSON.stringify([copy.tensor, copy.destination]), copy);
  return found;
}

/** The copies that bring the values of an edge to a region; none if they are there. */
export function copiesTo(graph, names, region) {
  return names
    .map((name) => graph.copies.get(JSON.stringify([name, region.device])))
    .filter((copy) => copy !== undefined);
}

function groupBy(items, keyOf) {
  const groups = new Map();
  for (const item of items) {
    const key = keyOf(item);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(item);
  }
  return groups;
}

function groupUnits(tuning) {
  const found = new Map();
  for (const unit of tuning?.unit_reports ?? []) for (const name of unit.nodes) found.set(name, unit);
  return found;
}

function groupCuts(tuning) {
  const found = new Map();
  for (const cut of tuning?.cuts ?? []) {
    for (const name of cut.nodes) found.set(name, [...(found.get(name) ?? []), cut]);
  }
  return found;
}

export function typeText(value) {
  const dims = value.shape === null ? "?" : value.shape.join(",");
  return `${value.dtype || "?"}[${dims}]`;
}

/** As the tables of the terminal have it: `38.123 ms`, `0.000213 ms`. */
export function timeText(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  return `${seconds >= 1e-4 ? (seconds * 1e3).toFixed(3) : Number((seconds * 1e3).toPrecision(3))} ms`;
}

export function bytesText(count) {
  let size = count;
  for (const unit of ["B", "KiB", "MiB"]) {
    if (size < 1024) return unit === "B" ? `${size} B` : `${size.toFixed(1)} ${unit}`;
    size /= 1024;
  }
  return `${size.toFixed(1)} GiB`;
}
