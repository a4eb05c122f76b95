// The pool's maps, drawn pixel by pixel.

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
