// The address of what is shown: the fragment of the URL, so that every view is a link.

/** Return the page's name and its parameters. */
export function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { page: path || "curves", parameters: Object.fromEntries(new URLSearchParams(query)) };
}

/** Return the fragment of a page; parameters without a value are left out. */
export function address(page, parameters = {}) {
  const given = Object.entries(parameters).filter(
    ([, value]) => value !== undefined && value !== null && value !== "" && value !== false,
  );
  const query = new URLSearchParams(given.map(([name, value]) => [name, String(value)]));
  return `#/${page}${given.length ? `?${query}` : ""}`;
}

/** Go to a page. */
export function go(page, parameters = {}) {
  location.hash = address(page, parameters);
}
