// The live page. Every figure comes from the server; this formats and draws, and changes
// only nodes whose text or place has changed, so that what is open, selected or has the
// focus stays so. What comes from other programs is only ever set as text.

const keep = 600; // looks that are drawn, as many as the server keeps
const past = { times: [], values: new Map() }; // looks, and a list of as many values for each name; null is unknown
let fresh = true; // the next event has the whole past
let paused = false, last = null, by = "memory", filter = "";

// recall adds what is new of the past.
function recall(columns) {
	if (fresh) { past.times = []; past.values.clear(); fresh = false; }
	const before = past.times.length;
	past.times.push(...columns.times);
	for (const name of Object.keys(columns.values)) if (!past.values.has(name)) past.values.set(name, new Array(before).fill(null));
	for (const [name, list] of past.values) list.push(...(columns.values[name] || new Array(columns.times.length).fill(null)));
	const old = past.times.length - keep;
	if (old <= 0) return;
	past.times.splice(0, old);
	for (const [name, list] of past.values) {
		list.splice(0, old);
		if (list.every((v) => v === null)) past.values.delete(name);
	}
}

// say sets a node's text if it is another.
function say(node, text) { if (node.textContent !== text) node.textContent = text; }
function classes(node, text) { if (node.className !== text) node.className = text; }
// arrange makes the nodes the children of parent and moves none that has its place.
function arrange(parent, nodes) {
	nodes.forEach((n, k) => { if (parent.children[k] !== n) parent.insertBefore(n, parent.children[k] || null); });
	while (parent.children.length > nodes.length) parent.lastElementChild.remove();
}
// keyed returns a function that makes a node for a key once, and forgets those that were
// not asked for since the last call of its sweep.
function keyed(make) {
	const all = new Map();
	let used = new Set();
	const get = (key, ...args) => { used.add(key); if (!all.has(key)) all.set(key, make(key, ...args)); return all.get(key); };
	get.sweep = () => { for (const key of all.keys()) if (!used.has(key)) all.delete(key); used = new Set(); };
	return get;
}

const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const letter = (p) => letters[p.number] || "*";
const mark = (p) => "m" + (p.number % colors + 1);
function age(ms) {
	const s = Math.max(0, Math.floor(ms / 1000)), two = (n) => String(n).padStart(2, "0");
	if (s < 60) return s + "s";
	if (s < 3600) return Math.floor(s / 60) + "m";
	if (s < 86400) return Math.floor(s / 3600) + "h" + two(Math.floor(s % 3600 / 60));
	return Math.floor(s / 86400) + "d" + two(Math.floor(s % 86400 / 3600)) + "h";
}
const ago = (s) => (s < 120 ? Math.round(s) + " s" : Math.round(s / 6) / 10 + " min");

// The past as a plot has it: seconds before the last look. Nothing is drawn before the
// first look, and during a pause without looks.
function timeline() {
	const now = past.times[past.times.length - 1], at = [], from = [];
	const span = [60, 120, 300, 600, 1800, 3600, 10800].find((s) => (now - past.times[0]) / 1000 <= s) || Math.ceil((now - past.times[0]) / 1000);
	const steps = past.times.slice(1).map((t, k) => t - past.times[k]).sort((a, b) => a - b);
	const far = Math.max(5000, 5 * (steps[steps.length >> 1] || 0));
	const point = (t, k) => { at.push((t - now) / 1000); from.push(k); };
	if (past.times[0] - now > -1000 * span) point(now - 1000 * span, -1);
	past.times.forEach((t, k) => {
		if (k && t - past.times[k - 1] > far) point(past.times[k - 1] + far / 5, -1);
		point(t, k);
	});
	return {
		at, from,
		begin: (past.times[0] - now) / 1000,
		values: (name) => { const list = past.values.get(name); return from.map((k) => (list && k >= 0 && list[k]) || 0); },
		x: { min: -span, max: 0, title: "", format: (v) => (v === 0 ? "now" : ago(-v) + " ago") },
		moment: (k) => (from[k] < 0 ? "no snapshot" : new Date(past.times[from[k]]).toLocaleTimeString()),
	};
}
// scale is where an axis ends: at whole, or at 3/4, 1/2, 3/8... of it, so that it rarely
// changes.
function scale(values, whole) {
	const most = values.reduce((a, v) => Math.max(a, v), 0);
	let top = whole;
	for (let k = 0; k < 6 && most > 0 && top / 2 >= most; k++) top /= 2;
	return most > 0 && top * 3 / 4 >= most ? top * 3 / 4 : top;
}
// history draws bands and lines over the past, in a plot that stays.
function history(parent) {
	let drawn = null;
	return (name, t, bands, lines, top) => {
		const spec = {
			name, height: 170, labels: 150, group: "past", at: t.at, x: t.x, y: { title: "in use", max: top }, bands, lines,
			card: (k) => ({ title: t.moment(k), rows: t.from[k] < 0 ? [] : [...lines, ...[...bands].reverse()].filter((b) => b.values[k] > 0).map((b) => [b.name || b.ended, bytes(b.values[k])]) }),
		};
		if (drawn) drawn.set(spec); else drawn = plot(parent, spec);
	};
}

