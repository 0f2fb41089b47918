// A click on a heading sorts its table: by number where there is one, else by text.
const key = (cell) => [parseFloat(cell.textContent.replace(/^[^-+\d]*=\s*/, "")), cell.textContent];
const compare = (a, b) => (a[0] - b[0] || a[1].localeCompare(b[1], undefined, { numeric: true }));
document.addEventListener("click", ({ target }) => {
  const heading = target.closest("thead th"), body = heading?.closest("table").tBodies[0];
  if (!heading) return;
  const rising = heading.getAttribute("aria-sort") !== "ascending", column = heading.cellIndex;
  for (const other of heading.parentNode.cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", rising ? "ascending" : "descending");
  const rows = [...body.rows].map((row) => [key(row.cells[column]), row]);
  rows.sort(([a], [b]) => (rising ? compare(a, b) : compare(b, a)));
  body.append(...rows.map(([, row]) => row));
});
