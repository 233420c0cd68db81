// Elements, tables and numbers: what every part of the page writes with.

export function h(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "class") node.className = value;
    else if (value === true) node.setAttribute(key, "");
    else node.setAttribute(key, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

const formats = new Map();
function format(digits) {
  if (!formats.has(digits)) {
    formats.set(digits, new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
  }
  return formats.get(digits);
}

export const minus = (text) => text.replace("-", "−");
export const whole = (value) => minus(format(0).format(value));
export const exact = (value) => (Number.isInteger(value) ? whole(value) : minus(String(value)));

// Three significant digits, as many as a picture can show; thousands separated.
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return minus(`${format(size >= 1e7 ? 1 : 2).format(value / 1e6)} M`);
  if (size >= 100 || Number.isInteger(value)) return whole(value);
  if (size < 0.1) return minus(String(+value.toPrecision(3)));
  return minus(format(size >= 10 ? 1 : size >= 1 ? 2 : 3).format(value));
}

// On axes room is scarce.
export const tick = (value) => (Math.abs(value) >= 1e4 && Math.abs(value) < 1e6 ? `${minus(String(+(value / 1e3).toPrecision(3)))} k` : number(value));

export function percent(share, digits = 0) {
  return share === null || share === undefined || Number.isNaN(share) ? "–" : `${minus(format(digits).format(100 * share))} %`;
}

// A share of very many pairs must not be rounded to all or none of them.
export function shareOf(share) {
  if (share !== null && share > 0 && share < 0.01) return "< 1 %";
  if (share !== null && share < 1 && share > 0.99) return "> 99 %";
  return percent(share);
}

export const plural = (count, one, many = `${one}s`) => `${whole(count)} ${count === 1 ? one : many}`;

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const dated = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });
export function time(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const date = new Date(1000 * seconds);
  return Math.abs(Date.now() - date) < 20 * 3600e3 ? clock.format(date) : `${(date.getFullYear() === new Date().getFullYear() ? day : dated).format(date)}, ${clock.format(date)}`;
}

export function span(seconds) {
  if (seconds < 60) return `${+seconds.toFixed(1)} s`;
  if (seconds < 3600) return `${+(seconds / 60).toFixed(1)} min`;
  if (seconds < 86400) return `${+(seconds / 3600).toFixed(1)} h`;
  return plural(Math.round(seconds / 86400), "day");
}

// Blocks are A, B, …, Z, AA, …: a letter says which one to those who cannot tell the colours.
export function letter(label) {
  if (label < 0) return label === -2 ? "?" : "–";
  return (label >= 26 ? letter(Math.floor(label / 26) - 1) : "") + String.fromCharCode(65 + (label % 26));
}
export const blockName = (label) => (label === -2 ? "those undecided" : label < 0 ? "no block" : `block ${letter(label)}`);

// The present colour of a token of the style sheet, as "rgb(…)": canvases cannot read tokens themselves.
const probe = h("i", { class: "hidden", "aria-hidden": "true" });
export function token(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}
export const faded = (colour, opacity) => colour.replace(/^rgba?\(([^,]+),([^,]+),([^,)]+).*$/, `rgba($1,$2,$3, ${opacity})`);
export const COLOURS = 8;
export const colourOf = (label) => token(label < 0 ? "--alone" : `--block-${label % COLOURS}`);

export function badge(label) {
  return h("span", { class: "badge", "data-block": label < 0 ? "none" : label % COLOURS }, letter(label));
}

// Columns: {title, value, text (default: number), bar (share of the row's width), wordy}.
// With `sort`, headings are buttons that call it, and `order` ({column, down}) says how rows are sorted.
export function table(caption, columns, rows, { empty = "Nothing yet.", order = null, sort = null } = {}) {
  const head = h("tr", {}, columns.map((column) => h("th", { scope: "col", class: column.wordy ? "wordy" : null, "aria-sort": order?.column === column ? (order.down ? "descending" : "ascending") : null },
    sort ? h("button", { type: "button", class: "plain", onclick: () => sort(column) }, column.title) : column.title)));
  const body = rows.map((row) =>
    h("tr", {}, columns.map((column, place) => {
      const value = column.value(row);
      const shown = column.text ? column.text(value, row) : typeof value === "number" ? number(value) : value ?? "–";
      const cell = h(place ? "td" : "th", place ? { class: column.wordy ? "wordy" : null } : { scope: "row" }, shown);
      if (column.bar) {
        const share = Math.max(0, Math.min(1, column.bar(row) || 0));
        const bar = h("span", { class: "bar", "aria-hidden": "true" });
        bar.style.setProperty("--share", share);
        cell.classList.add("barred");
        cell.prepend(bar);
      }
      return cell;
    })));
  if (!body.length) body.push(h("tr", {}, h("td", { colspan: columns.length, class: "wordy soft" }, empty)));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", { class: "hidden" }, caption), h("thead", {}, head), h("tbody", {}, body)));
}

// A picture's table twin, made when it is opened, and again when what it shows has changed.
export function twin(make, title = "As a table") {
  const place = h("div");
  const details = h("details", { class: "twin" }, h("summary", {}, title), place);
  const fill = () => details.open && place.replaceChildren(make());
  details.addEventListener("toggle", fill);
  return { details, renew: fill };
}

export function debounce(function_, wait) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => function_(...given), wait);
  };
}

export const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

// What a card offers to save, each kind with what makes it.
export function saving(title, kinds) {
  const buttons = Object.entries(kinds).map(([kind, onclick]) => h("button", { type: "button", class: "link", "aria-label": `${title} as ${kind}`, onclick }, kind));
  return h("span", { class: "save" }, "Save as ", ...buttons.flatMap((button, k) => (k ? [" · ", button] : [button])));
}

function save(blob, name) {
  const link = h("a", { href: URL.createObjectURL(blob), download: name.toLowerCase().replaceAll(" ", "-") });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

export const savePicture = (canvas, title) => canvas.toBlob((blob) => save(blob, `${title}.png`));

// CSV by RFC 4180; an apostrophe goes before a name that a spreadsheet would take for a formula.
export function saveTable(heads, rows, title) {
  const cell = (value) => {
    const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value ?? "");
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  save(new Blob([[heads, ...rows].map((row) => `${row.map(cell).join(",")}\n`).join("")], { type: "text/csv" }), `${title}.csv`);
}
