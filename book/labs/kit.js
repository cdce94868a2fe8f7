// What the figures that can be moved share: SVG as text, controls, keyboard, drag, live text.
//
// A figure is a module that exports `lab`:
//
//   title           its name on the page and for a screen reader
//   start           the state that it begins with: plain JSON values
//   controls        sliders, choices, buttons and fields of text, as `controlMarkup` below reads them
//   numbers(state)  everything that is shown, as numbers and lists; pure, compared with attnbook in the tests
//   draw(state, numbers, width)   the picture as text, made by `svg`; pure; `width` is one of WIDTHS
//   says(state, numbers)          one sentence, below the picture
//   act(state, part, event)       what a click, key or drag on a drawn part changes; may be left out
//   next(state)     a promise of the changes that follow by themselves, until it is one of nothing; may be left out
//
// A part is drawn with `data-part`, and with `data-drag` if it can be dragged. `event.kind` is
//
//   "press"  a click, Enter or Space       "down", "drag", "up"  a drag; `over` is the part below the pointer
//   "key"    any other key, as `key`       "enter", "leave"      a mouse over a part with `data-hover`
//
// with the place `x`, `y` in the picture and its `width`. `act`, and `change` of a button, return the
// changes to the state, or a promise of them, or nothing. What is drawn with `data-focus` takes the focus
// after a key. The same text runs without a page: book/_ext/labs.py draws the first picture with it.

export const WIDTHS = [340, 680];

/* Text */

