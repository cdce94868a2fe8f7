// Python in a worker: loads Pyodide, checks what it loads, and runs one cell after the other.
"use strict";

let python, kernel, site, ready; // `ready` is a promise of `python`
let drawing, installDrawing; // Matplotlib comes before the first cell that draws, or after the first of all

const say = (kind, rest = {}) => postMessage({ kind, ...rest });

/** What Pyodide looks at between two steps of Python: 2 interrupts. The page cannot reach a worker that computes, unless
    its host lets it share memory; but the worker can read an address that the page makes, until the page takes it back. */
const interrupt = {
  leash: null,
  looked: 0,
  get 0() {
    const now = performance.now();
    if (!this.leash || now - this.looked < 250) return 0;
    this.looked = now;
    const request = new XMLHttpRequest();
    request.open("GET", this.leash, false);
    try {
      request.send();
      return 0;
    } catch {
      return 2;
    }
  },
  set 0(_) {},
};

/** Fetch all that is needed at once, and say how much is there. From `place` nothing comes but the named files with the
    named bytes. */
function fetchEarly(place, files, needed) {
  const load = self.fetch.bind(self);
  const checked = (url) => {
    const file = files[url.slice(place.length)];
    if (!file) return Promise.reject(new Error(`${url} is not in the list of files`));
    const bytes = file.sha256.match(/../g).map((pair) => String.fromCharCode(parseInt(pair, 16)));
    return load(url, { integrity: `sha256-${btoa(bytes.join(""))}`, credentials: "omit" });
  };
  const get = async (url) => {
    const { host, pathname } = new URL(url);
    const name = pathname.slice(pathname.lastIndexOf("/") + 1);
    return (url.startsWith(place) ? checked(url) : load(url)).catch(() => {
      throw new Error(`${name} does not come from ${host}: the host cannot be reached, or the file is not the one that this page names.`);
    });
  };
  const early = new Map(needed.map(({ url }) => [url, get(url)]));
  for (const { url, bytes } of needed) early.get(url).then(() => say("progress", { bytes }), () => {}); // whoever asks for it sees the error
  self.fetch = (resource) => {
    const url = new URL(resource?.url ?? resource, place).href;
    const answer = early.get(url) ?? get(url);
    early.delete(url);
    return answer;
  };
}

/** Import a module whose bytes `fetch` has checked. */
async function imported(url) {
  const text = await (await fetch(url)).blob();
  const address = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
  try {
    return await import(address);
  } finally {
    URL.revokeObjectURL(address);
  }
}

async function bytes(url) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: ${response.status}`);
  return response.arrayBuffer();
}

/** Of a wheel, what no cell needs. */
const UNUSED = /\/(tests|include|sample_data|sphinxext|afm|pdfcorefonts|images|web_backend)\/|\.pyi$|\/$/;

/** Return the files of a wheel as [path, bytes], inflated by the browser. */
async function unpacked(url) {
  const wheel = await bytes(url);
  const view = new DataView(wheel);
  const short = (at) => view.getUint16(at, true);
  const long = (at) => view.getUint32(at, true);
  let end = wheel.byteLength - 22; // the end of the list of files, which stands behind them
  while (long(end) !== 0x06054b50) end--;
  const files = [];
  for (let at = long(end + 16), left = short(end + 10); left; left--) {
    const path = new TextDecoder().decode(new Uint8Array(wheel, at + 46, short(at + 28)));
    const start = long(at + 42);
    const packed = new Uint8Array(wheel, start + 30 + short(start + 26) + short(start + 28), long(at + 20));
    if (!UNUSED.test(path)) files.push(short(at + 10) ? inflated(packed).then((data) => [path, data]) : [path, packed]);
    at += 46 + short(at + 28) + short(at + 30) + short(at + 32);
  }
  return Promise.all(files);
}

async function inflated(packed) {
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function write(folder, files) {
  for (const [path, data] of files) {
    python.FS.mkdirTree(`${folder}/${path}`.replace(/\/[^/]*$/, ""));
    python.FS.writeFile(`${folder}/${path}`, data, { canOwn: true });
  }
}

/** Unpack wheels into Python's folder of packages. */
async function install(urls) {
  const wheels = await Promise.all(urls.map(unpacked));
  await ready;
  for (const files of wheels) write(site, files);
  python.pyimport("importlib").invalidate_caches();
}

async function load(place, lock) {
  const names = ["pyodide.mjs", "pyodide.asm.mjs"];
  const [{ loadPyodide }, { default: createPyodideModule }] = await Promise.all(names.map((name) => imported(place + name)));
  python = await loadPyodide({ indexURL: place, lockFileContents: lock, createPyodideModule });
  site = python.runPython("import site; site.getsitepackages()[0]");
}

async function start({ place, files, lock, own, wheels, data, draws }) {
  const ofPlace = Object.keys(files).filter((name) => draws || !files[name].draws);
  fetchEarly(place, files, [...ofPlace.map((name) => ({ ...files[name], url: place + name })), ...own, ...wheels, ...data]);
  const read = ({ path, url }) => bytes(url).then((buffer) => [path, new Uint8Array(buffer)]);
  const packages = (drawing) =>
    Object.keys(files).filter((name) => name.endsWith(".whl") && Boolean(files[name].draws) === drawing).map((name) => place + name);
  installDrawing = () => install(packages(true));
  ready = load(place, lock);
  const [code, records] = await Promise.all([
    Promise.all(own.map(read)),
    Promise.all(data.map(read)),
    install([...packages(false), ...wheels.map(({ url }) => url)]),
  ]);
  write(site, records);
  write("/lib/live", code);
  python.setInterruptBuffer(interrupt);
  python.runPython("import sys; sys.path.append('/lib/live')");
  python.pyimport("matmul").quicken("/lib/live/loops.so");
  kernel = python.pyimport("kernel").Kernel((kind, name, text) => say(kind, { name, text }));
}

/** Get Matplotlib ready, in steps between which a cell can run that does not draw. */
function readyToDraw() {
  const begin = async () => {
    await installDrawing();
    for (let step = 0; kernel.get_ready_to_draw(step); step++) await new Promise((resolve) => setTimeout(resolve));
  };
  drawing ??= begin().catch((error) => {
    drawing = undefined; // the next cell that draws tries again
    throw error;
  });
  return drawing;
}

onmessage = async ({ data }) => {
  try {
    if (data.kind === "start") {
      await start(data);
      say("ready");
    } else {
      if (data.draws) await readyToDraw();
      interrupt.leash = data.leash;
      const result = kernel.run(data.source);
      interrupt.leash = null;
      const found = result.toJs({ dict_converter: Object.fromEntries });
      result.destroy();
      say("done", found);
      if (data.soon) readyToDraw().catch(() => {}); // while the reader reads
    }
  } catch (error) {
    say("broken", { text: String(error) });
  }
};
