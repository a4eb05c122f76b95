// The page of a replay. Each pool of the recording has a section: what lives, in bands;
// below it what each policy holds, on a separate axis; the table of policies; what lives
// at one event; where it lies under one policy. What is chosen is an event, a policy and a
// way to divide what lives; the address of the page keeps it for the pool that was used
// last.

function start(data) {
	const names = data.names || [], page = byId("page");
	const parts = data.pools.map((t, k) => section(t, byId("pool" + k), k));
	let active = parts[0], ready = false;

	// keep writes what is shown into the address.
	function keep() {
		Object.assign(page.dataset, active.state());
		if (!ready) return;
		const p = new URLSearchParams(active.words());
		if (root.dataset.theme) p.set("theme", root.dataset.theme);
		try { history.replaceState(null, "", "#" + p); } catch (e) { /* not in every frame */ }
	}
	function restore() {
		const hash = location.hash.slice(1);
		if (ready && !hash.includes("=")) return; // a place on the page
		const p = new URLSearchParams(hash);
		if (p.get("theme")) root.dataset.theme = p.get("theme") === "dark" ? "dark" : "light";
		active = parts.find((s) => s.pool === p.get("pool")) || parts[0];
		active.restore(p);
		// The others are drawn one after the other, when there is time.
		const others = parts.filter((s) => s !== active);
		(function next() { if (others.length) setTimeout(() => { others.shift().restore(new URLSearchParams()); next(); }); })();
		if (p.get("pool") && !ready) active.node.scrollIntoView();
		keep();
	}

	function section(t, node, index) {
		t.starts = sums(t.starts); t.moments = sums(t.moments); t.live = sums(t.live); t.blocks = sums(t.blocks);
		if (t.times) t.times = sums(t.times);
		t.ends = sums(t.ends);
		if (t.recorded) t.recorded = sums(t.recorded);
		for (const g of t.groupings) for (const b of g.bands) { b.bytes = sums(b.bytes); b.blocks = sums(b.blocks); b.since = sums(b.since); }
		for (const l of t.layers) {
			for (const name of ["used", "held", "free", "hole", "calls"]) l[name] = sums(l[name]);
			l.snapshots = l.snapshots || [];
		}
		if (t.allocations) t.allocations.from = sums(t.allocations.from);
		const q = (css) => node.querySelector(css);
		const first = t.starts[0], last = Math.max(t.events + 1, first + 1);
		// The policies' buckets begin where those before end.
		const heldAt = t.ends.map((_, k) => k ? t.ends[k - 1] + 1 : Math.min(1, t.ends[0]));
		const bys = t.groupings.map((g) => g.by).concat(t.allocations && t.allocations.from.length ? ["each allocation"] : []);
		const S = { event: t.peak_at, layer: t.look, by: bys[0], find: "" };
		const L = () => t.layers[S.layer], group = "pool" + index;
		const list = () => t.lists[listAt(S.event)];
		function listAt(event) {
			let best = 0;
			t.lists.forEach((l, k) => { if (Math.abs(l.event - event) < Math.abs(t.lists[best].event - event)) best = k; });
			return best;
		}
		// when is the time of an event, of the bucket that it lies in.
		const when = (event) => t.times ? time(t.times[within(t.starts, event)]) : "";
		const eventName = (event) => event === 0 ? "the beginning" : "event " + count(event);
		function which(event) {
			const words = [event ? eventName(event) + " of " + count(t.events) : eventName(event)];
			if (event === t.peak_at) words.push("the peak");
			const refused = t.layers.filter((l) => l.first && l.first.event === event).map((l) => l.policy);
			if (refused.length) words.push("the first refusal of " + refused.join(", "));
			if (event === t.events && event !== t.peak_at) words.push("the end");
			if (t.times && event) words.push(when(event) + " after the first");
			return words.join(", ");
		}
		// texts are times of ticks, with as many digits as tell them apart.
		function texts(ticks) {
			const at = ticks.map((v) => t.times[within(t.starts, Math.min(v, t.events))]);
			let list;
			for (let digits = 3; digits <= 9; digits++) {
				list = at.map((ns) => time(ns, digits));
				if (new Set(list).size === new Set(at).size) break;
			}
			return list.map((s, k) => k && s === list[k - 1] ? "" : s);
		}
		const x = { min: first, max: last, title: "event", also: t.times ? { title: "time since the first", texts } : undefined };
		const matches = (text) => !S.find || text.toLowerCase().includes(S.find.toLowerCase());

		// A request that was refused when recorded never lived. If it is much larger than what
		// did, the axis follows what did.
		const high = t.peak > 2 * t.lived && t.lived > 0, most = Math.max(high ? t.lived : t.peak, 1) * 1.04;
		// What lives.
		let lives = null, holds = null, places = null, more = [];
		function marks() {
			const list = [{ at: t.peak_at, text: "peak " + bytes(t.peak) + (high ? ", with what was refused" : ""), color: "text", ring: t.peak }];
			const seen = new Map(), events = new Set();
			for (const r of (t.refused || []).slice(0, 1)) list.push({ at: r.event, color: "no", text: "the recorded run was refused " + bytes(r.bytes) });
			for (const l of t.layers) if (l.first) { const key = l.first.event + " " + l.first.bytes; events.add(l.first.event); seen.set(key, (seen.get(key) || []).concat(l)); }
			for (const layers of seen.values()) list.push({ at: layers[0].first.event, color: "no", text: (layers.length > 2 && layers.length === t.layers.length ? "every policy" : layers.map((l) => l.policy).join(", ")) + (layers.length > 1 && layers.length < t.layers.length || layers.length === 2 ? " refuse " : " refuses ") + bytes(layers[0].first.bytes) });
			if (S.event !== t.peak_at && !events.has(S.event)) list.push({ at: S.event, color: "edge", text: "listed below" });
			return list;
		}
		const dim = () => L().first ? { from: L().first.event + 1, text: "refused by " + L().policy + ": what follows would have been another run" } : null;
		function drawLives() {
			if (lives) lives.remove();
			const g = t.groupings.find((g) => g.by === S.by);
			const spec = { name: "What lives over the run", group, x, labels: 190, y: { title: "requested and live", max: most }, at: t.starts, height: narrow() ? 240 : 260, marks: marks(), dim: dim(), click: (k) => go(t.moments[k]) };
			if (g) {
				let n = 0;
				spec.bands = g.bands.map((b) => {
					const c = b.kind === "before" ? "before" : b.kind === "rest" ? "rest" : nth(b.color ? b.color - 1 : n++);
					const text = names[b.name] + "\n" + (b.detail >= 0 ? names[b.detail] : "");
					return { name: names[b.name], color: matches(text) ? c : "grid", values: b.bytes };
				});
				spec.card = (k, band) => bandCard(g, k, band, spec);
			} else Object.assign(spec, allocations(t, names, matches, eventName));
			lives = plot(q(".lives"), spec);
		}
		function bandCard(g, k, band, spec) {
			const all = [["live in all", bytes(t.live[k]) + " in " + counted(t.blocks[k], "block")], ["at", eventName(t.moments[k]) + (t.times ? ", " + time(t.times[k]) : "")]];
			const b = g.bands[band];
			if (!b) return { title: bytes(t.live[k]) + " live", rows: all };
			const rows = [["has", bytes(b.bytes[k]) + " in " + counted(b.blocks[k], "block") + ", " + percent(b.bytes[k], t.live[k])], ["since", b.since[k] === 0 ? "before the recording" : eventName(b.since[k]) + (t.times ? ", " + when(b.since[k]) : "") + (b.blocks[k] > 1 ? " (the oldest)" : "")], ...all];
			if (b.detail >= 0) rows.push(["", cutLines(names[b.detail], 14), "stack"]);
			return { title: names[b.name], rows, color: spec.bands[band].color };
		}

		// What each policy holds.
		function drawHolds() {
			if (holds) holds.remove();
			const lines = t.layers.map((l, k) => ({ name: l.policy, color: nth(k), width: k === S.layer ? 3.5 : 1.75, bold: k === S.layer, values: l.held }));
			if (t.recorded) lines.unshift({ name: "the recorded run", color: "text", dash: [5, 3], width: 1.75, values: t.recorded });
			// The policy that is looked at is drawn last.
			const order = [...lines].sort((a, b) => (a.bold ? 1 : 0) - (b.bold ? 1 : 0));
			// A pool that takes most of the device at once would press the others to the floor:
			// the axis follows the rest, and its name says what it holds.
			const peak = (l) => l.values.reduce((a, v) => Math.max(a, v), 0);
			const peaks = t.layers.map((l) => l.held.reduce((a, v) => Math.max(a, v), 0)).sort((a, b) => a - b);
			const most = Math.max(1, ...lines.map(peak).filter((v) => v <= 8 * peaks[peaks.length >> 1]));
			for (const l of lines) if (peak(l) > most) { l.name += ", " + bytes(peak(l)); l.above = true; }
			holds = plot(q(".holds"), {
				name: "What the policies hold over the run", group, x, at: heldAt, height: narrow() ? 160 : 150, labels: 190,
				y: { title: "held from the device" + (data.device > most * 1.3 ? "; the device has " + bytes(data.device) : ""), max: data.device > most * 1.3 ? most * 1.06 : Math.max(data.device, most) * 1.04 },
				bands: [{ name: "", color: "rest", values: L().used }], lines: order, dim: dim() ? { from: dim().from } : null,
				levels: data.device > most * 1.3 ? [] : [{ value: data.device, text: "the device, " + bytes(data.device), color: "no" }],
				card: (k) => {
					const from = heldAt[k], to = t.ends[k];
					const rows = t.layers.map((l, n) => [l.policy, bytes(l.held[k]) + (n === S.layer ? ", of which " + bytes(l.used[k]) + " in use" : "")]);
					if (t.recorded) rows.unshift(["the recorded run", bytes(t.recorded[k])]);
					return { title: "held at most at " + (from === to ? eventName(to) : "events " + count(from) + " to " + count(to)), rows };
				},
				click: (k) => go(t.ends[k]),
			});
		}

		// Where it lies.
		const look = () => { const list = L().snapshots; let best = 0; list.forEach((s, k) => { if (Math.abs(s.event - S.event) < Math.abs(list[best].event - S.event)) best = k; }); return list[best]; };
		const asked = (s) => L().first && s && L().first.event === s.event ? L().first.bytes : 0;
		function drawPlaces() {
			if (places) places.remove();
			places = null;
			const shots = L().snapshots, s = look();
			if (!s) return;
			const most = shots.reduce((a, s) => Math.max(a, s.held), 1);
			places = plot(q(".places"), {
				name: "Where it lies over the run", group, x, at: shots.map((s) => s.event), height: 190, labels: 190,
				y: { title: "of addresses held, the lowest at the bottom", max: most * 1.04 }, paint: overMap(shots, most), dim: dim() ? { from: dim().from } : null,
				marks: S.event !== t.peak_at ? [{ at: s.event, color: "edge", text: "" }] : [{ at: t.peak_at, color: "text", text: "" }],
				card: (k) => ({ title: L().policy + " after " + eventName(shots[k].event), rows: shot(shots[k]) }),
				click: (k) => go(shots[k].event),
			});
			q(".placetitle").textContent = "Where it lies under " + L().policy;
			strip(q(".strip"), s, asked(s));
			q(".strip").setAttribute("aria-label", "The pool from its lowest to its highest address; described below");
			const free = (s.largest || []).map((h) => bytes(h[1]));
			q(".holes").textContent = glue("The pool after " + which(s.event) + ", from its lowest address to its highest; dark is in use. " +
				bytes(s.held) + " held, " + bytes(s.used) + " in use in " + counted(s.blocks, "block") + ", " + bytes(s.free) + " free" +
				(s.holes ? " in " + counted(s.holes, "piece") + ", the largest " + free.join(", ") + (s.holes > free.length ? " and smaller ones" : "") : "") + "." +
				(s.map.includes("?") ? " Of the striped part it is not known where the free memory lies." : "") +
				(s.holes && s.hole > s.largest[0][1] ? " The policy counts one piece of " + bytes(s.hole) + ": it can put idle pages side by side." : ""));
		}
		const shot = (s) => [["held", bytes(s.held)], ["in use", bytes(s.used) + " in " + counted(s.blocks, "block")], ["free", bytes(s.free)], ["largest free block", bytes(s.hole)]];
		function drawMore() {
			more.forEach((p) => p.remove());
			more = [];
			if (!q(".more").open) return;
			const into = q(".more div"), of = (name, title, values, format, max) => plot(into, {
				name, group, x, at: heldAt, height: 120, labels: 190, y: { title, format, max: max || Math.max(2, ...values) * 1.1 }, lines: [{ name: "", color: nth(S.layer), width: 2, values }], dim: dim() ? { from: dim().from } : null,
				card: (k) => ({ title: "up to " + eventName(t.ends[k]), rows: [[title, format(values[k])], ["free", bytes(L().free[k])], ["largest free block", L().hole[k] ? bytes(L().hole[k]) : "unknown"]] }),
			});
			more = [of("Fragmentation", "of the free memory outside the largest free block", L().frag, (v) => short(v) + " %", 106), of("Driver calls", "driver calls so far", L().calls, count)];
		}

		// What lives at the event.
		const rowsOf = () => {
			const l = list(), g = t.groupings.findIndex((g) => g.by === S.by), n = g >= 0 ? g : 0;
			return l.groups[n].map(([name, size, blocks, since, kinds, label]) => ({ line: names[label], name: name < 0 ? counted(kinds, "other " + (t.groupings[n].by === "size" ? "size" : "stack")) : names[name], size, blocks, since, all: l.bytes }));
		};
		const what = table(q(".list"), {
			name: "What lives", rows: [], most: 60, head: 4, none: "Nothing lives here.",
			columns: [
				{ title: "bytes", number: true, text: (r) => bytes(r.size), sort: (r) => r.size },
				{ title: "part", number: true, text: (r) => percent(r.size, r.all), sort: (r) => r.size },
				{ title: "blocks", number: true, text: (r) => count(r.blocks), sort: (r) => r.blocks },
				{ title: "oldest from", number: true, text: (r) => r.since ? "event " + count(r.since) : "before", sort: (r) => r.since },
				{ title: "what", long: true, text: (r) => r.name, node: (r) => stackNode(r.name, r.line) },
			],
		});
		// A request that was refused when recorded is not in the list.
		function refusedThere(event) {
			const r = (t.refused || []).find((r) => r.event === event);
			if (r) return ", and " + bytes(r.bytes) + " requested and refused";
			const first = L().first;
			return first && first.event === event ? ", with the " + bytes(first.bytes) + " that " + L().policy + " refuses" : "";
		}
		function drawList() {
			const l = list();
			q(".livetitle").textContent = glue(bytes(l.bytes) + " live in " + counted(l.blocks, "block") + " at " + which(l.event) + refusedThere(l.event));
			what.set(rowsOf());
			what.search(S.find);
		}

		function words() {
			const p = { at: S.event === t.peak_at ? "peak" : S.event, policy: L().policy };
			if (t.pool) p.pool = t.pool;
			if (S.by !== bys[0]) p.by = S.by;
			if (S.find) p.find = S.find;
			const view = lives.group.view;
			if (view) p.zoom = Math.round(view[0]) + "-" + Math.round(view[1]);
			return p;
		}
		function state() {
			const l = list(), s = look();
			return { event: S.event, policy: L().policy, by: S.by, live: l.bytes, blocks: l.blocks, peak: t.peak, held: s ? s.held : "", zoom: words().zoom || "", bands: lives.spec.bands ? lives.spec.bands.length : "" };
		}
		function pressed() {
			node.querySelectorAll(".policies tbody tr").forEach((tr, k) => {
				tr.classList.toggle("looked", k === S.layer);
				tr.querySelector("input").checked = k === S.layer;
				tr.querySelector(".swatch").style.borderColor = color(nth(k));
			});
			node.querySelectorAll(".policy").forEach((b) => { b.textContent = L().policy; });
			q("[data-do=refused]").disabled = !L().first;
			[...q(".by").children].forEach((b) => { b.setAttribute("aria-checked", b.dataset.by === S.by); b.setAttribute("aria-pressed", b.dataset.by === S.by); });
		}
		function draw() { pressed(); drawLives(); drawHolds(); drawPlaces(); drawMore(); drawList(); }
		function use() { active = me; keep(); }
		// go lists what lives at the event nearest to one of which it is known.
		function go(event) { S.event = t.lists[listAt(event)].event; into(); drawLives(); drawPlaces(); drawList(); use(); }
		function into() {
			const view = lives && lives.group.view;
			if (view && (S.event < view[0] || S.event > view[1])) lives.zoom(S.event - (view[1] - view[0]) / 2, S.event + (view[1] - view[0]) / 2);
		}
		function setLayer(k) { S.layer = k; draw(); use(); }
		function setBy(by) { S.by = by; pressed(); drawLives(); drawList(); use(); }
		const step = (by) => { const k = listAt(S.event); go(t.lists[Math.max(0, Math.min(t.lists.length - 1, k + by))].event); };
		const does = {
			peak: () => go(t.peak_at), refused: () => L().first && go(L().first.event), end: () => go(t.events),
			in: () => lives.zoomBy(0.5, S.event), out: () => lives.zoomBy(2, S.event), whole: () => lives.zoom(),
			before: () => step(-1), after: () => step(1), policy: () => setLayer((S.layer + 1) % t.layers.length),
			by: () => setBy(bys[(bys.indexOf(S.by) + 1) % bys.length]), find: () => q(".find").focus(),
		};
		node.querySelectorAll("[data-do]").forEach((b) => b.addEventListener("click", () => does[b.dataset.do]()));
		node.querySelectorAll(".policies input").forEach((b, k) => b.addEventListener("change", () => setLayer(k)));
		q(".find").addEventListener("input", (e) => { S.find = e.target.value; drawLives(); drawList(); use(); });
		const titles = { purpose: "what it is for", stack: "stack", caller: "layer", size: "size", "each allocation": "each allocation" };
		if (bys.length > 1) q(".by").append(el("span", { class: "quiet" }, "bands by "), ...bys.map((by) => el("button", { type: "button", role: "radio", "data-by": by, onclick: () => setBy(by) }, titles[by])));
		const canvas = q(".strip");
		const onStrip = (e) => {
			const s = look(), r = canvas.getBoundingClientRect(), c = s && stripCard(s, asked(s), (e.clientX - r.left) / r.width, names);
			if (c) showCard(e.clientX, e.clientY, c.title, c.rows); else hideCard();
		};
		canvas.addEventListener("pointermove", onStrip);
		canvas.addEventListener("pointerdown", onStrip);
		canvas.addEventListener("pointerleave", hideCard);
		q(".more").addEventListener("toggle", drawMore);
		if (t.segments) segments(q(".segments div"), t.segments, names);
		repaints.add(() => { pressed(); const s = look(); if (s) strip(canvas, s, asked(s)); });
		groupOf(group).zoomed = () => { active = me; keep(); };

		function restoreFrom(p) {
			const named = t.layers.findIndex((l) => l.policy === p.get("policy"));
			S.layer = named >= 0 ? named : t.look;
			S.by = bys.includes(p.get("by")) ? p.get("by") : bys[0];
			S.find = p.get("find") || "";
			q(".find").value = S.find;
			const at = p.get("at") || (L().first ? "refused" : "peak");
			const event = at === "peak" ? t.peak_at : at === "refused" && L().first ? L().first.event : at === "end" ? t.events : Number(at);
			S.event = t.lists[listAt(Number.isFinite(event) ? event : t.peak_at)].event;
			const z = /^(\d+)-(\d+)$/.exec(p.get("zoom") || "");
			groupOf(group).view = null;
			draw();
			if (z) lives.zoom(+z[1], +z[2]);
		}
		const me = { pool: t.pool, node, does, words, state, restore: restoreFrom };
		return me;
	}

	const keys = { "[": "before", "]": "after", p: "peak", r: "refused", e: "end", "+": "in", "=": "in", "-": "out", 0: "whole", n: "policy", s: "by", "/": "find" };
	addEventListener("keydown", (e) => {
		const on = e.target instanceof Element ? e.target : root;
		if (e.ctrlKey || e.metaKey || e.altKey || on.matches("select, input[type=search]")) return;
		if (e.key === "d") theme();
		else if (keys[e.key]) active.does[keys[e.key]]();
		else return;
		e.preventDefault();
	});
	function theme() { setTheme(isDark() ? "light" : "dark"); keep(); }
	byId("theme").addEventListener("click", theme);
	addEventListener("hashchange", restore);
	restore();
	ready = true;
	keep();
}