// grown is how a figure grows: nothing if that is not known yet.
function grown(node, grows) {
	classes(node, grows && grows.bytes ? "n grows" : "n");
	say(node, !grows ? "" : grows.bytes ? "+" + bytes(grows.bytes_per_minute) : "-");
}

// A table with heads that sort, or not.
function rows(name, heads) {
	const body = el("tbody");
	const tops = heads.map(([title, cls, sort]) => el("th", { scope: "col", class: cls, "data-by": sort },
		sort ? el("button", { type: "button", class: "head", onclick: () => { by = sort; show(); } }, title) : title));
	return { body, tops, node: el("div", { class: "wrap", role: "region", tabindex: 0, "aria-label": name }, el("table", { class: "fixed " + name }, el("thead", {}, el("tr", {}, tops)), body)) };
}

function makeProgram() {
	const key = el("span", { class: "letter" }), pid = el("td", { class: "n" }), user = el("td", { class: "wide" }), old = el("td", { class: "n wide" }), holds = el("td", { class: "n" });
	const grows = el("td", { class: "n" }), lease = el("td", { class: "n wide" }), command = el("bdi"), marks = el("span", { class: "marks" });
	const node = el("tr", {}, el("td", {}, key), pid, user, old, holds, grows, lease, el("td", { class: "long" }, command, marks));
	return {
		node, update(p, now) {
			classes(key, "letter " + mark(p)); say(key, letter(p));
			say(pid, p.pid ? String(p.pid) : "-");
			say(user, p.user || "-");
			say(old, p.started ? age(now - Date.parse(p.started)) : "-");
			say(holds, !p.told ? "unknown" : p.used_bytes || !p.lease_bytes ? bytes(p.used_bytes) : "nothing yet");
			grown(grows, p.grows);
			say(lease, p.lease_bytes ? bytes(p.lease_bytes) : "-");
			say(command, p.command || p.name || "unknown");
			say(marks, (p.marks || []).join(", "));
		},
	};
}
const matches = (p) => [p.pid, p.user, p.command, p.name, ...(p.marks || [])].join("\n").toLowerCase().includes(filter.toLowerCase());

// A part of the bar: a program, what is left of a lease, and so on.
function makePart() {
	const text = el("span"), node = el("div", { class: "part" }, text);
	return {
		node, update(part, d) {
			const p = d.programs[part.program], n = bytes(part.bytes);
			node.style.flexGrow = part.bytes;
			const label = { program: () => letter(p) + " " + p.title + " " + n, lease: () => n + " left", unlisted: () => "unlisted " + n, free: () => (d.parts.some((q) => q.kind === "lease") ? "free, not leased " : "free ") + n, unknown: () => "unknown" }[part.kind]();
			classes(node, "part " + part.kind + (p ? " " + mark(p) : ""));
			say(text, label);
			const whole = part.kind === "lease" ? "left of the lease of " + letter(p) + ": " + n : p ? label + (p.command ? "\n" + p.command : "") : label;
			if (node.title !== whole) node.title = whole;
		},
	};
}
function makeGroup() {
	const row = el("div", { class: "row" }), caption = el("div", { class: "caption" });
	return { node: el("div", { class: "group" }, row, caption), row, caption };
}
function bar(parent) {
	const parts = keyed(makePart), groups = keyed(makeGroup);
	return (d) => {
		const top = [], inside = new Map();
		for (const part of d.parts) {
			const p = d.programs[part.program], one = parts(part.kind + (p ? p.key : ""));
			one.update(part, d);
			if (!part.lease) { top.push(one.node); continue; }
			if (!inside.has(part.lease)) {
				const g = groups(p.key);
				inside.set(part.lease, { g, nodes: [], bytes: 0 });
				top.push(g.node);
				say(g.caption, "lease " + bytes(p.lease_bytes));
			}
			const i = inside.get(part.lease);
			i.nodes.push(one.node);
			i.bytes += part.bytes;
		}
		for (const i of inside.values()) { i.g.node.style.flexGrow = i.bytes; arrange(i.g.row, i.nodes); }
		arrange(parent, top);
		parts.sweep(); groups.sweep();
	};
}

