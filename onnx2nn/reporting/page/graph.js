/* The program of one block as a layered graph, laid out by dagre when it is opened. */

const MOST_CALLS = 160; // calls that are drawn at once: dagre takes a third of a second for them
const MANY = 5; // a value that so many calls read is named in these, as edges would hide all others
const LINE = 17;

class Graph {
  /** Shows programs of `modules`; `choose(block, call)` is called for a chosen call, `enter(module)` for one to open. */
  constructor(modules, choose, enter) {
    Object.assign(this, { modules, choose, enter, block: null, page: 0, scale: 1, sizes: false, call: null });
    this.canvas = element("div", { class: "canvas", tabindex: 0, role: "group", "aria-label": "Graph of the block" });
    this.bar = element("div", { class: "bar" });
    this.panel = element("div", { class: "panel graph" }, this.bar, this.canvas);
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.drag();
  }

  /** Opens a block, and marks one of its calls. */
  show(block, call = null) {
    const same = block === this.block;
    if (!same) Object.assign(this, { block, page: 0 });
    this.call = call;
    const calls = this.calls();
    const at = calls.indexOf(call);
    const page = at >= 0 ? Math.floor(at / MOST_CALLS) : this.page;
    if (!same || page !== this.page) {
      this.page = page;
      this.draw();
    }
    this.mark(call !== null && same);
  }

  /** Returns the positions of the calls to draw: numbers and checks of sizes only where they are asked for. */
  calls() {
    const all = this.modules[this.block].calls || [];
    return all.map((_, index) => index).filter((index) => this.sizes || all[index].tensor !== false || all[index].kind === "input");
  }

  draw() {
    const all = this.modules[this.block].calls || [];
    const calls = this.calls();
    const shown = calls.slice(this.page * MOST_CALLS, (this.page + 1) * MOST_CALLS);
    this.tools(all, calls);
    const layout = new dagre.graphlib.Graph({ multigraph: true });
    layout.setGraph({ rankdir: "TB", nodesep: 18, ranksep: 30, marginx: 16, marginy: 16 });
    layout.setDefaultEdgeLabel(() => ({}));
    const visible = new Set(shown);
    const allowed = new Set(calls);
    this.boxes = new Map();
    const readers = new Map();
    for (const index of calls) for (const from of all[index].inputs) readers.set(from, (readers.get(from) || 0) + 1);
    const named = (from) => readers.get(from) >= MANY && allowed.has(from);
    for (const index of shown) {
      const given = all[index].inputs.filter((from) => named(from) && from !== index - 1).map((from) => all[from]);
      this.place(layout, index, this.box(all[index], index, given));
    }
    for (const index of shown) {
      for (const from of all[index].inputs) {
        if (!allowed.has(from) || (named(from) && from !== index - 1)) continue;
        if (!visible.has(from) && !this.boxes.has(from)) this.place(layout, from, this.elsewhere(all[from], from));
        layout.setEdge(String(from), String(index));
      }
    }
    dagre.layout(layout);
    const { width = 10, height = 10 } = layout.graph();
    this.size = { width: Math.max(width, 10), height: Math.max(height, 10) };
    const nodes = drawn("g", {});
    for (const [index, made] of this.boxes) {
      const { x, y } = layout.node(String(index));
      made.setAttribute("transform", `translate(${(x - made.width / 2).toFixed(1)},${(y - made.height / 2).toFixed(1)})`);
      nodes.append(made);
    }
    const edges = drawn("path", { class: "edges", d: layout.edges().map((edge) => curve(layout.edge(edge).points)).join("") });
    const tips = drawn("path", { class: "tips", d: layout.edges().map((edge) => tip(layout.edge(edge).points)).join("") });
    this.svg = drawn(
      "svg",
      { viewBox: `0 0 ${this.size.width.toFixed(0)} ${this.size.height.toFixed(0)}`, role: "list" },
      edges,
      tips,
      nodes,
    );
    this.canvas.replaceChildren(this.svg);
    this.canvas.scrollTo(0, 0);
    this.fit();
  }

  place(layout, index, made) {
    this.boxes.set(index, made);
    layout.setNode(String(index), { width: made.width, height: made.height });
  }

