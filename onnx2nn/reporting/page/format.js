/* Numbers as people read them. */

const THIN = "\u202f";

/** Returns a whole number, its thousands apart. */
function count(number) {
  return String(Math.round(number)).replace(/\B(?=(\d{3})+$)/g, THIN);
}

/** Returns a large number with three digits: 25.6 M. */
function large(number) {
  const units = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]];
  for (const [size, unit] of units) if (number >= size) return digits(number / size) + THIN + unit;
  return count(number);
}

/** Returns a size in bytes. */
function bytes(number) {
  const units = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];
  for (const [size, unit] of units) if (number >= size) return digits(number / size) + THIN + unit;
  return count(number) + THIN + "B";
}

/** Returns a time. */
function seconds(number) {
  if (number === null || number === undefined) return "";
  if (number >= 1) return digits(number) + THIN + "s";
  if (number >= 1e-3) return digits(number * 1e3) + THIN + "ms";
  return digits(number * 1e6) + THIN + "µs";
}

/** Returns a number of any size with three digits. */
function small(number) {
  if (number === null || number === undefined) return "–";
  if (number === 0) return "0";
  const size = Math.abs(number);
  if (size >= 1e-3 && size < 1e5) return digits(number).replace("-", "−");
  const [front, power] = number.toExponential(1).split("e");
  return `${front}e${power}`.replace("e+", "e").replaceAll("-", "−");
}

function digits(number) {
  const size = Math.abs(number);
  if (Number.isInteger(number) && size < 1000) return String(number);
  if (size >= 100) return count(number);
  return number.toPrecision(3);
}

/** Returns a share of 1 in percent. */
function percent(share) {
  if (!share) return "0" + THIN + "%";
  if (share < 0.001) return "<0.1" + THIN + "%";
  return (100 * share).toFixed(share < 0.0995 ? 1 : 0) + THIN + "%";
}

/** Returns a count with its noun. */
function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

const TYPES = { float: "f", bfloat: "bf", int: "i", uint: "u", complex: "c" };

/** Returns a type and shape in the notation of torch.fx: float32 [1, 64] as f32[1, 64]. */
function brief(value) {
  return value.replace(/\b(bfloat|float|uint|int|complex)(\d+) \[/g, (_, kind, bits) => `${TYPES[kind]}${bits}[`).replaceAll("bool [", "bool[");
}
