/* The page of one model: its sections, and what is chosen in them. The address holds the choice: #m=layer1.0&c=add */

const report = { problems: [], modules: [], programs: [], weights: [], nodes: [], unverified: [], notes: {}, operators: [] };
Object.assign(report, JSON.parse(document.getElementById("data").textContent));

const position = new Map(report.modules.map((module, index) => [module.path, index]));

function link(index, text = null) {
  const module = report.modules[index];
  return element("a", { href: address(index) }, named(text || module.path || module.kind, 60));
}

function address(index, call = null) {
  const path = `#m=${encodeURIComponent(report.modules[index].path)}`;
  return call === null ? path : `${path}&c=${encodeURIComponent(report.modules[index].calls[call].name)}`;
}

/* The head and the overview */

function verdict() {
  if (report.problems.length) return ["bad", "Cannot be imported"];
  if (!report.verified) return ["plain", "Not compared"];
  return report.verified.ok ? ["good", "Agrees with ONNX Runtime"] : ["bad", "Differs from ONNX Runtime"];
}

function top() {
  const places = [
    ["modules", "Modules", report.modules.length],
    ["error", "Error", report.verified],
    ["import", "Import", Object.keys(report.notes).length],
    ["operators", "Operators", true],
  ];
  return element(
    "header",
    { class: "top" },
    element("a", { class: "brand", href: "#overview" }, "onnx2nn", element("span", {}, "report")),
    element("nav", { "aria-label": "Sections" }, places.filter(([, , there]) => there).map(([id, name]) => element("a", { href: `#${id}` }, name))),
  );
}

function overview() {
  const file = report.file;
  const [mood, text] = verdict();
  const root = report.modules[0];
  const blocks = report.modules.filter((module) => (module.calls || []).length).length;
  const worst = report.verified ? Math.max(...report.verified.outputs.map((output) => output.difference ?? Infinity)) : null;
  const tiles = [
    root ? [large(root.parameters || 0), "parameters", count(root.parameters || 0)] : null,
    [bytes(root ? root.bytes || 0 : file.weights), "weights", `${count(root ? root.bytes || 0 : file.weights)} bytes`],
    [count(file.nodes), "nodes in the file", plural(report.operators.length, "operator")],
    root ? [count(report.modules.length - 1), "modules", `${plural(blocks, "block")} with a program`] : null,
    root && root.seconds ? [seconds(root.seconds), "a call, on this machine", `the fastest of a few runs, call by call`] : null,
    worst !== null ? [small(worst), "largest difference", report.verified.oracle] : null,
  ].filter(Boolean);
  const opsets = Object.entries(file.opsets).map(([domain, version]) => (domain === "ai.onnx" ? `opset ${version}` : `${domain} ${version}`));
  return element(
    "section",
    { id: "overview" },
    element("h1", {}, named(file.name, 90), element("span", { class: `verdict ${mood}` }, text)),
    element("p", { class: "sub" }, [file.producer, ...opsets].filter(Boolean).map((text, i) => [i ? " · " : "", named(text, 40)])),
    element("div", { class: "tiles" }, tiles.map(([value, name, more]) => element("div", { class: "tile", title: more }, element("b", {}, value), element("span", {}, name)))),
    report.problems.length ? problems() : null,
    report.unverified.map((text) => element("p", { class: "notice" }, visible(text))),
    element(
      "div",
      { class: "pair" },
      ports("Input", file.inputs, report.run || {}),
      ports("Output", file.outputs, {}),
    ),
  );
}

function ports(title, values, run) {
  const shown = Object.entries(values);
  const sizes = Object.keys(run).length > 0;
  const rows = shown.map(([name, type]) => {
    const plain = visible(type);
    const cells = [named(name, 60), element("span", { class: "value" }, plain)];
    return sizes ? [...cells, element("span", { class: "value sizes" }, run[name] ? run[name].join(" × ") || "scalar" : "")] : cells;
  });
  return first(rows, 12, (some) => table(sizes ? [title, "Type", "In the run"] : [title, "Type"], some), `${title.toLowerCase()}s`);
}

function problems() {
  return element(
    "div",
    { class: "problems", role: "alert" },
    element("h2", {}, "Why it cannot be imported"),
    first(report.problems, 50, (some) => element("ul", {}, some.map((text) => element("li", {}, visible(text)))), "problems"),
  );
}

/* The modules */