  /** Returns the box of a call: its name and class, its result below, and the values of `given` that it reads too. */
  box(call, index, given) {
    const opens = call.module != null && (this.modules[call.module].calls || []).length > 0;
    const kind = call.kind === "module" ? (opens ? "block" : "layer") : call.kind;
    const head = middle(visible(call.module != null ? this.within(call.module) : call.kind === "function" ? call.label : call.name), 28);
    const more = call.kind === "module" ? middle(visible(call.label), 24) : "";
    const note = kind === "output" ? "" : middle(brief(visible(call.value || "")), 38);
    const extra = given.length ? middle(`with ${given.map((other) => visible(other.name)).join(", ")}`, 38) : "";
    const title = this.wide(head, "head") + (more ? this.wide(more, "kind") + 7 : 0) + (opens ? 20 : 0);
    const width = Math.max(title, this.wide(note, "note"), this.wide(extra, "extra"), 30) + 24;
    const height = 28 + (note ? LINE - 1 : 0) + (extra ? LINE - 1 : 0);
    const made = drawn(
      "g",
      {
        class: `call ${kind}`,
        tabindex: -1,
        role: "listitem",
        "data-call": index,
        "aria-label": `${head} ${more} ${note} ${extra}`,
        onclick: (event) => this.click(event, index),
        ondblclick: () => opens && this.enter(call.module),
      },
      drawn("rect", { width, height, rx: kind === "input" || kind === "output" ? 14 : 6 }),
      drawn(
        "text",
        { x: width / 2 - (opens ? 8 : 0), y: 18.5, "text-anchor": "middle" },
        drawn("tspan", { class: "head" }, head),
        more ? drawn("tspan", { class: "kind", dx: 7 }, more) : null,
      ),
      note ? drawn("text", { x: width / 2, y: 18 + LINE, class: "note", "text-anchor": "middle" }, note) : null,
      extra ? drawn("text", { x: width / 2, y: height - 9, class: "extra", "text-anchor": "middle" }, extra) : null,
      opens ? drawn("path", { class: "plus", d: `M${width - 17} 14h8m-4 -4v8` }) : null,
    );
    return Object.assign(made, { width, height });
  }

  /** Returns the path of a module from the open block. */
  within(index) {
    const [path, around] = [this.modules[index].path, this.modules[this.block].path];
    return path.startsWith(around) ? path.slice(around ? around.length + 1 : 0) : path;
  }

  /** Returns the width of a text in the font of a class of the style sheet. */
  wide(text, name) {
    if (!this.pens) this.pens = new Map();
    if (!this.pens.has(name)) {
      const sample = drawn("text", {}, drawn("tspan", { class: name }, "x"));
      const holder = drawn("svg", { class: "measure" }, drawn("g", { class: "call" }, sample));
      this.panel.append(holder);
      const pen = document.createElement("canvas").getContext("2d");
      pen.font = getComputedStyle(sample.firstChild).font;
      holder.remove();
      this.pens.set(name, pen);
    }
    return this.pens.get(name).measureText(text).width;
  }

  /** Returns the box of a value that is computed on another page of the same program. */
  elsewhere(call, index) {
    const head = "↑ " + middle(visible(call.name), 20);
    const width = this.wide(head, "note") + 20;
    const made = drawn(
      "g",
      { class: "call elsewhere", "data-call": index, onclick: () => this.choose(this.block, index) },
      drawn("rect", { width, height: 22, rx: 11 }),
      drawn("text", { x: width / 2, y: 15, "text-anchor": "middle", class: "note" }, head),
    );
    return Object.assign(made, { width, height: 22 });
  }

  /** Draws the path of the block, its pages, and the buttons. */
  tools(all, calls) {
    const steps = [];
    for (let at = this.block; at !== null; at = this.modules[at].parent) steps.unshift(at);
    const path = steps.map((at, place) => [
      place ? element("span", { class: "slash" }, "/") : null,
      element(
        "button",
        { class: "step", "aria-current": at === this.block ? "true" : null, onclick: () => this.enter(at) },
        named(at === 0 ? this.modules[0].kind : this.modules[at].path.split(".").pop(), 28),
      ),
    ]);
    const pages = Math.ceil(calls.length / MOST_CALLS);
    const turn = (step) => () => {
      this.page = Math.min(Math.max(this.page + step, 0), pages - 1);
      this.draw();
    };
    const hidden = all.length - all.filter((call) => call.tensor !== false || call.kind === "input").length;
    const ends = [this.page * MOST_CALLS + 1, Math.min((this.page + 1) * MOST_CALLS, calls.length)];
    this.bar.replaceChildren(
      element("nav", { class: "crumbs", "aria-label": "Blocks around" }, path),
      element(
        "span",
        { class: "tools" },
        pages > 1
          ? [
              element("button", { onclick: turn(-1), disabled: this.page === 0, title: "The calls before", "aria-label": "The calls before" }, "‹"),
              element("span", { class: "pages" }, `${count(ends[0])}–${count(ends[1])} of ${count(calls.length)}`),
              element("button", { onclick: turn(1), disabled: this.page === pages - 1, title: "The calls after", "aria-label": "The calls after" }, "›"),
            ]
          : null,
        hidden
          ? element(
              "label",
              { title: "Sizes, numbers and checks, which are no tensors" },
              element("input", { type: "checkbox", class: "sizes", checked: this.sizes, onchange: (event) => this.withSizes(event.target.checked) }),
              "sizes",
            )
          : null,
        element("button", { onclick: () => this.zoom(1 / 1.25), title: "Smaller (−)", "aria-label": "Smaller" }, "−"),
        element("button", { onclick: () => this.zoom(1.25), title: "Larger (+)", "aria-label": "Larger" }, "+"),
        element("button", { onclick: () => this.fit(), title: "Fit the width (0)" }, "Fit"),
      ),
    );
  }

