"use strict";
// Shows the values under the pointer, in all charts at once; arrow keys move from point to point.
(() => {
  const data = JSON.parse(document.getElementById("curve-data").textContent);
  const charts = [...document.querySelectorAll("svg.chart")];
  const readout = document.querySelector(".readout");
  if (!readout || data.steps.length === 0) return;
  const ln2 = Math.log(2);
  let at = data.steps.length - 1;

  const cursors = charts.map((chart) => {
    const line = document.createElementNS(chart.namespaceURI, "path");
    line.setAttribute("class", "cursor");
    chart.append(line);
    return line;
  });

  function show(index) {
    at = Math.min(Math.max(index, 0), data.steps.length - 1);
    const [step, loss, smooth, rate, norm] = data.steps[at];
    charts.forEach((chart, i) => {
      const { left, right, top, bottom } = chart.dataset;
      const x = +left + (right - left) * (step / data.last);
      cursors[i].setAttribute("d", `M${x} ${top}V${bottom}`);
    });
    let text = `step ${step}: loss ${smooth.toFixed(3)} nats (${(smooth / ln2).toFixed(3)} bits) smoothed, ` +
      `${loss.toFixed(3)} of the batch, learning rate ${rate.toPrecision(3)}, gradient norm ${norm.toPrecision(3)}`;
    const before = data.held_out.filter((each) => each[0] <= step && each[1] !== null).pop();
    if (before) text += `; held out ${before[1].toFixed(3)} after step ${before[0]}`;
    readout.textContent = text;
  }

  function nearest(chart, event) {
    const box = chart.getBoundingClientRect();
    const { left, right } = chart.dataset;
    const x = (event.clientX - box.left) * chart.viewBox.baseVal.width / box.width;
    const step = (x - left) / (right - left) * data.last;
    let best = 0;
    data.steps.forEach((each, i) => {
      if (Math.abs(each[0] - step) < Math.abs(data.steps[best][0] - step)) best = i;
    });
    return best;
  }

  for (const chart of charts) {
    chart.setAttribute("tabindex", "0");
    chart.addEventListener("pointermove", (event) => show(nearest(chart, event)));
    chart.addEventListener("pointerdown", (event) => show(nearest(chart, event)));
    chart.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 }[event.key];
      if (move === undefined) return;
      event.preventDefault();
      show(at + move);
    });
  }
  readout.textContent = "Move over a chart, or focus it and press an arrow key, to read its values.";
})();
