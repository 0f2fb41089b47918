// One lane: the drawing, what happened, its sliders, its plots, and why it acts as it does.
import { text } from "./mathematics.js";
import { drawBudget, drawFrontier, drawRate, forecastTotal, isOver } from "./plots.js";
import { drawingOf } from "./scene.js";

const BUDGET = ["Spent so far", "— spent, - - limit, ··· forecast, fan: least"];
const RATE = ["Spent by a step", "— mean of 20, - - what is left, evenly"];
const SETTLES = 1000; // ms until a slider that was moved follows the server again
const FRONTIER = ["Return by cost", "— episode, grey: data's best, - - limit"];

export function element(kind, attributes = {}, ...children) {
  const made = document.createElement(kind);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null) made.setAttribute(name, value);
  }
  made.append(...children); // strings become text, never markup
  return made;
}

export function verdict(about, frame) {
  // What has become of the limit, for those who see no colours too.
  const over = frame.limit.findIndex((_, index) => isOver(frame, index));
  const named = (index) => (frame.limit.length > 1 ? ` (${about.criteria[index]})` : "");
  const account = frame.limit
    .map((limit, index) => `${text(frame.spent[index])} of ${text(limit)}${named(index)}`)
    .join(" and ");
  const early = `ended early, at step ${frame.step} of ${about.horizon}`;
  if (frame.end === "early" && !about.may_end) {
    return { mark: "bad", words: `✕ Fell: ${early}, which it may not; spent ${account}` };
  }
  if (over >= 0) {
    const words = `✕ Limit passed${named(over)}: spent ${account}`;
    const end = frame.end === "early" ? `; it ${early}` : frame.end ? "; the episode is over" : "";
    return { mark: "bad", words: `${words}${end}` };
  }
  if (frame.end === "early") {
    return { mark: "good", words: `✓ Kept, but it ${early}, which it may: spent ${account}` };
  }
  if (frame.end) return { mark: "good", words: `✓ Kept: spent ${account}, episode over` };
  const lost = unkeepable(frame);
  if (lost >= 0 && about.rule === "feasible") {
    const need = `at least ${text(frame.why.cheapest[lost])} more, ${text(room(frame, lost))} left`;
    const words = `! Can no longer be kept${named(lost)}, as far as the data shows: ${need}`;
    return { mark: "warn", words };
  }
  if (lost >= 0) {
    return { mark: "warn", words: "! The critic forecasts an overrun, whatever is done" };
  }
  if (frame.why?.safe === 0) {
    return { mark: "warn", words: "! Only what is held back is left: it spends the least it can" };
  }
  return { mark: "good", words: `✓ Within: spent ${account}` };
}

function room(frame, index) {
  return Math.max(0, frame.limit[index] - frame.spent[index] + frame.cost[index]);
}

function unkeepable(frame) {
  if (frame.why?.safe !== 0) return -1;
  return frame.why.cheapest.findIndex((cost, index) => cost > room(frame, index));
}

function decider(why, candidates) {
  if (why.shield) return "the shield made the action cheaper";
  if (why.fallback) return "the fallback: no candidate was safe";
  if (why.safe === null) return "the agent itself: nothing is proposed";
  if (why.chosen === 0) return "the rule: the course that the actor expects";
  return `the rule: candidate ${why.chosen} of ${candidates}`;
}

export class LaneView {
  constructor(place, { onlimit = null } = {}) {
    this.place = place;
    this.onlimit = onlimit;
    this.frames = [];
    this.isDrawn = true;
  }

  show(about, frames) {
    this.about = about;
    this.frames = frames;
    this.build();
    this.refresh();
  }

  preview(scene, pose) {
    this.place.replaceChildren(
      element("div", { class: "verdict" }, "… loading the policy"),
      (this.canvas = element("canvas", { class: "scene", role: "img" })),
    );
    const drawing = drawingOf(this.canvas, scene, 1);
    drawing.draw([{ step: 0, pose, action: [] }]);
  }

  build() {
    const { about } = this;
    this.canvas = element("canvas", { class: "scene", role: "img", "aria-label": about.task });
    this.status = element("div", { class: "verdict", role: "status" });
    this.figures = element("dl", { class: "figures" });
    this.sliders = about.constraints.map((_, index) => this.slider(index));
    this.plots = about.constraints.flatMap((constraint, index) => [
      this.plot(BUDGET, constraint, index, drawBudget),
      this.plot(RATE, constraint, index, drawRate),
      this.plot(FRONTIER, constraint, index, drawFrontier),
    ]);
    this.why = element("dl", { class: "why" });
    this.place.replaceChildren(
      this.status,
      this.canvas,
      element("div", { class: "sliders" }, ...this.sliders.map((each) => each.whole)),
      this.figures,
      element("div", { class: "plots" }, ...this.plots.map((each) => each.whole)),
      element("section", {}, element("h3", {}, "Why this action"), this.why),
    );
    this.drawing = drawingOf(this.canvas, about.scene, about.horizon);
  }

