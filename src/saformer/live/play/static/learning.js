// A run that still learns: its losses, and what the episodes it plays meanwhile cost and earn.
import { element } from "./lane.js";
import { Frame } from "./plots.js";

const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3], [12, 4]];
const SIGNS = ["—", "- -", "···", "-·-", "— -"];

function panel(title, curves) {
  const legend = curves.map(({ name }, place) => `${SIGNS[place % SIGNS.length]} ${name}`).join(", ");
  const canvas = element("canvas", { class: "plot", role: "img", "aria-label": title });
  const caption = element("figcaption", {}, `${title} `, element("small", {}, legend));
  return { canvas, curves, whole: element("figure", {}, caption, canvas) };
}

function draw({ canvas, curves }) {
  const all = curves.flatMap(({ points }) => points);
  if (all.length === 0) return;
  const [updates, values] = [all.map(([update]) => update), all.map(([, value]) => value)];
  const sorted = [...values].sort((a, b) => a - b);
  const [low, high] = [sorted[0], sorted[Math.floor(0.98 * (sorted.length - 1))]];
  const room = 0.05 * (high - low || 1);
  const plot = new Frame(canvas, [0, Math.max(...updates)], [low - room, high + room]);
  curves.forEach(({ points }, place) => {
    const inside = points.map(([update, value]) => [update, Math.min(value, high + room)]);
    const style = { stroke: place ? "ink" : "spent", width: 1.6, dash: DASHES[place % DASHES.length] };
    plot.line(inside, style);
    if (points.length === 1) plot.dot(...points[0], "spent", 3);
  });
}

export function showLearning(place, event) {
  // The newest of a run's metrics.
  const { update, updates, done, phases, looks } = event;
  const state = done ? "finished" : "learning; each episode is played by the newest checkpoint";
  const panels = phases.map(({ name, curves }) => panel(`Loss of the ${name}`, curves));
  if (looks.length > 0) {
    const of = (what) => looks.map((look) => ({ name: look.name, points: look[what] }));
    panels.push(panel("Cost of looks, under limits", of("cost")));
    panels.push(panel("Return of looks, under limits", of("return")));
  }
  place.replaceChildren(
    element("h2", {}, `Update ${update} of ${updates ?? "?"} `, element("small", {}, state)),
    element("div", { class: "plots" }, ...panels.map((each) => each.whole)),
  );
  place.hidden = false;
  requestAnimationFrame(() => panels.forEach(draw));
}
