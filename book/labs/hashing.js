// Hyperplane tables on a circle: what a query reads, what it misses, and how likely that is.

import { circle, clamp, curve, group, knob, line, number, polygon, range, rect, scale, stepOf, svg, tag, text } from "./kit.js";

const TURN = 2 * Math.PI;
const NEAR = 0.5; // radians: a key counts as near up to here, as in the chapter
const N_KEYS = 60;
const N_DRAWS = 200;

/* The numbers */

/* Numbers from 0 to 1 that are the same on every machine (Mulberry32). */
function random(seed) {
  let at = seed >>> 0;
  return () => {
    at = (at + 0x6d2b79f5) >>> 0;
    let t = Math.imul(at ^ (at >>> 15), at | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

function drawn(seed, n) {
  const next = random(seed);
  return range(n).map(next);
}

/* The normals of the planes, as angles, one list a table. More planes or tables come to those that are there. */
export function normals(draw, nTables, nPlanes) {
  return range(nTables).map((table) => drawn(1000 * draw + table, nPlanes).map((share) => TURN * share));
}

function signature(angle, planes) {
  return planes.reduce((sum, normal, j) => sum + (Math.cos(angle - normal) >= 0 ? 2 ** j : 0), 0);
}

/* The way from one angle to another, anticlockwise, from 0 to 2π. */
function ahead(from, to) {
  return (((to - from) % TURN) + TURN) % TURN;
}

/* How far the bucket of the query reaches on both sides: to the nearest planes. */
function reachOf(query, planes) {
  const edges = planes.flatMap((normal) => [normal + TURN / 4, normal - TURN / 4]);
  return [Math.min(...edges.map((edge) => ahead(edge, query))), Math.min(...edges.map((edge) => ahead(query, edge)))];
}

function chanceAt(angle, nTables, nPlanes) {
  return 1 - (1 - (1 - angle / Math.PI) ** nPlanes) ** nTables;
}

/* In which share of many draws each key has a bucket with the query in common. */
function sharesOf(query, keys, nTables, nPlanes) {
  const times = keys.map(() => 0);
  for (const draw of range(N_DRAWS)) {
    const reaches = normals(1000 + draw, nTables, nPlanes).map((planes) => reachOf(query, planes));
    const [right, left] = [0, 1].map((side) => Math.max(...reaches.map((reach) => reach[side])));
    keys.forEach((key, i) => {
      if (ahead(query, key) < left || ahead(key, query) < right) times[i] += 1;
    });
  }
  return times.map((n) => n / N_DRAWS);
}

function numbers({ planes: nPlanes, tables: nTables, draw, query }) {
  const keys = drawn(3, N_KEYS).map((share, i) => (TURN * (i + share)) / N_KEYS);
  const directions = normals(draw, nTables, nPlanes);
  const own = directions.map((planes) => signature(query, planes));
  const signatures = keys.map((key) => directions.map((planes) => signature(key, planes)));
  const met = signatures.map((row) => row.filter((code, table) => code === own[table]).length);
  const apart = keys.map((key) => Math.min(ahead(query, key), ahead(key, query)));
  const isNear = apart.map((angle) => angle <= NEAR);
  const count = (test) => range(N_KEYS).filter(test).length;
  return {
    keys, directions, own, signatures, met, apart, isNear,
    chances: apart.map((angle) => chanceAt(angle, nTables, nPlanes)),
    shares: sharesOf(query, keys, nTables, nPlanes),
    chanceNear: chanceAt(NEAR, nTables, nPlanes),
    chanceRight: chanceAt(Math.PI / 2, nTables, nPlanes),
    nRead: count((i) => met[i] > 0),
    nNear: count((i) => isNear[i]),
    nMissed: count((i) => isNear[i] && met[i] === 0),
  };
}

/* The picture */

const CENTRE = [170, 148], RADIUS = 118, RINGS = [38, 104];

function at(angle, radius) {
  return [CENTRE[0] + radius * Math.cos(angle), CENTRE[1] - radius * Math.sin(angle)];
}

/* A piece of a ring. */
function piece(from, to, inner, outer, attributes) {
  const steps = Math.max(2, Math.ceil((to - from) / 0.12));
  const arc = range(steps + 1).map((i) => from + ((to - from) * i) / steps);
  return polygon([...arc.map((angle) => at(angle, outer)), ...arc.reverse().map((angle) => at(angle, inner))], attributes);
}

/* The ring of a table: its buckets, that of the query blue. */
function ring(query, planes, inner, outer) {
  const edges = planes.flatMap((normal) => [ahead(query, normal + TURN / 4), ahead(query, normal - TURN / 4)]).sort((a, b) => a - b);
  const gap = Math.min(0.9 / inner, 0.02);
  return edges.map((edge, i) => {
    const next = i + 1 < edges.length ? edges[i + 1] : edges[0] + TURN; // the last piece holds the query
    if (next - edge < 3 * gap) return group({});
    const own = i + 1 === edges.length;
    return piece(query + edge + gap, query + next - gap, inner, outer, { class: own ? "fill-blue" : "fill-soft", "fill-opacity": own ? undefined : 0.22 });
  });
}

function keyMark(x, y, { isRead, isMissed }, small = 2.5) {
  if (isMissed) return circle(x, y, 5, { class: "fill-paper line-orange" });
  return isRead ? circle(x, y, 4.5, { class: "fill-blue" }) : circle(x, y, small, { class: "fill-soft" });
}

function kindOf(i, { met, isNear }) {
  return { isRead: met[i] > 0, isMissed: isNear[i] && met[i] === 0 };
}

function circlePanel({ query, tables }, found) {
  const thick = Math.min(15, (RINGS[1] - RINGS[0]) / tables);
  const marks = found.keys.map((key, i) => keyMark(...at(key, RADIUS), kindOf(i, found)));
  const [qx, qy] = at(query, RADIUS);
  const [labelX, labelY] = [CENTRE[0] + (RADIUS + 36) * Math.cos(query), CENTRE[1] - (RADIUS + 26) * Math.sin(query) + 4];
  return [
    piece(query - NEAR, query + NEAR, RADIUS - 10, RADIUS + 10, { class: "fill-orange", "fill-opacity": 0.16 }),
    found.directions.map((planes, table) => ring(query, planes, RINGS[1] - (table + 1) * thick + 1, RINGS[1] - table * thick)),
    line(...at(query, 10), qx, qy, { class: "line-orange" }),
    marks,
    text(labelX, labelY, "query", { class: "orange strong halo", anchor: "middle" }),
    knob(qx, qy, "query", "Direction of the query", `${number(query)} radians`, query),
  ];
}

/* What the marks mean, with their numbers. */
function countsOf({ nRead, nNear, nMissed }, left, top) {
  const rows = [
    [rect(left + 2, top - 6, 12, 12, { class: "fill-blue", rx: 2 }), "the query's bucket; each ring is a table"],
    [keyMark(left + 8, top + 22, { isRead: true }), `${nRead} of ${N_KEYS} keys read`],
    [keyMark(left + 8, top + 44, { isMissed: true }), `${nMissed} of ${nNear} near keys missed`],
  ];
  return rows.map(([mark, words], i) => [mark, text(left + 24, top + 22 * i + 4.5, words)]);
}

function chancePanel({ planes, tables }, found, { left, top, width, height }) {
  const x = scale([0, Math.PI], [left + 46, left + width - 12]), y = scale([0, 1], [top + height, top]);
  const points = range(64).map((i) => (Math.PI * i) / 63).map((angle) => [x(angle), y(chanceAt(angle, tables, planes))]);
  const ticks = [[0, "0"], [NEAR, "0.5"], [Math.PI / 2, "π/2"], [Math.PI, "π"]];
  const formula = tag("text", { x: left + 62, y: top - 34, class: "" }, "chance 1 − (1 − p", tag("tspan", { dy: -5 }, "κ"), tag("tspan", { dy: 5 }, ")"), tag("tspan", { dy: -5 }, "L"));
  return [
    text(left, top - 56, "Chance that a key is read, by its angle", { class: "strong" }),
    line(left + 34, top - 38.5, left + 56, top - 38.5, { class: "line-blue" }),
    formula,
    keyMark(left + 38, top - 20.5, { isRead: true }),
    keyMark(left + 52, top - 20.5, {}),
    text(left + 62, top - 16, `share of ${N_DRAWS} draws that read the key`),
    rect(x(0), top, x(NEAR) - x(0), height, { class: "fill-orange", "fill-opacity": 0.16 }),
    text((x(0) + x(NEAR)) / 2, top + height - 8, "near", { class: "minor", anchor: "middle" }),
    [0, 0.5, 1].map((share) => [
      line(x(0), y(share), x(Math.PI), y(share), { class: "grid" }),
      text(x(0) - 6, y(share) + 4, `${100 * share} %`, { class: "minor", anchor: "end" }),
    ]),
    ticks.map(([angle, label]) => text(x(angle), top + height + 17, label, { class: "minor", anchor: "middle" })),
    text(x(Math.PI), top + height + 34, "angle to the query, radians", { class: "minor", anchor: "end" }),
    curve(points, { class: "line-blue", "stroke-width": 2.5 }),
    found.apart.map((angle, i) => keyMark(x(angle), y(found.shares[i]), kindOf(i, found))),
  ];
}

function draw(state, found, width) {
  const wide = width > 500;
  const panel = wide ? { left: 360, top: 92, width: 320, height: 200 } : { left: 0, top: 452, width: 340, height: 160 };
  const counts = countsOf(found, 30, 300);
  return svg(width, wide ? 354 : panel.top + panel.height + 40, circlePanel(state, found), counts, chancePanel(state, found, panel));
}

function percent(share) {
  return `${(100 * share).toFixed(0)} %`;
}

function says({ planes, tables }, { nRead, nNear, nMissed, chanceNear, chanceRight }) {
  const missed = nMissed ? `misses ${nMissed} of the ${nNear} near ones` : `misses none of the ${nNear} near ones`;
  return `With κ = ${planes} and L = ${tables} the query reads ${nRead} of ${N_KEYS} keys and ${missed}. Over all draws, a key at 0.5 radians is read in ${percent(chanceNear)} of them, a key at a right angle in ${percent(chanceRight)}.`;
}

function turned(query) {
  return { query: Math.round(100 * ahead(0, query)) / 100 };
}

function act({ query }, part, event) {
  if (event.kind === "drag") return turned(Math.atan2(CENTRE[1] - event.y, event.x - CENTRE[0]));
  const step = event.kind === "key" && stepOf(event, 0.05, 5);
  return step && turned(query + step[1] - step[0]);
}

export const lab = {
  name: "hashing",
  title: "What the tables find",
  start: { planes: 4, tables: 3, draw: 47, query: 0.9 },
  controls: [
    { kind: "slider", key: "planes", label: "Planes of a table, κ", min: 1, max: 8, step: 1 },
    { kind: "slider", key: "tables", label: "Tables, L", min: 1, max: 12, step: 1 },
    { kind: "button", label: "Draw new planes", change: ({ draw }) => ({ draw: draw + 1 }) },
  ],
  numbers,
  draw,
  says,
  act,
};
