// What was spent and what may be, what was earned among what the data earned, and spending by step.
import { niceTicks, text } from "./mathematics.js";
import { colour, fitted } from "./scene.js";

const MARGIN = { left: 46, right: 40, top: 8, bottom: 20 };
const SMOOTHED = 20; // steps

export class Frame {
  constructor(canvas, [x0, x1], [y0, y1]) {
    Object.assign(this, fitted(canvas));
    const { left, right, top, bottom } = MARGIN;
    this.x = (value) => left + ((value - x0) / (x1 - x0 || 1)) * (this.width - left - right);
    this.y = (value) =>
      this.height - bottom - ((value - y0) / (y1 - y0 || 1)) * (this.height - top - bottom);
    this.range = { x0, x1, y0, y1 };
    this.axes();
  }

  axes() {
    const { context, range, x, y, width, height } = this;
    context.font = "11px system-ui, sans-serif";
    context.lineWidth = 1;
    context.strokeStyle = colour("grid");
    context.fillStyle = colour("ink-soft");
    context.textAlign = "right";
    for (const tick of niceTicks(range.y0, range.y1, 4)) {
      this.line([[range.x0, tick], [range.x1, tick]], { stroke: "grid" });
      context.fillText(text(tick), MARGIN.left - 5, y(tick) + 4);
    }
    context.textAlign = "center";
    for (const tick of niceTicks(range.x0, range.x1, width < 320 ? 3 : 5)) {
      context.fillText(text(tick), x(tick), height - 6);
    }
  }

  line(points, { stroke = "ink", width = 1, dash = [] } = {}) {
    const { context } = this;
    context.strokeStyle = colour(stroke);
    context.lineWidth = width;
    context.setLineDash(dash);
    context.beginPath();
    let isDown = false;
    for (const [a, b] of points) {
      if (b === null || b === undefined) isDown = false;
      else {
        context[isDown ? "lineTo" : "moveTo"](this.x(a), this.y(b));
        isDown = true;
      }
    }
    context.stroke();
    context.setLineDash([]);
  }

  area(points, fill, alpha) {
    const { context } = this;
    context.globalAlpha = alpha;
    context.fillStyle = colour(fill);
    context.beginPath();
    points.forEach(([a, b]) => context.lineTo(this.x(a), this.y(b)));
    context.fill();
    context.globalAlpha = 1;
  }

  write(words, a, b, { fill = "ink", align = "left", dx = 4, dy = 4 } = {}) {
    this.context.fillStyle = colour(fill);
    this.context.textAlign = align;
    this.context.fillText(words, this.x(a) + dx, this.y(b) + dy);
  }

  dot(a, b, fill, radius = 4.5) {
    const { context } = this;
    context.beginPath();
    context.arc(this.x(a), this.y(b), radius, 0, 2 * Math.PI);
    context.fillStyle = colour(fill);
    context.fill();
    context.lineWidth = 1.5;
    context.strokeStyle = colour("paper");
    context.stroke();
  }
}

export function drawBudget(canvas, about, frames, index) {
  // Spent (line), limit (dashes), what is forecast in all (dots), and the fan of what must be.
  const { marks, most } = about.constraints[index];
  const last = frames.at(-1);
  const limits = frames.map((frame) => frame.limit[index]);
  const forecasts = frames.map((frame) => forecastTotal(frame, index));
  const top = 1.06 * Math.max(marks[4].cost, last.spent[index], ...limits.slice(-1),
    Math.min(most, Math.max(...limits)));
  const plot = new Frame(canvas, [0, about.horizon], [0, top]);
  const present = [last.step, last.spent[index]];
  const fan = last.why?.least?.[index];
  if (fan && !last.end) {
    const at = (value) => [about.horizon, Math.min(2 * top, present[1] + value)];
    plot.area([present, at(fan[0]), at(fan[4])], "fan", 0.35);
    plot.area([present, at(fan[1]), at(fan[3])], "fan", 0.45);
    plot.write("least", about.horizon, Math.min(top, present[1] + fan[2]), { fill: "ink-soft" });
  }
  const points = (values) => frames.map((frame, place) => [frame.step, values[place]]);
  const inside = forecasts.map((value) => (value === null ? null : Math.min(value, top)));
  plot.line(points(inside), { stroke: "forecast", width: 1.5, dash: [2, 3] });
  plot.line(points(limits), { stroke: "limit", width: 2, dash: [7, 4] });
  plot.line([[last.step, limits.at(-1)], [about.horizon, limits.at(-1)]],
    { stroke: "limit", width: 1, dash: [7, 4] });
  plot.write("limit", about.horizon, limits.at(-1), { fill: "limit" });
  plot.line(points(frames.map((frame) => frame.spent[index])), { stroke: "spent", width: 2.5 });
  plot.dot(...present, isOver(last, index) ? "bad" : "spent");
}

