// Cells that run in the page. Nothing is loaded before the reader presses Run.
(function () {
  "use strict";

  const script = document.currentScript;
  const home = new URL(".", script.src).href;
  const version = `?v=${script.dataset.version}`;
  const page = script.dataset.page;
  const cells = [];
  const PLOTTING = /\b(matplotlib|pyplot|plots)\b/;
  const PREPARES = /^(from matplotlib import pyplot( as plt)?|import matplotlib\.pyplot as plt|from attnbook import [\w, ]+|plots\.use_style\(\))$/gm;
  /** Tell whether a cell needs Matplotlib at once. What it only prepares waits until another draws. */
  const draws = (text) => /plt|plot|draw/.test(text.replace(PREPARES, ""));

  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "onclick") element.addEventListener("click", value);
      else if (value !== undefined) element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }

  const fetched = async (name, as = "text") => {
    const response = await fetch(home + name + version).catch(() => {
      throw new Error(`${name} does not come from ${location.host}: are you online?`);
    });
    if (!response.ok) throw new Error(`${name}: ${response.status}`);
    return response[as]();
  };

  // ---------------------------------------------------------------- what the browser keeps

  const shelf = `attnbook answers ${page}`;

  function stored() {
    try {
      return JSON.parse(localStorage.getItem(shelf)) ?? {};
    } catch {
      return {};
    }
  }

  function store(id, change) {
    const all = stored();
    all[id] = { ...all[id], ...change };
    try {
      localStorage.setItem(shelf, JSON.stringify(all));
    } catch {
      python.tell("This browser keeps no answers: export them before you leave the page.");
    }
  }

  // ---------------------------------------------------------------- Python

  const python = {
    worker: null, // it holds all names
    ready: null, // a promise
    queue: [],
    current: null, // the cell that runs or waits for Python
    finish: null, // ends the wait for the worker's answer
    abort: null, // ends the wait for Python
    leash: null, // an address that the worker can read until the running cell is to stop
    plots: false, // whether a cell of the page draws

    tell(text) {
      bar.line.textContent = text;
      bar.box.hidden = false;
      bar.stand();
    },

    /** Tell what goes on, with a clock until something else is told. */
    wait(text, seconds = 0) {
      this.tell(text);
      bar.run(seconds);
    },

    start() {
      this.ready ??= Promise.race([this.load(), new Promise((_, reject) => (this.abort = reject))]);
      return this.ready;
    },

    async load() {
      if (location.protocol === "file:") throw new Error("Cells run when a server gives out the site, such as make serve.");
      const began = performance.now();
      const [settings, kernel] = await Promise.all([fetched("settings.json", "json"), fetched("kernel.js")]);
      const place = new URL(settings.place, home).href;
      const data = JSON.parse(script.dataset.files);
      this.plots = cells.some((cell) => PLOTTING.test(cell.text));
      const needed = Object.values(settings.files).filter((file) => this.plots || !file.draws);
      const size = (files) => `${Math.round(files.reduce((sum, file) => sum + file.bytes, 0) / 1e6)} MB`;
      this.wait(
        `Loading ${this.plots ? "Python, NumPy and Matplotlib" : "Python and NumPy"} (Pyodide ${settings.version}, ${size(needed)}) from ` +
          `${new URL(place).host}, attnbook and its writer (${size([...settings.wheels, ...data])}) from this site. The browser keeps them.`,
      );
      // A worker made from a blob has the Content-Security-Policy of this page.
      const address = URL.createObjectURL(new Blob([kernel], { type: "text/javascript" }));
      const worker = new Worker(address, { type: "module", name: "Python" });
      this.worker = worker;
      const all = [...needed, ...settings.wheels, ...data];
      let there = 0;
      await new Promise((resolve, reject) => {
        worker.onerror = (event) => reject(new Error(event.message || "The worker did not start."));
        worker.onmessage = ({ data: message }) => {
          if (message.kind === "broken") reject(new Error(message.text));
          else if (message.kind === "ready") resolve();
          else bar.progress((there += message.bytes), all.reduce((sum, file) => sum + file.bytes, 0));
        };
        const absolute = (file) => ({ ...file, url: new URL(file.url, home).href });
        worker.postMessage({
          ...settings, kind: "start", place, draws: this.plots,
          own: settings.own.map((path) => ({ path, url: home + path + version, bytes: 0 })),
          wheels: settings.wheels.map(absolute), data: data.map(absolute),
        });
      });
      URL.revokeObjectURL(address);
      worker.onmessage = ({ data: message }) => this.hear(message);
      this.tell(`Python is ready, after ${((performance.now() - began) / 1000).toFixed(1)} s.`);
    },

    hear(message) {
      if (message.kind === "broken") this.current?.show({ kind: "error", name: "Error", text: message.text });
      if (message.kind === "done" || message.kind === "broken") this.finish?.(message);
      else if (message.kind !== "progress") this.current?.show(message);
    },

    /** Run a cell when those before it have ended. */
    run(cell) {
      cell.mark("waits");
      return new Promise((resolve) => {
        this.queue.push({ cell, resolve });
        if (!this.current) this.work();
      });
    },

    async work() {
      while (this.queue.length) {
        const { cell, resolve } = this.queue.shift();
        this.current = cell;
        bar.busy(true);
        let end = { kind: "stopped" };
        try {
          await this.start();
          end = await this.perform(cell);
        } catch (error) {
          if (error) this.tell(`Python could not be loaded. ${error.message ?? error}`);
          this.terminate();
        }
        this.current = this.finish = null;
        bar.busy(false);
        cell.end(end);
        if (!end.ok) this.forget();
        resolve(end);
      }
    },

    async perform(cell) {
      const began = performance.now();
      const source = cell.text;
      this.leash = URL.createObjectURL(new Blob(["on"]));
      cell.begin();
      this.wait(`${cell.label} runs …`, cell.seconds);
      const end = await new Promise((resolve) => {
        this.finish = resolve;
        this.worker.postMessage({ kind: "run", source, leash: this.leash, draws: draws(source), soon: !!cell.box && this.plots });
      });
      URL.revokeObjectURL(this.leash);
      const seconds = ((performance.now() - began) / 1000).toFixed(1);
      const how = `${end.ok ? "ran" : "stopped with an error"}, ${seconds} s`;
      if (end.kind === "done") this.tell(`${cell.label} ${how}.`);
      return { ...end, source, how };
    },

    /** Drop what waits. */
    forget() {
      for (const { cell, resolve } of this.queue.splice(0)) {
        cell.mark("");
        resolve({ kind: "dropped" });
      }
    },

    /** End the worker, and with it all names. */
    terminate() {
      this.worker?.terminate();
      this.worker = this.ready = null;
      for (const cell of cells) {
        cell.ran = null;
        if (cell !== this.current) cell.mark(cell.waiting ? "waits" : "");
      }
      this.forget();
      this.abort?.();
      this.finish?.({ kind: "stopped" });
    },

    stop() {
      const { finish } = this; // of this run: none while Python loads
      const lose = () => {
        if (this.finish !== finish) return;
        this.terminate();
        this.tell("Stopped. All names are lost: run the cells above again.");
      };
      if (!finish) return lose();
      URL.revokeObjectURL(this.leash); // KeyboardInterrupt, unless the cell is inside a function that is not Python
      this.tell("Stopping …");
      setTimeout(lose, 3000);
    },

    restart() {
      this.terminate();
      this.tell("Restarted. No cell has run.");
    },
  };

  window.attnbookPython = python;

  // ---------------------------------------------------------------- the line at the foot of the page

  const bar = {
    box: null,
    line: null,
    build() {
      this.line = make("p", { role: "status" });
      this.stopper = make("button", { type: "button", onclick: () => python.stop() }, "Stop");
      this.again = make("button", { type: "button", onclick: () => python.restart() }, "Restart");
      this.clock = make("span", { class: "live-clock", "aria-hidden": "true" });
      this.meter = make("progress", { "aria-label": "Loaded", hidden: "" });
      const parts = [this.line, this.meter, this.clock, this.stopper, this.again];
      this.box = make("section", { class: "live-foot", "aria-label": "Python in this page" }, ...parts);
      this.box.hidden = true;
      this.stopper.hidden = true;
      document.body.append(this.box);
    },
    busy(yes) {
      this.stopper.hidden = !yes;
    },
    run(expected) {
      const began = Date.now();
      const show = () => {
        const seconds = Math.round((Date.now() - began) / 1000);
        this.clock.textContent = expected ? `${seconds} of about ${expected} s` : `${seconds} s`;
      };
      show();
      this.ticks = setInterval(show, 1000);
    },
    progress(there, all) {
      Object.assign(this.meter, { hidden: false, value: Math.min(there, all), max: all });
      if (there >= all) this.line.textContent = "All files are there. Python starts …";
    },
    stand() {
      clearInterval(this.ticks);
      this.clock.textContent = "";
      this.meter.hidden = true;
    },
  };

  // ---------------------------------------------------------------- cells

  class Cell {
    constructor(box, index) {
      this.box = box;
      this.id = box.id;
      this.answer = box.classList.contains("answer");
      this.input = box.querySelector(".cell_input");
      this.code = this.input.querySelector("pre");
      this.original = this.code.textContent.replace(/\n$/, "");
      this.recorded = box.querySelector(".cell_output");
      this.quiet = box.classList.contains("tag_remove-output");
      this.label = this.answer ? "Your answer" : `Cell ${index + 1}`;
      this.editor = null;
      this.text = this.original;
      this.seconds = Number(/\btag_page-seconds-(\d+)/.exec(box.className)?.[1] ?? 0); // where it is slow: measured
      this.ran = null; // the text that ran last in this state of Python
      this.how = ""; // and how that ended
      this.right = null; // the text of an answer that passed its check
      this.build(index);
      if (this.answer) this.recall();
    }

    build(index) {
      const button = (text, onclick, more = {}) => make("button", { type: "button", onclick, ...more }, text);
      this.runner = button("Run", () => this.press(), { class: "live-run" });
      this.above = button("Run all above", () => this.runAbove());
      this.changer = button("Edit", () => this.edit());
      this.resetter = button("Reset", () => this.reset());
      this.resetter.hidden = true;
      this.above.hidden = index === 0;
      this.state = make("span", { class: "live-state" });
      this.state.textContent = this.news();
      const buttons = [this.runner, this.above, this.changer, this.resetter];
      const name = make("span", { class: "live-name" }, this.label);
      this.tools = make("div", { class: "live-tools", role: "toolbar", "aria-label": this.label }, ...buttons, name, this.state);
      // One stop of the tab key; arrows move inside.
      for (const each of buttons.slice(1)) each.tabIndex = -1;
      this.tools.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (step) {
          const shown = buttons.filter((each) => !each.hidden);
          const next = shown[(shown.indexOf(document.activeElement) + step + shown.length) % shown.length];
          for (const each of buttons) each.tabIndex = each === next ? 0 : -1;
          next.focus();
        } else if (event.key === "Enter" && event.shiftKey) this.run();
        else return;
        event.preventDefault();
      });
      const folded = this.input.closest("details");
      const frame = folded && folded.contains(this.recorded) ? this.input : (folded ?? this.input);
      frame.after(this.tools);
      this.input.addEventListener("click", (event) => {
        if (!this.editor && !event.target.closest("button") && !String(getSelection())) this.edit();
      });
      this.output = null;
    }

    recall() {
      const { text, done, right } = stored()[this.id] ?? {};
      if (text !== undefined && text !== this.original) this.write(text);
      this.right = done ? (right ?? this.text) : null;
      this.markDone(done);
    }

    /** Replace the text, in the editor where there is one. */
    write(text) {
      this.text = text;
      if (this.editor) this.editor.set(text);
      else this.code.textContent = text + "\n";
      this.resetter.hidden = text === this.original;
    }

    changed(text) {
      this.text = text;
      this.resetter.hidden = text === this.original;
      if (!this.waiting && python.current !== this) this.mark("");
      if (this.answer) store(this.id, { text });
    }

    async edit() {
      if (this.editor || this.editing) return;
      this.editing = true;
      try {
        const { edit } = await import(`${home}codemirror.js${version}`);
        const place = make("div", { class: "live-editor" });
        const shown = this.code.closest("div.highlight").parentElement;
        this.editor = edit(place, {
          text: this.text,
          label: `${this.label}. Shift and Enter run it. Escape, then Tab, leaves the editor.`,
          changed: (text) => this.changed(text),
          run: () => this.run(),
        });
        shown.hidden = true;
        shown.before(place);
        this.changer.hidden = true;
        if (this.changer.tabIndex === 0) {
          this.changer.tabIndex = -1;
          this.runner.tabIndex = 0;
        }
        this.input.closest("details")?.setAttribute("open", "");
        this.editor.focus();
      } catch (error) {
        python.tell(`The editor could not be loaded. ${error.message}`);
      } finally {
        this.editing = false;
      }
    }

    reset() {
      this.write(this.original);
      if (this.answer) {
        store(this.id, { text: this.original, done: false });
        this.markDone(false);
      }
      if (this.output) {
        this.output.remove();
        this.output = null;
        if (this.recorded) this.place.append(this.recorded);
      }
      this.runner.focus();
    }

    press() {
      if (python.current === this) python.stop();
      else this.run();
    }

    run() {
      return this.waiting || python.current === this ? undefined : python.run(this);
    }

    /** Tell whether a task's answer has passed its check as it stands, so that it can do what the solution does. */
    get serves() {
      return this.answer && this.solution && this.text === this.right;
    }

    /** Run the cells above, from the first that has not run as it stands now, and this one if it had failed. */
    async runAbove() {
      const above = cells.slice(0, cells.indexOf(this));
      // After a solution, which may leave other names too, the reader's own answer: its names are those that count.
      const before = above.flatMap((cell) => (cell.answer ? [] : [cell, ...above.filter((a) => a.serves && a.solution === cell)]));
      const first = before.findIndex((cell) => cell.ran !== cell.text);
      if (first < 0) return python.tell("All cells above have run.");
      if (this.failed) before.push(this);
      const slow = before.slice(first).filter((cell) => cell.patience());
      if (slow.length && !this.asked) {
        this.asked = true;
        const all = slow.map((cell) => `${cell.label} takes ${cell.patience()}.`).join(" ");
        return python.tell(`${all} Press once more to run all above.`);
      }
      this.asked = false;
      return Promise.all(before.slice(first).map((cell) => cell.run()));
    }

    mark(state) {
      this.waiting = state === "waits";
      this.box.classList.toggle("live-busy", state !== "");
      this.state.textContent = state ? [state, this.patience()].filter(Boolean).join(", ") : this.news();
      this.runner.textContent = state ? "Stop" : "Run";
    }

    /** Say how the cell ran as it stands, or what is known before. */
    news() {
      return this.ran === this.text ? this.how : this.patience();
    }

    /** Say how long the cell runs, if that is long. */
    patience() {
      return this.seconds ? `about ${this.seconds} s in a browser` : "";
    }

    begin() {
      this.mark("runs");
      this.pictures = 0;
      const fresh = make("div", { class: "cell_output docutils container live-output" });
      const old = this.output ?? this.recorded;
      if (old?.parentElement) {
        fresh.style.minHeight = `${old.offsetHeight}px`; // so that the page does not jump
        this.place = old.parentElement;
        old.replaceWith(fresh);
      } else {
        this.place = this.tools.parentElement;
        this.tools.after(fresh);
      }
      this.output = fresh;
    }

    show({ kind, name, text }) {
      if (this.quiet && kind !== "error") return;
      if (kind === "stream") this.print(name, text);
      else if (kind === "error") {
        this.block("traceback", text);
        const above = cells.slice(0, cells.indexOf(this)).some((cell) => !cell.answer && cell.ran === null);
        if (name === "NameError" && above)
          this.output.append(make("p", { class: "live-hint" }, "Cells above have not run: “Run all above” runs them."));
      } else if (name === "image/png") this.picture(text);
      else if (name === "text/html") {
        const box = make("div", { class: "output text_html" });
        box.innerHTML = text;
        this.output.append(box);
      } else this.block("text_plain", text + "\n");
    }

    block(kind, text) {
      const box = make("pre", { tabindex: "0" }, text);
      this.output.append(make("div", { class: `output ${kind} highlight-none notranslate` }, make("div", { class: "highlight" }, box)));
      return box;
    }

    print(name, text) {
      const last = this.output.lastElementChild;
      if (last?.dataset.stream === name) last.querySelector("pre").append(text);
      else this.block(name === "stderr" ? "stderr stream" : "stream", text).closest(".output").dataset.stream = name;
    }

    picture(data) {
      const old = this.recorded?.querySelectorAll("img")[this.pictures++];
      const image = make("img", { src: `data:image/png;base64,${data}`, alt: "The picture that this cell draws." });
      if (old && this.text === this.original) image.alt = old.alt;
      const framed = old?.closest("figure") ?? old?.closest(".figure-frame");
      const figure = framed?.cloneNode(true) ?? make("span", { class: "figure-frame" }, make("img"));
      figure.querySelector("img").replaceWith(image);
      image.addEventListener("load", () => image.parentElement.style.setProperty("--width", `${image.naturalWidth}px`));
      this.output.append(figure);
    }

    end(result) {
      const began = this.state.textContent.startsWith("runs");
      if (this.output) this.output.style.minHeight = "";
      if (result.kind !== "done") {
        this.mark("");
        if (began) this.output.append(make("p", { class: "live-hint" }, "Stopped."));
        return;
      }
      Object.assign(this, { ran: result.source, how: `${result.ok && result.reports.every(Boolean) ? "✓ " : ""}${result.how}`, failed: !result.ok });
      this.mark("");
      if (this.answer) {
        const right = result.reports.length ? result.reports.every(Boolean) : result.asserts;
        if (result.ok && right) this.right = result.source;
        else if (this.right === result.source) this.right = null;
        store(this.id, { right: this.right });
        if (result.ok && right) {
          store(this.id, { text: result.source, done: true });
          this.markDone(true);
          if (!result.reports.length) this.output.append(make("p", { class: "live-hint" }, "✓ All that is asserted holds."));
        }
      }
    }

    /** Return the title of the task or the exercise. */
    get title() {
      let asked = this.box.previousElementSibling; // a cell that checks the answer may stand between
      while (asked && !asked.matches(".admonition")) asked = asked.previousElementSibling;
      return asked?.querySelector(".admonition-title");
    }

    markDone(done) {
      this.title?.querySelector(".live-done")?.remove();
      if (done) this.title?.append(make("span", { class: "live-done" }, "✓ done"));
    }
  }

  // ---------------------------------------------------------------- answers as files

  const answers = () => cells.filter((cell) => cell.answer);

  function save(name, type, text) {
    const address = URL.createObjectURL(new Blob([text], { type }));
    make("a", { href: address, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  }

  const IMPORT = /^(?:import .+|from \S+ import (?:\([^)]*\)|.+))$/gm;

  /** Return what the cells of the chapter import, for the answers are run elsewhere. */
  function imports() {
    const found = cells.filter((cell) => !cell.answer).flatMap((cell) => cell.original.match(IMPORT) ?? []);
    const names = "# Names that the chapter itself makes come from its notebook.";
    return [names, ...new Set(found)].join("\n");
  }

  /** Return the answers, each with the title of its exercise, or with the section and the title of its task. */
  function titled() {
    const words = (element) => element?.textContent.replace(/✓ done|#$/g, "").replace(/\s+/g, " ").trim() ?? "";
    const section = (cell) => words(cell.box.closest("section")?.querySelector("h2, h3"));
    return answers().map((cell) => [cell, [cell.solution ? section(cell) : "", words(cell.title)].filter(Boolean).join(". ")]);
  }

  function asPython() {
    const parts = titled().map(([cell, title]) => `# %% ${cell.id}\n# ${title}\n${cell.text}\n`);
    return [`# %%\n${imports()}\n`, ...parts].join("\n");
  }

  function asNotebook() {
    const lines = (text) => text.split(/(?<=\n)/);
    const code = (id, text, metadata = {}) => ({ cell_type: "code", execution_count: null, id, metadata, outputs: [], source: lines(text) });
    const parts = titled().flatMap(([cell, title], i) => [
      { cell_type: "markdown", id: `title-${i}`, metadata: {}, source: lines(`## ${title}`) },
      code(cell.id.slice(0, 64), cell.text, { attnbook: cell.id }),
    ]);
    const notebook = {
      cells: [code("imports", imports()), ...parts],
      metadata: { kernelspec: { display_name: "Python 3", language: "python", name: "python3" }, language_info: { name: "python" } },
      nbformat: 4,
      nbformat_minor: 5,
    };
    return JSON.stringify(notebook, null, 1);
  }

  /** Return the texts of a file by the id of the cell. */
  function parts(name, text) {
    if (name.endsWith(".ipynb")) {
      const own = JSON.parse(text).cells.filter((cell) => cell.metadata?.attnbook);
      return own.map((cell) => [cell.metadata.attnbook, [cell.source].flat().join("")]);
    }
    const titles = new Set(titled().map(([, title]) => `# ${title}`));
    return text.split(/^# %% /m).slice(1).map((part) => {
      const [id, ...rest] = part.split("\n");
      return [id.trim(), rest.slice(titles.has(rest[0])).join("\n").trim()];
    });
  }

  async function load(file) {
    let found;
    try {
      found = new Map(parts(file.name, await file.text()));
    } catch {
      return python.tell(`${file.name} is no notebook.`);
    }
    let count = 0;
    for (const cell of answers()) {
      if (!found.has(cell.id)) continue;
      cell.write(found.get(cell.id));
      store(cell.id, { text: cell.text, done: false });
      cell.markDone(false);
      count++;
    }
    python.tell(`${count} answers of this chapter were read from ${file.name}. Run them to see which are right.`);
  }

  function buildFiles() {
    const heading = document.querySelector("#exercises > h2") ?? document.getElementById("exercises");
    if (!heading || !answers().length) return;
    const button = (text, onclick) => make("button", { type: "button", onclick }, text);
    const input = make("input", { type: "file", accept: ".py,.ipynb", "aria-label": "Read answers from a file", hidden: "" });
    input.addEventListener("change", () => input.files[0] && load(input.files[0]).then(() => (input.value = "")));
    heading.after(
      make("div", { class: "live-files" }, "Your answers stay in this browser.",
        button("Export .py", () => save(`${page}_answers.py`, "text/x-python", asPython())),
        button("Export .ipynb", () => save(`${page}_answers.ipynb`, "application/x-ipynb+json", asNotebook())),
        button("Import", () => input.click()), input),
    );
  }

  document.addEventListener("DOMContentLoaded", () => {
    bar.build();
    for (const box of document.querySelectorAll(".cell.live")) cells.push(new Cell(box, cells.filter((c) => !c.answer).length));
    for (const [i, cell] of cells.entries()) if (cell.id.startsWith("answer-task")) cell.solution = cells[i + 1];
    buildFiles();
  });
})();
