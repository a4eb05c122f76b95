// A plot of values over events, instructions or time, on a canvas.
//
// plot(parent, spec) draws
//   spec.bands   [{name, color, values}] areas on each other, the first at the bottom
//   spec.lines   [{name, color, dash, width, values, from}] in steps; NaN where it is over
//   spec.paint   (plot, g) draws instead of bands; it may set plot.hit
//   spec.levels  [{value, text, color}] across
//   spec.marks   [{at, text, color, ring}] upright, with their texts above; with a ring at that
//                value they end there
//   spec.dim     {from, text} what follows is fainter
// over spec.at, ascending numbers: value k stands from at[k] to at[k+1], the last one to
// x.max. Where several values fall on one pixel, bands show those of the moment with the
// largest sum, so that they add up and no peak is lost; lines show the largest.
//
// spec.x is {min, max, title, format, also: {title, texts}}, spec.y {title, max, format};
// without y.format values are bytes. spec.height is in pixels, and spec.labels is the room for
// names at the right, so that the axes of several plots end alike. spec.card(k, band) returns {title, rows} for
// the card; band is the index of the band under the pointer, or -1. spec.click(k, band) is
// called for a click and for Enter. Plots with the same spec.group share what is zoomed to
// and where the pointer is.
//
// A plot has redraw(), set(changes of the spec), remove(), zoom(min, max), zoomBy(factor),
// and box, X and Y for those who paint. Its element has it as the property plot.

const groups = new Map();
function groupOf(name) {
	if (!groups.has(name)) groups.set(name, { view: null, x: null, plots: [] });
	return groups.get(name);
}

// roundSteps returns multiples of 1, 2 or 5 times a power of ten of unit from min to max,
// about n of them.
function roundSteps(min, max, unit, n) {
	const raw = Math.max((max - min) / unit / n, 1e-9), ten = Math.pow(10, Math.floor(Math.log10(raw)));
	const step = ten * [1, 2, 5, 10].find((f) => f * ten >= raw * (1 - 1e-9)) * unit, list = [];
	for (let k = Math.ceil(min / step - 1e-9); k * step <= max * (1 + 1e-9); k++) list.push(k * step);
	return list;
}
function unitOf(top) {
	let unit = 1;
	while (top / unit >= 1024 && unit < Math.pow(1024, 6)) unit *= 1024;
	return unit;
}
const short = (v) => String(+v.toPrecision(12));

// apart moves labels up and down until they are room apart, in the same order, and between
// low and high if they fit.
function apart(list, room, low, high) {
	let next = low;
	for (const l of list) { l.y = Math.max(l.y, next); next = l.y + room; }
	next = high;
	for (const l of [...list].reverse()) { l.y = Math.min(l.y, next); next = l.y - room; }
}

// cut shortens a text to a width.
function cut(g, s, width) {
	if (g.measureText(s).width <= width) return s;
	let low = 0, high = s.length;
	while (low < high) {
		const mid = (low + high + 1) >> 1;
		if (g.measureText(s.slice(0, mid) + "…").width <= width) low = mid; else high = mid - 1;
	}
	return s.slice(0, low) + "…";
}

// cutMiddle shortens a text to a width and keeps both ends: paths differ at the end.
function cutMiddle(g, s, width) {
	if (g.measureText(s).width <= width) return s;
	let low = 0, high = s.length;
	const of = (n) => s.slice(0, Math.floor(n / 3)) + "…" + s.slice(s.length - (n - Math.floor(n / 3)));
	while (low < high) {
		const mid = (low + high + 1) >> 1;
		if (g.measureText(of(mid)).width <= width) low = mid; else high = mid - 1;
	}
	return of(low);
}

