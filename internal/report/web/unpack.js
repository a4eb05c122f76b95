// The data is unpacked and handed to the page. What goes wrong is said on the page, and
// noted for the tests in the attribute data-errors of the root element.

async function unpack() {
	const text = atob(document.getElementById("data").textContent.trim());
	const packed = Uint8Array.from(text, (c) => c.charCodeAt(0));
	const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
	return new Response(stream).json();
}
function failed(e) {
	root.dataset.errors = (root.dataset.errors || "") + (e.message || e.violatedDirective || e) + "\n";
}
addEventListener("error", failed);
addEventListener("unhandledrejection", (e) => failed(e.reason));
addEventListener("securitypolicyviolation", failed);
unpack().then((data) => {
	root.classList.add("on");
	start(data);
	pageKeys();
	root.dataset.ready = "yes";
}, (e) => {
	failed(e);
	document.body.prepend(el("p", { role: "alert" }, "The drawings need a browser that can unpack gzip (Chrome 80, Firefox 113, Safari 16.4 or newer): " + e.message));
}).catch(failed);
