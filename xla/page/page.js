// The page of a module or of a plan: the curves, what lives where, the heap and the frontier.

const ways = { kind: "kind", scope: "scope of op_name", line: "line of the source" };

function start(data) {
	data.Views.forEach((view, k) => show(data, view, k));
	if (data.Frontier) drawFrontier(byId("frontier-plot"), data.Frontier);
}

// rowsOf returns the values of a view, one object each, the largest first.
function rowsOf(view) {
	const r = view.Rows, bytes = sums(r.Bytes), padding = sums(r.Padding), text = (list, k) => view.Texts[list[k]];
	return bytes.map((b, k) => ({
		k, bytes: b, padding: padding[k], first: r.First[k], last: r.Last[k], kind: view.Kinds[r.Kind[k]],
		name: text(r.Name, k), shape: text(r.Shape, k), op: text(r.Op, k), place: text(r.Place, k), until: text(r.Until, k),
		bands: r.Band.map((list) => list[k]), offset: r.Offset[k],
	}));
}

const bandColor = (band, k) => band.Rest ? "rest" : nth(k);

function show(data, view, number) {
	const parent = byId("view-" + number), at = sums(view.At), steps = sums(view.Step), total = sums(view.Total), alive = sums(view.Alive);
	const rows = rowsOf(view), last = (k) => k + 1 < at.length ? at[k + 1] - 1 : view.Steps - 1;
	for (const w of view.Ways) for (const b of w.Bands) b.sums = sums(b.Values);
	let way = view.Ways[view.Way], picked = view.PeakColumn, drawn = null, heap = null, box = null;
	const at1 = (step) => count(step + 1);
	const name = (r) => r.name + (r.shape ? " " + r.shape : "");
	const card = (r) => {
		const list = [["takes", bytes(r.bytes)]];
		if (r.padding) list.push(["padding", bytes(r.padding)]);
		list.push(["kind", r.kind]);
		list.push(["lives", "steps " + at1(r.first) + " to " + at1(r.last) + ", to " + r.until]);
		if (r.offset >= 0) list.push(["lies at", bytes(r.offset)]);
		if (r.op) list.push(["op_name", r.op]);
		if (r.place) list.push(["line", r.place]);
		return list;
	};
	parent.replaceChildren();
	const choose = el("select", { "aria-label": "Colours by", onchange: (e) => { way = view.Ways[e.target.value]; draw(); } },
		view.Ways.map((w, k) => el("option", { value: k, selected: w === way }, "by " + ways[w.Name])));
	const zoomed = (f) => el("button", { type: "button", onclick: () => drawn.zoomBy(f) }, f < 1 ? "+" : "−");
	const bar = el("div", { class: "bar", role: "toolbar", "aria-label": "Curve" }, choose,
		zoomed(0.5), zoomed(2), el("button", { type: "button", onclick: () => drawn.zoom() }, "all"),
		el("button", { type: "button", onclick: () => pick(view.PeakColumn) }, "to the peak"));
	const place = el("div");
	parent.append(bar, place);

	function draw() {
		if (drawn) drawn.remove();
		const n = view.Ways.indexOf(way);
		drawn = plot(place, {
			name: "Memory over the program" + (view.Which ? ", " + view.Which : "") + ": " + bytes(view.Peak) + " at most", group: "steps" + number,
			at, x: { min: 0, max: view.Steps, title: "steps", format: count }, y: { title: view.Which ? "temporaries" : "in use", max: data.Top * 1.04 || 1 },
			bands: way.Bands.map((b, k) => ({ name: b.Label, color: bandColor(b, k), values: b.sums })),
			levels: (data.Levels || []).map((l) => ({ value: l.Value, text: l.Text, color: l.Limit ? "no" : "quiet" })),
			marks: view.Peak ? [{ at: view.PeakStep + 0.5, text: "peak " + bytes(view.Peak), color: "text" }] : [],
			card: (k, band) => {
				const list = [["in use", bytes(total[k])], ["values", count(alive[k])], ["step", at1(steps[k])]];
				const b = way.Bands[band];
				if (b) list.push([b.Name, bytes(b.sums[k]), "off"]);
				const here = rows.filter((r) => r.first <= steps[k] && steps[k] <= r.last && (!b || r.bands[n] === band));
				for (const r of here.slice(0, 4)) list.push([bytes(r.bytes), name(r)]);
				if (here.length > 4) list.push(["", "the largest of " + counted(here.length, "value")]);
				return { title: view.Names[k], rows: list, color: b && bandColor(b, band) };
			},
			click: pick,
		});
		if (heap) heap.redraw();
	}
	draw();

	// The table has what lives at the step that was clicked, at first the peak.
	const under = byId("alive-" + number), title = el("p", { "aria-live": "polite" }), list = el("div");
	const search = el("input", { type: "search", placeholder: "find a value, shape or line", "aria-label": "Find a value, shape or line", oninput: (e) => found.search(e.target.value) });
	under.replaceChildren(el("div", { class: "bar" }, search), title, list);
	const columns = [
		{ title: "bytes", number: true, text: (r) => bytes(r.bytes), sort: (r) => r.bytes },
		{ title: "padding", number: true, text: (r) => r.padding ? bytes(r.padding) : "", sort: (r) => r.padding },
		{ title: "value", long: true, text: (r) => name(r) + " " + r.op + " " + r.place, sort: (r) => r.name, node: (r) => el("div", { "data-row": r.k },
			el("code", {}, el("bdi", {}, name(r))), r.op ? [el("br"), el("bdi", { class: "quiet" }, r.op)] : null, r.place ? [" ", el("bdi", { class: "quiet" }, r.place)] : null) },
		{ title: "kind", text: (r) => r.kind },
		{ title: "from step", number: true, text: (r) => at1(r.first), sort: (r) => r.first },
		{ title: "to step", number: true, text: (r) => at1(r.last), sort: (r) => r.last },
	];
	if (view.Heap) columns.push({ title: "offset", number: true, text: (r) => r.offset >= 0 ? bytes(r.offset) : "", sort: (r) => r.offset });
	const found = table(list, { name: "Values", columns: columns.filter((c) => !["padding", "kind"].includes(c.title) || rows.some((r) => r[c.title])), rows: [], most: 200, none: "Nothing lives here." });
	function pick(k) {
		picked = k;
		const step = steps[k];
		title.textContent = bytes(total[k]) + " in " + counted(alive[k], "value") + " at " + view.Names[k] + ", step " + at1(step) + " of " + count(view.Steps)
			+ (k === view.PeakColumn ? ", the peak" : "") + (view.Left ? "; " + counted(view.Left, "value") + " that are small and not at the peak are in no list" : "") + ".";
		found.set(rows.filter((r) => r.first <= step && step <= r.last));
	}
	pick(view.PeakColumn);

	// A row under the pointer shows its life in the curve, and its card.
	const unshow = () => { if (box) box.forEach((b) => b.remove()); box = null; };
	const life = (r) => {
		unshow();
		box = [drawn, heap].filter(Boolean).map((p) => {
			const left = Math.max(p.box.left, p.X(r.first)), right = Math.min(p.box.left + p.box.width, Math.max(p.X(r.last + 1), p.X(r.first) + 2));
			const b = el("div", { class: "life", style: "left:" + left + "px;width:" + Math.max(0, right - left) + "px;top:" + p.box.top + "px;height:" + p.box.height + "px" });
			p.wrap.append(b);
			return b;
		});
	};
	const rowAt = (e) => { const tr = e.target.closest("tbody tr"), d = tr && tr.querySelector("[data-row]"); return d ? rows[+d.dataset.row] : null; };
	list.addEventListener("pointermove", (e) => { const r = rowAt(e); if (!r) return; life(r); if (e.pointerType === "mouse") showCard(e.clientX, e.clientY, name(r), card(r)); });
	list.addEventListener("pointerleave", () => { unshow(); hideCard(); });

	if (view.Heap) heap = drawHeap(view, rows, { at, steps, card, name, number, color: (r) => { const k = r.bands[view.Ways.indexOf(way)], b = way.Bands[k]; return bandColor(b, k); } });
}