export function escaped(words) {
  const names = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
  return String(words).replace(/[&<>"]/g, (sign) => names[sign]);
}

/* A number of a picture: two decimals are finer than a screen shows, and short. */
function short(value) {
  return typeof value === "number" ? String(Math.round(value * 100) / 100 || 0) : escaped(value);
}

/* An element; what is undefined, null or false is left out, and `true` stands for "" in an attribute. */
export function tag(name, attributes = {}, ...content) {
  const isThere = (value) => value !== undefined && value !== null && value !== false;
  const given = Object.entries(attributes).filter(([, value]) => isThere(value));
  const text = given.map(([key, value]) => ` ${key}="${value === true ? "" : short(value)}"`).join("");
  return `<${name}${text}>${content.flat(Infinity).filter(isThere).join("")}</${name}>`;
}

/* A number with a real minus sign. */
export function number(value, digits = 2) {
  const text = Math.abs(value).toFixed(digits);
  return (value < 0 && Number(text) !== 0 ? "−" : "") + text;
}

/* "a", "a and b", "a, b and c" */
export function listed(words) {
  return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}

/* Shapes */

export function svg(width, height, ...content) {
  return tag("svg", { viewBox: `0 0 ${short(width)} ${short(height)}`, width, height }, ...content);
}

/* Words at a place; `anchor` is start, middle or end. A figure's text is 13 px high unless its class says otherwise. */
export function text(x, y, words, attributes = {}) {
  const { anchor, ...others } = attributes;
  return tag("text", { x, y, "text-anchor": anchor, ...others }, escaped(words));
}

export function line(x1, y1, x2, y2, attributes = {}) {
  return tag("line", { x1, y1, x2, y2, ...attributes });
}

export function rect(x, y, width, height, attributes = {}) {
  return tag("rect", { x, y, width: Math.max(width, 0), height: Math.max(height, 0), ...attributes });
}

export function circle(cx, cy, r, attributes = {}) {
  return tag("circle", { cx, cy, r, ...attributes });
}

export function group(attributes, ...content) {
  return tag("g", attributes, ...content);
}

/* A line through points [x, y]. */
export function curve(points, attributes = {}) {
  return tag("polyline", { points: points.map((point) => point.map(short).join(",")).join(" "), fill: "none", ...attributes });
}

export function polygon(points, attributes = {}) {
  return tag("polygon", { points: points.map((point) => point.map(short).join(",")).join(" "), ...attributes });
}

/* A line with a head at its second end, `back` pixels before it. */
export function arrow(x1, y1, x2, y2, attributes = {}) {
  const { back = 0, head = 9, ...others } = attributes;
  const length = Math.hypot(x2 - x1, y2 - y1);
  if (length <= back + 1) return group(others);
  const [dx, dy] = [(x2 - x1) / length, (y2 - y1) / length];
  const [tipX, tipY] = [x2 - dx * back, y2 - dy * back];
  const size = Math.min(head, length - back);
  const [footX, footY] = [tipX - dx * size, tipY - dy * size];
  const side = size * 0.45;
  const points = [[tipX, tipY], [footX - dy * side, footY + dx * side], [footX + dy * side, footY - dx * side]];
  return group(others, line(x1, y1, footX, footY), polygon(points, { stroke: "none", class: "head" }));
}

/* How wide words are at most, about: for what must not touch. */
export function widthOf(words, size = 13) {
  return String(words).length * size * 0.58;
}

/* Numbers */

export function clamp(value, low, high) {
  return Math.min(Math.max(value, low), high);
}

/* The map of [a, b] to [c, d]; `back` is its inverse. */
export function scale([a, b], [c, d]) {
  const map = (value) => c + ((value - a) / (b - a)) * (d - c);
  map.back = (place) => a + ((place - c) / (d - c)) * (b - a);
  return map;
}

export function softmax(scores) {
  const most = Math.max(...scores);
  const exponentials = scores.map((score) => Math.exp(score - most));
  const sum = total(exponentials);
  return exponentials.map((e) => e / sum);
}

export function total(values) {
  return values.reduce((sum, value) => sum + value, 0);
}

export function dot(a, b) {
  return total(a.map((value, i) => value * b[i]));
}

/* 0, 1, …, n − 1 */
export function range(n) {
  return Array.from({ length: n }, (_, i) => i);
}

/* Parts that can be moved */

/* The attributes of a drawn button. */
export function pressable(part, label, pressed) {
  return { "data-part": part, role: "button", tabindex: 0, "aria-label": label, "aria-pressed": pressed === undefined ? undefined : String(pressed) };
}

/* A point that can be dragged, and moved by the arrow keys: [value] is one of its coordinates, `words` all. */
export function knob(x, y, part, label, words, value = 0) {
  return group(
    { class: "knob", "data-part": part, "data-drag": true, tabindex: 0, role: "slider", "aria-label": label, "aria-valuenow": value, "aria-valuetext": words },
    circle(x, y, 16, { class: "reach" }),
    circle(x, y, 8, { class: "grip" }),
  );
}

/* How far an arrow key moves something, [right, up], or nothing for another key; Shift goes far. */
export function stepOf(event, step = 1, far = 5) {
  const moves = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  return moves[event.key]?.map((way) => way * step * (event.shift ? far : 1));
}

/* The whole inside of a figure's box */

function controlMarkup(lab, control, i, state) {
  const at = { "data-control": i };
  const hidden = control.when && !control.when(state);
  const value = state[control.key];
  if (control.kind === "slider") {
    const { min, max, step } = control;
    const shown = (control.show ?? String)(value, state);
    return tag("label", { class: "lab-slider", hidden },
      tag("span", {}, escaped(control.label)), tag("span", { class: "lab-value" }, escaped(shown)),
      `<input${attributesOf({ ...at, type: "range", ...texts({ min, max, step, value }), "aria-valuetext": shown })}>`);
  }
  if (control.kind === "choice") {
    const options = control.options.map(([option, label], j) =>
      tag("label", {}, `<input${attributesOf({ ...at, type: "radio", name: `lab-${lab.name}-${control.key}`, value: j, checked: option === value })}>`, tag("span", {}, escaped(label))));
    return tag("fieldset", { class: "lab-choice", hidden }, tag("legend", {}, escaped(control.label)), tag("div", {}, options));
  }
  if (control.kind === "text") {
    return tag("label", { class: "lab-text", hidden },
      tag("span", {}, escaped(control.label)), `<input${attributesOf({ ...at, type: "text", value, autocomplete: "off", spellcheck: "false" })}>`);
  }
  return tag("button", { ...at, type: "button", hidden }, escaped(control.label));
}

/* As they are: a picture's two decimals would not do for a slider. */
function texts(values) {
  return Object.fromEntries(Object.entries(values).map(([key, value]) => [key, String(value)]));
}

function attributesOf(attributes) {
  return tag("x", attributes).slice(2, -5);
}

function picturesOf(lab, state, numbers, width) {
  return tag("div", { class: "lab-picture", "data-width": width }, lab.draw(state, numbers, width));
}

/* What stands in the box of a figure: the page is built with it, and `mount` makes it move. */
export function inside(lab) {
  const state = lab.start, numbers = lab.numbers(state);
  return [
    tag("div", { class: "lab-top" }, tag("strong", {}, escaped(lab.title)), tag("button", { class: "lab-reset", type: "button", disabled: true }, "Reset")),
    tag("fieldset", { class: "lab-controls", disabled: true, "aria-label": "Controls" }, (lab.controls ?? []).map((control, i) => controlMarkup(lab, control, i, state))),
    WIDTHS.map((width) => picturesOf(lab, state, numbers, width)),
    tag("p", { class: "lab-says", "aria-live": "polite" }, escaped(lab.says(state, numbers))),
  ].flat().join("");
}

/* Let a figure that stands in the page move. */
export function mount(box, lab) {
  let state = lab.start, dragged = null;
  const find = (selector) => [...box.querySelectorAll(selector)];
  const pictures = find(".lab-picture"), [says] = find(".lab-says"), [reset] = find(".lab-reset");

  function show(refocus) {
    const numbers = lab.numbers(state);
    for (const picture of pictures.filter((one) => one.getClientRects().length)) {
      const held = picture.contains(document.activeElement) && document.activeElement.dataset.part;
      become(picture, lab.draw(state, numbers, Number(picture.dataset.width)));
      const wanted = (refocus && picture.querySelector("[data-focus]")) || (held && partIn(picture, held));
      if (held && wanted && wanted !== document.activeElement) wanted.focus({ preventScroll: true });
    }
    (lab.controls ?? []).forEach((control, i) => {
      for (const input of find(`[data-control="${i}"]`)) showValue(input, control, state);
    });
    const words = lab.says(state, numbers);
    if (says.textContent !== words) says.textContent = words;
    says.style.minHeight = `${says.getBoundingClientRect().height}px`; // what stands below it moves once at most
    reset.disabled = JSON.stringify(state) === JSON.stringify(lab.start);
  }

  function change(changes, refocus) {
    if (!changes) return false;
    if (changes instanceof Promise) {
      box.setAttribute("aria-busy", "true");
      changes.then((found) => change(found, refocus)).finally(() => box.removeAttribute("aria-busy"));
      return true;
    }
    state = { ...state, ...changes };
    show(refocus);
    goOn();
    return true;
  }

  /* What follows by itself; where something else has happened meanwhile, it is asked for anew. */
  function goOn() {
    const before = state, following = lab.next?.(before);
    if (!following) return;
    box.setAttribute("aria-busy", "true");
    following.then((found) => {
      if (state !== before) return;
      box.removeAttribute("aria-busy");
      change(found);
    });
  }

  /* Tell the figure what happened to a part, and say whether it took it. */
  function tell(picture, part, kind, event) {
    const { left, top, width } = picture.firstElementChild.getBoundingClientRect();
    const unit = Number(picture.dataset.width) / width;
    const place = { x: (event.clientX - left) * unit, y: (event.clientY - top) * unit };
    const over = kind === "drag" ? partOf(document.elementFromPoint(event.clientX, event.clientY))?.dataset.part : undefined;
    const more = { kind, over, width: Number(picture.dataset.width), key: event.key, shift: event.shiftKey };
    return change(lab.act?.(state, part, { ...place, ...more }), kind === "key");
  }

  for (const picture of pictures) {
    picture.addEventListener("click", (event) => {
      const part = partOf(event.target);
      if (part && !("drag" in part.dataset)) tell(picture, part.dataset.part, "press", event);
    });
    picture.addEventListener("keydown", (event) => {
      const part = partOf(event.target);
      if (!part || event.ctrlKey || event.metaKey || event.altKey) return;
      const kind = event.key === "Enter" || event.key === " " ? "press" : "key";
      if (tell(picture, part.dataset.part, kind, event)) event.preventDefault();
    });
    picture.addEventListener("pointerdown", (event) => {
      const part = partOf(event.target);
      if (!part || event.button || !("drag" in part.dataset)) return;
      dragged = part.dataset.part;
      picture.setPointerCapture(event.pointerId);
      event.preventDefault();
      if (part.tabIndex >= 0) part.focus({ preventScroll: true });
      tell(picture, dragged, "down", event);
    });
    picture.addEventListener("pointermove", (event) => dragged && tell(picture, dragged, "drag", event));
    for (const end of ["pointerup", "pointercancel"]) {
      picture.addEventListener(end, (event) => {
        if (dragged) tell(picture, dragged, "up", event);
        dragged = null;
      });
    }
    for (const [name, kind] of [["pointerover", "enter"], ["pointerout", "leave"]]) {
      picture.addEventListener(name, (event) => {
        const part = event.target.closest("[data-hover]");
        if (part && !dragged && event.pointerType === "mouse") tell(picture, part.dataset.part, kind, event);
      });
    }
  }

  (lab.controls ?? []).forEach((control, i) => {
    for (const input of find(`[data-control="${i}"]`)) {
      if (control.kind === "button") input.addEventListener("click", () => change(control.change(state)));
      else input.addEventListener("input", () => change(changeOf(control, input, state)));
    }
  });
  reset.addEventListener("click", () => {
    state = lab.start;
    box.removeAttribute("aria-busy");
    show();
  });
  // A thing that is held must follow at once; otherwise changes glide.
  box.addEventListener("pointerdown", () => box.classList.add("lab-held"));
  for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => box.classList.remove("lab-held"));
  let width;
  new ResizeObserver(() => {
    if (width === box.clientWidth) return; // its height alone has changed
    width = box.clientWidth;
    says.style.minHeight = "";
    show();
  }).observe(box);
  box.querySelector(".lab-controls").disabled = false;
  box.classList.add("lab-open");
}

function partOf(element) {
  return element?.closest?.("[data-part]");
}

function partIn(picture, name) {
  return [...picture.querySelectorAll("[data-part]")].find((part) => part.dataset.part === name);
}

/* What a control changes; a choice or a slider may say more with `change`. */
function changeOf(control, input, state) {
  const value = control.kind === "slider" ? Number(input.value) : control.kind === "choice" ? control.options[input.value][0] : input.value;
  return { [control.key]: value, ...control.change?.(value, state) };
}

function showValue(input, control, state) {
  const value = state[control.key];
  if (control.when) input.closest(".lab-controls > *").hidden = !control.when(state);
  if (control.kind === "choice") input.checked = control.options[input.value][0] === value;
  else if (control.kind === "text" && input.value !== value) input.value = value;
  else if (control.kind === "slider") {
    const shown = (control.show ?? String)(value, state);
    input.value = value;
    input.setAttribute("aria-valuetext", shown);
    input.previousElementSibling.textContent = shown;
  } else if (control.kind === "button" && control.able) input.disabled = !control.able(state);
}

/* Make the inside of an element what `markup` says, and keep each node that can stay. */
function become(element, markup) {
  const fresh = document.createElement("div");
  fresh.innerHTML = markup;
  match(element, fresh);
}

function match(old, fresh) {
  const before = [...old.childNodes], after = [...fresh.childNodes];
  after.forEach((node, i) => {
    const was = before[i];
    if (!was) old.append(node);
    else if (was.nodeName !== node.nodeName) was.replaceWith(node);
    else if (node.nodeType === Node.TEXT_NODE) {
      if (was.data !== node.data) was.data = node.data;
    } else {
      const names = was.getAttributeNames();
      if (names.join() !== node.getAttributeNames().join()) names.forEach((name) => was.removeAttribute(name));
      for (const { name, value } of node.attributes) if (was.getAttribute(name) !== value) was.setAttribute(name, value);
      match(was, node);
    }
  });
  for (const was of before.slice(after.length)) was.remove();
}
