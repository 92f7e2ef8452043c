// SPDX-License-Identifier: Apache-2.0
// Finding nodes: a box with a list of what fits, by name, operator, target, or what they stand for.
import { make } from "./dom.js";

const MOST = 60;

export function makeSearch(nodesOf, onFound) {
  const list = make("ul", { class: "found", role: "listbox", id: "found", "aria-label": "Nodes that were found", hidden: "" });
  const input = make("input", {
    type: "search", id: "search", role: "combobox", autocomplete: "off", spellcheck: "false",
    "aria-expanded": "false", "aria-controls": "found", "aria-autocomplete": "list",
  });
  const count = make("span", { class: "soft", role: "status" });
  let found = [];
  let active = -1;
  const open = (isOpen) => {
    list.hidden = !isOpen;
    input.setAttribute("aria-expanded", String(isOpen));
    if (!isOpen) input.removeAttribute("aria-activedescendant");
  };
  const activate = (index) => {
    active = index;
    [...list.children].forEach((item, i) => item.setAttribute("aria-selected", String(i === index)));
    if (index < 0) return;
    input.setAttribute("aria-activedescendant", `found-${index}`);
    list.children[index].scrollIntoView({ block: "nearest" });
  };
  const choose = (index) => {
    open(false);
    onFound(found[index]);
  };
  const look = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (node) => {
      const text = [node.name, node.op, node.target, ...node.origins].join(" ").toLowerCase();
      return words.every((word) => text.includes(word));
    };
    const all = words.length ? nodesOf().filter(fits) : [];
    found = all.slice(0, MOST);
    list.replaceChildren(
      ...found.map((node, i) =>
        make("li", { role: "option", id: `found-${i}`, "aria-selected": "false", onmousedown: (event) => { event.preventDefault(); choose(i); } },
          node.name, " ", make("span", {}, `${node.op}, ${node.target}`)),
      ),
    );
    const shown = all.length > MOST ? `, first ${MOST} shown` : "";
    count.textContent = words.length ? `${all.length} found${shown}` : "";
    open(found.length > 0);
    activate(found.length ? 0 : -1);
  };
  input.addEventListener("input", look);
  input.addEventListener("focus", () => found.length && input.value && open(true));
  input.addEventListener("blur", () => open(false));
  input.addEventListener("keydown", (event) => {
    const isOpen = !list.hidden;
    if (event.key === "ArrowDown" && found.length) {
      open(true);
      activate(isOpen ? (active + 1) % found.length : 0);
    } else if (event.key === "ArrowUp" && isOpen) activate((active - 1 + found.length) % found.length);
    else if (event.key === "Enter" && active >= 0) choose(active);
    else if (event.key === "Escape" && isOpen) open(false);
    else return;
    event.preventDefault();
  });
  const element = make("div", { class: "search" }, make("label", { for: "search" }, "Find"), input, list);
  const reset = () => {
    input.value = "";
    look();
  };
  const focus = () => {
    input.focus();
    input.select();
  };
  return { element, count, focus, reset };
}
