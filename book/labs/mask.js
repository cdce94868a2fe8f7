// Draw a mask: which inputs an output depends on after several layers, and where the future leaks in.

import { circle, clamp, group, line, listed, range, rect, stepOf, svg, text } from "./kit.js";

const WORDS = ["to", "be", "or", "not", "to", "be"];
const N = WORDS.length;
const MASKS = {
  causal: (i, j) => j <= i,
  window: (i, j) => j <= i && i - j <= 1,
  prefix: (i, j) => j <= i || j < 3,
  slip: (i, j) => j <= i + 1,
};

function maskOf(form) {
  return range(N).map((i) => range(N).map((j) => Number(MASKS[form](i, j))));
}

/* Which places of the layer below each place reads: those of the mask, and its own by the residual. */
function readBy(mask, places) {
  return range(N).filter((j) => places.some((i) => mask[i][j] || i === j));
}

function numbers({ mask, layers, chosen }) {
  // by layer, from the inputs to the outputs: the places on which an output depends
  const traceOf = (output) => {
    const trace = [[output]];
    for (let layer = 0; layer < layers; layer++) trace.unshift(readBy(mask, trace[0]));
    return trace;
  };
  const traces = range(N).map(traceOf);
  const reach = traces.map((trace) => range(N).map((j) => Number(trace[0].includes(j))));
  const leaks = reach.flatMap((row, i) => range(N).filter((j) => row[j] && j > i).map((j) => [i, j]));
  return { trace: traces[chosen], reach, leaks };
}

function layout(width) {
  const wide = width > 500, cell = 32;
  return {
    grid: { left: 40, top: 66, cell },
    graph: wide ? { left: 318, top: 66, width: width - 350, height: 160 } : { left: 22, top: 366, width: width - 44, height: 150 },
    height: wide ? 276 : 564,
  };
}

function grid({ mask, chosen, cursor }, { left, top, cell }) {
  return [
    text(0, 14, "Mask: who may look where", { class: "strong" }),
    text(left, top - 32, "key", { class: "minor" }),
    WORDS.map((word, j) => text(left + (j + 0.5) * cell - 1, top - 10, word, { anchor: "middle" })),
    mask.map((row, i) => [
      text(left - 10, top + i * cell + 20, WORDS[i], { anchor: "end", class: i === chosen ? "strong" : undefined }),
      row.map((on, j) => {
        const focus = cursor[0] === i && cursor[1] === j;
        const [x, y] = [left + j * cell, top + i * cell];
        const label = `query ${i}, ${WORDS[i]}, key ${j}, ${WORDS[j]}`;
        return group(
          { "data-part": `cell-${i}-${j}`, "data-drag": true, "data-focus": focus, tabindex: focus ? 0 : -1, role: "button", "aria-pressed": String(Boolean(on)), "aria-label": label },
          rect(x, y, cell - 2, cell - 2, { rx: 4, class: !on ? "fill-panel" : j > i ? "fill-orange" : "fill-blue" }),
          on && j > i ? text(x + cell / 2 - 1, y + 20, "!", { anchor: "middle", class: "strong on-orange" }) : "",
        );
      }),
    ]),
    text(left, top + N * cell + 16, "rows are queries; click or drag", { class: "minor" }),
  ];
}

function graph({ mask, layers, chosen }, { trace }, { left, top, width, height }) {
  const x = (j) => left + (j * width) / (N - 1), y = (layer) => top + height - (layer * height) / layers;
  const used = (layer, j) => trace[layer].includes(j);
  const pairs = range(N).flatMap((i) => range(N).map((j) => [i, j]));
  const edges = range(layers).map((layer) =>
    pairs.filter(([i, j]) => mask[i][j] || i === j).map(([i, j]) => {
      const on = used(layer + 1, i);
      const style = !on ? "grid" : j > i ? "line-orange" : "line-blue";
      return { on, markup: line(x(j), y(layer), x(i), y(layer + 1), { class: mask[i][j] ? style : `${style} dashed`, "stroke-width": on ? 2 : 1 }) };
    })).flat();
  return [
    text(left - (width > 330 ? 18 : 22), top - 52, `Through ${layers} ${layers === 1 ? "layer" : "layers"}: choose an output`, { class: "strong" }),
    edges.filter(({ on }) => !on).map(({ markup }) => markup),
    edges.filter(({ on }) => on).map(({ markup }) => markup),
    range(layers + 1).map((layer) => range(N).map((j) => nodeAt(x(j), y(layer), { layer, j, layers, chosen, on: used(layer, j) }))),
    WORDS.map((word, j) => {
      const seen = used(0, j), style = !seen ? "soft" : j > chosen ? "orange strong" : "blue strong";
      return [
        text(x(j), y(0) + 28, word, { anchor: "middle", class: style }),
        text(x(j), y(0) + 45, seen && j > chosen ? "leak" : "", { anchor: "middle", class: "orange minor" }),
      ];
    }),
  ];
}

