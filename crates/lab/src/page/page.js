"use strict";
// Tables are sorted by their heads, or by what stands above them, and filtered by words and buttons.
for (const table of document.querySelectorAll("table.sorted")) {
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
  const compare = (a, b) => {
    const [x, y] = [a, b].map(cell => cell.dataset.key === undefined ? NaN : +cell.dataset.key);
    if (!isNaN(x) || !isNaN(y)) return isNaN(x) ? 1 : isNaN(y) ? -1 : x - y;
    return a.textContent.localeCompare(b.textContent, "en", {numeric: true});
  };
  const sort = (column, direction) => {
    heads.forEach(head => head.removeAttribute("aria-sort"));
    heads[column].setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
    body.append(...[...rows].sort((a, b) => direction * compare(a.cells[column], b.cells[column])));
  };
  heads.forEach((head, column) => {
    const turn = () => sort(column, head.getAttribute("aria-sort") === "ascending" ? -1 : 1);
    head.tabIndex = 0;
    head.addEventListener("click", turn);
    head.addEventListener("keydown", event => event.key === "Enter" && turn());
  });
  const tools = document.querySelector(`.tools[data-for="${CSS.escape(table.id)}"]`);
  if (!tools) continue;
  const find = tools.querySelector("input"), buttons = [...tools.querySelectorAll("button")];
  const show = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const pressed = buttons.find(button => button.getAttribute("aria-pressed") === "true");
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      const fits = !pressed || row.cells[+tools.dataset.column].textContent === pressed.dataset.value;
      row.hidden = !(fits && words.every(word => text.includes(word)));
    }
  };
  find.addEventListener("input", show);
  buttons.forEach(button => button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    buttons.forEach(other => other.setAttribute("aria-pressed", String(on && other === button)));
    show();
  }));
  tools.querySelector("select").addEventListener("change", event => sort(event.target.selectedIndex, 1));
}