  withSizes(wanted) {
    this.sizes = wanted;
    this.page = 0;
    this.draw();
    this.mark(false);
  }

  fit() {
    const room = this.canvas.clientWidth - 2;
    this.scaled(Math.min(1, Math.max(room / this.size.width, 0.6)));
    this.canvas.scrollLeft = (this.size.width * this.scale - room) / 2;
  }

  scaled(scale) {
    this.scale = Math.min(Math.max(scale, 0.08), 4);
    this.svg.setAttribute("width", (this.size.width * this.scale).toFixed(0));
    this.svg.setAttribute("height", (this.size.height * this.scale).toFixed(0));
  }

  /** Zooms around a point of the canvas, its middle if none is given. */
  zoom(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
    const before = this.scale;
    const [left, top] = [this.canvas.scrollLeft + x, this.canvas.scrollTop + y];
    this.scaled(before * factor);
    const ratio = this.scale / before;
    this.canvas.scrollTo(left * ratio - x, top * ratio - y);
  }

  wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return; // the wheel alone scrolls
    event.preventDefault();
    const box = this.canvas.getBoundingClientRect();
    this.zoom(Math.exp(-event.deltaY / 300), event.clientX - box.left, event.clientY - box.top);
  }

  drag() {
    let from = null;
    this.canvas.addEventListener("pointerdown", (event) => {
      if (event.button === 0 && event.pointerType === "mouse" && !event.target.closest(".call")) {
        from = { x: event.clientX + this.canvas.scrollLeft, y: event.clientY + this.canvas.scrollTop };
      }
    });
    window.addEventListener("pointermove", (event) => from && this.canvas.scrollTo(from.x - event.clientX, from.y - event.clientY));
    window.addEventListener("pointerup", () => (from = null));
  }

  click(event, index) {
    if (event.target.closest(".plus")) this.enter(this.modules[this.block].calls[index].module);
    else this.choose(this.block, index);
  }

  /** Arrows go to the next call above or below, Enter opens a block, Backspace leaves it. */
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const all = this.modules[this.block].calls || [];
    const calls = this.calls();
    const at = calls.indexOf(this.call);
    const current = this.call === null ? null : all[this.call];
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const next = calls[event.key === "ArrowDown" ? at + 1 : Math.max(at - 1, 0)];
      if (next !== undefined) this.choose(this.block, next);
    } else if (event.key === "Enter") {
      if (current && current.module != null) this.enter(current.module);
    } else if (event.key === "Backspace" || event.key === "Escape") {
      if (this.modules[this.block].parent !== null) this.enter(this.modules[this.block].parent);
    } else if (event.key === "+" || event.key === "=") this.zoom(1.25);
    else if (event.key === "-") this.zoom(1 / 1.25);
    else if (event.key === "0") this.fit();
    else return;
    event.preventDefault();
  }

  /** Marks the chosen call and what it reads and gives, and scrolls to it. */
  mark(smooth) {
    for (const made of this.boxes.values()) made.classList.remove("chosen");
    const made = this.boxes.get(this.call);
    if (!made) return;
    made.classList.add("chosen");
    const box = this.canvas.getBoundingClientRect();
    const place = made.getBoundingClientRect();
    if (place.top < box.top || place.bottom > box.bottom || place.left < box.left || place.right > box.right) {
      this.canvas.scrollBy({
        left: place.left + place.width / 2 - box.left - box.width / 2,
        top: place.top + place.height / 2 - box.top - box.height / 2,
        behavior: smooth ? "smooth" : "instant",
      });
    }
  }
}

/** Returns a smooth path through points: quadratic curves between the middles of its sides. */
function curve(points) {
  const at = (point) => `${point.x.toFixed(1)} ${point.y.toFixed(1)}`;
  const between = (a, b) => ({ x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 });
  let path = `M${at(points[0])}`;
  for (let i = 1; i < points.length - 1; i++) path += `Q${at(points[i])} ${at(between(points[i], points[i + 1]))}`;
  return `${path}L${at(points[points.length - 1])}`;
}

/** Returns the path of an arrow's tip at the last of the points. */
function tip(points) {
  const end = points[points.length - 1];
  const before = points[points.length - 2];
  const length = Math.hypot(end.x - before.x, end.y - before.y) || 1;
  const [x, y] = [(end.x - before.x) / length, (end.y - before.y) / length];
  const side = (turn) => `${(end.x - 7 * x + turn * 3.5 * y).toFixed(1)} ${(end.y - 7 * y - turn * 3.5 * x).toFixed(1)}`;
  return `M${end.x.toFixed(1)} ${end.y.toFixed(1)}L${side(1)}L${side(-1)}Z`;
}
