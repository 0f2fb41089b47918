// The live page: talks to the server over one websocket, and hands frames to the lanes.
import { LaneView, element } from "./lane.js";
import { showLearning } from "./learning.js";
import { text } from "./mathematics.js";

const find = (id) => document.getElementById(id);
const lanes = find("lanes");
const state = { playing: false, seed: 0, speed: 20, runs: [], views: [], dt: null };
let socket = null;

function ask(message) {
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
}

function connect() {
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  socket = new WebSocket(`${scheme}://${location.host}/ws${location.search}`);
  socket.onmessage = ({ data }) => hear(JSON.parse(data));
  socket.onopen = () => say("");
  socket.onclose = () => {
    say("The server has gone: start `saformer play` again. Trying to reach it …");
    setTimeout(connect, 1500);
  };
}

const heard = {
  preview({ scene, pose }) {
    if (state.views.length === 0) viewOf(0).preview(scene, pose);
    find("run").textContent = "loading the policy …";
  },
  whole(event) {
    Object.assign(state, { runs: event.runs, views: [] });
    lanes.replaceChildren();
    event.lanes.forEach((lane, place) => {
      const view = viewOf(place);
      view.show(lane.about, [...lane.past, lane.frame]);
      view.place.prepend(header(place, lane.about));
    });
    lanes.dataset.count = event.lanes.length;
    const [first] = event.lanes;
    state.dt = first.about.scene.dt;
    find("run").textContent = `${first.about.task}, ${first.about.agent}`;
    find("second").checked = event.lanes.length > 1;
    heard.status(event);
    say("");
  },
  frames({ frames, measured }) {
    for (const frame of frames) state.views[frame.lane]?.add(frame);
    const real = state.dt ? ` = ${text(measured * state.dt)} × real time` : "";
    find("rate").textContent = `plays ${text(measured)} steps a second${real}`;
  },
  limit({ lane, limit }) {
    state.views[lane]?.limitMoved(limit);
  },
  status({ playing, seed, speed }) {
    Object.assign(state, { playing, seed, speed });
    find("start").textContent = playing ? "❚❚ Pause" : "▶ Start";
    find("start").setAttribute("aria-pressed", playing);
    if (document.activeElement !== find("seed")) find("seed").value = seed;
    find("speed").value = speed;
  },
  learning(event) {
    showLearning(find("learning"), event);
  },
  error({ text: words }) {
    say(words);
  },
};

function hear(event) {
  heard[event.type]?.(event);
}

function say(words) {
  find("message").textContent = words;
  find("message").hidden = words === "";
}

function viewOf(place) {
  while (state.views.length <= place) {
    const lane = state.views.length;
    const onlimit = (constraint, limit) => ask({ do: "limit", lane, constraint, limit });
    const section = element("section", { class: "lane", "aria-label": `lane ${lane + 1}` });
    lanes.append(section);
    state.views.push(new LaneView(section, { onlimit }));
  }
  return state.views[place];
}

function header(lane, about) {
  // Which run, by which rule, with which options: a change begins the episode again.
  const change = (changes) => ask({
    do: "act", lane, run: about.run, rule: about.rule, options: {}, shield: about.shield, ...changes,
  });
  const choose = (label, names, value, onchange) => {
    const options = names.map((name) => element("option", { selected: name === value }, name));
    return element("label", {}, `${label} `, element("select", {
      "data-choice": label, onchange: (event) => onchange(event.target.value),
    }, ...options));
  };
  const fields = about.rules[about.rule].map((option) => optionField(option, about, (value) =>
    change({ options: { ...about.options, [option.name]: value } })));
  const shield = element("label", {}, element("input", {
    type: "checkbox", checked: about.shield,
    onchange: (event) => change({ shield: event.target.checked }),
  }), " shield");
  const only = about.only_limit ? [element("span", {}, `trained for ${about.only_limit} alone`)] : [];
  return element("header", {},
    choose("run", state.runs, about.run, (run) => change({ run, rule: null, options: {} })),
    choose("rule", Object.keys(about.rules), about.rule, (rule) => change({ rule })),
    shield, ...only,
    element("details", {}, element("summary", {}, "options"), element("div", {}, ...fields)));
}

function optionField({ name, choices, whole }, about, onchange) {
  const value = about.options[name];
  if (choices) {
    const options = choices.map((each) => element("option", { selected: each === value }, each));
    return element("label", {}, `${name} `, element("select", {
      onchange: (event) => onchange(event.target.value),
    }, ...options));
  }
  return element("label", {}, `${name} `, element("input", {
    type: "number", value, step: whole ? 1 : "any", min: 0,
    onchange: (event) => onchange(Number(event.target.value)),
  }));
}

const deeds = {
  " ": () => ask({ do: state.playing ? "pause" : "start" }),
  ".": () => ask({ do: "step" }),
  r: () => ask({ do: "reset" }),
  n: () => ask({ do: "seed", seed: state.seed + 1 }),
  l: () => ask({ do: "lanes", count: state.views.length > 1 ? 1 : 2 }),
  "+": () => faster(1),
  "-": () => faster(-1),
  "?": () => find("help").showModal(),
};

function faster(by) {
  const speeds = [...find("speed").options].map((option) => Number(option.value));
  const place = speeds.findIndex((speed) => speed >= state.speed);
  const next = speeds[Math.max(0, Math.min(speeds.length - 1, place + by))];
  ask({ do: "speed", speed: next });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const isTyping = event.target.matches("input[type=number], select, textarea");
  const isPressing = event.target.matches("button, summary, input[type=checkbox]");
  if (isTyping || (event.key === " " && isPressing)) return;
  if (/^[1-9]$/.test(event.key)) {
    const view = state.views[event.shiftKey ? 1 : 0];
    view?.sliders?.[0].buttons[Number(event.key) - 1]?.click();
  } else if (deeds[event.key]) {
    event.preventDefault();
    deeds[event.key]();
  }
});

// A click leaves no focus behind: then space means start and pause, wherever the mouse was before.
document.addEventListener("click", ({ target, detail }) => {
  if (detail > 0) target.closest("button")?.blur();
});
find("start").onclick = deeds[" "];
find("step").onclick = deeds["."];
find("reset").onclick = deeds.r;
find("next").onclick = deeds.n;
find("helping").onclick = deeds["?"];
find("second").onchange = ({ target }) => ask({ do: "lanes", count: target.checked ? 2 : 1 });
find("speed").onchange = ({ target }) => ask({ do: "speed", speed: Number(target.value) });
find("seed").onchange = ({ target }) =>
  ask({ do: "seed", seed: Math.max(0, Math.round(Number(target.value))) });
find("save").href = `recording.html${location.search}`;
const redraw = () => state.views.forEach((view) => view.refresh());
window.addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
connect();
