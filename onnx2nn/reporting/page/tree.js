/* The tree of modules. Rows that are out of view have no elements, so that 5,000 modules scroll as 50 do. */

const ROW = 26; // pixels, as in the style sheet
const AROUND = 12; // rows that are made above and below the view

class Tree {
  /** Shows `modules`; calls `choose(position)` for a chosen one. */
  constructor(modules, choose) {
    this.modules = modules;
    this.choose = choose;
    this.children = modules.map(() => []);
    modules.forEach((module, index) => module.parent !== null && this.children[module.parent].push(index));
    this.open = new Set();
    this.chosen = 0;
    this.printing = false;
    this.list = element("div", {
      class: "rows",
      role: "tree",
      tabindex: 0,
      "aria-label": "Modules",
      onkeydown: (event) => this.key(event),
      onclick: (event) => this.click(event),
      onscroll: () => this.draw(),
    });
    window.addEventListener("resize", () => this.draw());
    window.addEventListener("beforeprint", () => this.print(true));
    window.addEventListener("afterprint", () => this.print(false));
    this.unfold(0);
    if (this.children[0].length < 4) this.children[0].forEach((child) => this.unfold(child));
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

  /** Makes the rows in view. */
  draw() {
    const rows = this.rows();
    const seen = Math.ceil((this.list.clientHeight || 800) / ROW);
    const top = this.printing ? 0 : Math.max(Math.floor(this.list.scrollTop / ROW) - AROUND, 0);
    const end = this.printing ? rows.length : Math.min(top + seen + 2 * AROUND, rows.length);
    const space = (count) => {
      const made = element("div", { "aria-hidden": "true" });
      made.style.height = `${count * ROW}px`;
      return made;
    };
    const made = rows.slice(top, end).map(([index, depth]) => this.row(index, depth));
    this.list.replaceChildren(space(top), ...made, space(rows.length - end));
    const chosen = this.list.querySelector(".chosen");
    if (chosen) this.list.setAttribute("aria-activedescendant", chosen.id);
    else this.list.removeAttribute("aria-activedescendant");
  }

  print(printing) {
    this.printing = printing;
    this.draw();
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
        id: `row-${index}`,
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
  reveal(index) {
    this.chosen = index;
    for (let around = this.modules[index].parent; around !== null; around = this.modules[around].parent) this.open.add(around);
    this.draw(); // so that the list has its new height
    const place = ROW * this.rows().findIndex(([row]) => row === index);
    const [top, height] = [this.list.scrollTop, this.list.clientHeight];
    if (place < top) this.list.scrollTop = place;
    else if (place + 2 * ROW > top + height) this.list.scrollTop = place + 2 * ROW - height;
    this.draw();
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
      this.choose(index);
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
      if (steps[event.key] !== undefined) this.choose(steps[event.key]);
    } else if (event.key === "ArrowRight") {
      if (!this.children[index].length) return;
      if (this.open.has(index)) this.choose(this.children[index][0]);
      else this.change(index);
    } else if (event.key === "ArrowLeft") {
      if (this.open.has(index)) this.change(index);
      else if (this.modules[index].parent !== null) this.choose(this.modules[index].parent);
    } else if (event.key === "*") {
      this.children[this.modules[index].parent ?? 0].forEach((child) => this.unfold(child));
      this.reveal(index);
    } else if (event.key === "Enter" || event.key === " ") {
      this.choose(index);
    } else return;
    event.preventDefault();
  }

  change(index) {
    this.fold(index);
    this.reveal(index);
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
