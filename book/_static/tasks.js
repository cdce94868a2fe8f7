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

  // Where a link leads, and where a reader was before the page is loaded once more. A section that waits has a length
  // that is guessed, so all sections before the place are laid out first. What scripts and fonts change while the page
  // loads moves the place along, until the reader moves.
  const shelf = `attnbook place ${location.pathname}`;
  const MOVES = ["wheel", "touchstart", "pointerdown", "keydown"];
  const HEAD = 80; // below the bar along the top
  const LATE = 3000; // ms after the page is loaded in which something may still come

  let release = () => {};
  const named = (hash) => document.getElementById(decodeURIComponent(hash.slice(1)));
  const topOf = (element) => element.getBoundingClientRect().top;

  const blocksOf = (section) => [...(section?.children ?? [])].filter((each) => !each.matches(".live-files")); // which comes late

  function layOutTo(element) {
    for (let fold = element.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    for (const section of document.querySelectorAll(".bd-article section > section")) {
      if (!(section.compareDocumentPosition(element) & Node.DOCUMENT_POSITION_PRECEDING)) section.style.contentVisibility = "visible";
    }
  }

  /** Show a place, `above` pixels of it above the top or undefined for a link's, and stay there while the page loads. */
  function land(element, above) {
    layOutTo(element);
    const show = () => {
      if (above === undefined) element.scrollIntoView({ behavior: "instant" });
      else scrollTo({ top: scrollY + topOf(element) - HEAD + above, behavior: "instant" });
    };
    release();
    show();
    const watcher = new ResizeObserver(show);
    watcher.observe(document.querySelector(".bd-article"));
    release = () => {
      watcher.disconnect();
      for (const type of MOVES) removeEventListener(type, release, true);
    };
    for (const type of MOVES) addEventListener(type, release, true);
    const later = () => setTimeout(release, LATE);
    if (document.readyState === "complete") later();
    else addEventListener("load", later);
  }

  /** Return the place at the top of the screen: a section, the number of its block there, the pixels above. */
  function place() {
    const text = document.querySelector(".bd-article");
    const section = text && document.elementFromPoint(text.getBoundingClientRect().left + 40, HEAD)?.closest("section[id]");
    const block = blocksOf(section).findIndex((each) => each.getBoundingClientRect().bottom > HEAD);
    return block < 0 ? null : [section.id, block, HEAD - topOf(blocksOf(section)[block])];
  }

  addEventListener("pagehide", () => {
    try {
      sessionStorage.setItem(shelf, JSON.stringify(place()));
      history.scrollRestoration = "manual"; // the browser would count pixels
    } catch {} // a browser that keeps nothing begins at the top
  });

  /** Return what was at the top when the reader left the page, if this is a way back to it. */
  function before() {
    if (!["reload", "back_forward"].includes(performance.getEntriesByType("navigation")[0]?.type)) return null;
    try {
      return JSON.parse(sessionStorage.getItem(shelf));
    } catch {
      return null;
    }
  }

  listen.call(document, "DOMContentLoaded", () => {
    const [id, block, above] = before() ?? [];
    const last = blocksOf(document.getElementById(id))[block];
    const asked = named(location.hash);
    if (last) land(last, above);
    else if (asked?.closest(".bd-article")) land(asked);
  });
  addEventListener("pageshow", () => (history.scrollRestoration = "auto"));

  // Before the browser goes to a place of the page; where it does not tell, after it has gone.
  if (window.navigation) {
    navigation.addEventListener("navigate", ({ hashChange, navigationType, destination }) => {
      const asked = hashChange && navigationType !== "traverse" && named(new URL(destination.url).hash);
      if (!asked) return;
      release();
      layOutTo(asked);
    });
  }
  let isWhole = false; // until then what is still to come moves a place
  addEventListener("load", () => setTimeout(() => (isWhole = true), LATE));
  addEventListener("hashchange", () => {
    const asked = named(location.hash);
    if (asked && !(isWhole && window.navigation)) land(asked);
  });
})();
