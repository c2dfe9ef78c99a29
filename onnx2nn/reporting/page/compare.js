/* The page of two models: one row a module, both sides beside each other. */

const report = { modules: [], outputs: [], notes: [], run: {} };
Object.assign(report, JSON.parse(document.getElementById("data").textContent));

const MARKS = { same: "=", changed: "~", added: "+", removed: "−" };

function statusOf(pair) {
  if (!pair.right) return "removed";
  if (!pair.left) return "added";
  const same = pair.left === pair.right && pair.left_value === pair.right_value && !(pair.weights || []).length && !Object.keys(pair.calls || {}).length;
  return same ? "same" : "changed";
}

function changesOf(pair) {
  const status = statusOf(pair);
  if (status === "added" || status === "removed") return [];
  const found = [];
  if (pair.left_value !== pair.right_value) found.push(`result ${brief(pair.left_value || "?")} → ${brief(pair.right_value || "?")}`);
  for (const weight of pair.weights || []) {
    const name = weight.key.split(".").pop();
    if (weight.difference != null) found.push(`${name} differs by ${small(weight.difference)}, its largest element is ${small(weight.magnitude)}`);
    else found.push(`${name} ${brief(weight.left || "missing")} → ${brief(weight.right || "missing")}`);
  }
  for (const [label, [left, right]] of Object.entries(pair.calls || {})) found.push(`${label} is called ${left} → ${right} times`);
  return found.map((text) => element("div", {}, visible(text)));
}

function row(pair) {
  const status = statusOf(pair);
  const depth = pair.path ? pair.path.split(".").length : 0;
  const name = element("span", {}, named(pair.path ? pair.path.split(".").pop() : "the model", 60));
  name.style.paddingLeft = `${Math.min(depth, 24) * 14}px`;
  const changed = pair.left && pair.right && pair.left !== pair.right;
  const side = (text) => named(changed ? text : text.split("(")[0], 70);
  const cells = [
    element("td", { class: "path" }, element("span", { class: "mark", title: status }, MARKS[status]), name),
    element("td", { class: changed ? "" : "kind" }, side(pair.left)),
    element("td", { class: changed ? "" : "kind" }, side(pair.right)),
    element("td", { class: "small" }, changesOf(pair)),
    element("td", { class: "number" }, pair.difference == null ? "" : small(pair.difference), pair.parts ? element("div", { class: "bad" }, "values part here") : null),
  ];
  return element("tr", { class: `${status}${pair.parts ? " parts" : ""}`, title: visible(pair.path) }, cells);
}

/** Returns the rows of what changed with the modules around it, or of all modules; a word filters by path and class. */
function chosen(all, word) {
  const wanted = new Set();
  for (const pair of report.modules) {
    const text = `${pair.path} ${pair.left} ${pair.right}`.toLowerCase();
    if (!text.includes(word) || !(all || statusOf(pair) !== "same" || pair.parts)) continue;
    let path = pair.path;
    while (path && !wanted.has(path)) {
      wanted.add(path);
      path = path.includes(".") ? path.slice(0, path.lastIndexOf(".")) : "";
    }
    wanted.add("");
  }
  return report.modules.filter((pair) => wanted.has(pair.path));
}

function trees() {
  const holder = element("div", {});
  const all = element("input", { type: "checkbox", onchange: () => draw() });
  const word = element("input", { type: "search", placeholder: "Filter modules", "aria-label": "Filter modules", oninput: () => draw() });
  const make = (pairs) =>
    element(
      "div",
      { class: "scroll" },
      element(
        "table",
        { class: "sides" },
        element("thead", {}, element("tr", {}, ["Module", report.left, report.right, "What changed", "Difference"].map((text, i) => element("th", { scope: "col", class: i === 4 ? "number" : null }, named(text, 60))))),
        element("tbody", {}, pairs.map(row)),
      ),
    );
  const draw = () => {
    const pairs = chosen(all.checked, word.value.toLowerCase());
    holder.replaceChildren(pairs.length ? first(pairs, 500, make, "modules") : element("p", { class: "small" }, "Nothing differs."));
  };
  draw();
  return element("section", { id: "modules" }, element("h2", {}, "Modules"), element("div", { class: "filter" }, word, element("label", {}, all, "also what is the same")), holder);
}

function page() {
  const ok = report.outputs.length > 0 && report.outputs.every((output) => output.ok);
  const statuses = report.modules.map(statusOf);
  const tiles = ["changed", "added", "removed", "same"].map((status) => [statuses.filter((other) => other === status).length, `modules ${status === "same" ? "the same" : status}`]);
  const parts = report.modules.find((pair) => pair.parts);
  const outputs = report.outputs.map((output) => [
    named(output.name, 60),
    element("span", { class: "value" }, visible(output.value)),
    small(output.mse),
    small(output.difference),
    small(output.tolerance),
    output.ok ? element("span", { class: "good" }, "agrees") : element("span", { class: "bad" }, visible(output.reason || "differs")),
  ]);
  const run = Object.entries(report.run).map(([name, sizes]) => `${name} ${sizes.join(" × ") || "scalar"}`);
  return [
    element("header", { class: "top" }, element("a", { class: "brand", href: "#overview" }, "onnx2nn", element("span", {}, "compare"))),
    element(
      "main",
      {},
      element(
        "section",
        { id: "overview" },
        element("h1", {}, named(report.left, 60), element("span", { class: "kind" }, "→"), named(report.right, 60), element("span", { class: `verdict ${ok ? "good" : "bad"}` }, ok ? "Outputs agree" : report.outputs.length ? "Outputs differ" : "Outputs not compared")),
        element("p", { class: "sub" }, visible(run.length ? `run on ${run.join(", ")}` : "")),
        element("div", { class: "tiles" }, tiles.map(([number, name]) => element("div", { class: "tile" }, element("b", {}, count(number)), element("span", {}, name)))),
        parts ? element("p", { class: "notice" }, "Values part at ", named(parts.path || "the outputs", 120), ": the first module whose result does not agree.") : null,
        report.notes.map((note) => element("p", { class: "notice" }, visible(note))),
        outputs.length ? table(["Output", "Type", "Mean square", "Largest difference", "Allowed", ""], outputs, { numeric: [2, 3, 4] }) : null,
      ),
      trees(),
    ),
  ];
}

document.getElementById("page").append(...page());
document.body.dataset.drawn = "true";
