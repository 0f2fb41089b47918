// Bodies on a floor with marks, seen from the side by a camera that follows; or traces of a state.
import { hull, product, sum, text, turned } from "./mathematics.js";

export function fitted(canvas) {
  // A context in CSS pixels, whatever the screen's own are.
  const { clientWidth: width, clientHeight: height } = canvas;
  const ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
  if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

const shades = new Map(); // asking for a style is slow, and a picture asks hundreds of times
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => shades.clear());

export function colour(name) {
  if (!shades.has(name)) {
    const style = getComputedStyle(document.documentElement);
    shades.set(name, style.getPropertyValue(`--${name}`).trim());
  }
  return shades.get(name);
}

const PITCH = 0.16;
const NEAR = 0.4;
const LAG = 0.5; // of the camera's distance to its body, after a step

class Camera {
  constructor(target, distance, width, height) {
    this.target = target;
    this.distance = distance;
    this.focus = Math.min(1.15 * width, 2.3 * height);
    this.centre = [width / 2, 0.55 * height];
    this.forward = [Math.cos(PITCH), -Math.sin(PITCH)];
  }

  // Screen position and pixels per metre there.
  see([x, y, z]) {
    const [ahead, down] = this.forward;
    const dy = y - this.target[1];
    const dz = z - this.target[2];
    const depth = Math.max(NEAR, this.distance + dy * ahead + dz * down);
    const scale = this.focus / depth;
    const up = -dy * down + dz * ahead;
    return {
      at: [this.centre[0] + (x - this.target[0]) * scale, this.centre[1] - up * scale],
      scale,
      depth,
    };
  }
}

export class BodyDrawing {
  constructor(canvas, scene) {
    this.canvas = canvas;
    this.scene = scene;
    this.position = null;
  }

  draw(frames) {
    const frame = frames.at(-1);
    if (!frame?.pose) return;
    const { context, width, height } = fitted(this.canvas);
    const bodies = [];
    for (let start = 0; start < frame.pose.length; start += 7) {
      bodies.push([frame.pose.slice(start, start + 3), frame.pose.slice(start + 3, start + 7)]);
    }
    const camera = this.camera(bodies, frame, width, height);
    drawFloor(context, camera, width, height);
    const geoms = this.scene.geoms.map((geom) => {
      const [at, turn] = bodies[geom.body];
      const place = sum(at, turned(turn, geom.at));
      return { ...geom, place, facing: product(turn, geom.turn) };
    });
    geoms.sort((a, b) => b.place[1] - a.place[1]);
    for (const geom of geoms) drawGeom(context, flattenedCamera(camera), geom, colour("shadow"));
    for (const geom of geoms) drawGeom(context, camera, geom, null);
  }

  camera(bodies, frame, width, height) {
    const [x, y, z] = bodies[this.scene.follow][0];
    if (this.position === null || frame.step === 0) {
      const spread = bodies.map(([at]) => Math.hypot(at[0] - x, at[1] - y, at[2] - z));
      this.reach = Math.max(...spread) + 0.6;
      this.position = [x, y];
      this.step = frame.step;
    }
    // it follows softly, so that a gait is seen as one, however many steps were not drawn
    const lag = LAG ** Math.abs(frame.step - this.step);
    this.position = [x + lag * (this.position[0] - x), y];
    this.step = frame.step;
    const target = [this.position[0], this.position[1], 0.4 * this.reach];
    return new Camera(target, 3 * this.reach, width, height);
  }
}

function flattenedCamera(camera) {
  return { see: ([x, y]) => camera.see([x, y, 0.001]) };
}

function drawFloor(context, camera, width, height) {
  const [middle, depth] = [Math.round(camera.target[0]), Math.round(camera.target[1])];
  const reach = Math.ceil(camera.distance * 3);
  context.fillStyle = colour("floor");
  const horizon = camera.see([0, depth + reach, 0]).at[1];
  context.fillRect(0, horizon, width, height - horizon);
  context.fillStyle = colour("tile");
  for (let x = middle - reach; x < middle + reach; x += 1) {
    for (let y = depth - 3; y < depth + reach; y += 1) {
      if ((x + y) % 2 === 0) continue;
      const corners = [[x, y], [x + 1, y], [x + 1, y + 1], [x, y + 1]];
      const seen = corners.map(([a, b]) => camera.see([a, b, 0]).at);
      context.beginPath();
      seen.forEach((at) => context.lineTo(...at));
      context.fill();
    }
  }
  drawMetres(context, camera, middle, reach);
}

function drawMetres(context, camera, middle, reach) {
  context.fillStyle = context.strokeStyle = colour("ink-soft");
  context.font = "12px system-ui, sans-serif";
  context.textAlign = "center";
  context.lineWidth = 1;
  for (let x = middle - reach; x <= middle + reach; x += 1) {
    const [post, top] = [[x, camera.target[1] - 0.6, 0], [x, camera.target[1] - 0.6, 0.08]];
    const [foot, head] = [camera.see(post).at, camera.see(top).at];
    context.beginPath();
    context.moveTo(...foot);
    context.lineTo(...head);
    context.stroke();
    if (x % 2 === 0) context.fillText(`${x} m`, foot[0], foot[1] + 14);
  }
}