function plot(parent, spec) {
	const group = groupOf(spec.group || spec), font = "12px system-ui, sans-serif";
	const base = el("canvas", { "aria-hidden": "true" }), over = el("canvas", { class: "over", "aria-hidden": "true" });
	const said = el("p", { class: "said", "aria-live": "polite" });
	const wrap = el("div", { class: "plot", tabindex: 0, role: "group", "aria-roledescription": "plot", "aria-label": spec.name, "aria-keyshortcuts": "ArrowLeft ArrowRight ArrowUp ArrowDown + - 0" }, base, over);
	const key = el("ul", { class: "key", "aria-label": "Colours" });
	parent.append(wrap, key, said);
	let bands, lines, heights, top, labelled;
	const highest = (list) => list.reduce((a, v) => (v > a ? v : a), 0);
	// take reads the spec. The sums are for what is drawn alone; figures come with the data.
	function take() {
		bands = spec.bands || [];
		lines = spec.lines || [];
		heights = spec.at.map((_, k) => bands.reduce((sum, b) => sum + b.values[k], 0));
		top = spec.y.max || Math.max(1, highest(heights), ...lines.map((l) => highest(l.values))) * 1.04;
		labelled = [...lines.map((l) => ({ of: l, line: true })), ...bands.map((b, k) => ({ of: b, k }))].filter((l) => l.of.name);
	}
	take();
	const p = { spec, wrap, box: null, picked: null, band: -1 };
	group.plots.push(p);
	wrap.plot = p;

	const paint = (c) => c && c.startsWith("#") ? c : color(c || "text");

	// measure lays the plot out for the page's width.
	function measure() {
		const w = wrap.clientWidth, d = devicePixelRatio || 1;
		const height = spec.height || (narrow() ? 240 : 320);
		for (const c of [base, over]) {
			c.width = Math.round(w * d); c.height = Math.round(height * d);
			c.style.height = height + "px";
		}
		wrap.style.height = height + "px";
		const g = base.getContext("2d");
		g.setTransform(d, 0, 0, d, 0, 0);
		g.font = font;
		const left = narrow() ? 46 : 60;
		const right = narrow() ? 12 : spec.labels || (labelled.length ? 190 : 12);
		p.rows = placeMarks(g, left, w - left - right);
		const up = 20 + 15 * p.rows, down = spec.x.also ? 52 : 36;
		p.box = { left, top: up, width: Math.max(10, w - left - right), height: height - up - down };
		return g;
	}
	const view = () => group.view || [spec.x.min, spec.x.max];
	p.X = (x) => { const [a, b] = view(); return p.box.left + p.box.width * (x - a) / (b - a); };
	p.Y = (v) => p.box.top + p.box.height * (1 - v / top);
	p.xAt = (px) => { const [a, b] = view(); return a + (b - a) * (px - p.box.left) / p.box.width; };

	// placeMarks gives the texts of the marks rows so that none covers another, and returns
	// how many rows there are. A mark that fits in none of three has no text.
	let marks = [];
	function placeMarks(g, left, width) {
		const [a, b] = view(), ends = [-1e9, -1e9, -1e9];
		g.font = "600 " + font;
		marks = (spec.marks || []).filter((m) => m.at >= a && m.at <= b).sort((x, y) => x.at - y.at).map((m) => {
			const x = left + width * (m.at - a) / (b - a), wide = g.measureText(m.text).width;
			const from = Math.max(left, Math.min(x - wide / 2, left + width - wide));
			const row = ends.findIndex((e) => e + 20 < from);
			if (row >= 0) ends[row] = from + wide;
			return { m, x, from, row };
		});
		g.font = font;
		return Math.max(0, ...marks.map((m) => m.row + 1));
	}

	// columns chooses the value of each pixel of the width.
	function columns() {
		const n = Math.max(1, Math.floor(p.box.width)), [a, b] = view(), list = new Array(n);
		let k = within(spec.at, a);
		for (let c = 0; c < n; c++) {
			const end = a + (b - a) * (c + 1) / n;
			let best = k;
			while (k + 1 < spec.at.length && spec.at[k + 1] < end) { k++; if (heights[k] > heights[best] || best === k - 1 && spec.at[best] < a + (b - a) * c / n && heights[k] >= heights[best]) best = k; }
			list[c] = { k: best, from: c ? list[c - 1].last : best, last: k };
		}
		return list;
	}

	function redraw() {
		if (!wrap.clientWidth) return;
		const g = measure(), { left, top: up, width, height } = p.box, [a, b] = view();
		g.clearRect(0, 0, wrap.clientWidth, up + height + 60);
		p.columns = columns();
		axes(g);
		g.save();
		g.beginPath(); g.rect(left, up - 1, width, height + 2); g.clip();
		p.hit = null;
		if (spec.paint) spec.paint(p, g); else drawBands(g);
		drawLines(g);
		g.restore();
		if (spec.dim && spec.dim.from <= b) {
			const x = Math.max(left, p.X(spec.dim.from));
			g.globalAlpha = 0.62; g.fillStyle = color("page"); g.fillRect(x, up, left + width - x + 1, height); g.globalAlpha = 1;
			if (spec.dim.text && left + width - x > 160) { g.textAlign = "left"; g.textBaseline = "bottom"; word(g, cut(g, spec.dim.text, left + width - x - 12), x + 6, up + height - 4, "text"); }
		}
		for (const l of spec.levels || []) {
			if (l.value > top) continue;
			const y = p.Y(l.value);
			g.strokeStyle = paint(l.color); g.lineWidth = 1.25; g.setLineDash([6, 4]);
			g.beginPath(); g.moveTo(left, y); g.lineTo(left + width, y); g.stroke(); g.setLineDash([]);
			g.textAlign = "left"; g.textBaseline = "bottom";
			word(g, l.text, left + 6, y - 3 < up + 12 ? y + 16 : y - 2, l.color);
		}
		drawMarks(g);
		names(g);
		pointer();
	}

	// word writes a text with a rim of the page's colour, so that it reads on anything.
	function word(g, s, x, y, name, weight) {
		g.font = (weight || "") + " " + font;
		g.lineJoin = "round"; g.lineWidth = 4; g.strokeStyle = color("page"); g.strokeText(s, x, y);
		g.fillStyle = paint(name); g.fillText(s, x, y);
		g.font = font;
	}

	function axes(g) {
		const { left, top: up, width, height } = p.box, [a, b] = view();
		const plain = spec.y.format, unit = plain ? 1 : unitOf(top);
		g.textBaseline = "middle"; g.textAlign = "right"; g.lineWidth = 1;
		for (const v of roundSteps(0, top, unit, Math.max(3, height / 44))) {
			const y = Math.round(p.Y(v)) + 0.5;
			g.strokeStyle = color("grid"); g.beginPath(); g.moveTo(left, y); g.lineTo(left + width, y); g.stroke();
			g.fillStyle = color("quiet"); g.fillText(plain ? plain(v) : short(v / unit), left - 7, y);
		}
		g.textAlign = "left"; g.textBaseline = "top"; g.fillStyle = color("quiet");
		g.fillText(cut(g, (plain ? "" : bytes(unit).replace("1 ", "") + ", ") + spec.y.title, wrap.clientWidth - 8), 4, 2);
		g.strokeStyle = color("quiet"); g.beginPath(); g.moveTo(left, up + height + 0.5); g.lineTo(left + width, up + height + 0.5); g.stroke();
		const format = spec.x.format || count;
		let ticks = roundSteps(a, b, 1, Math.max(2, width / 110)).filter(Number.isInteger);
		const draw = (texts, y) => {
			let end = -1e9;
			ticks.forEach((v, n) => {
				const half = g.measureText(texts[n]).width / 2, x = Math.max(left + half - 8, Math.min(p.X(v), left + width - half + 8));
				if (!texts[n] || x - half < end + 12) return;
				g.textAlign = "center"; g.fillStyle = color("quiet"); g.fillText(texts[n], x, y);
				end = x + half;
				g.beginPath(); g.moveTo(Math.round(p.X(v)) + 0.5, up + height); g.lineTo(Math.round(p.X(v)) + 0.5, up + height + 4); g.stroke();
			});
		};
		g.textBaseline = "top";
		draw(ticks.map(format), up + height + 7);
		if (spec.x.also) draw(spec.x.also.texts(ticks), up + height + 21);
		g.textAlign = "right"; g.fillStyle = color("quiet");
		g.fillText(spec.x.title + (spec.x.also ? "; " + spec.x.also.title : ""), left + width, up + height + (spec.x.also ? 36 : 21));
	}

	function drawBands(g) {
		const { left, width } = p.box, n = p.columns.length, floor = new Float64Array(n);
		for (const b of bands) {
			g.fillStyle = paint(b.color);
			g.beginPath();
			const x = (c) => left + width * c / n;
			let some = 0; // the most pixels that it is thick
			for (let c = 0; c < n;) {
				if (!b.values[p.columns[c].k]) { c++; continue; }
				// One run of columns in which the band is there.
				let end = c;
				while (end < n && b.values[p.columns[end].k]) end++;
				g.moveTo(x(c), p.Y(floor[c]));
				for (let k = c; k < end; k++) { some = Math.max(some, p.Y(0) - p.Y(b.values[p.columns[k].k])); const y = p.Y(floor[k] + b.values[p.columns[k].k]); g.lineTo(x(k), y); g.lineTo(x(k + 1), y); }
				for (let k = end - 1; k >= c; k--) { const y = p.Y(floor[k]); g.lineTo(x(k + 1), y); g.lineTo(x(k), y); }
				c = end;
			}
			if (some) g.fill();
			// An edge would hide a thin one.
			if (some > 4) { g.strokeStyle = color("page"); g.lineWidth = 0.75; g.stroke(); }
			for (let c = 0; c < n; c++) floor[c] += b.values[p.columns[c].k];
		}
		// What goes beyond the axis has a gap, so that it does not look as if it ended there.
		g.strokeStyle = color("page"); g.lineWidth = 2.5; g.beginPath();
		for (let c = 0; c < n; c++) {
			if (floor[c] <= top) continue;
			const x = left + width * c / n, y = p.box.top + 9, step = width / n;
			g.moveTo(x, y + (c % 6 < 3 ? c % 3 : 3 - c % 3)); g.lineTo(x + step, y + ((c + 1) % 6 < 3 ? (c + 1) % 3 : 3 - (c + 1) % 3));
		}
		g.stroke();
		p.hit = (c, v) => {
			let sum = 0;
			const k = p.columns[c].k;
			return bands.findIndex((b) => { sum += b.values[k]; return v < sum && b.values[k] > 0; });
		};
	}

	function drawLines(g) {
		const { left, width } = p.box, n = p.columns.length;
		for (const l of lines) {
			g.strokeStyle = paint(l.color); g.lineWidth = l.width || 1.5; g.setLineDash(l.dash || []);
			g.beginPath();
			let begun = false;
			p.columns.forEach((col, c) => {
				if (l.from !== undefined && spec.at[col.k] < l.from) return;
				let v = l.values[col.k];
				for (let k = col.from; k <= col.last; k++) if (l.values[k] > v || isNaN(v)) v = l.values[k];
				if (isNaN(v)) return;
				const y = p.Y(v), x = left + width * c / n;
				if (!begun) { g.moveTo(x, y); begun = true; } else g.lineTo(x, y);
				g.lineTo(left + width * (c + 1) / n, y);
			});
			g.stroke();
		}
		g.setLineDash([]);
	}

	function drawMarks(g) {
		const { top: up, height } = p.box;
		for (const { m, x, from, row } of marks) {
			g.strokeStyle = paint(m.color); g.lineWidth = 1.25;
			const y = row < 0 ? up : up - 15 * (p.rows - row) + 13;
			const ring = m.ring !== undefined && p.Y(m.ring) >= up - 1, foot = m.ring === undefined ? up + height : Math.max(up, p.Y(m.ring)) - 4.5;
			g.beginPath(); g.moveTo(x, y); g.lineTo(x, Math.max(y, foot)); g.stroke();
			if (ring) { g.beginPath(); g.arc(x, foot + 4.5, 4.5, 0, 7); g.fillStyle = color("page"); g.fill(); g.lineWidth = 2; g.stroke(); }
		}
		// The texts come last: no line of another mark crosses them.
		for (const { m, from, row } of marks) {
			if (row < 0 || !m.text) continue;
			const y = up - 15 * (p.rows - row) + 13;
			g.textAlign = "left"; g.textBaseline = "bottom";
			word(g, m.text, from, y, m.color, "600");
		}
	}

	// names puts the names at the lines' ends, or below on a narrow page.
	function names(g) {
		const { left, top: up, width, height } = p.box, room = wrap.clientWidth - left - width - 26;
		const end = p.columns[p.columns.length - 1].k;
		let floor = 0;
		const list = labelled.flatMap((l) => {
			let last = end; // where a line is over its name stands at the height that it had
			while (l.line && last > 0 && isNaN(l.of.values[last])) last--;
			const v = l.of.values[last];
			if (l.line) return isNaN(v) ? [] : [{ l, y: p.Y(v) }];
			const y = p.Y(floor + v / 2);
			floor += v;
			return [{ l, y }];
		}).sort((x, y) => x.y - y.y);
		// Bands of no height keep their order: the last lies on top.
		const order = new Map(labelled.map((l, k) => [l, l.line ? -1 : k]));
		list.sort((x, y) => x.y - y.y || order.get(y.l) - order.get(x.l));
		const below = narrow() || list.length * 15 > height + 20;
		key.hidden = !below;
		key.replaceChildren(...(below ? [...labelled].reverse().map((l) => el("li", {}, el("i", { class: l.line ? "swatch line" : "swatch", style: (l.line ? "border-color:" : "background:") + paint(l.of.color) }), el("bdi", {}, l.of.name))) : []));
		if (below) return;
		apart(list, 15, up + 7, up + height - 4);
		g.textAlign = "left"; g.textBaseline = "middle";
		for (const { l, y } of list) {
			const x = left + width + 6;
			if (l.line) { g.strokeStyle = paint(l.of.color); g.lineWidth = l.of.width || 1.5; g.setLineDash(l.of.dash || []); g.beginPath(); g.moveTo(x, y); g.lineTo(x + 14, y); g.stroke(); g.setLineDash([]); }
			else { g.fillStyle = paint(l.of.color); g.fillRect(x + 2, y - 5, 10, 10); }
			g.font = (l.of.bold ? "600 " : "") + font;
			g.fillStyle = color("text"); g.fillText(cutMiddle(g, l.of.name, room), x + 19, y);
			g.font = font;
		}
	}

	// pointer draws where the group's pointer is, and what is dragged over.
	let drag = null;
	function pointer() {
		if (!p.box) return;
		const g = over.getContext("2d"), d = devicePixelRatio || 1, { left, top: up, width, height } = p.box;
		g.setTransform(d, 0, 0, d, 0, 0);
		g.clearRect(0, 0, over.width, over.height);
		if (drag && drag.moved) { g.globalAlpha = 0.15; g.fillStyle = color("text"); g.fillRect(Math.min(drag.from, drag.to), up, Math.abs(drag.to - drag.from), height); g.globalAlpha = 1; }
		if (group.x === null) return;
		const x = p.X(group.x);
		if (x < left || x > left + width) return;
		g.strokeStyle = color("text"); g.lineWidth = 1; g.setLineDash([3, 3]);
		g.beginPath(); g.moveTo(x, up); g.lineTo(x, up + height); g.stroke();
	}
	const pointers = () => group.plots.forEach((q) => q.pointer());
	p.pointer = pointer;

	// at finds what is at a point of the plot.
	function at(px, py) {
		const { left, top: up, width, height } = p.box;
		if (px < left || px > left + width || py < up - 4 || py > up + height + 4) return null;
		const c = Math.max(0, Math.min(p.columns.length - 1, Math.floor((px - left) / width * p.columns.length)));
		const v = top * (1 - (py - up) / height);
		return { c, k: p.columns[c].k, band: p.hit ? p.hit(c, v) : -1 };
	}
	function show(c, k, band, px, py) {
		group.x = p.xAt(p.box.left + p.box.width * (c + 0.5) / p.columns.length);
		p.picked = c; p.band = band;
		pointers();
		if (!spec.card) return null;
		const card = spec.card(k, band, p);
		if (!card) { hideCard(); return null; }
		const r = wrap.getBoundingClientRect();
		showCard(r.left + px, r.top + py, card.title, card.rows, card.color ? paint(card.color) : "");
		return card;
	}
	function leave() { group.x = null; pointers(); hideCard(); }
	const spot = (e) => { const r = wrap.getBoundingClientRect(); return [e.clientX - r.left, e.clientY - r.top]; };
	wrap.addEventListener("pointermove", (e) => {
		const [x, y] = spot(e);
		if (drag) {
			drag.to = Math.max(p.box.left, Math.min(x, p.box.left + p.box.width));
			drag.moved = drag.moved || Math.abs(drag.to - drag.from) > 4;
			if (drag.moved) { hideCard(); pointer(); return; }
		}
		const found = at(x, y);
		if (found) show(found.c, found.k, found.band, x, y); else leave();
	});
	wrap.addEventListener("pointerdown", (e) => {
		const [x, y] = spot(e), found = at(x, y);
		if (!found) return;
		if (e.pointerType === "mouse" && e.button === 0) { drag = { from: x, to: x, moved: false }; wrap.setPointerCapture(e.pointerId); }
		show(found.c, found.k, found.band, x, y);
	});
	wrap.addEventListener("pointerup", (e) => {
		const was = drag;
		drag = null;
		if (was && was.moved) { zoom(p.xAt(Math.min(was.from, was.to)), p.xAt(Math.max(was.from, was.to))); return; }
		const found = at(...spot(e));
		if (found && spec.click && e.pointerType === "mouse") spec.click(found.k, found.band);
	});
	wrap.addEventListener("pointercancel", () => { drag = null; leave(); });
	wrap.addEventListener("pointerleave", (e) => { if (e.pointerType === "mouse" && !drag) leave(); });
	wrap.addEventListener("dblclick", () => zoom());
	wrap.addEventListener("blur", leave);
	wrap.addEventListener("keydown", (e) => {
		if (e.ctrlKey || e.metaKey || e.altKey || !p.box) return;
		const step = e.shiftKey ? 40 : 1, n = p.columns.length;
		let c = p.picked === null ? Math.floor(n / 2) : Math.min(p.picked, n - 1), band = p.band;
		if (e.key === "ArrowLeft" || e.key === "ArrowRight") {
			// On to the next moment that is drawn.
			const by = e.key === "ArrowLeft" ? -1 : 1, k = p.columns[c].k;
			c += by * step;
			while (step === 1 && c > 0 && c < n - 1 && p.columns[c].k === k) c += by;
			c = Math.max(0, Math.min(n - 1, c));
		} else if (e.key === "ArrowUp" && bands.length) band = Math.min(bands.length - 1, band + 1);
		else if (e.key === "ArrowDown" && bands.length) band = Math.max(-1, band - 1);
		else if (e.key === "Home") c = 0;
		else if (e.key === "End") c = n - 1;
		else if (e.key === "Enter" && spec.click) { spec.click(p.columns[c].k, band); e.preventDefault(); e.stopPropagation(); return; }
		else if (e.key === "Escape") { leave(); return; }
		else return;
		const card = show(c, p.columns[c].k, band, p.box.left + p.box.width * c / n, p.box.top + p.box.height / 3);
		said.textContent = card ? card.title + ". " + card.rows.map(([l, v]) => (l ? l + " " : "") + (v.textContent || v)).join(". ") : "";
		e.preventDefault();
		e.stopPropagation();
	});

	// zoom shows what lies between two numbers in all plots of the group; without them all.
	function zoom(min, max) {
		const first = spec.x.min, last = spec.x.max;
		group.view = null;
		if (min !== undefined && isFinite(min) && isFinite(max)) {
			const wide = Math.min(Math.max(max - min, Math.min(4, last - first)), last - first);
			const low = Math.max(first, Math.min((min + max - wide) / 2, last - wide));
			if (wide < last - first) group.view = [low, low + wide];
		}
		group.plots.forEach((q) => q.redraw());
		if (group.zoomed) group.zoomed(group.view);
	}
	p.zoom = zoom;
	p.zoomBy = (factor, about) => {
		const [a, b] = view(), at = about !== undefined && about >= a && about <= b ? about : (a + b) / 2;
		zoom(at - (at - a) * factor, at + (b - at) * factor);
	};
	p.group = group;
	p.redraw = redraw;
	// set changes parts of the spec, on pages that are live.
	p.set = (changes) => { Object.assign(spec, changes); take(); wrap.setAttribute("aria-label", spec.name); redraw(); };
	// remove takes the plot off the page.
	p.remove = () => { group.plots.splice(group.plots.indexOf(p), 1); repaints.delete(redraw); wrap.remove(); key.remove(); said.remove(); };
	repaints.add(redraw);
	redraw();
	return p;
}
