// The page of two recordings. start fills the places of page.html; every figure is the
// data's.

// signed is as signedBytes of Go's package compare.
const signed = (n, format) => n > 0 ? "+" + format(n) : n < 0 ? "-" + format(-n) : "0";

function start(data) {
	const text = (k) => k < 0 ? "" : data.texts[k];
	data.pools.forEach((p) => [p.before, p.after].forEach((s) => {
		if (s) for (const name of ["most", "least", "times", "ends"]) s[name] = sums(s[name]);
	}));
	data.pools.forEach((p) => { p.events.at = sums(p.events.at); });
	let pool = data.shown, axis = "part", drawn = null;

	// The curves of one pool, both on one axis.
	function draw() {
		if (drawn) drawn.remove();
		const p = data.pools[pool];
		drawn = axis === "part" ? plot(byId("plot"), overParts(p)) : plot(byId("plot"), overEvents(p));
	}
	const both = (p) => [["before", p.before, "before", [5, 4], 1.5], ["after", p.after, "c1", [], 2]].filter((s) => s[1]);
	function specOf(p, at, max, x, values, marks, card) {
		return {
			name: "Live memory, before and after", group: "run", at, labels: 90,
			x: { min: at[0], max, ...x }, y: { title: "live", max: p.top * 1.05 || 1 },
			lines: both(p).map(([name, , color, dash, width]) => ({ name, color, dash, width, values: values(name) })), marks, card,
		};
	}
	const mark = (name, s, at, color) => ({ at, text: name + " " + bytes(s.peak), color, ring: s.peak });
	function overParts(p) {
		// In thousandths of the run.
		const n = (p.before || p.after).most.length, at = Array.from({ length: n }, (_, k) => 1000 * k / n), part = (v) => +(v / 10).toFixed(1) + " %";
		return specOf(p, at, 1000, { title: "part of the run", format: part }, (name) => p[name].most,
			both(p).filter(([, s]) => s.peak > 0).map(([name, s, color]) => mark(name, s, at[s.peak_stretch] + 500 / n, color)),
			(k) => ({ title: part(at[k]) + " of the run", rows: both(p).flatMap(([name, s]) => [[name, bytes(s.most[k])], ["", "event " + count(s.ends[k]) + (s.times.length ? ", " + time(s.times[k]) : "")]]) }));
	}
	function overEvents(p) {
		const e = p.events, last = Math.max(e.at[e.at.length - 1], e.at[0] + 1);
		const values = { before: e.before.map((v) => v ?? NaN), after: e.after.map((v) => v ?? NaN) };
		return { ...specOf(p, e.at, last, { title: "events", format: count }, (name) => values[name],
			both(p).filter(([, s]) => s.peak > 0).map(([name, s, color]) => mark(name, s, s.peak_event, color)),
			(k) => ({ title: "event " + count(e.at[k]), rows: both(p).map(([name]) => [name, isNaN(values[name][k]) ? "the run is over" : bytes(values[name][k])]) })) };
	}
	const press = (a, b) => { byId(a).setAttribute("aria-pressed", "true"); byId(b).setAttribute("aria-pressed", "false"); };
	byId("part").onclick = () => { axis = "part"; press("part", "event"); groupOf("run").view = null; draw(); };
	byId("event").onclick = () => { axis = "event"; press("event", "part"); groupOf("run").view = null; draw(); };
	byId("out").onclick = () => drawn.zoom();

	// The tables of each pool.
	const titles = ["Live at the peaks", "Live at the end", "Allocations"];
	data.pools.forEach((p, k) => {
		const section = document.querySelector('[data-pool="' + k + '"]'), tabs = section.querySelector(".tabs"), field = section.querySelector("input");
		let shown = null;
		const show = (n) => {
			const t = p.tables[n], format = n === 2 ? count : bytes;
			section.querySelector(".sum").textContent = titles[n] + ": " + signed(t.sum.difference, format) + " in all, " + format(t.sum.before) + " before and " + format(t.sum.after) + " after. The rows add up to it.";
			[...tabs.children].forEach((b, i) => b.setAttribute("aria-pressed", String(i === n)));
			shown = table(section.querySelector(".rows"), {
				name: titles[n], rows: t.rows, most: 60, head: -1, none: "Nothing.",
				columns: [
					{ title: "difference", number: true, text: (r) => signed(r.difference, format), sort: (r) => r.difference },
					{ title: "", wide: true, text: () => "", sort: (r) => r.difference, node: (r) => bar(r, t, format) },
					{ title: "where", long: true, text: (r) => r.where + "\n" + text(r.before_stack) + "\n" + text(r.after_stack), sort: (r) => r.where, node: where },
					{ title: "before", number: true, text: (r) => format(r.before), sort: (r) => r.before },
					{ title: "after", number: true, text: (r) => format(r.after), sort: (r) => r.after },
					...(n === 2 ? [] : [{ title: "blocks", number: true, wide: true, text: (r) => count(r.before_blocks) + "/" + count(r.after_blocks), sort: (r) => r.after_blocks }]),
					{ title: "match", wide: true, text: (r) => r.how },
				],
			});
			shown.search(field.value);
		};
		p.tables.forEach((t, n) => {
			if (t.rows.length) tabs.append(el("button", { type: "button", "aria-pressed": "false", onclick: () => show(n) }, titles[n]));
			else tabs.append(el("button", { type: "button", disabled: true }, titles[n]));
		});
		field.oninput = () => shown && shown.search(field.value);
		const first = p.tables.findIndex((t) => t.rows.length);
		if (first >= 0) show(first);
	});

	// bar is a difference as a bar from the middle. Its card has the stacks.
	function bar(r, t, format) {
		const width = t.most > 0 ? 50 * Math.abs(r.difference) / t.most : 0;
		const card = (e) => {
			const rows = [["before", format(r.before)], ["after", format(r.after)], ["difference", signed(r.difference, format)]];
			for (const [name, stack, stacks] of [["before", r.before_stack, r.before_stacks], ["after", r.after_stack, r.after_stacks]])
				if (stack >= 0) rows.push(["", name + (stacks > 1 ? ", the largest of " + count(stacks) + " stacks" : "") + "\n" + text(stack).split("\n").slice(0, 12).join("\n"), "stack"]);
			showCard(e.clientX, e.clientY, r.where, rows);
		};
		return el("span", { class: "track " + (r.difference > 0 ? "more" : "less"), "aria-hidden": "true", onpointermove: card, onpointerleave: hideCard },
			width ? el("i", { style: "width:" + width.toFixed(2) + "%" }) : null);
	}

	// where is a place; opened, it has the whole stacks.
	function where(r) {
		const before = text(r.before_stack), after = text(r.after_stack);
		if (!before && !after) return el("bdi", {}, r.where);
		const note = Math.max(r.before_stacks, r.after_stacks) > 1 ? el("span", { class: "quiet" }, " " + count(r.before_stacks) + "/" + count(r.after_stacks) + " stacks") : null;
		const parts = before === after ? [["", after]] : [["before", before], ["after", after]].filter(([, s]) => s);
		return el("details", {}, el("summary", {}, el("bdi", {}, r.where), note), ...parts.map(([name, s]) => el("pre", {}, name ? el("b", {}, name + "\n") : null, s)));
	}

	if (data.pools.length > 1) {
		const pick = el("select", { "aria-label": "Pool of the curves", onchange: () => { pool = +pick.value; draw(); } }, data.pools.map((p, k) => el("option", { value: k, selected: k === pool }, "Pool " + (p.name || "without a name"))));
		byId("pools").append(pick);
	}
	if (data.pools.length) draw(); else document.querySelector("figure").hidden = true;
}