function makeDevice(key) {
	const title = el("h2"), about = el("p"), memory = el("div", { class: "memory", role: "img" }), drawing = el("div"), none = el("p", { class: "quiet" }), remarks = el("ul", { class: "remarks" });
	const table = rows("programs", [["", "sign"], ["pid", "n pid", "pid"], ["user", "wide user"], ["age", "n wide age", "age"], ["holds", "n", "memory"], ["grows/min", "n", "growth"], ["lease", "n wide"], ["program", "long", "name"]]);
	const node = el("section", { "aria-label": key }, title, about, memory, drawing, table.node, none, remarks);
	const drawBar = bar(memory), drawPast = history(drawing), program = keyed(makeProgram), remark = keyed(() => el("li"));
	return {
		node, update(d, state, t) {
			say(title, d.device + (d.name && d.name !== d.device ? ", " + d.name : "") + (d.simulated ? ", simulated" : ""));
			say(about, (d.told ? bytes(d.used_bytes) + " of " + bytes(d.total_bytes) + " in use, " + bytes(d.free_bytes) + " free" : bytes(d.total_bytes) + "; what is in use is unknown") +
				(d.leased_bytes ? "; leases set " + bytes(d.leased_bytes) + " aside" : ""));
			drawBar(d);
			const parts = d.parts.map((p) => (d.programs[p.program] ? letter(d.programs[p.program]) + " " + d.programs[p.program].title + " " : "") + (p.kind === "program" ? "" : p.kind + " ") + bytes(p.bytes)).join(", ");
			if (memory.getAttribute("aria-label") !== parts) memory.setAttribute("aria-label", parts);
			if (t) {
				const used = t.values(d.device), present = [...d.programs].sort((a, b) => a.number - b.number), names = new Set(present.map((p) => p.key));
				const ended = [...past.values.keys()].filter((name) => name.startsWith(d.device + "\0") && name !== d.unlisted && !names.has(name));
				const bands = [
					...present.filter((p) => (past.values.get(p.key) || []).some((v) => v > 0)).map((p) => ({ name: letter(p) + " " + p.title, color: nth(p.number), values: t.values(p.key) })),
					...ended.map((name) => ({ ended: "process " + name.split("\0")[1].split(" ")[0] + ", ended", color: "rest", values: t.values(name) })), // no name at the plot
					...(past.values.has(d.unlisted) ? [{ name: "unlisted", color: "rest", values: t.values(d.unlisted) }] : []),
				];
				drawPast("memory of " + d.device + " over time, by program", t, bands, [{ name: "in use", color: "text", width: 1.25, from: t.begin, values: used }], scale(used, d.total_bytes));
			}
			drawing.hidden = !d.told;
			for (const th of table.tops) if (th.dataset.by) { if (th.dataset.by === by) th.setAttribute("aria-sort", ["pid", "name"].includes(by) ? "ascending" : "descending"); else th.removeAttribute("aria-sort"); }
			const list = d.orders[by].map((k) => d.programs[k]), shown = list.filter(matches), now = Date.parse(state.time);
			arrange(table.body, shown.map((p) => { const r = program(p.key); r.update(p, now); return r.node; }));
			program.sweep();
			table.node.hidden = !shown.length;
			say(none, !list.length ? "No program is known to use it." : shown.length < list.length ? "The filter hides " + counted(list.length - shown.length, "program") + "." : "");
			none.hidden = !none.textContent;
			arrange(remarks, (d.remarks || []).map((text, k) => { const li = remark(k); say(li, text); return li; }));
			remark.sweep();
		},
	};
}

