// The page's Python for a figure: live.js loads it when it is first asked for anything.

/* What runs in the place of a cell; it keeps what is printed. */
class Guest {
  constructor(label, text) {
    Object.assign(this, { label, text, seconds: 0, printed: "", error: "" });
  }

  mark() {}

  begin() {}

  end() {}

  show({ kind, name, text }) {
    if (kind === "error") this.error = text;
    else if (kind === "stream" && name === "stdout") this.printed += text;
  }
}

/* Run code after what waits, and return what its last line printed in JSON. */
export async function ask(label, source) {
  const guest = new Guest(label, source);
  const end = await globalThis.attnbookPython.run(guest);
  if (!end.ok) throw new Error(guest.error || "stopped");
  return JSON.parse(guest.printed.trim().split("\n").at(-1));
}