  plot([title, legend], constraint, index, draw) {
    const several = this.about.constraints.length > 1;
    const canvas = element("canvas", { class: "plot", role: "img", "aria-label": title });
    const words = several ? `${title} (${constraint.name}) ` : `${title} `;
    const caption = element("figcaption", {}, words, element("small", {}, legend));
    return { whole: element("figure", {}, caption, canvas), canvas, index, draw };
  }

  slider(index) {
    const { marks, most, name } = this.about.constraints[index];
    const top = 1.05 * most;
    const move = (value) => this.onlimit?.(index, Number(value));
    const output = element("output", {});
    const input = element("input", {
      type: "range", min: 0, max: top, step: top / 1000, "data-constraint": index,
      "aria-label": `limit of ${name}`, disabled: !this.onlimit,
      oninput: (event) => {
        event.target.dataset.moved = performance.now();
        move(event.target.value);
      },
    });
    const ticks = element("div", { class: "ticks", "aria-hidden": "true" });
    let labelled = -Infinity;
    for (const mark of marks) {
      const share = (100 * mark.cost) / top;
      const isFree = share - labelled > 6; // percent of the width: labels do not overlap
      const tick = element("i", {}, isFree ? mark.name : "");
      tick.style.left = `${share}%`; // by script: the policy of the page allows no inline style
      if (isFree) labelled = share;
      ticks.append(tick);
    }
    const buttons = marks.map((mark) => element("button", {
      type: "button", disabled: !this.onlimit, "data-mark": mark.name,
      title: `${mark.name} of the data's costs: ${text(mark.cost)}; ` +
        `the best recorded within it earned ${text(mark.earned)}`,
      onclick: () => move(mark.cost),
    }, element("b", {}, mark.name), ` ${text(mark.cost)}`,
    element("small", {}, `earned ${text(mark.earned)}`)));
    const label = element("label", {}, "Budget ", output, element("small", {}, ` of ${name}`));
    const whole = element("div", { class: "budget" }, label, input, ticks,
      element("div", { class: "marks" }, ...buttons));
    return { whole, input, output, buttons, marks };
  }

  add(frame) {
    this.frames.push(frame);
    this.refresh();
  }

  limitMoved(limit) {
    const last = this.frames.at(-1);
    if (last) last.limit = [...limit];
    this.refresh();
  }

  refresh() {
    if (!this.isDrawn) return;
    this.isDrawn = false;
    requestAnimationFrame(() => {
      this.isDrawn = true;
      this.draw();
    });
  }

  draw() {
    const { about, frames } = this;
    const last = frames.at(-1);
    if (!last || !this.drawing) return;
    this.drawing.draw(frames);
    const { mark, words } = verdict(about, last);
    if (this.status.textContent !== words) this.status.textContent = words;
    this.status.className = `verdict ${mark}`;
    this.sliders.forEach(({ input, output, buttons, marks }, index) => {
      const limit = last.limit[index];
      // frames that were on their way when it was moved would put it back
      const isMoving = input.matches(":active") || performance.now() - input.dataset.moved < SETTLES;
      if (!isMoving) input.value = limit;
      output.textContent = text(limit);
      buttons.forEach((button, place) => {
        const isSet = Math.abs(limit - marks[place].cost) < 1e-6 * Math.max(1, limit);
        button.setAttribute("aria-pressed", isSet);
      });
    });
    this.plots.forEach(({ canvas, index, draw }) => draw(canvas, about, frames, index));
    fill(this.figures, this.facts(last));
    fill(this.why, this.reasons(last));
  }

  facts(last) {
    const { about } = this;
    const best = about.constraints.map(({ frontier }, index) =>
      frontier.findLast(([cost, earned]) => earned !== null && cost <= last.limit[index])?.[1]);
    const isKnown = best.every((each) => each !== undefined);
    const spent = last.limit.map((_, index) => text(last.spent[index])).join(", ");
    return [
      ["step", `${last.step} of ${about.horizon}`],
      ["spent", spent],
      ["limit", last.limit.map(text).join(", ")],
      ["return", text(last.earned)],
      ["data's best within", isKnown ? text(Math.min(...best)) : text(null)],
    ];
  }

  reasons(last) {
    const { why } = last;
    if (!why) return [["decided by", "nothing yet"]];
    const rows = [["decided by", decider(why, why.candidates)]];
    if (why.safe !== null) {
      const rounds = why.rounds > 1 ? `, after ${why.rounds} rounds` : "";
      rows.push(["safe", `${why.safe} of ${why.candidates} candidates${rounds}`]);
      const what = this.about.rule === "feasible" ? "at least, after it" : "usual course, after it";
      rows.push(["forecast", `${why.forecast.map(text).join(", ")} (${what})`]);
      rows.push(["in all", last.limit.map((_, index) => text(forecastTotal(last, index))).join(", ")]);
      rows.push(["held against", why.remaining.map(text).join(", ")]);
    }
    if (why.asked !== null) rows.push(["return asked for", text(why.asked)]);
    return rows;
  }
}

function fill(list, rows) {
  list.replaceChildren(...rows.flatMap(([name, value]) => [
    element("div", {}, element("dt", {}, name), element("dd", {}, value)),
  ]));
}
