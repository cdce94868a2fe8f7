// What a deck does beyond reveal.js: the reader's colours, sizes that fit, and the speaker's window.
(function () {
  "use strict";

  const asked = new URLSearchParams(location.search);
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const speaks = asked.has("speaker");

  // The book and its decks share what a reader has chosen by its switch.
  const chosen = () => {
    try {
      return localStorage.getItem("mode");
    } catch {
      return null;
    }
  };
  let mode = asked.get("mode") ?? chosen();
  const colour = () => (root.dataset.theme = mode === "dark" || (mode !== "light" && dark.matches) ? "dark" : "light");
  dark.addEventListener("change", colour);
  colour();

  // Letters are as large as what the slide shows allows, in three steps. All slides are laid out
  // for that, so that the fonts of their formulas are there.
  async function fit(slides) {
    for (const slide of slides) slide.style.cssText = "display: flex !important; visibility: hidden; width: 1280px";
    document.body.offsetHeight; // now the fonts begin to load
    await document.fonts.ready;
    for (const slide of slides) {
      const image = slide.querySelector("figure img");
      slide.classList.toggle("portrait", !!image && image.getAttribute("height") > 0.8 * image.getAttribute("width"));
      const boxes = [...slide.querySelectorAll(".shown, .shown pre")];
      const over = () => boxes.some((e) => e.scrollHeight > e.clientHeight + 1 || e.scrollWidth > e.clientWidth + 1);
      for (const step of [slide.querySelector("img, .lab-box") ? "usual" : "roomy", "usual", "full"]) {
        slide.classList.remove("roomy", "usual");
        slide.classList.add(step);
        if (!over()) break;
      }
      const pictures = [...slide.querySelectorAll(".lab-picture svg")];
      const size = () => Math.max(...pictures.map((svg) => svg.getScreenCTM()?.a ?? 0));
      const above = size();
      if (pictures.length && (slide.classList.add("lab-side"), over() || size() <= above)) slide.classList.remove("lab-side");
    }
    for (const slide of slides) slide.removeAttribute("style");
  }

  // In a figure or a cell the keys do what they do there; Page Up and Page Down turn the page.
  function turns(event) {
    const inside = event.target.closest?.(".lab-box, .live-tools, .live-foot, .live-editor, a, summary");
    return !inside || event.key.startsWith("Page") || event.key === "Escape";
  }

  addEventListener("DOMContentLoaded", async () => {
    const slides = [...document.querySelectorAll(".slides > section")];
    await fit(slides);
    for (const image of document.querySelectorAll("img[loading]")) image.loading = "eager"; // for paper

    const deck = new Reveal(document.querySelector(".reveal"), {
      width: 1280, height: 720, margin: 0, minScale: 0.1, maxScale: 4,
      center: false, display: "flex", hash: true, transition: "none", controls: !speaks, slideNumber: "c/t",
      embedded: speaks, keyboardCondition: turns, scrollActivationWidth: null,
      showNotes: asked.has("notes") ? "separate-page" : false, pdfMaxPagesPerSlide: 1,
    });
    await deck.initialize();

    // A slide shows the end of a result, and an error from its own end, which says the reason.
    new MutationObserver((changes) => {
      for (const output of new Set(changes.map(({ target }) => target.closest?.(".live-output")))) {
        if (!output) continue;
        if (output.querySelector(".traceback")) output.scrollTop = output.scrollHeight;
        const shown = output.closest(".shown");
        const below = output.getBoundingClientRect().bottom - shown.getBoundingClientRect().bottom;
        if (below > 0) shown.scrollTop += below / deck.getScale();
      }
    }).observe(deck.getSlidesElement(), { childList: true, subtree: true });

    const line = new BroadcastChannel(`slides ${location.pathname}`);
    line.onmessage = ({ data }) => data !== deck.getIndices().h && deck.slide(data);
    deck.on("slidechanged", ({ indexh }) => line.postMessage(indexh));

    const bind = (keyCode, key, description, does) => deck.addKeyBinding({ keyCode, key, description }, does);
    bind(83, "S", "Speaker's window", () => open(`${location.pathname}?speaker${location.hash}`, "speaker", "width=1200,height=800"));
    bind(68, "D", "Light or dark", () => {
      mode = root.dataset.theme === "dark" ? "light" : "dark";
      colour();
    });
    if (speaks) speaker(deck, slides);
  });

  function speaker(deck, slides) {
    root.classList.add("speaker");
    const page = document.querySelector(".speaker-page");
    page.hidden = false;
    const [time, next, said] = ["time", "next", "said"].map((name) => page.querySelector(`.speaker-${name}`));
    const show = () => {
      const { h } = deck.getIndices();
      next.textContent = slides[h + 1]?.querySelector("h2").textContent ?? "The end";
      said.innerHTML = slides[h].querySelector("aside").innerHTML;
      said.scrollTop = 0;
    };
    const began = Date.now();
    setInterval(() => {
      const minutes = Math.floor((Date.now() - began) / 60000);
      time.textContent = `${new Date().toTimeString().slice(0, 5)}, ${minutes} min`;
    }, 1000);
    deck.on("slidechanged", show);
    show();
    deck.layout();
  }
})();
