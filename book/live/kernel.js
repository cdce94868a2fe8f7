// Python in a worker: loads Pyodide, checks what it loads, and runs one cell after the other.
"use strict";

let python, kernel;

const say = (kind, rest = {}) => postMessage({ kind, ...rest });

/** From here on nothing is loaded from `place` that is not a named file with the named bytes. */
function checkLoads(place, files) {
  const load = self.fetch.bind(self);
  self.fetch = (resource, options = {}) => {
    const url = new URL(resource?.url ?? resource, place).href;
    if (!url.startsWith(place)) return load(resource, options);
    const file = files[url.slice(place.length)];
    if (!file) return Promise.reject(new Error(`${url} is not in the list of files`));
    const bytes = file.sha256.match(/../g).map((pair) => String.fromCharCode(parseInt(pair, 16)));
    return load(url, { integrity: `sha256-${btoa(bytes.join(""))}`, credentials: "omit" });
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

async function start({ place, files, lock, own, wheels, data, interrupt }) {
  checkLoads(place, files);
  const code = Promise.all(own.map(({ url }) => bytes(url)));
  const ours = Promise.all(wheels.map(({ url }) => bytes(url)));
  const read = Promise.all(data.map(async ({ path, url }) => ({ path, bytes: await bytes(url) })));
  const [{ loadPyodide }, { default: createPyodideModule }] = await Promise.all([
    imported(place + "pyodide.mjs"),
    imported(place + "pyodide.asm.mjs"),
  ]);
  python = await loadPyodide({
    indexURL: place,
    lockFileContents: lock,
    packageBaseUrl: place,
    packages: Object.keys(lock.packages),
    createPyodideModule,
    checkIntegrity: true,
  });
  python.FS.mkdirTree("/lib/live");
  const site = python.runPython("import site; site.getsitepackages()[0]");
  for (const wheel of await ours) python.unpackArchive(wheel, "wheel", { extractDir: site });
  for (const { path, bytes } of await read) {
    python.FS.mkdirTree(`${site}/${path.replace(/\/[^/]*$/, "")}`);
    python.FS.writeFile(`${site}/${path}`, new Uint8Array(bytes));
  }
  if (interrupt) python.setInterruptBuffer(interrupt);
  (await code).forEach((bytes, i) => python.FS.writeFile(`/lib/live/${own[i].name}`, new Uint8Array(bytes)));
  python.runPython("import sys; sys.path.append('/lib/live')");
  python.pyimport("matmul").quicken("/lib/live/loops.so");
  const send = (kind, name, text) => say(kind, { name, text });
  kernel = python.pyimport("kernel").Kernel(send);
}

onmessage = async ({ data }) => {
  try {
    if (data.kind === "start") {
      await start(data);
      say("ready");
    } else {
      const result = kernel.run(data.source);
      const found = result.toJs({ dict_converter: Object.fromEntries });
      result.destroy();
      say("done", found);
    }
  } catch (error) {
    say("broken", { text: String(error) });
  }
};
