// Vectors [x, y, z] and quaternions [w, x, y, z], as MuJoCo has them; and numbers for people.

export function turned([w, x, y, z], [a, b, c]) {
  const [tx, ty, tz] = [2 * (y * c - z * b), 2 * (z * a - x * c), 2 * (x * b - y * a)];
  return [
    a + w * tx + y * tz - z * ty,
    b + w * ty + z * tx - x * tz,
    c + w * tz + x * ty - y * tx,
  ];
}

export function product([a, b, c, d], [w, x, y, z]) {
  return [
    a * w - b * x - c * y - d * z,
    a * x + b * w + c * z - d * y,
    a * y - b * z + c * w + d * x,
    a * z + b * y - c * x + d * w,
  ];
}

export function sum(a, b) {
  return a.map((value, index) => value + b[index]);
}

export function hull(points) {
  // Andrew's monotone chain, of [x, y]
  const sorted = [...points].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const cross = (o, a, b) => (a[0] - o[0]) * (b[1] - o[1]) - (a[1] - o[1]) * (b[0] - o[0]);
  const half = (order) => {
    const chain = [];
    for (const point of order) {
      while (chain.length > 1 && cross(chain.at(-2), chain.at(-1), point) <= 0) chain.pop();
      chain.push(point);
    }
    return chain.slice(0, -1);
  };
  return [...half(sorted), ...half(sorted.reverse())];
}

export function niceTicks(low, high, count) {
  const span = high - low || 1;
  const power = 10 ** Math.floor(Math.log10(span / count));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => span / each <= count);
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + 1e-9 * span; tick += step) {
    ticks.push(Math.abs(tick) < 1e-9 * span ? 0 : tick);
  }
  return ticks;
}

export function text(number) {
  if (number === null || number === undefined) return "–";
  const size = Math.abs(number);
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  const words = number.toLocaleString("en", { maximumFractionDigits: digits });
  return words === "-0" ? "0" : words;
}