// readable returns black or white, which of both reads better on a colour such as "#0072b2".
function readable(on) {
	const [r, g, b] = [1, 3, 5].map((k) => parseInt(on.slice(k, k + 2), 16));
	return 0.3 * r + 0.6 * g + 0.1 * b > 125 ? "#000" : "#fff";
}

// drawHeap draws addresses over steps, a rectangle for each value that lies in the heap.
function drawHeap(view, rows, of) {
	const h = view.Heap, live = sums(h.Live), note = byId("heap-note"), lying = rows.filter((r) => r.offset >= 0);
	if (!h.Bytes || !lying.length) { byId("heap").hidden = true; return null; }
	note.textContent = "Addresses over steps, " + (h.Exact ? "as XLA assigned them" : "as the model packs them") + ": a heap of " + bytes(h.Bytes) + ", in which at most " + bytes(h.Most) + " live at once. The colours are those of the curve."
		+ (h.Unknown ? " " + counted(h.Unknown, "value") + " of the assignment cannot be placed in the program and are not drawn." : "")
		+ (view.Left ? " The smallest values are not drawn." : "");
	return plot(byId("heap-plot"), {
		name: "Addresses of temporaries over the program", group: "steps" + of.number, at: of.at, height: narrow() ? 300 : 420,
		x: { min: 0, max: view.Steps, title: "steps", format: count }, y: { title: "address in the heap", max: h.Bytes * 1.02 },
		lines: [{ name: "in use", color: "text", dash: [4, 3], values: live }],
		levels: [{ value: h.Bytes, text: "heap " + bytes(h.Bytes), color: "quiet" }],
		paint: (p, g) => {
			g.lineWidth = 0.5;
			for (const r of lying) {
				const x = p.X(r.first), w = Math.max(0.75, p.X(r.last + 1) - x), y = p.Y(r.offset + r.bytes), t = Math.max(0.75, p.Y(r.offset) - y);
				if (x + w < p.box.left || x > p.box.left + p.box.width) continue;
				g.fillStyle = color(of.color(r)); g.fillRect(x, y, w, t);
				if (w > 3 && t > 3) { g.strokeStyle = color("page"); g.strokeRect(x, y, w, t); }
				if (w > 70 && t > 14) {
					const left = Math.max(x, p.box.left);
					g.fillStyle = readable(g.fillStyle); g.textAlign = "left"; g.textBaseline = "middle"; g.fillText(cut(g, r.name, x + w - left - 8), left + 4, y + t / 2);
				}
			}
			p.hit = (c, v) => { const k = p.columns[c].k, s = of.steps[k]; return lying.findIndex((r) => r.first <= s && s <= r.last && r.offset <= v && v < r.offset + r.bytes); };
		},
		card: (k, hit) => {
			const r = lying[hit];
			return r ? { title: of.name(r), rows: of.card(r), color: of.color(r) } : { title: view.Names[k], rows: [["step", count(of.steps[k] + 1)], ["in use here", bytes(live[k])]] };
		},
	});
}

