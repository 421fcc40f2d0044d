// Reads out the cell under the pointer. The page is complete without it.
for (const figure of document.querySelectorAll("figure[data-values]")) {
  const svg = figure.querySelector("svg");
  const out = figure.querySelector("output");
  const rows = JSON.parse(figure.dataset.rows);
  const cols = JSON.parse(figure.dataset.cols);
  const values = figure.dataset.values.split(" ");
  const ratios = figure.dataset.ratios.split(" ");
  const [left, top, width, height] = figure.dataset.cells.split(" ").map(Number);
  const idle = out.textContent;
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    const col = Math.floor(((event.clientX - box.left) * scale - left) / width);
    const row = Math.floor(((event.clientY - box.top) * scale - top) / height);
    if (row < 0 || col < 0 || row >= rows.length || col >= cols.length) {
      out.textContent = idle;
      return;
    }
    const at = row * cols.length + col;
    const value = values[at] === "-" ? "no number" : values[at] + " " + figure.dataset.unit;
    const ratio = ratios[at] === "-" ? "" : ", ratio " + (Number(ratios[at]) / 1000).toFixed(3);
    out.textContent = rows[row] + figure.dataset.joint + cols[col] + ": " + value + ratio;
  });
  svg.addEventListener("pointerleave", () => { out.textContent = idle; });
}
