// Keyboard and screen-reader repairs of what the theme writes.
(function () {
  "use strict";

  const SCROLLERS =
    ".bd-article pre, .bd-article .pst-scrollable-table-container, .bd-article div.math, " +
    ".bd-article div.amsmath, .bd-article mjx-container[display], .bd-article dl.py > dt, .bd-article .output";

  // What scrolls must be reachable without a mouse.
  function openToKeyboard() {
    for (const box of document.querySelectorAll(SCROLLERS)) {
      if (box.scrollWidth > box.clientWidth + 1) {
        box.tabIndex = 0;
      } else if (box.getAttribute("tabindex") === "0") {
        box.removeAttribute("tabindex");
      }
    }
  }

  // The entries of a bibliography are no list items, so their box is no list.
  function mendBibliography() {
    for (const list of document.querySelectorAll('.citation-list[role="list"]')) {
      list.removeAttribute("role");
    }
  }

  let waiting;
  function later() {
    clearTimeout(waiting);
    waiting = setTimeout(openToKeyboard, 150);
  }

  window.addEventListener("load", () => {
    mendBibliography();
    openToKeyboard();
    window.MathJax?.startup?.promise?.then(openToKeyboard);
    new ResizeObserver(later).observe(document.querySelector(".bd-article") || document.body);
    document.addEventListener("toggle", later, true);
    document.addEventListener("click", later);
  });
})();
