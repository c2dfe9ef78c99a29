/* Elements from plain values. Text becomes text nodes and attributes, never markup. */

const SVG = "http://www.w3.org/2000/svg";

/** Returns an element; attributes that begin with "on" are listeners, null and false ones are left out. */
function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** Returns an element of SVG. */
function drawn(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** Characters that a reader cannot see, or that turn the direction of the text around them. */
const UNSEEN = /[\u0000-\u001f\u007f-\u00a0\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202f\u205f-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]/gu;

/** Returns a text of a file with unseen characters written as escapes. */
function visible(text) {
  return String(text).replace(UNSEEN, (sign) => "\\u" + sign.codePointAt(0).toString(16).padStart(4, "0"));
}

/** Returns a name of a file in an element of its own direction, shortened in its middle. */
function named(text, longest = 120, attributes = {}) {
  const whole = visible(text);
  const title = whole.length > longest ? whole.slice(0, 2000) : null;
  return element("bdi", { class: "name", title, ...attributes }, middle(whole, longest));
}

/** Returns a text without its middle where it is too long; both ends of a path tell the most. */
function middle(text, longest) {
  if (text.length <= longest) return text;
  const end = Math.floor((longest - 1) / 2);
  return text.slice(0, longest - 1 - end) + "…" + text.slice(text.length - end);
}

/** Returns a table: `head` may be null; rows are lists of cells; a cell is text, an element or a list of these. */
function table(head, rows, { numeric = [], className = "" } = {}) {
  const side = (index) => (numeric.includes(index) ? "number" : null);
  return element(
    "div",
    { class: "scroll" },
    element(
      "table",
      { class: className || null },
      head && element("thead", {}, element("tr", {}, head.map((cell, i) => element("th", { class: side(i), scope: "col" }, cell)))),
      element(
        "tbody",
        {},
        rows.map((row) => element("tr", {}, row.map((cell, i) => element("td", { class: side(i) }, cell)))),
      ),
    ),
  );
}

/** Returns what `make` gives for the first rows, and a button that shows the others. */
function first(rows, most, make, noun) {
  if (rows.length <= most) return make(rows);
  const holder = element("div", {}, make(rows.slice(0, most)));
  const all = () => holder.replaceChildren(make(rows));
  holder.append(element("button", { class: "more", onclick: all }, `Show all ${count(rows.length)} ${noun}`));
  return holder;
}
