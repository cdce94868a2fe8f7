// What the search of Sphinx lacks: a result leads to the section that is richest in the words, pages rank by
// how often they have them, and an excerpt is loaded only when its result is seen. Stands before the index.
(function () {
  "use strict";

  let wanted = new Set();

  const termsSearch = Search.performTermsSearch;
  Search.performTermsSearch = (terms, excluded) => {
    wanted = terms;
    return termsSearch(terms, excluded).map((item) => {
      const [page, title, , description, score, ...rest] = item;
      const { sections, words } = PLACES[page] ?? { words: {} };
      const found = [...terms].flatMap((term) => (Object.hasOwn(words, term) ? [words[term]] : []));
      if (!found.length) return item;
      const [, section] = found.reduce((least, own) => (own[0] < least[0] ? own : least)); // of the rarest word
      const [id, name] = sections[section];
      const more = found.reduce((sum, [count]) => sum + 5 * Math.log2(1 + count), 0);
      return [page, section ? `${title} > ${name}` : title, section ? `#${id}` : "", description, score + more, ...rest];
    });
  };

  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false; // Sphinx would load the page of every result
  const pages = new Map();
  const pageOf = ({ origin, pathname }) => {
    if (!pages.has(pathname)) pages.set(pathname, fetch(origin + pathname).then((answer) => answer.text()));
    return pages.get(pathname);
  };
  const watcher = new IntersectionObserver((changes) => {
    for (const { target, isIntersecting } of changes) {
      if (!isIntersecting) continue;
      watcher.unobserve(target);
      const link = target.querySelector("a");
      pageOf(link).then((html) => {
        const excerpt = Search.makeSearchSummary(html, wanted, link.hash);
        if (excerpt) target.append(excerpt);
      }, () => {}); // from a file there are no excerpts
    }
  });
  new MutationObserver((changes) => {
    for (const result of changes.flatMap((change) => [...change.addedNodes])) {
      if (result.nodeName === "LI" && result.closest("#search-results") && !result.querySelector(":scope > span")) watcher.observe(result);
    }
  }).observe(document, { childList: true, subtree: true });

  // A formula is plain text.
  const textOf = Search.htmlToText;
  Search.htmlToText = (html, anchor) => {
    const page = new DOMParser().parseFromString(html, "text/html");
    for (const formula of page.querySelectorAll(".katex")) {
      formula.replaceWith(formula.querySelector("math")?.getAttribute("alttext") ?? "");
    }
    return textOf(page.documentElement.outerHTML, anchor);
  };
})();
