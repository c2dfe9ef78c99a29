/* The tree of modules: rows are made when their parent is opened, so that 5,000 modules cost nothing at the start. */

class Tree {
  /** Shows `modules`; calls `choose(position)` for a chosen one. */
  constructor(modules, choose) {
    this.modules = modules;
    this.choose = choose;
    this.children = modules.map(() => []);
    modules.forEach((module, index) => module.parent !== null && this.children[module.parent].push(index));
    this.open = new Set();
    this.chosen = 0;
    this.list = element("div", {
      class: "rows",
      role: "tree",
      "aria-label": "Modules",
      onkeydown: (event) => this.key(event),
      onclick: (event) => this.click(event),
    });
    this.unfold(0);
    for (const child of this.children[0]) if (this.children[0].length < 4) this.unfold(child);
    this.draw();
  }

  unfold(index) {
    if (this.children[index].length) this.open.add(index);
  }

  /** Returns the positions of the rows that are in view, in order. */
  rows() {
    const found = [];
    const visit = (index, depth) => {
      found.push([index, depth]);
      if (this.open.has(index)) this.children[index].forEach((child) => visit(child, depth + 1));
    };
    visit(0, 1);
    return found;
  }

  draw() {
    this.list.replaceChildren(...this.rows().map(([index, depth]) => this.row(index, depth)));
  }

  row(index, depth) {
    const module = this.modules[index];
    const opens = this.children[index].length > 0;
    const total = this.modules[0].bytes || 1;
    const share = (module.bytes || 0) / total;
    return element(
      "div",
      {
        class: "row" + (index === this.chosen ? " chosen" : ""),
        role: "treeitem",
        tabindex: index === this.chosen ? 0 : -1,
        "data-index": index,
        "aria-level": depth,
        "aria-selected": String(index === this.chosen),
        "aria-expanded": opens ? String(this.open.has(index)) : null,
      },
      element(
        "span",
        { class: "title" },
        Array.from({ length: Math.min(depth - 1, 24) }, () => element("span", { class: "indent" })),
        element("span", { class: "twisty", "aria-hidden": "true" }, opens ? (this.open.has(index) ? "▾" : "▸") : ""),
        named(index === 0 ? module.kind : module.path.split(".").pop(), 60, { class: "name step" }),
        index === 0 ? null : named(module.kind, 60, { class: "name kind" }),
      ),
      element("span", { class: "value", title: visible(module.value || "") }, brief(visible(module.value || ""))),
      element("span", { class: "number" }, module.parameters ? large(module.parameters) : ""),
      element("span", { class: "share", title: `${bytes(module.bytes || 0)}, ${percent(share)} of all weights` }, meter(share)),
      element("span", { class: "number" }, seconds(module.seconds)),
    );
  }

  /** Marks a module as chosen, opens what is around it, and scrolls to it. */
  reveal(index, focus = false) {
    this.chosen = index;
    for (let around = this.modules[index].parent; around !== null; around = this.modules[around].parent) this.open.add(around);
    this.draw();
    const row = this.list.querySelector(".chosen");
    if (!row) return;
    const box = this.list.getBoundingClientRect();
    const place = row.getBoundingClientRect();
    if (place.top < box.top || place.bottom > box.bottom) this.list.scrollTop += place.top - box.top - box.height / 3;
    if (focus) row.focus({ preventScroll: true });
  }

  click(event) {
    const row = event.target.closest(".row");
    if (!row) return;
    const index = Number(row.dataset.index);
    if (event.target.closest(".twisty") && this.children[index].length) {
      this.fold(index);
      this.draw();
    } else {
      this.unfold(index);
      this.choose(index, true);
    }
  }

  fold(index) {
    if (this.open.has(index)) this.open.delete(index);
    else this.unfold(index);
  }

  /** The keys of a tree, as WAI-ARIA describes them. */
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const rows = this.rows().map(([index]) => index);
    const at = rows.indexOf(this.chosen);
    const index = this.chosen;
    const steps = { ArrowDown: rows[at + 1], ArrowUp: rows[at - 1], Home: rows[0], End: rows[rows.length - 1] };
    if (event.key in steps) {
      if (steps[event.key] !== undefined) this.choose(steps[event.key], true);
    } else if (event.key === "ArrowRight") {
      if (!this.children[index].length) return;
      if (this.open.has(index)) this.choose(this.children[index][0], true);
      else this.change(index);
    } else if (event.key === "ArrowLeft") {
      if (this.open.has(index)) this.change(index);
      else if (this.modules[index].parent !== null) this.choose(this.modules[index].parent, true);
    } else if (event.key === "*") {
      this.children[this.modules[index].parent ?? 0].forEach((child) => this.unfold(child));
      this.reveal(index, true);
    } else if (event.key === "Enter" || event.key === " ") {
      this.choose(index, true);
    } else return;
    event.preventDefault();
  }

  change(index) {
    this.fold(index);
    this.reveal(index, true);
  }

  /** Opens or closes everything. */
  all(opened) {
    this.open.clear();
    if (opened) this.modules.forEach((_, index) => this.unfold(index));
    else this.unfold(0);
    this.reveal(this.visibleAround(this.chosen));
  }

  visibleAround(index) {
    const shown = new Set(this.rows().map(([row]) => row));
    while (!shown.has(index)) index = this.modules[index].parent;
    return index;
  }
}

/** Returns a bar that is filled to a share of 1. */
function meter(share) {
  const bar = element("span", { class: "meter", "aria-hidden": "true" }, element("span"));
  bar.firstChild.style.width = `${100 * Math.min(Math.max(share, share > 0 ? 0.02 : 0), 1)}%`;
  return bar;
}
