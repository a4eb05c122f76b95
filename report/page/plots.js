// The timeline, fragmentation and driver calls, drawn by uPlot.

let plots = [];
const narrow = () => innerWidth < 640;
const font = "12px system-ui, sans-serif";

// splits are round numbers: 1, 2 or 5 times a power of ten of a unit.
function splits(top, unit, n) {
	const raw = top / unit / n, ten = Math.pow(10, Math.floor(Math.log10(raw)));
	const step = ten * [1, 2, 5, 10].find((f) => f * ten >= raw * (1 - 1e-9)) * unit;
	const list = [];
	for (let v = 0; v <= top * (1 + 1e-9); v += step) list.push(v);
	return list;
}
function unitOf(top) {
	let unit = 1;
	while (top / unit >= 1024 && unit < Math.pow(1024, 6)) unit *= 1024;
	return unit;
}

function axes(values, height, list) {
	const line = { stroke: () => color("grid"), width: 1 };
	return [
		height < 60 ? { stroke: () => color("rule"), grid: { show: false }, ticks: { show: false }, values: () => [], size: 6, border: { show: true, stroke: () => color("rule"), width: 1 } } : {
			stroke: () => color("quiet"), font, grid: { show: false }, ticks: { stroke: () => color("rule"), size: 4 }, size: T().times ? 40 : 26, space: 90,
			incrs: [1, 2, 5, 10, 20, 50].concat(...Array.from({ length: 14 }, (_, k) => [1, 2, 5].map((f) => f * Math.pow(10, k + 2)))),
			values: (_, list) => list.map((v) => Number.isInteger(v) ? count(v) + (T().times ? "\n" + when(v) : "") : ""),
		},
		{
			stroke: () => color("quiet"), font, grid: line, ticks: { show: false }, size: narrow() ? 46 : 62,
			splits: (u, _, min, max) => list(max), values,
		},
	];
}

function options(el, height, series, axesOf, hooks, top) {
	return {
		width: el.clientWidth, height, series, axes: axesOf, hooks: Object.assign({ setSelect: [selected] }, hooks), legend: { show: false }, padding: [14, 26, 0, 0],
		scales: {
			x: { time: false, range: () => S.view },
			y: { range: (u, min, max) => [0, top(u, max)] },
		},
		cursor: {
			y: false, points: { show: false }, drag: { x: true, y: false, dist: 4, setScale: false },
			bind: { dblclick: () => () => does.whole() },
			sync: { key: "gpumem", scales: ["x", null], filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } },
		},
	};
}

// selected is called when the pointer was dragged over a plot.
function selected(u) {
	const { left, width } = u.select;
	if (width < 4) return;
	u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
	zoom(u.posToVal(left, "x"), u.posToVal(left + width, "x"));
}

// range keeps the view inside the run and at least four events wide. The last
// event's value stands to the next number.
function range(min, max) {
	const last = T().events + 1;
	if (min == null || !isFinite(min) || !isFinite(max)) return [1, last];
	let width = Math.min(Math.max(max - min, 4), last - 1);
	let low = Math.max(1, Math.min(min - (width - (max - min)) / 2, last - width));
	return [low, low + width];
}

// columns are the three plots' numbers for a view: as they are where there is
// room, else the most, or the least, of each few pixels, so that lines which go
// up and down all the time show their edge.
function columns(min, max) {
	const t = T(), l = L(), first = Math.max(0, bucketOf(min) - 1), last = Math.min(t.ends.length - 1, bucketOf(max) + 1);
	const room = Math.max(50, Math.floor(el("plot").clientWidth / 3)), starts = [];
	if (last - first < room) for (let k = first; k <= last; k++) starts.push(k);
	else for (let n = 0, before = -1; n < room; n++) {
		const k = Math.max(first, bucketOf(min + (max - min) * n / room));
		if (k > before) { starts.push(k); before = k; }
	}
	const x = starts.map((k) => t.x[k]);
	x.push(t.ends[last] + 1);
	const over = (list, better) => {
		const out = starts.map((k, n) => {
			let v = list[k];
			for (const end = n + 1 < starts.length ? starts[n + 1] : last + 1; ++k < end;) v = better(v, list[k]);
			return v;
		});
		out.push(out[out.length - 1]);
		return out;
	};
	return [
		[x, over(l.usedMost, Math.max), over(l.usedLeast, Math.min), ...t.layers.map((o) => over(o.heldMost, Math.max)), over(t.askedMost, Math.max)],
		[x, over(l.frag, Math.max)], [x, over(l.calls, Math.max)],
	];
}

