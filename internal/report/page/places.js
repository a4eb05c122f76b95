// Where it lies: the pool's map over the run and after one event, and the segments of the
// recorded program's pool.

function rgb(name) {
	const c = color(name), n = parseInt(c.length === 4 ? c.replace(/[^#]/g, "$&$&").slice(1) : c.slice(1), 16);
	return [n >> 16, n >> 8 & 255, n & 255];
}
// shader returns the colour of some cells of a map, averaged.
function shader() {
	const used = rgb("c1"), free = rgb("grid"), unknown = rgb("rest");
	return (map, from, to, x, y) => {
		let sum = 0, dark = 0, n = 0;
		for (let k = from; k < to; k++, n++) {
			const ch = map.charCodeAt(k);
			if (ch === 63) dark++; else sum += (ch - 48) / 8;
		}
		const part = sum / n;
		if (dark * 2 > n) return (x + y) % 6 < 3 ? unknown : free;
		return [0, 1, 2].map((c) => Math.round(used[c] * part + free[c] * (1 - part)));
	};
}
function cellsAt(map, k, n) {
	const from = Math.floor(k * map.length / n);
	return [from, Math.max(from + 1, Math.floor((k + 1) * map.length / n))];
}
// picture puts an image in pixels of the device onto a canvas whose unit is a CSS
// pixel.
function picture(g, x, y, width, height, shadeOf) {
	const d = devicePixelRatio || 1, w = Math.max(1, Math.round(width * d)), h = Math.max(1, Math.round(height * d));
	const image = g.createImageData(w, h);
	for (let px = 0; px < w; px++) {
		const column = shadeOf(px, w, h);
		for (let py = 0; py < h; py++) {
			const c = column(py);
			if (!c) continue;
			const at = 4 * (py * w + px);
			image.data.set(c, at); image.data[at + 3] = 255;
		}
	}
	g.putImageData(image, Math.round(x * d), Math.round(y * d));
}

// overMap returns the paint of a plot: a column for each snapshot, as high as what is held,
// the lowest address at the bottom.
function overMap(snapshots, most) {
	return (p, g) => {
		const shade = shader(), { left, top, width, height } = p.box;
		picture(g, left, top, width, height, (px, w, h) => {
			const c = Math.min(p.columns.length - 1, Math.floor(px / w * p.columns.length)), s = snapshots[p.columns[c].k];
			const high = Math.round(h * s.held / most / 1.04);
			return (py) => {
				const up = h - 1 - py;
				if (up >= high || !s.map) return null;
				const [a, b] = cellsAt(s.map, up, high);
				return shade(s.map, a, b, px, py);
			};
		});
	};
}

// strip draws the map of a snapshot with its largest free block, and below it, to scale,
// what was requested there if that was refused.
function strip(canvas, s, asked) {
	const d = devicePixelRatio || 1, w = canvas.clientWidth;
	if (!w) return;
	canvas.width = Math.round(w * d); canvas.height = Math.round(canvas.clientHeight * d);
	const g = canvas.getContext("2d"), top = 22, high = 34;
	g.setTransform(d, 0, 0, d, 0, 0);
	const all = Math.max(s.held, asked, 1), width = (w - 2) * s.held / all, shade = shader();
	if (width > 0 && s.map) {
		picture(g, 1, top, width, high, (px, n) => { const [a, b] = cellsAt(s.map, px, n); return (py) => shade(s.map, a, b, px, py); });
		// A gap between blocks that have room for it.
		g.fillStyle = color("page");
		for (const [from, size] of s.top || []) if (size / all * (w - 2) > 4) g.fillRect(1 + (from + size) / all * (w - 2) - 0.5, top, 1, high);
		g.strokeStyle = color("quiet"); g.lineWidth = 1; g.strokeRect(0.5, top - 0.5, width + 1, high + 1);
	}
	g.font = "600 12px system-ui, sans-serif"; g.textBaseline = "middle"; g.textAlign = "center";
	const span = (from, size, y, words, name, up) => {
		const a = 1 + (w - 2) * from / all, b = Math.max(1 + (w - 2) * (from + size) / all, a + 2), tick = up ? 5 : -5;
		g.strokeStyle = g.fillStyle = color(name); g.lineWidth = 2;
		g.beginPath(); g.moveTo(a, y + tick); g.lineTo(a, y); g.lineTo(b, y); g.lineTo(b, y + tick); g.stroke();
		const half = g.measureText(words).width / 2;
		g.fillText(words, Math.max(half + 2, Math.min((a + b) / 2, w - half - 2)), y + (up ? -9 : 11));
	};
	if (s.largest && s.largest.length) span(s.largest[0][0], s.largest[0][1], top - 5, "largest free block " + bytes(s.largest[0][1]), "text", true);
	if (asked) span(0, asked, top + high + 6, "requested " + bytes(asked), "no", false);
}
// stripCard returns what lies at a part of the strip, from 0 to 1.
function stripCard(s, asked, part, names) {
	const at = part * Math.max(s.held, asked, 1);
	const hit = (list) => (list || []).find(([from, size]) => from <= at && at < from + size), b = hit(s.top), h = hit(s.largest);
	if (b) return { title: "a block of " + bytes(b[1]), rows: [["from the lowest address", bytes(b[0])]].concat(b[2] ? [["", names[b[2] - 1], "stack"]] : []) };
	if (h) return { title: "free, " + bytes(h[1]), rows: [["from the lowest address", bytes(h[0])]] };
	return at < s.held ? { title: "smaller blocks, free and live", rows: [] } : null;
}

// segments draws the largest segments of a recorded pool, to one scale, with their blocks.
function segments(parent, list, names) {
	const row = 17, most = 60, shown = list.slice(0, most);
	const canvas = el("canvas", { role: "img", "aria-label": "The largest segments to scale with their live blocks; the table of what lives at the end has the same blocks" });
	parent.append(canvas, el("p", { class: "quiet" }, "One row for each segment, to one scale, its address at the left. Blocks that live are filled, one colour for each stack; the rest is free." + (list.length > most ? " The " + most + " largest of " + count(list.length) + "." : "")));
	const left = () => narrow() ? 0 : 130, widest = Math.max(...shown.map((s) => s.bytes));
	const colorOf = new Map();
	for (const s of list) for (const b of s.blocks || []) if (!colorOf.has(b[2])) colorOf.set(b[2], nth(colorOf.size));
	function draw() {
		const d = devicePixelRatio || 1, w = canvas.clientWidth;
		if (!w) return;
		canvas.style.height = shown.length * row + "px";
		canvas.width = Math.round(w * d); canvas.height = Math.round(shown.length * row * d);
		const g = canvas.getContext("2d"), wide = w - left() - 2;
		g.setTransform(d, 0, 0, d, 0, 0);
		g.font = "12px ui-monospace, monospace"; g.textBaseline = "middle";
		shown.forEach((s, k) => {
			const y = k * row + 2, x = left(), scale = wide / widest;
			if (x) { g.fillStyle = color("quiet"); g.fillText(s.addr, 0, y + 7); }
			g.fillStyle = color("grid"); g.fillRect(x, y, Math.max(2, s.bytes * scale), row - 5);
			for (const [from, size, name] of s.blocks || []) {
				g.fillStyle = name ? color(colorOf.get(name)) : color("rest");
				g.fillRect(x + from * scale, y, Math.max(0.5, size * scale - (size * scale > 3 ? 0.75 : 0)), row - 5);
			}
		});
	}
	canvas.addEventListener("pointermove", (e) => {
		const r = canvas.getBoundingClientRect(), s = shown[Math.floor((e.clientY - r.top) / row)];
		const at = (e.clientX - r.left - left()) / (r.width - left() - 2) * widest;
		if (!s || at < 0 || at > s.bytes) { hideCard(); return; }
		const b = (s.blocks || []).find(([from, size]) => from <= at && at < from + size);
		const about = [["segment", s.addr + ", " + bytes(s.bytes) + (s.small ? ", for small requests" : "") + (s.stream ? ", stream " + s.stream : "")], ["free in it", bytes(s.free)]];
		if (b) showCard(e.clientX, e.clientY, "a block of " + bytes(b[1]), [["offset", bytes(b[0])], ...about].concat(b[2] ? [["", names[b[2] - 1], "stack"]] : []));
		else showCard(e.clientX, e.clientY, "free", about);
	});
	canvas.addEventListener("pointerleave", hideCard);
	repaints.add(draw);
	draw();
	return draw;
}