// cutLines leaves the first lines of a text.
function cutLines(text, most) {
	const lines = text.split("\n");
	return lines.length > most ? lines.slice(0, most).join("\n") + "\n… " + (lines.length - most) + " more" : text;
}

// allocations returns the paint and the card of a plot with one band for each allocation,
// the oldest at the bottom; what is freed lets those above sink. Bands thinner than half a
// pixel are one grey band on top.
function allocations(t, names, matches, eventName) {
	const a = t.allocations, n = a.from.length;
	const until = a.from.map((from, k) => a.for[k] ? from + a.for[k] : Infinity);
	// The colour is the stack's, or the size's, and that of neighbours differs.
	const colorOf = new Map();
	const look = a.from.map((from, k) => {
		const key = a.names[k] >= 0 ? a.names[k] : "size " + a.bytes[k];
		if (!colorOf.has(key)) colorOf.set(key, nth(colorOf.size));
		return from === 0 ? "before" : matches((a.names[k] >= 0 ? names[a.names[k]] : "") + " " + bytes(a.bytes[k])) ? colorOf.get(key) : "grid";
	});
	let columns = []; // of the last drawing: [block, from, to] from the bottom up
	return {
		paint: (p, g) => {
			const { left, width, top, height } = p.box, wide = p.columns.length, scale = height / p.spec.y.max;
			const paints = new Map();
			const paint = (c) => { if (!paints.has(c)) paints.set(c, color(c)); return paints.get(c); };
			columns = new Array(wide);
			// The live blocks, oldest first, as a list with links, so that one goes at no cost.
			const next = new Int32Array(n + 1).fill(-1), prev = new Int32Array(n + 1).fill(-1);
			let tail = n; // the head of the list
			const ends = [...a.from.keys()].filter((k) => until[k] !== Infinity).sort((x, y) => until[x] - until[y]);
			let born = 0, gone = 0;
			const open = new Map(); // block -> its rectangle so far
			const close = (r) => { g.fillStyle = paint(look[r.k]); g.fillRect(r.x, r.y, r.to - r.x + 0.3, r.h > 3 ? r.h - 1 : r.h); };
			for (let c = 0; c < wide; c++) {
				const event = t.moments[p.columns[c].k];
				while (born < n && a.from[born] <= event) { prev[born] = tail; next[tail] = born; tail = born++; }
				while (gone < ends.length && until[ends[gone]] <= event) {
					const k = ends[gone++];
					if (k >= born) continue;
					next[prev[k]] = next[k];
					if (next[k] >= 0) prev[next[k]] = prev[k]; else tail = prev[k];
				}
				let y = top + height, small = 0;
				const column = columns[c] = [];
				const x = left + width * c / wide, to = left + width * (c + 1) / wide, seen = new Set();
				for (let k = next[n]; k >= 0; k = next[k]) {
					const h = a.bytes[k] * scale;
					if (h < 0.5) { small += h; continue; }
					y -= h;
					column.push([k, y, y + h]);
					seen.add(k);
					const r = open.get(k);
					if (r && r.y === y) r.to = to;
					else { if (r) close(r); open.set(k, { k, x, y, h, to }); }
				}
				for (const [k, r] of open) if (!seen.has(k)) { close(r); open.delete(k); }
				if (small > 0) { g.fillStyle = paint("rest"); g.fillRect(x, y - small, to - x + 0.3, small); }
			}
			for (const r of open.values()) close(r);
			p.hit = (c, v) => {
				const y = top + height * (1 - v / p.spec.y.max), found = columns[c].find(([, from, end]) => from <= y && y < end);
				return found ? found[0] : -1;
			};
		},
		card: (k, block) => {
			const all = [["live in all", bytes(t.live[k]) + " in " + counted(t.blocks[k], "block")], ["at", eventName(t.moments[k]) + (t.times ? ", " + time(t.times[k]) : "")]];
			if (block < 0) return { title: bytes(t.live[k]) + " live", rows: all };
			const rows = [["from", a.from[block] ? eventName(a.from[block]) : "before the recording"], ["to", a.for[block] ? eventName(until[block]) : "the end, never freed"], ...all];
			if (a.names[block] >= 0) rows.push(["", cutLines(names[a.names[block]], 14), "stack"]);
			return { title: "a block of " + bytes(a.bytes[block]), rows, color: look[block] };
		},
	};
}