function build() {
	plots.forEach((u) => u.destroy());
	const t = T(), l = L();
	const steps = uPlot.paths.stepped({ align: 1 });
	const numbers = columns(...S.view);
	const series = [{}];
	const add = (s) => series.push(Object.assign({ paths: steps, points: { show: false }, scale: "y" }, s));
	add({ fill: () => color("live"), stroke: () => color("edge"), width: 0.75 });
	add({ fill: () => color("livelow"), width: 0 });
	t.layers.forEach((o, k) => add({ stroke: () => color(k === S.layer ? "held" : "quiet"), width: k === S.layer ? 2.5 : 1.25, dash: dashes[k % dashes.length], show: o.on }));
	// What was asked for differs from what is alive by rounding and by refusals;
	// only these are worth a line.
	el("askedkey").hidden = !l.first;
	el("untold").textContent = l.hole.some((h) => h > 0) ? "" : "; " + l.policy + " has no holes that it knows of";
	add({ stroke: () => color("asked"), width: 1.5, dash: [2, 3], show: !!l.first });
	const height = narrow() ? 260 : 320;
	const top = (u, most) => {
		if (S.fit) most = Math.max(...l.usedMost.concat(l.first ? t.askedMost : []));
		return Math.max(most || 0, 1) * 1.06;
	};
	const plot = new uPlot(options(el("plot"), height, series, axes((u, list) => list.map((v) => trim(v / unitOf(u.scales.y.max))), height, (max) => splits(max, unitOf(max), 6)), {
		draw: [(u) => { marks(u); unitWord(u); }], setCursor: [pointed],
	}, top), numbers[0], el("plot"));
	const thin = { stroke: () => color("edge"), width: 1.5, paths: steps, points: { show: false } };
	const low = 78;
	const frag = new uPlot(options(el("frag"), low, [{}, Object.assign({ fill: () => color("live") }, thin)], axes((u, list) => list.map(String), 0, () => [0, 50, 100]), {}, () => 106), numbers[1], el("frag"));
	const calls = new uPlot(options(el("calls"), low, [{}, thin], axes((u, list) => list.map(short), 0, (max) => splits(max, 1, 3)), {}, (u, most) => Math.max(most || 0, 2) * 1.1), numbers[2], el("calls"));
	plots = [plot, frag, calls];
	for (const u of plots) u.over.addEventListener("click", () => { if (S.hover !== null) { S.event = S.hover; shown(); } });
	overview(true);
}
const trim = (v) => String(+v.toFixed(6));
const short = (v) => v >= 1e6 ? trim(v / 1e6) + "M" : v >= 1e4 ? trim(v / 1e3) + "k" : count(v);
function unitWord(u) { el("unit").textContent = bytes(unitOf(u.scales.y.max)).replace("1 ", ""); }