function nodeAt(x, y, { layer, j, layers, chosen, on }) {
  const hue = on ? (layer === 0 && j > chosen ? "fill-orange" : "fill-blue") : "fill-paper";
  if (layer < layers) return circle(x, y, on ? 6 : 4, { class: `${hue} ${on ? "line-paper" : "axis"}` });
  const picked = j === chosen;
  return group(
    { "data-part": `output-${j}`, role: "button", tabindex: picked ? 0 : -1, "aria-pressed": String(picked), "aria-label": `output ${j}, ${WORDS[j]}` },
    circle(x, y, 14, { class: "reach" }),
    circle(x, y, picked ? 9 : 7, { class: picked ? "fill-blue line-paper" : "fill-paper line-soft" }),
    text(x, y - 18, WORDS[j], { anchor: "middle", class: picked ? "strong" : "soft" }),
  );
}

function draw(state, found, width) {
  const { grid: left, graph: right, height } = layout(width);
  return svg(width, height, grid(state, left), graph(state, found, right));
}

function says({ layers, chosen }, { reach, leaks }) {
  const seen = range(N).filter((j) => reach[chosen][j]);
  const through = `Through ${layers} ${layers === 1 ? "layer" : "layers"} the output at position ${chosen}, “${WORDS[chosen]}”, depends on ${seen.length === 1 ? "position" : "positions"} ${listed(seen)}.`;
  if (!leaks.length) return `${through} No output depends on a later position.`;
  const bad = range(N).filter((i) => leaks.some(([output]) => output === i));
  return `${through} The outputs at ${listed(bad)} depend on later positions: the mask leaks.`.replace(/outputs at (\d) depend/, "output at $1 depends");
}

/* Where a part "cell-2-3" stands. */
function cellOf(part) {
  return part?.startsWith("cell-") ? part.slice(5).split("-").map(Number) : undefined;
}

function painted(mask, [i, j], value) {
  return mask.map((row, r) => row.map((on, c) => (r === i && c === j ? value : on)));
}

function act({ mask, chosen, cursor, brush }, part, event) {
  const cell = cellOf(part);
  const step = event.kind === "key" && stepOf(event, 1, 1);
  if (!cell) {
    if (event.kind === "press") return { chosen: Number(part.slice("output-".length)) };
    return step && { chosen: clamp(chosen + step[0], 0, N - 1) };
  }
  if (event.kind === "down" || event.kind === "press") {
    const value = 1 - mask[cell[0]][cell[1]];
    return { mask: painted(mask, cell, value), form: "own", cursor: cell, brush: event.kind === "down" ? value : null };
  }
  const over = cellOf(event.over);
  if (event.kind === "drag" && over && brush !== null) return { mask: painted(mask, over, brush), cursor: over };
  if (event.kind === "up") return { brush: null };
  return step && { cursor: [clamp(cursor[0] - step[1], 0, N - 1), clamp(cursor[1] + step[0], 0, N - 1)] };
}

export const lab = {
  name: "mask",
  title: "Who sees whom",
  start: { form: "window", mask: maskOf("window"), layers: 3, chosen: 5, cursor: [0, 0], brush: null },
  controls: [
    {
      kind: "choice", key: "form", label: "Mask",
      options: [["causal", "causal"], ["window", "window of 2"], ["prefix", "prefix of 3"], ["slip", "one position too far"]],
      change: (form) => ({ mask: maskOf(form) }),
    },
    { kind: "slider", key: "layers", label: "Layers", min: 1, max: 4, step: 1 },
  ],
  numbers,
  draw,
  says,
  act,
};
