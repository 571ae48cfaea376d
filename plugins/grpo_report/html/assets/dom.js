// Elements, text and numbers. What a model or a verifier wrote enters the page as text nodes
// alone: nothing here parses HTML, and no caller may.

const MOST_PIECES = 2000; // marked characters and hits of one text; further ones are not styled

// Characters that a browser obeys, hides or cannot show. A line feed, a tab, and the joiners that
// emoji and many scripts need stay as they are.
const ODD = new RegExp(
  "(?:(?![\\n\\t])" +
    "(?!(?<=\\p{Extended_Pictographic}\\ufe0f?\\p{EMod}?)\\u200d\\p{Extended_Pictographic})" +
    "(?!(?<=(?![\\p{sc=Latin}\\p{sc=Greek}\\p{sc=Cyrillic}])[\\p{L}\\p{M}])[\\u200c\\u200d][\\p{L}\\p{M}])" +
    "[\\p{Cc}\\p{Cf}\\p{Cs}\\p{Co}\\p{Cn}\\p{Zl}\\p{Zp}\\u034f\\u115f\\u1160\\u3164\\uffa0])+",
  "gu",
);

const escaped = (characters) =>
  Array.from(characters, (character) => {
    const code = character.codePointAt(0);
    if (code < 256) return "\\x" + code.toString(16).padStart(2, "0");
    return code < 65536 ? "\\u" + code.toString(16).padStart(4, "0") : `\\u{${code.toString(16)}}`;
  }).join("");

/** Return a text in which every odd character is an escape, for titles and one-line places. */
export const visible = (text) => String(text).replace(ODD, escaped);

/** Make an element. Properties: `class`, `on` (listeners by event), and attributes. */
export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else if (name === "value" || name === "checked") node[name] = value;
    else node.setAttribute(name, value === true ? "" : visible(value));
  }
  append(node, children);
  return node;
}

/** Append nodes, texts and lists of them; null and false are left out. */
export function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    if (child instanceof Node) node.append(child);
    else appendText(node, String(child));
  }
}

/** Append untrusted text: odd characters as visible escapes, what is sought as <mark>. */
export function appendText(node, text, sought = "") {
  const quoted = sought.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const pattern = quoted ? new RegExp(`(${ODD.source})|(${quoted})`, "giu") : ODD;
  let end = 0;
  let pieces = 0;
  pattern.lastIndex = 0;
  for (const match of text.matchAll(pattern)) {
    if (++pieces > MOST_PIECES) break;
    if (match.index > end) node.append(text.slice(end, match.index));
    end = match.index + match[0].length;
    const hit = quoted && match[1] === undefined;
    const piece = document.createElement(hit ? "mark" : "span");
    piece.textContent = hit ? match[0] : escaped(match[0]);
    if (!hit) piece.className = "odd";
    node.append(piece);
  }
  if (end < text.length) node.append(visible(text.slice(end)));
}

/** Show a long text folded: the first `fold` characters, and a button for all the others. */
export function textBlock(text, { fold = 3000, sought = "", className = "text", label } = {}) {
  const block = el("pre", { class: className, tabindex: 0, role: "region", "aria-label": label });
  const hit = sought ? text.toLowerCase().indexOf(sought.toLowerCase()) : -1;
  // Some characters more are shown at once than folded, and a hit is never folded away.
  if (text.length <= fold * 1.2 || hit + sought.length > fold) {
    appendText(block, text, sought);
    return block;
  }
  appendText(block, text.slice(0, fold), sought);
  const button = el(
    "button",
    {
      type: "button",
      class: "more",
      on: {
        click: () => {
          button.remove();
          appendText(block, text.slice(fold), sought);
          block.focus();
        },
      },
    },
    `Show the other ${(text.length - fold).toLocaleString("en")} characters`,
  );
  return el("div", {}, block, button);
}

/** Return a number with three significant digits, or a dash where nothing was measured. */
export function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(digits - 1);
  return String(Number(value.toPrecision(Math.max(digits, Math.ceil(Math.log10(size))))));
}

export const percent = (share) =>
  share === null || share === undefined ? "–" : `${number(100 * share)} %`;

/** Make a table with a caption for screen readers; cells are nodes or texts. */
export function table(caption, titles, rows, properties = {}) {
  return el(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    el(
      "table",
      properties,
      el("caption", { class: "hidden" }, caption),
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          titles.map((title) => el("th", { scope: "col" }, title)),
        ),
      ),
      el(
        "tbody",
        {},
        rows.map((row) =>
          row instanceof Node
            ? row
            : el(
                "tr",
                {},
                row.map((cell) => el("td", {}, cell)),
              ),
        ),
      ),
    ),
  );
}

export const link = (href, ...children) => el("a", { href }, children);
export const heading = (text) => el("h1", { tabindex: -1 }, text);
export const badge = (kind, text, title) => el("span", { class: `badge ${kind}`, title }, text);

/** Make a button. */
export const button = (text, click, properties = {}) =>
  el("button", { type: "button", on: { click }, ...properties }, text);
