"use strict";
// The page of a replay, in the browser. The data is report.Page's JSON. What is
// looked at is one instant (a "look") of one policy of one pool; the plots are
// uPlot's, the maps are drawn pixel by pixel. Texts of the recording are only
// ever set as text.
(function () {
	const page = document.getElementById("page"), root = document.documentElement;
	const fail = (e) => { page.dataset.errors += (e.message || e.violatedDirective) + "\n"; };
	addEventListener("error", fail);
	addEventListener("securitypolicyviolation", fail);

	const data = JSON.parse(document.getElementById("data").textContent);
	const el = (id) => document.getElementById(id);
	const $$ = (css) => [...document.querySelectorAll(css)];
	const color = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();
	root.classList.add("on");

	// ---- numbers ----

	const count = (n) => String(Math.round(n)).replace(/\B(?=(\d{3})+$)/g, ",");
	const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
	// bytes is the same text as package size's Format.
	function bytes(n) {
		let i = 0, scale = 1;
		while (n / scale >= 1024 && i < 6) { scale *= 1024; i++; }
		if (n % scale === 0) return n / scale + " " + units[i];
		const text = (n / scale).toFixed(2);
		return text === "1024.00" ? "1.00 " + units[i + 1] : text + " " + units[i];
	}
	// counted is "1 block" or "1,234 blocks".
	const counted = (n, what) => count(n) + " " + what + (n === 1 ? "" : "s");
	// glue keeps a number and its unit on one line.
	const glue = (s) => s.replace(/(\d) ((?:[KMGTPE]i)?B|%)/g, "$1\u00a0$2");
	const percent = (part, whole) => (whole > 0 ? (100 * part / whole).toFixed(1) : "0.0") + " %";
	// sums undoes the differences that lists are written as.
	function sums(list) {
		let last = 0;
		return list.map((d) => last += d);
	}
	// nearest is the index of the value of an ascending list that is nearest to v.
	function nearest(list, v) {
		let low = 0, high = list.length - 1;
		while (low < high) {
			const mid = (low + high) >> 1;
			if (list[mid] < v) low = mid + 1; else high = mid;
		}
		return low > 0 && v - list[low - 1] <= list[low] - v ? low - 1 : low;
	}

	// ---- the data, undone ----

	// finer cuts the buckets near each first refusal into single events. A bucket's
	// least and most hold for its parts, too; what the policy itself had is known.
	function finer(t) {
		const ends = new Set(t.ends);
		for (const { near } of t.layers) if (near) for (let k = -1; k < near.used.length; k++) if (near.from + k > 0) ends.add(near.from + k);
		const old = t.ends;
		t.ends = [...ends].sort((a, b) => a - b);
		if (t.ends.length === old.length) return;
		let k = 0;
		const from = t.ends.map((end) => { while (old[k] < end) k++; return k; });
		const cut = (list) => from.map((k) => list[k]);
		t.askedMost = cut(t.askedMost);
		for (const l of t.layers) {
			for (const name of ["usedLeast", "usedMost", "heldLeast", "heldMost", "free", "hole", "calls", "refused"]) l[name] = cut(l[name]);
			if (!l.near) continue;
			const first = nearest(t.ends, l.near.from);
			l.near.used.forEach((v, n) => { l.usedLeast[first + n] = l.usedMost[first + n] = v; });
			l.near.held.forEach((v, n) => { l.heldLeast[first + n] = l.heldMost[first + n] = v; });
			l.near.refused.forEach((v, n) => { l.refused[first + n] = v; });
			// Before it nothing was refused.
			for (let n = 0; n < first; n++) l.refused[n] = 0;
		}
	}

	data.names = data.names || [];
	data.frames = data.names.map((s) => s.split("\n", 1)[0]);
	for (const t of data.pools) {
		t.ends = sums(t.ends);
		t.askedMost = sums(t.asked.max);
		for (const l of t.layers) {
			l.usedLeast = sums(l.used.min); l.usedMost = sums(l.used.max);
			l.heldLeast = sums(l.held.min); l.heldMost = sums(l.held.max);
			l.free = sums(l.free); l.hole = sums(l.hole); l.calls = sums(l.calls); l.refused = sums(l.refused);
			if (l.near) for (const name of ["used", "held", "refused"]) l.near[name] = sums(l.near[name]);
		}
		finer(t);
		// A bucket's value stands from its first event to the next one's.
		t.x = t.ends.map((_, k) => k ? t.ends[k - 1] + 1 : 1);
		for (const l of t.layers) {
			l.events = l.instants.map((i) => i.event);
			l.frag = l.free.map((f, k) => f > 0 && l.hole[k] > 0 ? 100 * Math.max(0, f - l.hole[k]) / f : 0);
			l.on = true;
			l.refusedAt = new Set(sums(l.refused_at || []));
		}
		if (t.blocks) t.blocks.from = sums(t.blocks.from);
	}

	// event is what is looked at, hover what the pointer is on instead.
	const S = { pool: 0, layer: 0, event: 1, hover: null, by: "sizes", fit: false };
	const T = () => data.pools[S.pool], L = () => T().layers[S.layer];
	const here = () => S.hover === null ? S.event : S.hover;
	const lookAt = (event) => nearest(L().events, event);
	const look = () => L().instants[lookAt(here())];
	// known is the event nearest to one of which it is known what is alive.
	const known = (event) => T().blocks ? Math.max(1, Math.min(T().events, Math.round(event))) : L().events[lookAt(event)];
	// bucketOf is the bucket that an event lies in.
	const bucketOf = (event) => { const t = T(); let k = nearest(t.ends, event); if (t.ends[k] < event) k++; return Math.min(k, t.ends.length - 1); };
	const dashes = [[], [8, 3], [2, 3], [10, 3, 2, 3], [5, 5], [14, 4], [1, 5], [6, 2, 1, 2, 1, 2]];

	// ---- the plots ----

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
				stroke: () => color("quiet"), font, grid: { show: false }, ticks: { stroke: () => color("rule"), size: 4 }, size: 26, space: 90,
				incrs: [1, 2, 5, 10, 20, 50].concat(...Array.from({ length: 14 }, (_, k) => [1, 2, 5].map((f) => f * Math.pow(10, k + 2)))),
				values: (_, list) => list.map((v) => Number.isInteger(v) ? count(v) : ""),
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
		el("pointer").textContent = "Under the pointer, " + events + ": alive " + between(l.usedLeast[k], l.usedMost[k]) + ", held " + between(l.heldLeast[k], l.heldMost[k]) + (t.x[k] === t.ends[k] ? ", free " + bytes(l.heldMost[k] - l.usedMost[k]) : "") +
			", asked for at most " + bytes(t.askedMost[k]) + "; driver calls so far " + count(l.calls[k]) + (l.refused[k] ? ", refused so far " + count(l.refused[k]) : "") + ".";
		const near = known(event);
		if (near !== S.hover) { S.hover = near; shownLook(); }
	}

	// ---- the maps ----

	function rgb(name) {
		const c = color(name), n = parseInt(c.length === 4 ? c.replace(/[^#]/g, "$&$&").slice(1) : c.slice(1), 16);
		return [n >> 16, n >> 8 & 255, n & 255];
	}
	// shade is the colour of cells from to to of a map, averaged.
	function shader() {
		const used = rgb("used"), free = rgb("free"), untold = rgb("untold");
		return (map, from, to, x, y) => {
			let sum = 0, dark = 0, n = 0;
			for (let k = from; k < to; k++, n++) {
				const ch = map.charCodeAt(k);
				if (ch === 63) dark++; else sum += (ch - 48) / 8;
			}
			const part = sum / n;
			if (dark * 2 > n) return (x + y) % 6 < 3 ? untold : free;
			return [0, 1, 2].map((c) => Math.round(used[c] * part + free[c] * (1 - part)));
		};
	}
	function canvas(id) {
		const c = el(id), d = devicePixelRatio || 1;
		c.width = Math.max(1, Math.round(c.clientWidth * d)); c.height = Math.max(1, Math.round(c.clientHeight * d));
		return { c, g: c.getContext("2d"), d, w: c.width, h: c.height };
	}
	function cellsAt(map, k, n) {
		const from = Math.floor(k * map.length / n);
		return [from, Math.max(from + 1, Math.floor((k + 1) * map.length / n))];
	}

	// overview has a column for each look, as high as what is held. What does not
	// change with the look is drawn once.
	let drawn = null;
	function overview(again) {
		if (again) drawn = null;
		const { g, d, w, h } = canvas("over"), l = L(), u = plots[0];
		const left = Math.round(u.bbox.left), width = Math.round(u.bbox.width), low = h - 2 * d, room = h - 10 * d;
		const most = Math.max(1, ...l.instants.map((i) => i.held));
		const [min, max] = S.view;
		const image = drawn || g.createImageData(width, Math.round(room)), shade = shader();
		let last = -1, column = null;
		for (let x = drawn ? width : 0; x < width; x++) {
			const k = nearest(l.events, min + (max - min) * (x + 0.5) / width), i = l.instants[k];
			const high = Math.round(image.height * i.held / most);
			if (k !== last || i.map.includes("?")) {
				column = [];
				for (let y = 0; y < high; y++) { const [a, b] = cellsAt(i.map, y, high); column.push(shade(i.map, a, b, x, y)); }
				last = k;
			}
			for (let y = 0; y < high; y++) {
				const at = 4 * ((image.height - 1 - y) * width + x);
				image.data.set(column[y], at); image.data[at + 3] = 255;
			}
		}
		drawn = image;
		g.putImageData(image, left, Math.round(low - image.height));
		g.fillStyle = color("quiet"); g.font = 12 * d + "px system-ui, sans-serif"; g.textAlign = "right";
		const [number, unit] = bytes(most).split(" ");
		g.textBaseline = "top"; g.fillText(number, left - 8 * d, low - image.height); g.fillText(unit, left - 8 * d, low - image.height + 15 * d);
		g.textBaseline = "bottom"; g.fillText("0", left - 8 * d, low);
		g.strokeStyle = color("quiet"); g.lineWidth = d; g.beginPath(); g.moveTo(left, low); g.lineTo(left + width, low); g.stroke();
		const at = left + (look().event - min) / (max - min) * width;
		if (at >= left && at <= left + width) {
			g.strokeStyle = color("at"); g.lineWidth = 1.5 * d; g.setLineDash([4 * d, 3 * d]);
			g.beginPath(); g.moveTo(at, low - image.height); g.lineTo(at, low); g.stroke();
		}
	}

	// strip is the map of the look, its largest hole, and below it, to scale, what
	// was asked for if it is that of the first refusal.
	function strip() {
		const { g, d, w } = canvas("strip"), i = look(), l = L(), shade = shader();
		const high = Math.round(34 * d), top = Math.round(22 * d);
		const ask = l.first && l.first.event === i.event ? l.first.bytes : 0;
		const all = Math.max(i.held, ask, 1), width = Math.round((w - 2) * i.held / all);
		if (width > 0 && i.map) {
			const image = g.createImageData(width, high);
			for (let x = 0; x < width; x++) {
				const [a, b] = cellsAt(i.map, x, width);
				for (let y = 0; y < high; y++) {
					const at = 4 * (y * width + x);
					image.data.set(shade(i.map, a, b, x, y), at); image.data[at + 3] = 255;
				}
			}
			g.putImageData(image, 1, top);
			// A gap between blocks that have room for it.
			g.fillStyle = color("page");
			for (const [from, size] of i.top || []) if (size / i.held * width > 4 * d) g.fillRect(1 + (from + size) / all * (w - 2) - d / 2, top, d, high);
			g.strokeStyle = color("quiet"); g.lineWidth = d; g.strokeRect(0.5, top - 0.5, width + 1, high + 1);
		}
		g.font = "600 " + 12 * d + "px system-ui, sans-serif"; g.textBaseline = "middle";
		const span = (from, size, y, words, name, up) => {
			const a = 1 + (w - 2) * from / all, b = 1 + (w - 2) * (from + size) / all, tick = (up ? 5 : -5) * d;
			g.strokeStyle = g.fillStyle = color(name); g.lineWidth = 2 * d;
			g.beginPath(); g.moveTo(a, y + tick); g.lineTo(a, y); g.lineTo(Math.max(b, a + 2), y); g.lineTo(Math.max(b, a + 2), y + tick); g.stroke();
			const half = g.measureText(words).width / 2;
			g.textAlign = "center";
			g.fillText(words, Math.max(half + 2, Math.min((a + b) / 2, w - half - 2)), y + (up ? -9 : 11) * d);
		};
		if (i.largest && i.largest.length) span(i.largest[0][0], i.largest[0][1], top - 5 * d, "largest hole " + bytes(i.largest[0][1]), "text", true);
		if (ask) span(0, ask, top + high + 6 * d, "asked for " + bytes(ask), "no", false);
	}

	// pointBlock tells which block of the strip the pointer is on.
	function pointBlock(e) {
		const i = look(), l = L(), box = el("strip").getBoundingClientRect();
		const ask = l.first && l.first.event === i.event ? l.first.bytes : 0, at = (e.clientX - box.left) / box.width * Math.max(i.held, ask, 1);
		const hit = (list) => (list || []).find(([from, size]) => from <= at && at < from + size), b = hit(i.top), h = hit(i.largest);
		el("block").textContent = glue(b ? "Under the pointer: a block of " + bytes(b[1]) + ", " + bytes(b[0]) + " from the left" + (b[2] ? ", asked for by " + data.names[b[2] - 1].split("\n").slice(0, 3).join(", ") : "") + "." :
			h ? "Under the pointer: a hole of " + bytes(h[1]) + ", " + bytes(h[0]) + " from the left." : at < i.held ? "Under the pointer: smaller blocks and holes." : "");
	}

	// ---- the look ----

	function which(event) {
		const t = T(), l = L(), words = ["event " + count(event) + " of " + count(t.events)];
		if (event === t.peak_at) words.push("the peak");
		if (l.first && event === l.first.event) words.push("the first refusal");
		if (event === t.events) words.push("the end");
		return words.join(", ");
	}

	// alive is what lives after an event: in all, and in groups, the most bytes
	// first. At a look it is listed; with all blocks it is worked out.
	function alive(event, i, by) {
		const b = T().blocks;
		if (!b) return { asked: i.asked, blocks: i.blocks, by, groups: (i[by] || []).map(([key, size, n]) => ({ size, n, what: by === "sizes" ? sized(key, i.ranges) : data.names[key] })) };
		const refused = L().refusedAt, sum = new Map();
		let asked = 0, blocks = 0;
		for (let k = 0; k < b.from.length && b.from[k] <= event; k++) {
			const until = b.for[k] ? b.from[k] + b.for[k] : Infinity;
			if (until <= event || !b.bytes[k] || refused.has(b.from[k])) continue;
			asked += b.bytes[k]; blocks++;
			const key = by === "sizes" ? b.bytes[k] : by === "stacks" ? data.names[b.stack[k]] : by === "frames" ? data.frames[b.stack[k]] : k;
			const g = sum.get(key) || { size: 0, n: 0, key };
			g.size += b.bytes[k]; g.n++;
			sum.set(key, g);
		}
		const groups = [...sum.values()].sort((a, c) => c.size - a.size).slice(0, 60);
		for (const g of groups) {
			g.what = by === "sizes" ? sized(g.key) : g.key;
			if (by === "blocks") g.what = "from event " + count(b.from[g.key]) + (b.for[g.key] ? " to " + count(b.from[g.key] + b.for[g.key]) : ", never freed") + (b.stack ? ": " + data.names[b.stack[g.key]] : "");
		}
		return { asked, blocks, by, groups };
	}
	const sized = (n, ranges) => ranges ? bytes(n) + " to " + bytes(2 * n) : bytes(n) + (n >= 1024 && bytes(n).includes(".") ? " (" + count(n) + ")" : "");

	function shownLook() {
		const t = T(), l = L(), i = look(), event = here(), k = bucketOf(event);
		const by = !t.blocks && S.by === "blocks" || !stacked() && (S.by === "stacks" || S.by === "frames") ? "sizes" : S.by;
		const now = alive(event, i, by);
		let words;
		if (event === i.event) {
			const free = Math.max(0, i.held - i.used);
			words = l.policy + " has " + bytes(i.used) + " alive in " + counted(i.blocks, "block") + " (asked for " + bytes(i.asked) + ") and holds " + bytes(i.held) + ". " +
				bytes(free) + " of that is free" + (i.hole > 0 && free > 0 ? ", the largest hole " + bytes(i.hole) + ": fragmentation " + percent(Math.max(0, free - i.hole), free) : "") + ".";
		} else {
			const held = l.heldLeast[k] === l.heldMost[k] ? "holds " : "holds up to ";
			words = l.policy + " has " + counted(now.blocks, "block") + " alive, asked for " + bytes(now.asked) + ", and " + held + bytes(l.heldMost[k]) + ".";
		}
		el("now").textContent = glue("At " + which(event) + ", " + words);
		el("alive").querySelector(".at").textContent = l.policy + " at " + which(event) + ".";
		el("place").querySelector(".at").textContent = l.policy + " at " + which(i.event) + (event === i.event ? "" : ", the look nearest to event " + count(event)) + "; look " + count(l.instants.indexOf(i) + 1) + " of " + count(l.instants.length) + ".";
		rows(now);
		const named = (i.largest || []).map((h) => bytes(h[1]));
		el("holes").textContent = glue("The pool from its lowest address to its highest; what is not held is left out. " +
			(i.map.includes("?") ? "Of " + bytes(i.held) + " held nobody can tell where all of the free memory lies. " : "") +
			(i.holes ? counted(i.holes, "hole") + ", the largest " + named.join(", ") + (i.holes > named.length ? " and smaller ones" : "") + "." : "No holes.") +
			(i.holes && i.hole > i.largest[0][1] ? " The policy counts one of " + bytes(i.hole) + ": it can put idle pages side by side." : ""));
		if (plots.length) overview();
		strip();
		Object.assign(page.dataset, { event, look: i.event, used: i.used, asked: now.asked, blocks: now.blocks, askedtext: bytes(now.asked), held: i.held, holes: i.holes, policy: l.policy, peak: t.peak });
	}
	// stacked says whether stacks were recorded.
	const stacked = () => T().blocks ? T().blocks.stack : L().instants.some((i) => i.stacks);
	const ways = () => ["sizes"].concat(stacked() ? ["stacks", "frames"] : [], T().blocks ? ["blocks"] : []);

	function rows(now) {
		const body = el("rows");
		el("what").textContent = { sizes: "of size", stacks: "asked for by", frames: "asked for in", blocks: "alive" }[now.by];
		body.replaceChildren();
		let sum = 0, blocks = 0;
		const row = (size, n, what) => {
			const tr = document.createElement("tr");
			const cell = (text, cls) => { const c = document.createElement("td"); c.textContent = text; c.className = cls; tr.append(c); return c; };
			cell(bytes(size), "n"); cell(percent(size, now.asked), "n"); cell(count(n), "n");
			const w = cell("", "what");
			w.append(what);
			if (size > 0) { const m = document.createElement("span"); m.className = "meter"; m.style.width = 100 * size / now.asked + "%"; w.append(m); }
			body.append(tr);
		};
		for (const { size, n, what } of now.groups) {
			sum += size; blocks += n;
			const cut = what.indexOf("\n");
			if (cut < 0) { row(size, n, what); continue; }
			const d = document.createElement("details"), s = document.createElement("summary"), rest = document.createElement("div");
			s.textContent = what.slice(0, cut); rest.textContent = what.slice(cut + 1);
			d.append(s, rest);
			row(size, n, d);
		}
		if (blocks < now.blocks) row(Math.max(0, now.asked - sum), now.blocks - blocks, "all others");
		if (!now.blocks) row(0, 0, "nothing is alive");
	}

	// shown draws everything that follows the event looked at.
	function shown() {
		el("at").max = L().instants.length - 1;
		el("at").value = lookAt(S.event);
		el("at").setAttribute("aria-valuetext", which(S.event));
		shownLook();
		if (plots.length) plots[0].redraw(false);
		keep();
	}
	// repaint is for other colours.
	function repaint() { plots.forEach((u) => u.redraw(false)); overview(true); shown(); }

	function go(event) {
		S.event = known(event);
		S.hover = null;
		into();
		shown();
	}
	// step goes to the look before or after.
	function step(by) {
		const list = L().events, k = lookAt(S.event), on = list[k] === S.event || (by > 0) === (list[k] < S.event);
		go(list[Math.max(0, Math.min(list.length - 1, on ? k + by : k))]);
	}

	function setLayer(k) {
		if (!T().layers[k]) return;
		S.layer = k; S.hover = null;
		S.event = known(S.event);
		layerWords();
		build();
		shown();
	}
	function layerWords() {
		$$(".policy").forEach((b) => { b.textContent = L().policy; });
		tables().forEach((table, p) => [...table.tBodies[0].rows].forEach((tr, k) => {
			tr.classList.toggle("looked", p === S.pool && k === S.layer);
			tr.querySelector("[type=radio]").checked = p === S.pool && k === S.layer;
			tr.querySelector("[type=checkbox]").checked = data.pools[p].layers[k].on;
		}));
		$$("[data-do=refused]").forEach((b) => { b.disabled = !L().first; });
		$$("[name=by]").forEach((b) => { b.checked = b.value === S.by; b.parentElement.hidden = !ways().includes(b.value); });
		el("by").hidden = ways().length < 2;
		$$("[data-do=fit]").forEach((b) => b.setAttribute("aria-pressed", S.fit));
	}
	const tables = () => $$("table.policies");
	function toggle(k) {
		const l = T().layers[k];
		if (!l) return;
		l.on = !l.on;
		layerWords(); build(); shown();
	}

	// ---- what is shown, in the address ----

	let ready = false;
	function keep() {
		if (!ready) return;
		const t = T(), p = new URLSearchParams();
		p.set("at", S.event === t.peak_at ? "peak" : S.event);
		p.set("policy", L().policy);
		if (t.pool) p.set("pool", t.pool);
		const [min, max] = S.view;
		if (max - min < t.events - 0.5) p.set("zoom", Math.round(min) + "-" + Math.round(max));
		if (S.by !== "sizes") p.set("by", S.by);
		if (S.fit) p.set("fit", 1);
		const hidden = t.layers.map((l, k) => l.on ? 0 : k + 1).filter(Boolean);
		if (hidden.length) p.set("hide", hidden.join(","));
		if (root.dataset.theme) p.set("theme", root.dataset.theme);
		try { history.replaceState(null, "", "#" + p); } catch (e) { /* not in every frame */ }
	}
	function restore() {
		const hash = location.hash.slice(1);
		if (ready && !hash.includes("=")) return; // a place on the page
		const p = new URLSearchParams(hash);
		if (p.get("theme")) root.dataset.theme = p.get("theme") === "dark" ? "dark" : "light";
		S.pool = Math.max(0, data.pools.findIndex((t) => t.pool === p.get("pool")));
		const t = T();
		const broken = t.layers.findIndex((l) => l.first), named = t.layers.findIndex((l) => l.policy === p.get("policy"));
		S.layer = named >= 0 ? named : Math.max(0, broken);
		const hide = (p.get("hide") || "").split(",").map(Number);
		t.layers.forEach((l, k) => { l.on = !hide.includes(k + 1); });
		S.by = ["stacks", "frames", "blocks"].includes(p.get("by")) ? p.get("by") : "sizes";
		S.fit = p.get("fit") === "1";
		el("pool").value = S.pool;
		tables().forEach((table, k) => { table.parentElement.hidden = k !== S.pool; });
		const at = p.get("at") || (L().first ? "refused" : "peak"), l = L();
		const event = at === "peak" ? t.peak_at : at === "refused" && l.first ? l.first.event : at === "end" ? t.events : Number(at) || t.peak_at;
		S.hover = null;
		S.event = known(event);
		const z = /^(\d+)-(\d+)$/.exec(p.get("zoom") || "");
		S.view = z ? range(+z[1], +z[2]) : range();
		layerWords(); build(); shown();
	}

	// ---- hands ----

	const does = {
		peak: () => go(T().peak_at), refused: () => L().first && go(L().first.event),
		in: () => zoomBy(0.5), out: () => zoomBy(2), whole: () => zoom(),
		fit: () => { S.fit = !S.fit; layerWords(); build(); keep(); },
		prev: () => step(-1), next: () => step(1), first: () => go(1), last: () => go(T().events),
		before: () => T().blocks ? go(S.event - 1) : step(-1), after: () => T().blocks ? go(S.event + 1) : step(1),
		policy: () => setLayer((S.layer + 1) % T().layers.length),
		by: () => { const all = ways(); S.by = all[(all.indexOf(S.by) + 1) % all.length]; layerWords(); shown(); },
		theme: () => {
			const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
			root.dataset.theme = dark ? "light" : "dark";
			repaint(); keep();
		},
	};
	const keys = { ArrowLeft: "prev", ArrowRight: "next", Home: "first", End: "last", p: "peak", r: "refused", "+": "in", "=": "in", "-": "out", 0: "whole", y: "fit", n: "policy", s: "by", d: "theme" };
	addEventListener("keydown", (e) => {
		const on = e.target instanceof Element ? e.target : root;
		if (e.ctrlKey || e.metaKey || e.altKey || on.matches("select")) return;
		if (e.key.length > 1 && on.closest(".wrap, input")) return; // it scrolls, or moves itself
		if (/^[1-9]$/.test(e.key)) toggle(e.key - 1);
		else if (e.shiftKey && e.key.startsWith("Arrow") && keys[e.key]) does[e.key === "ArrowLeft" ? "before" : "after"]();
		else if (keys[e.key]) does[keys[e.key]]();
		else return;
		e.preventDefault();
	});
	$$("[data-do]").forEach((b) => b.addEventListener("click", () => does[b.dataset.do]()));
	el("theme").addEventListener("click", does.theme);
	el("at").addEventListener("input", (e) => go(L().events[e.target.value]));
	el("pool").addEventListener("change", (e) => { location.hash = new URLSearchParams({ pool: data.pools[e.target.value].pool, at: "peak" }); });
	$$("[name=by]").forEach((b) => b.addEventListener("change", () => { S.by = b.value; shown(); }));
	tables().forEach((table) => [...table.tBodies[0].rows].forEach((tr, k) => {
		tr.querySelector("[type=radio]").addEventListener("change", () => setLayer(k));
		tr.querySelector("[type=checkbox]").addEventListener("change", () => toggle(k));
		tr.querySelector("path").setAttribute("stroke-dasharray", dashes[k % dashes.length].join(" "));
	}));
	const over = el("over");
	const eventAt = (e) => {
		const u = plots[0], box = over.getBoundingClientRect(), d = devicePixelRatio || 1, [min, max] = S.view;
		return min + (max - min) * (e.clientX - box.left - u.bbox.left / d) / (u.bbox.width / d);
	};
	over.addEventListener("pointermove", (e) => { if (e.pointerType === "mouse") pointAt(eventAt(e)); });
	over.addEventListener("pointerleave", () => { S.hover = null; el("pointer").textContent = ""; shownLook(); });
	over.addEventListener("click", (e) => go(eventAt(e)));
	el("strip").addEventListener("pointermove", pointBlock);
	el("strip").addEventListener("pointerdown", pointBlock);
	el("strip").addEventListener("pointerleave", (e) => { if (e.pointerType === "mouse") el("block").textContent = ""; });
	addEventListener("hashchange", restore);
	matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
	// On paper all is dark on white.
	let theme;
	addEventListener("beforeprint", () => { theme = root.dataset.theme; root.dataset.theme = "light"; repaint(); });
	addEventListener("afterprint", () => { if (theme) root.dataset.theme = theme; else delete root.dataset.theme; repaint(); });
	let width = innerWidth;
	addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; build(); shown(); } });

	el("pools").hidden = data.pools.length < 2;
	restore();
	ready = true;
	keep();
	page.dataset.ready = "yes";
})();
