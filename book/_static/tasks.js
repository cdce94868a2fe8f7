// What scripts do when the page is there, each does in a task of its own, so that a finger is answered between two.
(function () {
  "use strict";

  const listen = document.addEventListener;
  document.addEventListener = function (type, listener, ...rest) {
    const own = type === "DOMContentLoaded" ? (event) => setTimeout(() => listener.call(document, event)) : listener;
    return listen.call(document, type, own, ...rest);
  };

  // Sections far from the screen wait (attnbook.css). When nothing else is to do they are laid out one by one, so that
  // the page gets its true length. They wait on in a phone, which is slow, and where a browser would let the text jump.
  addEventListener("load", () => {
    if (!matchMedia("(pointer: fine)").matches || !CSS.supports("overflow-anchor", "auto")) return;
    const waiting = [...document.querySelectorAll(".bd-article section > section")].reverse();
    const next = () => {
      const section = waiting.pop();
      if (!section) return;
      section.style.contentVisibility = "visible";
      section.getBoundingClientRect(); // now, in this task
      requestIdleCallback(next);
    };
    requestIdleCallback(next);
  });
})();
