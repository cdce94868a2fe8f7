// What scripts do when the page is there, each does in a task of its own, so that a finger is answered between two.
(function () {
  "use strict";

  const listen = document.addEventListener;
  document.addEventListener = function (type, listener, ...rest) {
    const own = type === "DOMContentLoaded" ? (event) => setTimeout(() => listener.call(document, event)) : listener;
    return listen.call(document, type, own, ...rest);
  };
})();
