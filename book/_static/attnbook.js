// What the theme leaves to do: the keyboard, printing, and the search among formulas.
(function () {
  "use strict";

  const SCROLLERS =
    ".bd-article pre, .bd-article .pst-scrollable-table-container, .bd-article div.math, " +
    ".bd-article dl.py > dt, .bd-article .output, .bd-article .figure-frame";

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
      "<code>python -m http.server</code>, and open <code>http://localhost:8000</code>.</p>";
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

  // The search shows a formula as plain text.
  document.addEventListener("DOMContentLoaded", () => {
    if (typeof Search === "undefined" || !Search.htmlToText) return;
    const textOf = Search.htmlToText;
    Search.htmlToText = (html, anchor) => {
      const page = new DOMParser().parseFromString(html, "text/html");
      for (const formula of page.querySelectorAll(".katex")) {
        formula.replaceWith(formula.querySelector("math")?.getAttribute("alttext") ?? "");
      }
      return textOf(page.documentElement.outerHTML, anchor);
    };
  });
})();