function makeSite(stack) {
	const holds = el("td", { class: "n" }), blocks = el("td", { class: "n wide" }), grows = el("td", { class: "n" });
	const node = el("tr", {}, holds, blocks, grows, el("td", { class: "long" }, stackNode(stack || "unknown: the pool keeps no stacks")));
	return { node, update(u) { say(holds, bytes(u.bytes)); say(blocks, count(u.blocks)); grown(grows, u.grows); } };
}
function makePool(name) {
	const title = el("h2"), about = el("p"), drawing = el("div"), shape = el("path"), map = el("svg", { class: "map", preserveAspectRatio: "none", role: "img", "aria-label": "what is held, by address: the higher, the more of a part is live" }, shape);
	const each = el("span"), figure = el("figure", {}, map, el("div", { class: "ends" }, el("span", {}, "lowest address"), each, el("span", {}, "highest"))), rest = el("p", { class: "quiet" });
	const table = rows("sites", [["holds", "n"], ["blocks", "n wide"], ["grows/min", "n"], ["allocated by", "long"]]);
	const node = el("section", { "aria-label": "pool " + name }, title, about, drawing, figure, table.node, rest);
	const drawPast = history(drawing), site = keyed(makeSite);
	return {
		node, update(p, state, t) {
			const x = p.stats, key = "pool " + p.name + "\0";
			say(title, "Pool " + p.name);
			say(about, bytes(x.bytes_in_use) + " live of " + bytes(x.pool_bytes) + " held; at most " + bytes(x.peak_bytes_in_use) + " was live, " + bytes(x.peak_pool_bytes) + " held" +
				(x.bytes_limit && x.bytes_limit < 2 ** 62 ? "; the limit is " + bytes(x.bytes_limit) : "") + ". The largest free block is " + bytes(x.largest_free_block_bytes) + ". Policy " + p.policy + ".");
			if (t) {
				const live = t.values(key + "live"), held = t.values(key + "held");
				let whole = 1;
				while (whole < Math.max(...held)) whole *= 2;
				drawPast("memory of pool " + p.name + " over time", t, [{ name: "live", color: "c1", values: live }], [{ name: "held", color: "c6", dash: [6, 4], width: 1.5, from: t.begin, values: held }], scale(held, whole));
			}
			const parts = p.map || [];
			figure.hidden = !parts.length;
			map.setAttribute("viewBox", "0 0 " + (parts.length || 1) + " 100");
			shape.setAttribute("d", parts.map((v, k) => (v ? "M" + k + " 100V" + (100 - v) + "h1.02V100Z" : "")).join(""));
			say(each, parts.length ? "each part " + bytes(Math.round(p.map_bytes / parts.length)) + ", filled as far as it is live" : "");
			const live = p.live || [];
			table.node.hidden = !live.length;
			arrange(table.body, live.map((u) => { const r = site(u.stack); r.update(u); return r.node; }));
			site.sweep();
			say(rest, p.rest_bytes ? "and " + bytes(p.rest_bytes) + " allocated elsewhere" : "");
		},
	};
}

const device = keyed(makeDevice), pool = keyed(makePool), nothing = el("p", {}, "There is nothing to show: no device and no pool.");
// show draws the last state. A device or a pool that fails to draw ends nothing else.
function show() {
	if (!last || paused) return;
	for (const n of document.querySelectorAll("header .bar > :not(#pause, #theme)")) n.hidden = !(last.devices || []).length;
	say(byId("title"), "GPU memory" + (last.title ? ": " + last.title : ""));
	document.title = byId("title").textContent;
	const down = last.driver && !last.driver.up ? ["The driver does not answer: " + last.driver.why] : [];
	say(byId("notes"), down.concat((last.notes || []).filter((n) => !last.driver || n !== last.driver.why)).join(" "));
	const t = past.times.length ? timeline() : null, nodes = [], work = [];
	for (const d of last.devices || []) { const s = device(d.device); nodes.push(s.node); work.push(() => s.update(d, last, t)); }
	for (const p of last.pools || []) { const s = pool(p.name); nodes.push(s.node); work.push(() => s.update(p, last, t)); }
	arrange(byId("main"), nodes.length ? nodes : [nothing]); // a plot is measured where it stands
	work.forEach((f) => f());
	device.sweep(); pool.sweep();
	document.body.dataset.looks = String(Number(document.body.dataset.looks || 0) + 1);
}

function pause() {
	paused = !paused;
	say(byId("pause"), paused ? "Go on" : "Pause");
	byId("pause").setAttribute("aria-pressed", String(paused));
	show();
}
root.classList.add("on");
byId("pause").addEventListener("click", pause);
pageKeys(byId("pause").parentElement);
byId("filter").addEventListener("input", (e) => { filter = e.target.value.trim(); const was = paused; paused = false; show(); paused = was; });
document.addEventListener("keydown", (e) => {
	if (e.ctrlKey || e.metaKey || e.altKey) return;
	if (e.target === byId("filter")) { if (e.key === "Escape") { e.target.value = filter = ""; e.target.blur(); show(); } return; }
	if (e.key === "p") pause();
});
const how = (text) => say(byId("how"), text);
const events = new EventSource("events");
events.addEventListener("open", () => { fresh = true; how("live"); });
events.addEventListener("error", () => how("the server does not answer; trying again"));
events.addEventListener("state", (e) => {
	const state = JSON.parse(e.data);
	recall(state.history);
	last = state;
	how("live");
	show();
});
events.addEventListener("trouble", (e) => how(JSON.parse(e.data)));
