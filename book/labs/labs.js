// Open each figure of the page that can be moved when it comes near; until then its picture stands there.
const watcher = new IntersectionObserver(
  (changes) => {
    for (const { target, isIntersecting } of changes) {
      if (!isIntersecting) continue;
      watcher.unobserve(target);
      open(target);
    }
  },
  { rootMargin: "600px" },
);

async function open(box) {
  const [{ mount }, { lab }] = await Promise.all([import("./kit.js"), import(`./${box.dataset.lab}.js`)]);
  mount(box, lab);
}

for (const box of document.querySelectorAll(".lab-box")) watcher.observe(box);