function explorer() {
  const tree = new Tree(report.modules, (index) => go(index));
  const graph = new Graph(
    report.modules,
    (block, call) => {
      const called = report.modules[block].calls[call].module;
      show(called != null ? `${address(called)}&in=${encodeURIComponent(report.modules[block].path)}` : address(block, call));
    },
    (module) => go(module),
  );
  const inspector = element("div", { class: "panel inspector", tabindex: 0, role: "region", "aria-label": "The chosen module" });
  const search = new Search(tree, (index) => go(index));
  const panel = element(
    "div",
    { class: "panel tree" },
    element(
      "div",
      { class: "bar" },
      search.field,
      element("span", { class: "tools" },
        element("button", { onclick: () => tree.all(false), title: "Close all" }, "Fold"),
        element("button", { onclick: () => tree.all(true), title: "Open all" }, "Unfold"),
      ),
    ),
    element("div", { class: "row heads", "aria-hidden": "true" }, ["Module", "Result", "Params", "Memory", "Time"].map((name) => element("span", {}, name))),
    tree.list,
    search.results,
  );
  const section = element(
    "section",
    { id: "modules" },
    element("h2", {}, "Modules"),
    element("div", { class: "explorer" }, panel, graph.panel, inspector),
    element("p", { class: "hint" }, element("kbd", {}, "/"), " search ", element("kbd", {}, "↑ ↓ ← →"), " move and fold ", element("kbd", {}, "Enter"), " open a block ", element("kbd", {}, "Backspace"), " leave it ", element("kbd", {}, "+ − 0"), " zoom"),
  );
  let fresh = true;

  /** Shows the choice that the address holds. */
  const follow = () => {
    const wanted = new URLSearchParams(location.hash.slice(1));
    if (!wanted.has("m") && !fresh) return;
    const index = position.get(wanted.get("m") ?? "") ?? 0;
    const module = report.modules[index];
    const block = shownBlock(index, position.get(wanted.get("in") ?? "\0"));
    const calls = report.modules[block].calls || [];
    const at = block === index ? calls.findIndex((call) => call.name === wanted.get("c")) : calls.findIndex((call) => call.module === index);
    const call = block === index && at >= 0 ? calls[at] : null;
    graph.show(block, at >= 0 ? at : null);
    tree.reveal(index);
    inspector.replaceChildren(...details(report, module, call, link).filter(Boolean));
    inspector.scrollTop = 0;
    if (wanted.has("m") && fresh) section.scrollIntoView();
    fresh = false;
  };
  window.addEventListener("hashchange", follow);
  show = (place) => {
    history.replaceState(null, "", place);
    follow();
  };
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !/^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName)) {
      event.preventDefault();
      search.field.focus();
    }
  });
  return [section, follow];
}

/** Shows what an address names. The history keeps what links lead to, not each step through the tree. */
let show = () => {};

function go(index) {
  show(address(index));
}

/** Returns the block whose graph shows a module: its own, the one that it was chosen in, or one around it. */
function shownBlock(index, within) {
  const has = (at) => (report.modules[at].calls || []).length > 0;
  if (within !== undefined && has(within) && report.modules[within].calls.some((call) => call.module === index)) return within;
  let at = index;
  while (!has(at) && report.modules[at].parent !== null) at = report.modules[at].parent;
  return at;
}

/** Finds modules, weights and nodes of the file by parts of their names. */
class Search {
  constructor(tree, choose) {
    this.tree = tree;
    this.choose = choose;
    this.field = element("input", {
      type: "search",
      placeholder: "Search modules, weights, nodes",
      "aria-label": "Search modules, weights and nodes of the file",
      oninput: () => this.find(),
      onkeydown: (event) => this.key(event),
    });
    this.results = element("div", { class: "rows results", role: "listbox", "aria-label": "Found", hidden: true });
    this.entries = [
      ...report.modules.map((module, index) => [`${module.path} ${module.kind}`, module.path || module.kind, module.kind, index]),
      ...report.weights.map((weight) => [weight.key, weight.key, weight.value, holder(weight.key)]),
      ...report.nodes.map((node) => [`${node.name} ${node.operator}`, node.name, node.operator, node.module ?? 0]),
    ].map(([text, ...rest]) => [text.toLowerCase(), ...rest]);
  }

  find() {
    const words = this.field.value.toLowerCase().split(/\s+/).filter(Boolean);
    this.results.hidden = !words.length;
    this.tree.list.hidden = words.length > 0;
    if (!words.length) return this.results.replaceChildren();
    const found = this.entries.filter(([text]) => words.every((word) => text.includes(word)));
    const rows = found.slice(0, 200).map(([, name, kind, index]) =>
      element(
        "button",
        { class: "found", role: "option", "data-index": index, onclick: () => this.take(index) },
        named(name, 60),
        named(kind, 34, { class: "name kind" }),
      ),
    );
    const more = found.length > 200 ? `the first 200 of ${count(found.length)}` : plural(found.length, "hit");
    this.results.replaceChildren(element("p", { class: "small" }, more), ...rows);
  }

  key(event) {
    if (event.key === "Escape") this.clear();
    else if (event.key === "Enter") {
      const row = this.results.querySelector(".found");
      if (row) this.take(Number(row.dataset.index));
    } else return;
    event.preventDefault();
  }

  take(index) {
    this.clear();
    this.choose(index);
  }

  clear() {
    this.field.value = "";
    this.find();
  }
}

/** Returns the module that holds a weight. */
function holder(key) {
  let path = key;
  do path = path.includes(".") ? path.slice(0, path.lastIndexOf(".")) : "";
  while (!position.has(path) && path);
  return position.get(path) ?? 0;
}

/* The error, the import, the operators */

