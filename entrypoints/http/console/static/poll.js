/** Asking again and again, until a view is left. */

/** A server that is slow is asked less: it works a tenth of its time for a page at most. */
const REST = 9;

/**
 * @param {() => Promise<void>} refresh is not called while nobody sees the page
 * @param {AbortSignal} signal ends it
 * @param {number} ms between two calls, at least
 */
export function poll(refresh, signal, ms) {
  let timer = 0;
  const again = async () => {
    const started = performance.now();
    if (!document.hidden) await refresh();
    if (!signal.aborted) timer = setTimeout(again, Math.max(ms, (performance.now() - started) * REST));
  };
  timer = setTimeout(again, ms);
  const seen = () => !document.hidden && refresh();
  document.addEventListener("visibilitychange", seen, { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
}
