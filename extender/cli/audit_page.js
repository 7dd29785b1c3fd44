// Fills the tables of an audit's page, a hundred rows at a time. Rows are arrays in the order of their columns.
"use strict";
const PAGE = 100;
const numbers = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

function shown(value, type) {
  if (value === null || value === "") return "";
  if (type === "bytes") {
    let unit = 0;
    while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
    return `${numbers.format(value)} ${units[unit]}`;
  }
  return type === "number" ? numbers.format(value) : String(value);
}

// A long word may break behind these characters too, and nowhere else.
function write(cell, text, type) {
  const parts = type === "name" || type === "long" ? text.split(/(?<=\S{12}[/@])/) : [text];
  parts.forEach((part, at) => {
    if (at) cell.append(document.createElement("wbr"));
    cell.append(part);
  });
}

function compare(one, other) {
  if (typeof one === "number" && typeof other === "number") return one - other;
  return one === other ? 0 : one < other ? -1 : 1;
}

function open(section, table) {
  const { columns, rows, sort } = table;
  const find = (name) => section.querySelector(`[data-part="${name}"]`);
  const texts = rows.map((row) => row.join("\n").toLowerCase());
  const longest = columns.map((_, at) => Math.max(0, ...rows.map((row) => String(row[at]).length)));
  const state = { by: sort, down: true, most: PAGE, order: [] };

  const draw = () => {
    const body = document.createElement("tbody");
    for (const index of state.order.slice(0, state.most)) {
      const line = document.createElement("tr");
      line.setAttribute("role", "row");
      columns.forEach((column, at) => {
        const cell = document.createElement("td");
        cell.setAttribute("role", "cell");
        cell.dataset.label = column.name;
        cell.className = column.type === "number" || column.type === "bytes" ? "number" : column.type;
        if (column.type === "name") cell.style.setProperty("--longest", `${longest[at]}ch`);
        write(cell, shown(rows[index][at], column.type), column.type);
        line.append(cell);
      });
      body.append(line);
    }
    body.setAttribute("role", "rowgroup");
    find("table").tBodies[0].replaceWith(body);
    const count = state.order.length;
    find("count").textContent = `${Math.min(count, state.most)} of ${count} shown, ${rows.length} in all`;
    find("more").hidden = count <= state.most;
  };

  const select = () => {
    const words = find("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const chosen = [...section.querySelectorAll("[data-column]")].filter((each) => each.value);
    state.order = [];
    for (let index = 0; index < rows.length; index += 1) {
      const fits = chosen.every((each) => String(rows[index][each.dataset.column]) === each.value);
      if (fits && words.every((word) => texts[index].includes(word))) state.order.push(index);
    }
    const sign = state.down ? -1 : 1;
    state.order.sort((one, other) => sign * compare(rows[one][state.by], rows[other][state.by]) || one - other);
    state.most = PAGE;
    draw();
  };

  const sortBy = (by, down) => {
    state.by = by;
    state.down = down;
    section.querySelectorAll("th").forEach((head, at) => {
      head.setAttribute("aria-sort", at === by ? (down ? "descending" : "ascending") : "none");
    });
    find("sort").value = `${by} ${down}`;
    select();
  };

  section.querySelectorAll("th button").forEach((button, at) => {
    button.addEventListener("click", () => {
      sortBy(at, state.by === at ? !state.down : columns[at].type === "number" || columns[at].type === "bytes");
    });
  });
  find("sort").addEventListener("change", (event) => {
    const [by, down] = event.target.value.split(" ");
    sortBy(Number(by), down === "true");
  });
  find("search").addEventListener("input", select);
  section.querySelectorAll("[data-column]").forEach((each) => each.addEventListener("change", select));
  section.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
  find("more").addEventListener("click", () => { state.most += PAGE; draw(); });
  sortBy(sort, true);
}

const data = JSON.parse(document.getElementById("data").textContent);
for (const name of Object.keys(data)) open(document.getElementById(name), data[name]);
