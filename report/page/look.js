// What is said of the event looked at: what is alive, in words and rows.

function which(event) {
	const t = T(), l = L(), words = ["event " + count(event) + " of " + count(t.events)];
	if (event === t.peak_at) words.push("the peak");
	if (l.first && event === l.first.event) words.push("the first refusal");
	if (event === t.events) words.push("the end");
	if (t.times) words.push(when(event) + " after the first");
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