function drawGeom(context, camera, geom, only) {
  const fill = only ?? `rgb(${geom.colour.map((part) => Math.round(255 * part)).join(",")})`;
  const outline = only ?? colour("outline");
  const [first, second, third] = geom.size;
  if (geom.shape === "capsule" || geom.shape === "cylinder") {
    const along = turned(geom.facing, [0, 0, second]);
    const ends = [sum(geom.place, along), sum(geom.place, along.map((each) => -each))];
    drawLimb(context, ends.map((end) => camera.see(end)), first, geom.shape, fill, outline);
  } else if (geom.shape === "sphere") {
    const { at, scale } = camera.see(geom.place);
    context.beginPath();
    context.arc(...at, first * scale, 0, 2 * Math.PI);
    paint(context, fill, outline);
  } else {
    const corners = geom.shape === "box" ? CORNERS : GLOBE;
    const points = corners.map(([x, y, z]) => {
      const corner = turned(geom.facing, [x * first, y * second, z * third]);
      return camera.see(sum(geom.place, corner)).at;
    });
    context.beginPath();
    hull(points).forEach((at) => context.lineTo(...at));
    context.closePath();
    paint(context, fill, outline);
  }
}

const SIGNS = [-1, 1];
const CORNERS = SIGNS.flatMap((x) => SIGNS.flatMap((y) => SIGNS.map((z) => [x, y, z])));
const GLOBE = Array.from({ length: 60 }, (_, index) => {
  const z = 1 - (2 * index + 1) / 60; // evenly over a ball: Fibonacci's spiral
  const angle = index * Math.PI * (3 - Math.sqrt(5));
  return [Math.sqrt(1 - z * z) * Math.cos(angle), Math.sqrt(1 - z * z) * Math.sin(angle), z];
});

function drawLimb(context, [start, end], radius, shape, fill, outline) {
  context.lineCap = shape === "capsule" ? "round" : "butt";
  const width = radius * (start.scale + end.scale);
  for (const [shade, extra] of [[outline, 3], [fill, 0]]) {
    context.strokeStyle = shade;
    context.lineWidth = width + extra;
    context.beginPath();
    context.moveTo(...start.at);
    context.lineTo(...end.at);
    context.stroke();
  }
}

function paint(context, fill, outline) {
  context.fillStyle = fill;
  context.fill();
  context.strokeStyle = outline;
  context.lineWidth = 1.5;
  context.stroke();
}

export class TraceDrawing {
  // Each entry of the state over time, one row each; the action that was taken below them.
  constructor(canvas, scene, horizon) {
    this.canvas = canvas;
    this.scene = scene;
    this.horizon = horizon;
  }

  draw(frames) {
    const { context, width, height } = fitted(this.canvas);
    const rows = this.scene.names.map((name, index) => ({
      name,
      values: frames.map((frame) => frame.pose?.[index] ?? null),
    }));
    const actions = frames.at(-1)?.action?.length ?? 0;
    for (let index = 0; index < Math.min(actions, 4); index += 1) {
      const values = frames.map((frame) => frame.action?.[index] ?? null);
      rows.push({ name: `action[${index}]`, values, acts: true });
    }
    const room = height / rows.length;
    context.font = "12px system-ui, sans-serif";
    rows.forEach((row, index) => this.drawRow(context, row, frames, index * room, room, width));
  }

  drawRow(context, { name, values, acts }, frames, top, room, width) {
    const known = values.filter((value) => value !== null);
    const [low, high] = [Math.min(...known), Math.max(...known)];
    const [left, right] = [64, width - 56];
    const y = (value) => top + room - 5 - ((value - low) / (high - low || 1)) * (room - 10);
    const x = (step) => left + (step / this.horizon) * (right - left);
    context.strokeStyle = colour("grid");
    context.lineWidth = 1;
    context.strokeRect(left, top + 1, right - left, room - 2);
    context.fillStyle = colour("ink-soft");
    context.textAlign = "right";
    context.fillText(name, left - 6, top + room / 2 + 4);
    context.textAlign = "left";
    context.fillStyle = colour("ink");
    context.fillText(text(known.at(-1)), right + 6, top + room / 2 + 4);
    context.strokeStyle = colour(acts ? "accent" : "ink");
    context.lineWidth = acts ? 2 : 1.5;
    context.beginPath();
    let begun = false;
    values.forEach((value, index) => {
      if (value === null) return;
      context[begun ? "lineTo" : "moveTo"](x(frames[index].step), y(value));
      begun = true;
    });
    context.stroke();
  }
}

export function drawingOf(canvas, scene, horizon) {
  return scene.kind === "bodies"
    ? new BodyDrawing(canvas, scene)
    : new TraceDrawing(canvas, scene, horizon);
}
