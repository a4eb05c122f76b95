// The address, which names what is shown, and the reader's hands: keys, buttons,
// pointer.

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
