/* Introduced and inherited error by node, on a logarithmic scale, as a few paths whatever the number of nodes. */

/** Returns the plot; `choose(error)` is called for a clicked node. */
function errorPlot(report, choose) {
  const errors = report.verified.nodes;
  const [width, height, left, right, top, bottom] = [1200, 280, 58, 12, 14, 30];
  const sizes = errors.flatMap((error) => [error.introduced, error.inherited]).filter((size) => size > 0);
  if (!sizes.length) return element("p", { class: "empty" }, "No node differs in any element.");
  const low = Math.floor(Math.log10(smallest(sizes)));
  const high = Math.max(Math.ceil(Math.log10(largest(sizes))), low + 1);
  const floor = height - bottom;
  const x = (index) => left + ((index + 0.5) * (width - left - right)) / errors.length;
  const y = (size) => (size > 0 ? top + ((high - Math.log10(size)) * (floor - 22 - top)) / (high - low) : floor - 6);
  const silent = errors.filter((error) => error.introduced === 0).length;
  const dots = (chosen) =>
    errors.map((error, i) => (error.introduced > 0 && chosen(error) ? `M${x(i).toFixed(1)} ${y(error.introduced).toFixed(1)}h0` : "")).join("");
  const step = Math.ceil((high - low) / 6);
  const lines = [];
  for (let power = low; power <= high; power += step) {
    const at = y(10 ** power).toFixed(1);
    lines.push(drawn("path", { class: "grid", d: `M${left} ${at}H${width - right}` }));
    lines.push(drawn("text", { class: "axis", x: left - 8, y: Number(at) + 4, "text-anchor": "end" }, `1e${String(power).replace("-", "−")}`));
  }
  lines.push(drawn("path", { class: "grid", d: `M${left} ${floor - 6}H${width - right}` }));
  lines.push(drawn("text", { class: "axis", x: left - 8, y: floor - 2, "text-anchor": "end" }, "0"));
  lines.push(drawn("text", { class: "axis", x: left, y: height - 8 }, "first node"));
  lines.push(drawn("text", { class: "axis", x: width - right, y: height - 8, "text-anchor": "end" }, `node ${count(errors.length)}`));
  const inherited = errors.map((error, i) => `${i ? "L" : "M"}${x(i).toFixed(1)} ${y(error.inherited).toFixed(1)}`).join("");
  const cursor = drawn("path", { class: "cursor" });
  const picture = drawn(
    "svg",
    { class: "plot", viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "img", "aria-label": "Introduced and inherited error by node" },
    lines,
    drawn("path", { class: "inherited", d: inherited }),
    cursor,
    drawn("path", { class: "introduced", d: dots((error) => error.ok && error.noise == null) }),
    drawn("path", { class: "introduced noisy", d: dots((error) => error.ok && error.noise != null) }),
    drawn("path", { class: "introduced wrong", d: dots((error) => !error.ok) }),
  );
  const told = element("p", { class: "told", "aria-live": "polite" });
  let current = -1;
  const tell = (index) => {
    current = Math.min(Math.max(index, 0), errors.length - 1);
    const error = errors[current];
    cursor.setAttribute("d", `M${x(current).toFixed(1)} ${top}V${floor}`);
    told.replaceChildren(
      element("span", { class: "operator" }, error.node !== null ? named(report.nodes[error.node].operator, 40) : ""),
      " ",
      named(error.node !== null ? report.nodes[error.node].name : error.output, 80),
      ` introduces ${small(error.introduced)}, inherits ${small(error.inherited)}`,
      error.noise != null ? `, its noise is ${small(error.noise)}` : "",
      error.reason ? `: ${visible(error.reason)}` : "",
    );
  };
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * width;
    tell(Math.floor(((at - left) / (width - left - right)) * errors.length));
  });
  picture.addEventListener("click", () => current >= 0 && choose(errors[current]));
  picture.addEventListener("keydown", (event) => {
    if (event.key === "ArrowRight" || event.key === "ArrowLeft") tell(current + (event.key === "ArrowRight" ? 1 : -1));
    else if (event.key === "Enter" && current >= 0) choose(errors[current]);
    else return;
    event.preventDefault();
  });
  told.append("Point at the plot, or use the arrow keys; a click shows the module.");
  return element(
    "figure",
    {},
    element(
      "figcaption",
      { class: "legend" },
      element("span", { class: "key introduced" }, "introduced by the node"),
      errors.some((error) => error.ok && error.noise != null) ? element("span", { class: "key noisy" }, "within the node's own noise") : null,
      errors.some((error) => !error.ok) ? element("span", { class: "key wrong" }, "over the threshold") : null,
      element("span", { class: "key inherited" }, "inherited from nodes before it"),
      element("span", { class: "unit" }, `${silent ? `${count(silent)} of ${count(errors.length)} introduce nothing · ` : ""}largest absolute difference of an element from ONNX Runtime`),
    ),
    picture,
    told,
  );
}

function smallest(numbers) {
  return numbers.reduce((a, b) => Math.min(a, b));
}

function largest(numbers) {
  return numbers.reduce((a, b) => Math.max(a, b));
}
