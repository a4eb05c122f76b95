// The page of a replay, in the browser. The parts of this folder are one script, in
// the order data, plots, maps, look, hands; see page.go. What is looked at is one
// event under one policy of one pool. Texts of the recording are only ever set as
// text.
//
// This part has numbers, and the data: report.Page's JSON, undone.

const page = document.getElementById("page"), root = document.documentElement;
const fail = (e) => { page.dataset.errors += (e.message || e.violatedDirective) + "\n"; };
addEventListener("error", fail);
addEventListener("securitypolicyviolation", fail);

const data = JSON.parse(document.getElementById("data").textContent);
const el = (id) => document.getElementById(id);
const $$ = (css) => [...document.querySelectorAll(css)];
const color = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();
root.classList.add("on");

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
// time is like package report's Seconds.
function time(ns) {
	if (ns >= 999.5e9) return count(ns / 1e9) + " s";
	for (const [unit, name] of [[1e9, "s"], [1e6, "ms"], [1e3, "us"], [1, "ns"]]) if (ns >= 0.9995 * unit) return +(ns / unit).toPrecision(3) + " " + name;
	return "0 s";
}
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
	if (t.times) t.times = cut(t.times);
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
	if (t.times) t.times = sums(t.times);
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
// when is the time of an event, as far as it is known.
const when = (event) => T().times ? time(T().times[bucketOf(event)]) : "";
const dashes = [[], [8, 3], [2, 3], [10, 3, 2, 3], [5, 5], [14, 4], [1, 5], [6, 2, 1, 2, 1, 2]];
