// Tables are sorted by a click on their headers, and figures show the values under the pointer.  Without scripts both are just shown.
for (const table of document.querySelectorAll("table.sorted")) {
  const headers = [...table.tHead.rows[0].cells];
  headers.forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    button.onclick = () => {
      const down = header.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      headers.forEach(other => other.removeAttribute("aria-sort"));
      header.setAttribute("aria-sort", down > 0 ? "ascending" : "descending");
      for (const run of runs(table)) {
        const end = run.at(-1).nextSibling;
        run.sort((one, other) => down * order(one, other, column)).forEach(body => table.insertBefore(body, end));
      }
    };
  });
}

// rows that belong together are one tbody; headings and averages stay where they are
function runs(table) {
  const found = [[]];
  for (const body of table.tBodies) body.className === "stays" ? found.push([]) : found.at(-1).push(body);
  return found.filter(run => run.length);
}

function order(one, other, column) {
  const [a, b] = [one, other].map(body => body.rows[0].cells[column]?.textContent.trim() ?? "");
  const [x, y] = [a, b].map(text => parseFloat(text.replace(/[,+]/g, "").replace("\u2212", "-")));
  if (!isNaN(x) && !isNaN(y) && x !== y) return x - y;
  if (isNaN(x) !== isNaN(y)) return isNaN(x) ? 1 : -1;
  return a.localeCompare(b);
}

for (const drawn of document.querySelectorAll(".drawn")) {
  const values = JSON.parse(drawn.querySelector("script").textContent), told = drawn.querySelector("output"), near = 18;
  const show = event => {
    const box = drawn.getBoundingClientRect();
    const away = values.map(([x, y]) => Math.hypot(x * box.width + box.left - event.clientX, y * box.height + box.top - event.clientY));
    const least = Math.min(...away);
    told.style.display = least < near ? "block" : "none";
    if (least >= near) return;
    const here = values.filter((_, place) => away[place] < least + 2), [x, y] = here[0];
    told.textContent = [...new Set(here.map(value => value[2]))].slice(0, 6).join("\n");
    told.style.inset = `${y < 0.5 ? `${y * 100 + 2}%` : "auto"} ${x < 0.5 ? "auto" : `${102 - x * 100}%`} ` +
      `${y < 0.5 ? "auto" : `${102 - y * 100}%`} ${x < 0.5 ? `${x * 100 + 2}%` : "auto"}`;
  };
  drawn.onpointermove = drawn.onpointerdown = show;
  drawn.onpointerleave = () => (told.style.display = "none");
}
