// The card beside the pointer: who, how much, since when. It never takes the pointer's
// events. A line below the plot, which screen readers speak, has the same text after a key
// was pressed.

let cardNode = null;

// showCard shows a card near a point of the window. rows are [label, value] pairs; a row
// with a class as its third item is set off, and one without a label takes the whole width.
function showCard(x, y, title, rows, swatch) {
	if (!cardNode) document.body.append(cardNode = el("div", { class: "card", "aria-hidden": "true" }));
	const body = el("dl", {});
	for (const [label, value, cls] of rows) {
		if (label) body.append(el("dt", {}, label));
		body.append(el("dd", { class: ((label ? "" : "whole ") + (cls || "")).trim() || undefined }, value));
	}
	cardNode.replaceChildren(el("b", {}, swatch ? el("i", { class: "swatch", style: "background:" + swatch }) : null, title), body);
	cardNode.hidden = false;
	const box = cardNode.getBoundingClientRect(), room = 14;
	let left = x + room;
	if (left + box.width > innerWidth - 4) left = x - room - box.width;
	if (left < 4) left = Math.max(4, innerWidth - box.width - 4);
	let top = y - box.height / 2;
	// Where the card covers the pointer, as on a phone, it stands above it.
	if (left < x && left + box.width > x) top = y - box.height - 2 * room;
	top = Math.max(4, Math.min(top, innerHeight - box.height - 4));
	cardNode.style.left = Math.round(left) + "px";
	cardNode.style.top = Math.round(top) + "px";
}
function hideCard() { if (cardNode) cardNode.hidden = true; }
addEventListener("scroll", hideCard, { passive: true });
