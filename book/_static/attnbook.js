// What the theme leaves to do: the keyboard, contents that close, figures that grow, and printing.
(function () {
  "use strict";

  const SCROLLERS =
    ".bd-article pre, .bd-article .pst-scrollable-table-container, .bd-article div.math, " +
    ".bd-article dl.py > dt, .bd-article .output";

  // What scrolls must be reachable without a mouse. It is measured when it is near, for what is far
  // has no layout yet; so every change of a box, its first layout too, is watched.
  const near = new Set();
  let waiting;
  function openToKeyboard() {
    waiting = undefined;
    const scrolls = [...near].map((box) => [box, box.scrollWidth > box.clientWidth + 1]);
    near.clear();
    for (const [box, does] of scrolls) {
      if (does) box.tabIndex = 0;
      else if (box.getAttribute("tabindex") === "0") box.removeAttribute("tabindex");
    }
  }

  window.addEventListener("load", () => {
    const watcher = new ResizeObserver((changes) => {
      for (const change of changes) if (change.contentRect.width) near.add(change.target);
      waiting ??= setTimeout(openToKeyboard, 50);
    });
    for (const box of document.querySelectorAll(SCROLLERS)) watcher.observe(box);
  });

  // The contents of the page mark the last section whose heading has passed the top of the screen.
  document.addEventListener("DOMContentLoaded", () => {
    const links = [...document.querySelectorAll(".bd-toc-nav a.nav-link")];
    const shown = new Set();
    const watcher = new IntersectionObserver((changes) => {
      for (const { target, isIntersecting } of changes) {
        if (isIntersecting) shown.add(target.id);
        else shown.delete(target.id);
      }
      const here = links.filter((link) => shown.has(decodeURIComponent(link.hash).slice(1))).at(-1);
      if (here) for (const link of links) link.classList.toggle("active", link === here);
    }, { rootMargin: "0px 0px -60%" });
    for (const link of links) {
      const section = document.getElementById(decodeURIComponent(link.hash).slice(1));
      if (section) watcher.observe(section);
    }
  });

  // A button that unfolds is called by what it unfolds, and not all of them by one name.
  window.addEventListener("load", () => {
    for (const button of document.querySelectorAll(".toggle-button[aria-label]")) {
      const title = button.closest(".admonition-title")?.textContent.replace(/\s+/g, " ").trim();
      if (title) button.setAttribute("aria-label", `${title}: show or hide`);
    }
  });

  // A page that is opened as a file shows everything and moves nothing, for a browser loads no scripts from files.
  document.addEventListener("DOMContentLoaded", () => {
    const title = document.querySelector(".bd-article h1");
    if (location.protocol !== "file:" || !title || !document.querySelector("figure.lab, .cell.live")) return;
    const box = document.createElement("div");
    box.className = "admonition warning";
    box.innerHTML =
      "<p class='admonition-title'>This page is opened as a file</p><p>Cells do not run and figures do not move here, because a " +
      "browser loads their parts only from a server. In the folder that has <code>index.html</code>, run " +
      "<code>python -m http.server</code>, and open <code>localhost:8000</code>.</p>";
    title.after(box);
  });

  // On paper nothing can be unfolded, and nothing loads late.
  let folded = [];
  window.addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll(".bd-article details:not([open])")];
    for (const fold of folded) fold.open = true;
    for (const image of document.querySelectorAll("img[loading]")) image.loading = "eager";
  });
  window.addEventListener("afterprint", () => {
    for (const fold of folded) fold.open = false;
  });

  // On a narrow screen the contents lie over the page: they close when a link has been taken.
  document.addEventListener("click", (event) => {
    if (!event.target.closest(".bd-sidebar-primary a[href], .bd-sidebar-secondary a[href]")) return;
    const boxes = { primary: "(max-width: 991.98px)", secondary: "(max-width: 1199.98px)" };
    for (const [side, narrow] of Object.entries(boxes)) {
      const box = document.getElementById(`pst-${side}-sidebar-checkbox`);
      if (box && matchMedia(narrow).matches) box.checked = false;
    }
  });

  // A figure that is smaller than it was drawn grows by a tap, and then scrolls in its frame.
  function enlarge(frame) {
    const isLarge = frame.classList.toggle("enlarged");
    frame.setAttribute("aria-expanded", String(isLarge));
    if (!isLarge) frame.scrollLeft = 0;
  }
  window.addEventListener("load", () => {
    const watcher = new ResizeObserver((changes) => {
      for (const { target: image } of changes) {
        const frame = image.closest(".figure-frame");
        const isSmall = image.width > 0 && image.width < 0.9 * image.getAttribute("width");
        if (frame.classList.contains("enlarged") || frame.classList.contains("small") === isSmall) continue;
        frame.classList.toggle("small", isSmall);
        const given = { role: "button", tabindex: "0", "aria-expanded": "false", title: "Enlarge or reduce the figure" };
        for (const [name, value] of Object.entries(given)) {
          if (isSmall) frame.setAttribute(name, value);
          else frame.removeAttribute(name);
        }
      }
    });
    for (const image of document.querySelectorAll(".figure-frame img")) watcher.observe(image);
  });
  document.addEventListener("click", (event) => {
    const frame = event.target.closest(".figure-frame.small");
    if (frame) enlarge(frame);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    if (!event.target.matches?.(".figure-frame.small")) return;
    event.preventDefault();
    enlarge(event.target);
  });
})();