// drawFrontier draws more compute over memory. The points stand where they are, so that the
// plot's moments lie in the middle between them.
function drawFrontier(parent, f) {
	const all = [...f.Points || []];
	if (!all.length) return;
	all.sort((a, b) => a.After - b.After);
	// A unit in which there are whole numbers on the axis.
	const large = unitOf(f.Right), unit = f.Right / large < 5 && large > 1 ? large / 1024 : large;
	const at = all.map((p, k) => (k ? (all[k - 1].After + p.After) / 2 : 0) / unit);
	plot(parent, {
		name: "More compute against memory, as in the table below", at, lines: [],
		x: { min: 0, max: f.Right / unit, title: "temporaries, " + bytes(unit).replace("1 ", ""), format: count }, y: { title: "more compute, %", max: f.Top, format: (v) => short(+v.toPrecision(6)) },
		marks: [{ at: f.Bound / unit, text: "lower bound " + bytes(f.Bound), color: "quiet" }, { at: f.Before / unit, text: "now " + bytes(f.Before), color: "quiet" }],
		paint: (p, g) => {
			const line = (list, name, dash) => {
				g.strokeStyle = color(name); g.lineWidth = 2; g.setLineDash(dash); g.beginPath();
				list.forEach(([x, v], k) => k ? g.lineTo(p.X(x / unit), p.Y(v)) : g.moveTo(p.X(x / unit), p.Y(v)));
				g.stroke(); g.setLineDash([]);
			};
			// The proven bound for a limit holds for smaller limits, too.
			const least = f.Least || [], steps = [[f.Before, 0]];
			for (const l of least) steps.push([l.Limit, steps[steps.length - 1][1]], [l.Limit, l.Extra]);
			if (least.length) { steps.push([f.Bound, steps[steps.length - 1][1]]); line(steps, "quiet", [2, 4]); }
			line(all.filter((q) => !q.Beaten).map((q) => [q.After, q.Extra]), "edge", []);
			const taken = [];
			for (const q of [...all].sort((a, b) => b.Own - a.Own || a.After - b.After)) {
				const x = p.X(q.After / unit), over = q.Extra > f.Top, top = over ? p.box.top + 8 : p.Y(q.Extra);
				g.fillStyle = color("edge"); g.strokeStyle = color("page"); g.lineWidth = 1.5; g.beginPath();
				if (over) { g.moveTo(x, top - 7); g.lineTo(x + 6, top + 4); g.lineTo(x - 6, top + 4); g.closePath(); }
				else if (q.Own) { g.moveTo(x, top - 8); g.lineTo(x + 8, top); g.lineTo(x, top + 8); g.lineTo(x - 8, top); g.closePath(); }
				else g.arc(x, top, 4.5, 0, 7);
				g.fill(); g.stroke();
				const text = q.Text + (q.Own ? ", this page" : ""), wide = g.measureText(text).width, right = x + 9 + wide > p.box.left + p.box.width;
				const left = right ? x - 9 - wide : x + 9, base = top + (over ? 10 : -9);
				if (taken.some((t) => left < t.left + t.wide + 4 && t.left < left + wide + 4 && Math.abs(t.base - base) < 13)) continue;
				taken.push({ left, wide, base });
				g.textAlign = "left"; g.textBaseline = "middle"; g.lineJoin = "round"; g.lineWidth = 4; g.strokeStyle = color("page"); g.strokeText(text, left, base);
				g.fillStyle = color("text"); g.fillText(text, left, base);
			}
		},
		card: (k) => ({ title: all[k].Title, rows: [["for a limit of", all[k].Limit], ["at least", all[k].Least], ["added", all[k].Added], ["by", all[k].By]] }),
	});
}