// marks are what stands on the timeline: the peak, refusals, the look, and the
// lines' numbers.
function marks(u) {
	const c = u.ctx, d = devicePixelRatio, t = T(), l = L(), box = u.bbox;
	const X = (e) => u.valToPos(e, "x", true), Y = (v) => u.valToPos(v, "y", true);
	const inside = (px) => px >= box.left - 1 && px <= box.left + box.width + 1;
	const text = (s, px, py, name, align) => {
		c.font = "600 " + 12 * d + "px system-ui, sans-serif";
		const half = c.measureText(s).width / 2;
		if (!align) px = Math.max(box.left + half + 2 * d, Math.min(px, box.left + box.width - half - 2 * d));
		c.textAlign = align || "center"; c.textBaseline = "middle";
		const left = align === "left" ? px : px - half;
		c.globalAlpha = 0.85; c.fillStyle = color("page"); c.fillRect(left - 3 * d, py - 7 * d, 2 * half + 6 * d, 14 * d); c.globalAlpha = 1;
		c.fillStyle = color(name); c.fillText(s, px, py);
	};
	c.save();
	const at = X(S.event);
	if (inside(at)) {
		c.strokeStyle = color("at"); c.lineWidth = 1.5 * d; c.setLineDash([4 * d, 3 * d]);
		c.beginPath(); c.moveTo(at, box.top); c.lineTo(at, box.top + box.height); c.stroke(); c.setLineDash([]);
	}
	let words = box.top + 10 * d; // where the next text at the top stands
	if (Y(data.device) >= box.top) {
		c.strokeStyle = color("no"); c.lineWidth = d; c.beginPath(); c.moveTo(box.left, Y(data.device)); c.lineTo(box.left + box.width, Y(data.device)); c.stroke();
		text("the device, " + bytes(data.device), box.left + 6 * d, Y(data.device), "no", "left");
		words = Y(data.device) + 14 * d;
	}
	// Refusals: a mark above each bucket that has some.
	c.fillStyle = color("no");
	l.refused.forEach((n, k) => {
		const px = X(t.x[k]);
		if (n === (k ? l.refused[k - 1] : 0) || !inside(px)) return;
		c.beginPath(); c.moveTo(px, box.top); c.lineTo(px - 4 * d, box.top - 8 * d); c.lineTo(px + 4 * d, box.top - 8 * d); c.fill();
	});
	if (l.first && inside(X(l.first.event))) {
		const px = X(l.first.event);
		c.strokeStyle = color("no"); c.lineWidth = 1 * d;
		c.beginPath(); c.moveTo(px, box.top); c.lineTo(px, box.top + box.height); c.stroke();
		text("first refused: " + bytes(l.first.bytes), px, words, "no");
		words += 16 * d;
	}
	// The peak, on what this policy has alive, or on what was asked for.
	const k = bucketOf(t.peak_at), value = l.first ? t.peak : l.usedMost[k];
	const px = X(t.peak_at), py = Y(value);
	if (inside(px) && py >= box.top) {
		c.beginPath(); c.arc(px, py, 4.5 * d, 0, 7); c.fillStyle = color("page"); c.fill();
		c.lineWidth = 2 * d; c.strokeStyle = color("text"); c.stroke();
		text("peak " + bytes(t.peak), px, Math.abs(py - 13 * d - words) < 16 * d || py - 13 * d < words ? Math.max(words, py - 13 * d) : py - 13 * d, "text");
	}
	// The number of each line, at its right end, moved apart.
	const end = bucketOf(Math.min(S.view[1], t.events));
	const labels = t.layers.map((o, n) => ({ n, y: Y(o.heldMost[end]), on: o.on })).filter((o) => o.on && o.y >= box.top - 1).sort((a, b) => a.y - b.y || a.n - b.n);
	let bottom = box.top + box.height;
	labels.forEach((o, n) => { if (n) o.y = Math.max(o.y, labels[n - 1].y + 13 * d); });
	for (const o of labels.reverse()) { o.y = Math.min(o.y, bottom); bottom = o.y - 13 * d; }
	for (const o of labels) text(String(o.n + 1), box.left + box.width + 12 * d, o.y, "text", "center");
	c.restore();
	const [from, to] = S.view;
	page.dataset.points = u.data[0].filter((v) => v >= from && v <= to).length * u.series.filter((s, k) => k && s.show).length;
}

// zoom shows the events from min to max in every drawing.
function zoom(min, max) {
	S.view = range(min, max);
	const numbers = columns(...S.view);
	plots.forEach((u, k) => { u.setData(numbers[k], false); u.setScale("x", { min: S.view[0], max: S.view[1] }); });
	overview(true);
	keep();
}
function zoomBy(factor) {
	const [min, max] = S.view, at = S.event;
	const middle = at >= min && at <= max ? at : (min + max) / 2;
	const width = (max - min) * factor, part = (middle - min) / (max - min);
	zoom(middle - width * part, middle + width * (1 - part));
}
// into moves the view so that the look is in it.
function into() {
	const [min, max] = S.view, at = S.event;
	if (at < min || at > max) zoom(at - (max - min) / 2, at + (max - min) / 2);
}

// pointed is called when the pointer moves over a plot.
function pointed(u) {
	if (u.cursor.left == null || u.cursor.left < 0) {
		if (S.hover !== null) { S.hover = null; el("pointer").textContent = ""; shownLook(); }
		return;
	}
	pointAt(u.posToVal(u.cursor.left, "x"));
}
function pointAt(at) {
	const event = Math.floor(at);
	const t = T(), l = L(), k = bucketOf(Math.max(1, Math.min(t.events, event)));
	const between = (a, b) => a === b ? bytes(a) : bytes(a) + " to " + bytes(b);
	const events = t.x[k] === t.ends[k] ? "event " + count(t.ends[k]) : "events " + count(t.x[k]) + " to " + count(t.ends[k]);
	const times = t.times ? " at " + when(event) : "";
	el("pointer").textContent = "Under the pointer, " + events + times + ": alive " + between(l.usedLeast[k], l.usedMost[k]) + ", held " + between(l.heldLeast[k], l.heldMost[k]) + (t.x[k] === t.ends[k] ? ", free " + bytes(l.heldMost[k] - l.usedMost[k]) : "") +
		", asked for at most " + bytes(t.askedMost[k]) + "; driver calls so far " + count(l.calls[k]) + (l.refused[k] ? ", refused so far " + count(l.refused[k]) : "") + ".";
	const near = known(event);
	if (near !== S.hover) { S.hover = near; shownLook(); }
}
