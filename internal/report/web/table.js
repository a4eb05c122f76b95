// A table whose rows can be searched and sorted.
//
// table(parent, {name, columns, rows, most}) has columns of {title, number, text(row),
// sort(row), node(row), wide} and rows of any kind: text is what is searched and shown, sort what
// orders (text if missing), node an element to show instead of the text; what is wide is not
// shown on a phone. The rows keep
// their order until a column is chosen. At most most rows are shown (default 100); a line
// below says how many there are and how many match. It returns {set(rows), search(text)}.
function table(parent, spec) {
	const most = spec.most || 100;
	let rows = spec.rows, by = -1, down = true, words = "";
	const classOf = (c) => [c.number && "n", c.long && "long", c.wide && "wide"].filter(Boolean).join(" ") || undefined;
	const body = el("tbody"), foot = el("p", { class: "quiet", "aria-live": "polite" });
	const heads = spec.columns.map((c, k) => {
		const b = el("button", { type: "button", class: "head", onclick: () => { down = by === k ? !down : !!c.number; by = k; fill(); } }, c.title);
		return el("th", { scope: "col", class: classOf(c) }, b);
	});
	parent.replaceChildren(
		el("div", { class: "wrap", role: "region", "aria-label": spec.name, tabindex: 0 }, el("table", {}, el("thead", {}, el("tr", {}, heads)), body)), foot);
	function fill() {
		const key = words.toLowerCase();
		const text = (r) => spec.columns.map((c) => c.text(r)).join(" ").toLowerCase();
		let list = rows.filter((r) => !key || text(r).includes(key));
		if (by >= 0) {
			const c = spec.columns[by], of = c.sort || c.text, sign = down ? -1 : 1;
			list = [...list].sort((a, b) => { const x = of(a), y = of(b); return sign * (x < y ? -1 : x > y ? 1 : 0); });
		}
		heads.forEach((h, k) => { if (k === by) h.setAttribute("aria-sort", down ? "descending" : "ascending"); else h.removeAttribute("aria-sort"); });
		body.replaceChildren(...list.slice(0, most).map((r) => el("tr", {}, spec.columns.map((c, k) =>
			el(k === (spec.head || 0) ? "th" : "td", { scope: k === (spec.head || 0) ? "row" : undefined, class: classOf(c) }, c.node ? c.node(r) : c.text(r))))));
		const said = [];
		if (key) said.push(count(list.length) + " of " + counted(rows.length, "row") + " have “" + words + "”");
		if (list.length > most) said.push("the first " + count(most) + " are shown");
		if (!rows.length) said.push(spec.none || "Nothing.");
		foot.textContent = said.join("; ");
		foot.hidden = !said.length;
	}
	fill();
	return { set: (list) => { rows = list; fill(); }, search: (text) => { words = text.trim(); fill(); } };
}

// stackNode shows a stack: a line of it, by default its first, and all when it is opened.
function stackNode(text, line) {
	const lines = text.split("\n");
	if (lines.length < 2) return el("bdi", {}, text);
	return el("details", {}, el("summary", {}, el("bdi", {}, line || lines[0])), el("pre", {}, text));
}
