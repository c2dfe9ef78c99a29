/* What is known of the chosen module or call: facts, weights, nodes of the file, code. */

/** Returns the panel of a module, or of a call that is no module; `link(module)` returns a link to a module. */
function details(report, module, call, link) {
  const title = call ? call.label : module.path || module.kind;
  const kind = call ? { function: "call", weight: "weight", input: "input", output: "output" }[call.kind] || "call" : module.kind;
  const nodes = (call ? call.nodes : nodesOf(report, module)) || [];
  const weights = call ? [] : (module.weights || []).map((index) => report.weights[index]);
  return [
    element("header", {}, element("h3", {}, named(title, 80)), title === kind ? element("p", { class: "kind" }, "the model itself") : element("p", { class: "kind" }, named(kind, 80))),
    facts(report, module, call, link),
    weights.length
      ? section(plural(weights.length, "weight"), first(weights, 12, (some) => element("div", {}, some.map(weightCard)), "weights"))
      : null,
    nodes.length ? section(`${plural(nodes.length, "node")} of the file`, first(nodes, 30, (some) => nodeList(report, some), "nodes")) : null,
    !call && module.code != null ? section("Code", codeOf(report.programs[module.code])) : null,
  ];
}

function section(title, ...content) {
  return element("section", {}, element("h4", {}, title), content);
}

/** Returns the nodes of a module: those of its call, or of all calls inside of it. */
function nodesOf(report, module) {
  const own = [...(module.nodes || []), ...(module.calls || []).flatMap((call) => (call.module == null && call.nodes) || [])];
  return [...new Set(own)];
}

function facts(report, module, call, link) {
  const total = report.modules[0];
  const rows = call
    ? [
        ["Value", call.name !== call.label ? named(call.name, 60) : null],
        ["In", link(report.modules.indexOf(module))],
        ["Result", call.value ? named(call.value, 80) : null],
        ["Time", call.seconds != null ? seconds(call.seconds) : null],
      ]
    : [
        ["Arguments", module.detail ? named(module.detail, 200) : null],
        ["Result", module.value ? named(module.value, 80) : null],
        ["Parameters", module.parameters ? `${count(module.parameters)} (${percent(module.parameters / total.parameters)})` : null],
        ["Memory", module.bytes ? `${bytes(module.bytes)} (${percent(module.bytes / total.bytes)})` : null],
        ["Time", module.seconds != null ? `${seconds(module.seconds)} (${percent(module.seconds / total.seconds)})` : null],
      ];
  const known = rows.filter(([, value]) => value !== null);
  return element("dl", {}, known.map(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

function weightCard(weight) {
  const name = weight.key.split(".").pop();
  const spread =
    weight.elements === 1 && weight.least != null
      ? small(weight.least)
      : weight.least != null
      ? `${small(weight.least)} … ${small(weight.greatest)}, mean ${small(weight.mean)}, deviation ${small(weight.deviation)}`
      : "";
  const remarks = [
    weight.tied ? ["the same storage as ", named(weight.tied, 80)] : null,
    weight.zeros && weight.elements > 1 ? `${percent(weight.zeros / weight.elements)} zeros` : null,
    weight.not_finite ? element("strong", { class: "bad" }, plural(weight.not_finite, "element") + " not finite") : null,
    weight.found ? ["name restored: ", named(weight.found, 160)] : null,
  ].filter(Boolean);
  return element(
    "div",
    { class: "weight" },
    element(
      "p",
      { class: "head" },
      named(name, 40),
      element("span", { class: "value" }, visible(weight.value)),
      weight.role !== "parameter" ? element("span", { class: "tag" }, weight.role) : null,
    ),
    weight.histogram ? histogram(weight) : null,
    spread ? element("p", { class: "small" }, spread) : null,
    remarks.map((remark) => element("p", { class: "small" }, remark)),
  );
}

function histogram(weight) {
  const top = Math.max(...weight.histogram);
  const [width, height] = [320, 44];
  const step = width / weight.histogram.length;
  const bars = weight.histogram.map((number, i) => {
    const size = number ? Math.max((height * number) / top, 0.8) : 0;
    return `M${(i * step).toFixed(2)} ${height}v${(-size).toFixed(2)}h${(step - 1).toFixed(2)}v${size.toFixed(2)}z`;
  });
  const zero = (-weight.least / (weight.greatest - weight.least)) * width;
  return drawn(
    "svg",
    {
      class: "histogram",
      viewBox: `0 0 ${width} ${height}`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": `Histogram from ${small(weight.least)} to ${small(weight.greatest)}`,
    },
    drawn("path", { d: bars.join("") }),
    zero > 0 && zero < width ? drawn("path", { class: "zero", d: `M${zero.toFixed(1)} 0V${height}` }) : null,
  );
}

function nodeList(report, nodes) {
  return element(
    "ul",
    { class: "nodes" },
    nodes.map((index) => {
      const node = report.nodes[index];
      return element("li", {}, element("span", { class: "operator" }, named(node.operator, 40)), " ", named(node.name, 70));
    }),
  );
}

function codeOf(text) {
  return element("pre", { class: "code", tabindex: 0 }, text.split("\n").map((line) => visible(line) + "\n").join(""));
}