function errorSection() {
  const found = report.verified;
  const noisy = found.outputs.some((output) => output.noise != null);
  const outputs = found.outputs.map((output) => [
    named(output.name, 60),
    element("span", { class: "value" }, visible(output.value)),
    small(output.mse),
    small(output.difference),
    small(output.tolerance),
    ...(noisy ? [output.noise == null ? "" : `${small(output.noise)} (${output.noise_ulps} ULP)`] : []),
    output.ok ? element("span", { class: "good" }, "agrees") : element("span", { class: "bad" }, visible(output.reason || "differs")),
  ]);
  const seen = found.nodes.filter((error) => !error.ok || error.introduced !== 0);
  const worst = seen.sort((a, b) => Number(a.ok) - Number(b.ok) || (b.introduced ?? Infinity) - (a.introduced ?? Infinity)).slice(0, 15);
  const own = worst.some((error) => error.noise != null);
  const rows = worst.map((error) => [
    error.node !== null ? named(report.nodes[error.node].operator, 30) : "",
    named(error.node !== null ? report.nodes[error.node].name : error.output, 48),
    link(placeOf(error)),
    small(error.introduced),
    small(error.relative),
    error.ulp == null ? "" : count(error.ulp),
    ...(own ? [error.noise == null ? "" : small(error.noise)] : []),
    small(error.inherited),
    error.ok ? "" : element("span", { class: "bad" }, visible(error.reason || "over the threshold")),
  ]);
  return element(
    "section",
    { id: "error" },
    element("h2", {}, "Error"),
    element("p", { class: found.ok ? "closing good" : "closing bad" }, visible(found.nodes_verdict)),
    table(["Output", "Type", "Mean square", "Largest difference", "Allowed", ...(noisy ? ["Noise of the model"] : []), ""], outputs, { numeric: noisy ? [2, 3, 4, 5] : [2, 3, 4] }),
    errorPlot(report, (error) => {
      go(placeOf(error));
      document.getElementById("modules").scrollIntoView();
    }),
    found.notes.length ? element("ul", { class: "small" }, found.notes.slice(0, 20).map((note) => element("li", {}, visible(note)))) : null,
    rows.length ? element("h3", {}, "Nodes that introduce most") : null,
    rows.length ? table(["Operator", "Node", "Module", "Introduced", "Relative", "ULP", ...(own ? ["Noise"] : []), "Inherited", ""], rows, { numeric: own ? [3, 4, 5, 6, 7] : [3, 4, 5, 6] }) : null,
  );
}

/** Returns the module whose call computes a value, the block around it where that is unknown. */
function placeOf(error) {
  return (error.node === null ? null : report.nodes[error.node].module) ?? error.module;
}

function importSection() {
  const titles = Object.entries(report.notes);
  const parts = titles.map(([title, notes]) => {
    const places = notes.some((note) => note.where);
    const cells = (note) => [subject(note.what), visible(note.why), ...(places ? [named(note.where || "", 80)] : [])];
    const show = (some) => table(null, some.map(cells), { className: places ? "notes three" : "notes" });
    return element(
      "details",
      { open: notes.length <= 12 },
      element("summary", {}, title, " ", element("span", { class: "tag" }, count(notes.length))),
      first(notes, 100, show, "entries"),
    );
  });
  return element("section", { id: "import" }, element("h2", {}, "Import"), parts);
}

/** Returns the subject of a note: a link where it is a module or one of its weights. */
function subject(text) {
  const path = text.includes(".") ? text.slice(0, text.lastIndexOf(".")) : "";
  if (position.has(text) && text) return link(position.get(text));
  return path && position.has(path) ? link(position.get(path), text) : named(text, 120);
}

function operatorSection() {
  const top = Math.max(...report.operators.map((operator) => operator.count), 1);
  const wrong = report.operators.some((operator) => operator.problems.length);
  const rows = [...report.operators]
    .sort((a, b) => Number(b.problems.length > 0) - Number(a.problems.length > 0))
    .map((operator) => {
      const cells = [named(operator.name, 60), element("span", { class: "bars" }, meter(operator.count / top)), count(operator.count)];
      if (!wrong) return cells;
      return [...cells, operator.problems.length ? element("span", { class: "bad" }, operator.problems.map(visible).join(" ")) : element("span", { class: "good" }, "known")];
    });
  const head = ["Operator", "", "Nodes", ...(wrong ? ["Import"] : [])];
  return element("section", { id: "operators" }, element("h2", {}, "Operators"), first(rows, 60, (some) => table(head, some, { numeric: [2], className: "operators" }), "operators"));
}

function foot() {
  const versions = Object.entries(report.versions || {}).map(([name, version]) => `${name} ${version}`);
  return element("footer", {}, versions.join(" · "));
}

function draw() {
  const [modules, follow] = report.modules.length ? explorer() : [null, () => {}];
  const parts = [
    overview(),
    modules,
    report.verified ? errorSection() : null,
    Object.keys(report.notes).length ? importSection() : null,
    operatorSection(),
  ];
  document.getElementById("page").append(top(), element("main", {}, parts.filter(Boolean)), foot());
  follow();
  document.body.dataset.drawn = "true";
}

draw();
