// The kit that all pages share. Its parts are one script, in the order base, card, plot,
// table; the page's own follows.
//
//   base   elements, numbers as text, colours, the theme
//   card   what stands beside the pointer
//   plot   values over events or instructions: bands, lines, levels, marks
//   table  rows that can be searched and sorted
//
// Texts from elsewhere are only ever set as text.

const root = document.documentElement;

// visible is as Visible of the Go package, for texts that come later, as on a live page.
const visible = (s) => s.replace(/[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");

// el makes an element. Attributes that are undefined or false are left out; listeners are
// given as on*, such as onclick.
function el(tag, attributes, ...children) {
	const svg = ["svg", "path", "rect", "line", "text", "title", "g", "circle"].includes(tag);
	const e = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
	for (const [name, value] of Object.entries(attributes || {})) {
		if (value === undefined || value === false || value === null) continue;
		if (name.startsWith("on")) e.addEventListener(name.slice(2), value);
		else e.setAttribute(name, value === true ? "" : value);
	}
	e.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false).map((c) => typeof c === "string" ? visible(c) : c));
	return e;
}
const byId = (id) => document.getElementById(id);

const count = (n) => String(Math.round(n)).replace(/\B(?=(\d{3})+$)/g, ",");
// counted is "1 block" or "1,234 blocks".
const counted = (n, what) => count(n) + " " + what + (n === 1 ? "" : "s");
const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
// bytes returns the same text as Format of Go's package size; a test compares them.
function bytes(n) {
	let i = 0, scale = 1;
	while (n / scale >= 1024 && i < 6) { scale *= 1024; i++; }
	if (n % scale === 0) return n / scale + " " + units[i];
	// Go rounds halves to even: of the eighths that lie halfway, .125 and .625 go down.
	const v = n / scale, down = v * 8 % 4 === 1, text = (down ? Math.floor(v * 100) / 100 : v).toFixed(2);
	return text === "1024.00" ? "1.00 " + units[i + 1] : text + " " + units[i];
}
const percent = (part, whole) => (whole > 0 ? (100 * part / whole).toFixed(1) : "0.0") + " %";
// glue keeps a number and its unit on one line.
const glue = (s) => s.replace(/(\d) ((?:[KMGTPE]i)?B|%|s|ms|us|ns)\b/g, "$1\u00a0$2");
// time returns nanoseconds as text with that many significant digits, by default as Seconds of
// Go's package report.
function time(ns, digits = 3) {
	if (ns === 0) return "0";
	if (ns >= 999.5e9 && digits <= 3) {
		const s = Math.round(ns / 1e9), h = Math.floor(s / 3600), m = Math.floor(s / 60) % 60;
		return (h ? h + "h" : "") + m + "m" + s % 60 + "s";
	}
	for (const [unit, name] of [[1e9, "s"], [1e6, "ms"], [1e3, "us"], [1, "ns"]]) if (ns >= 0.9995 * unit) return +(ns / unit).toPrecision(digits) + " " + name;
	return "0 s";
}
// sums undoes the differences that lists of numbers are written as.
function sums(list) {
	let last = 0;
	return (list || []).map((d) => last += d);
}
// within returns the index of the last value of an ascending list that is at most v, 0 if
// there is none.
function within(list, v) {
	let low = 0, high = list.length - 1;
	while (low < high) {
		const mid = (low + high + 1) >> 1;
		if (list[mid] <= v) low = mid; else high = mid - 1;
	}
	return low;
}

// Bands and lines have the colours --c1 to --c8; the rest is grey. The colours are those
// of Okabe and Ito, which people with any colour vision tell apart.
const colors = 8;
const known = new Map(); // colours, until the theme changes
function color(name) {
	if (!known.has(name)) known.set(name, getComputedStyle(root).getPropertyValue("--" + name).trim());
	return known.get(name);
}
const nth = (k) => "c" + (k % colors + 1);
// isDark reports whether the page is dark, by the reader's choice or the system's.
const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;

// repaints are called when the colours or the width of the page have changed.
const repaints = new Set();
function repaint() {
	known.clear();
	repaints.forEach((f) => f());
}
function setTheme(theme) {
	if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
	repaint();
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
// The address may name the theme: #theme=dark.
function themeOfAddress() {
	const found = /[#&]theme=(dark|light)(&|$)/.exec(location.hash);
	if (found) setTheme(found[1]);
}
themeOfAddress();
addEventListener("hashchange", themeOfAddress);

// pageKeys gives a page that has started the button "dark or light", in parent or among its
// links, and two keys: d presses the button, / goes to the first search field that is seen.
// A page that has a button with the id theme handles that one. What a page does with a key
// it says by preventDefault; the key does nothing else then.
function pageKeys(parent) {
	if (!byId("theme")) {
		const button = el("button", { type: "button", id: "theme", "aria-keyshortcuts": "d", onclick: () => {
			setTheme(isDark() ? "light" : "dark");
			try { history.replaceState(null, "", "#theme=" + root.dataset.theme); } catch (e) { /* not in every frame */ }
		} }, "dark or light");
		const links = document.querySelector("nav ul");
		if (parent) parent.append(button);
		else if (links) links.append(el("li", {}, button));
		else document.body.prepend(el("nav", {}, button));
	}
	const find = () => [...document.querySelectorAll("input[type=search]")].find((field) => field.getClientRects().length);
	if (find()) find().setAttribute("aria-keyshortcuts", "/");
	addEventListener("keydown", (e) => {
		if (e.defaultPrevented || e.ctrlKey || e.metaKey || e.altKey || e.target instanceof Element && e.target.matches("select, input, textarea")) return;
		if (e.key === "d") byId("theme").click();
		else if (e.key === "/" && find()) find().focus();
		else return;
		e.preventDefault();
	});
}
// On paper all is dark on white, and as wide as the paper.
let themeBefore;
addEventListener("beforeprint", () => { themeBefore = root.dataset.theme; setTheme("light"); });
addEventListener("afterprint", () => setTheme(themeBefore));
let widthBefore = innerWidth;
addEventListener("resize", () => { if (innerWidth !== widthBefore) { widthBefore = innerWidth; repaint(); } });
const narrow = () => innerWidth < 640;