export function forecastTotal(frame, index) {
  if (!frame.why?.forecast) return null;
  return frame.spent[index] - frame.cost[index] + frame.why.forecast[index];
}

export function isOver(frame, index) {
  return frame.spent[index] > frame.limit[index];
}

export function drawRate(canvas, about, frames, index) {
  // Cost of a step, a mean over twenty; and what each step to come may cost on average.
  const means = [];
  let total = 0;
  const costs = frames.map((frame) => frame.cost?.[index] ?? 0);
  costs.forEach((cost, place) => {
    total += cost - (place > SMOOTHED ? costs[place - SMOOTHED] : 0);
    means.push(place ? total / Math.min(place, SMOOTHED) : null);
  });
  const allowed = frames.map((frame) => {
    const left = about.horizon - frame.step;
    return left > 0 ? Math.max(0, frame.limit[index] - frame.spent[index]) / left : null;
  });
  const usual = about.constraints[index].most / about.horizon;
  const top = 1.1 * Math.max(usual, ...means.map((each) => each ?? 0));
  const plot = new Frame(canvas, [0, about.horizon], [0, top]);
  const points = (values) => frames.map((frame, place) => [frame.step, values[place]]);
  plot.line(points(allowed.map((each) => (each === null ? null : Math.min(each, top)))),
    { stroke: "limit", width: 1.5, dash: [7, 4] });
  plot.line(points(means), { stroke: "spent", width: 2 });
  const left = Math.min(top, allowed.at(-1) ?? 0);
  if (allowed.at(-1) !== null) {
    plot.line([[frames.at(-1).step, left], [about.horizon, left]],
      { stroke: "limit", width: 1, dash: [7, 4] });
    plot.write("left", about.horizon, left, { fill: "limit" });
  }
  if (means.at(-1) !== null) plot.dot(frames.at(-1).step, means.at(-1), "spent", 3.5);
}

export function drawFrontier(canvas, about, frames, index) {
  // Return against cost: the data's best within each limit, and this episode on its way.
  const { frontier, marks, most } = about.constraints[index];
  const last = frames.at(-1);
  const earned = frontier.map(([, value]) => value).filter((value) => value !== null);
  const low = Math.min(0, last.earned, ...frames.map((frame) => frame.earned), earned[0] ?? 0);
  const high = 1.08 * Math.max(last.earned, ...earned);
  const plot = new Frame(canvas, [0, 1.02 * Math.max(most, last.spent[index])], [low, high]);
  plot.line(frontier, { stroke: "ink-soft", width: 1.5 });
  for (const mark of marks) {
    if (mark.earned !== null) plot.dot(mark.cost, mark.earned, "ink-soft", 2.5);
  }
  const limit = last.limit[index];
  plot.line([[limit, low], [limit, high]], { stroke: "limit", width: 2, dash: [7, 4] });
  plot.line(frames.map((frame) => [frame.spent[index], frame.earned]), { stroke: "spent", width: 2 });
  plot.dot(last.spent[index], last.earned, isOver(last, index) ? "bad" : "spent");
}
