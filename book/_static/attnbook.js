// What the theme leaves to do: the keyboard, printing, and the search among formulas.
(function () {
  "use strict";

  const SCROLLERS =
    ".bd-article pre, .bd-article .pst-scrollable-table-container, .bd-article div.math, " +
    ".bd-article dl.py > dt, .bd-article .output, .bd-article .figure-frame";

  // What scrolls must be reachable without a mouse.
  function openToKeyboard() {
    const boxes = [...document.querySelectorAll(SCROLLERS)];
    const scrolls = boxes.map((box) => box.scrollWidth > box.clientWidth + 1);
    boxes.forEach((box, i) => {
      if (scrolls[i]) {
        box.tabIndex = 0;
      } else if (box.getAttribute("tabindex") === "0") {
        box.removeAttribute("tabindex");
      }
    });
  }

  let waiting;
  function later() {
    clearTimeout(waiting);
    waiting = setTimeout(openToKeyboard, 150);
  }

  window.addEventListener("load", () => {
    openToKeyboard();
    new ResizeObserver(later).observe(document.querySelector(".bd-article") || document.body);
    document.addEventListener("toggle", later, true);
    document.addEventListener("click", later);
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
