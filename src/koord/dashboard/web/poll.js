// Asks for a report again and again while its page is open and in sight, and hands on what changed.

export function poll(everySeconds, read, found) {
  let closed = false;
  let last = null;
  let timer = 0;

  async function turn() {
    if (closed) return;
    if (!document.hidden || last === null) {
      let result;
      try {
        result = await read();
      } catch (error) {
        result = { failure: error.message };
      }
      const text = JSON.stringify(result);
      if (!closed && text !== last) {
        last = text;
        found(result);
      }
    }
    if (!closed) timer = setTimeout(turn, everySeconds * 1000);
  }
  turn();
  return {
    close() {
      closed = true;
      clearTimeout(timer);
    },
  };
}
