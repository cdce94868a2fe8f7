// Keyboard and screen-reader repairs of what the theme writes.
(function () {
  "use strict";

  const SCROLLERS =
    ".bd-article pre, .bd-article .pst-scrollable-table-container, .bd-article div.math, " +
    ".bd-article div.amsmath, .bd-article mjx-container[display], .bd-article dl.py > dt, .bd-article .output, " +
    ".figure-frame";

  // What scrolls must be reachable without a mouse.
  function openToKeyboard() {
    for (const box of document.querySelectorAll(SCROLLERS)) {
      // a figure's frame may begin to scroll with no resize to tell, so on a phone it always counts
      const framed = box.matches(".figure-frame") && getComputedStyle(box).overflowX === "auto";
      if (framed || box.scrollWidth > box.clientWidth + 1) {
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

  // On a phone a figure keeps half its size and scrolls in its own frame, so that its text stays readable.
  function frameFigures() {
    for (const image of document.querySelectorAll(".bd-article figure > img")) {
      const frame = document.createElement("div");
      frame.className = "figure-frame";
      frame.style.setProperty("--natural-width", `${image.naturalWidth}px`);
      image.replaceWith(frame);
      frame.append(image);
    }
  }

  let waiting;
  function later() {
    clearTimeout(waiting);
    waiting = setTimeout(openToKeyboard, 150);
  }

  window.addEventListener("load", () => {
    mendBibliography();
    frameFigures();
    openToKeyboard();
    window.MathJax?.startup?.promise?.then(openToKeyboard);
    new ResizeObserver(later).observe(document.querySelector(".bd-article") || document.body);
    document.addEventListener("toggle", later, true);
    document.addEventListener("click", later);
  });
})();
