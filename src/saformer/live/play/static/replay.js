// A recorded episode: plays by itself, and can be paused, dragged through and slowed down.
import { LaneView, element } from "./lane.js";

const recording = JSON.parse(document.getElementById("saformer-recording").textContent);
const at = (id) => document.getElementById(id);
const views = recording.lanes.map((lane, place) => {
  const section = element("section", { class: "lane", "aria-label": `lane ${place + 1}` });
  at("lanes").append(section);
  const view = new LaneView(section);
  view.show(lane.about, lane.frames.slice(0, 1));
  return view;
});
at("lanes").dataset.count = views.length;
const length = Math.max(...recording.lanes.map((lane) => lane.frames.length));
const playback = { step: 0, playing: true, before: null };

function move(step) {
  playback.step = Math.max(0, Math.min(length - 1, step));
  const shown = Math.floor(playback.step) + 1;
  views.forEach((view, place) => {
    const { frames } = recording.lanes[place];
    view.frames = frames.slice(0, Math.min(shown, frames.length));
    view.refresh();
  });
  at("position").value = shown - 1;
}

function play(playing) {
  if (playing && playback.step >= length - 1) move(0);
  Object.assign(playback, { playing, before: null });
  at("start").textContent = playing ? "❚❚ Pause" : "▶ Start";
}

function tick(now) {
  if (playback.playing && playback.before !== null) {
    const seconds = Math.min(0.1, (now - playback.before) / 1000);
    move(playback.step + seconds * Number(at("speed").value));
    if (playback.step >= length - 1) play(false);
  }
  playback.before = now;
  requestAnimationFrame(tick);
}

at("position").max = length - 1;
at("position").oninput = ({ target }) => {
  play(false);
  move(Number(target.value));
};
at("start").onclick = () => play(!playback.playing);
at("step").onclick = () => {
  play(false);
  move(Math.floor(playback.step) + 1);
};
document.addEventListener("keydown", (event) => {
  if (event.target.matches("button, select, input")) return;
  if (event.key === " ") {
    event.preventDefault();
    play(!playback.playing);
  }
  if (event.key === ".") at("step").click();
});
window.addEventListener("resize", () => views.forEach((view) => view.refresh()));
requestAnimationFrame(tick);
