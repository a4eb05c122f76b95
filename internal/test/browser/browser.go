// Package browser opens pages in a real browser without a window, for tests: it runs a
// script there, waits for what it says, and tells of errors and requests. It speaks the
// DevTools protocol (chromedevtools.github.io/devtools-protocol) over two pipes, each
// message a line of JSON that ends with a zero byte, so that it needs nothing but the
// browser.
package browser

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience is how long one answer of the browser, or what a test waits for, may take.
const patience = 30 * time.Second

// A Page is one page of a separate browser. One goroutine uses it.
type Page struct {
	t       testing.TB
	out     *os.File
	session string

	mu       sync.Mutex
	next     int
	answers  map[int]chan answer // guarded by mu
	gone     error               // guarded by mu
	troubles []string            // guarded by mu
	requests []string            // guarded by mu
}

type answer struct {
	result json.RawMessage
	err    error
}

// message is what the browser says: an answer if it has an ID, else an event.
type message struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// Open starts a browser with an empty page of the given size in pixels, in the scheme "light" or
// "dark". The test is skipped where there is none; the browser ends with it.
func Open(t testing.TB, width, height int, scheme string) *Page {
	t.Helper()
	var path string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if at, err := exec.LookPath(name); err == nil {
			path = at
			break
		}
	}
	if path == "" {
		t.Skip("skipped: no chromium here to open the page in (Debian: apt-get install chromium)")
	}
	fromUs, toBrowser, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	toUs, fromBrowser, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, path, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe",
		"--no-first-run", "--disable-background-networking", "--user-data-dir="+filepath.Join(t.TempDir(), "profile"))
	// All processes of the browser have this pipe, so Wait waits for all of them, and
	// none writes to its profile any more when that is removed.
	cmd.Stderr, cmd.WaitDelay = io.Discard, patience
	cmd.ExtraFiles = []*os.File{fromUs, fromBrowser} // 3 and 4 there
	if err := cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	_, _ = fromUs.Close(), fromBrowser.Close() // the browser has its own
	p := &Page{t: t, out: toBrowser, answers: map[int]chan answer{}}
	read := make(chan struct{})
	go func() {
		defer close(read)
		p.read(bufio.NewReader(toUs))
	}()
	t.Cleanup(func() {
		_ = toBrowser.Close() // it ends by that
		ended := make(chan struct{})
		go func() { _ = cmd.Wait(); close(ended) }()
		select {
		case <-ended:
		case <-time.After(patience):
		}
		cancel()
		<-ended
		_ = toUs.Close()
		<-read
	})
	var target struct {
		ID string `json:"targetId"`
	}
	p.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var session struct {
		ID string `json:"sessionId"`
	}
	p.call("Target.attachToTarget", map[string]any{"targetId": target.ID, "flatten": true}, &session)
	p.session = session.ID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		p.call(domain+".enable", nil, nil)
	}
	p.Size(width, height, false)
	p.Scheme(scheme)
	return p
}

// Size sets the page's width and height in pixels, as a phone has it or not.
func (p *Page) Size(width, height int, phone bool) {
	p.t.Helper()
	p.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}, nil)
}

// Scheme is what the reader prefers: "light" or "dark".
func (p *Page) Scheme(scheme string) {
	p.t.Helper()
	p.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// Print shows the page as on paper, until Scheme is called.
func (p *Page) Print() {
	p.t.Helper()
	p.call("Emulation.setEmulatedMedia", map[string]any{"media": "print"}, nil)
}

// PDF returns the page as it is printed.
func (p *Page) PDF() []byte {
	p.t.Helper()
	var pdf struct{ Data []byte }
	p.call("Page.printToPDF", map[string]any{"printBackground": false}, &pdf)
	return pdf.Data
}

// WithoutScripts switches the scripts of pages off. Wait does not work then.
func (p *Page) WithoutScripts(url string) {
	p.t.Helper()
	p.call("Emulation.setScriptExecutionDisabled", map[string]any{"value": true}, nil)
	p.call("Page.navigate", map[string]any{"url": url}, nil)
	for state := ""; state != "complete"; {
		p.Eval("document.readyState", &state)
	}
}

// read hands out what the browser says until it ends.
func (p *Page) read(in *bufio.Reader) {
	for {
		data, err := in.ReadBytes(0)
		if err != nil {
			p.mu.Lock()
			p.gone = fmt.Errorf("the browser has ended: %w", err)
			for _, c := range p.answers {
				c <- answer{err: p.gone}
			}
			clear(p.answers)
			p.mu.Unlock()
			return
		}
		var m message
		if err := json.Unmarshal(data[:len(data)-1], &m); err != nil {
			continue // not of a kind that is asked for
		}
		p.mu.Lock()
		if c := p.answers[m.ID]; m.ID > 0 && c != nil {
			delete(p.answers, m.ID)
			a := answer{result: m.Result}
			if m.Error != nil {
				a.err = errors.New(m.Error.Message)
			}
			c <- a
		} else {
			p.event(m)
		}
		p.mu.Unlock()
	}
}

// event notes troubles and requests. Caller holds p.mu.
func (p *Page) event(m message) {
	switch m.Method {
	case "Runtime.exceptionThrown":
		p.troubles = append(p.troubles, "exception: "+string(m.Params))
	case "Runtime.consoleAPICalled", "Log.entryAdded":
		p.troubles = append(p.troubles, "console: "+string(m.Params))
	case "Network.requestWillBeSent":
		var r struct {
			Request struct {
				URL string `json:"url"`
			} `json:"request"`
		}
		if json.Unmarshal(m.Params, &r) == nil {
			p.requests = append(p.requests, r.Request.URL)
		}
	}
}

// call asks the browser for something, and ends the test where it cannot be had.
func (p *Page) call(method string, params map[string]any, result any) {
	p.t.Helper()
	c := make(chan answer, 1)
	p.mu.Lock()
	if p.gone != nil {
		p.mu.Unlock()
		p.t.Fatal(p.gone)
	}
	p.next++
	id := p.next
	p.answers[id] = c
	p.mu.Unlock()
	m := map[string]any{"id": id, "method": method}
	if params != nil {
		m["params"] = params
	}
	if p.session != "" {
		m["sessionId"] = p.session
	}
	data, err := json.Marshal(m)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.out.Write(append(data, 0)); err != nil {
		p.t.Fatal(err)
	}
	select {
	case a := <-c:
		if a.err != nil {
			p.t.Fatalf("%s: %v", method, a.err)
		}
		if result != nil {
			if err := json.Unmarshal(a.result, result); err != nil {
				p.t.Fatalf("%s: %v", method, err)
			}
		}
	case <-time.After(patience):
		p.t.Fatalf("%s: no answer in %v", method, patience)
	}
}

// Go opens an address, such as one of file://, and waits until it is loaded.
func (p *Page) Go(url string) {
	p.t.Helper()
	p.call("Page.navigate", map[string]any{"url": url}, nil)
	p.Wait(`document.readyState === "complete" && location.href !== "about:blank"`)
}

// Eval runs an expression in the page, waits for it if it is a promise, and puts its
// value into v, as JSON would; nil: it is not wanted.
func (p *Page) Eval(expression string, v any) {
	p.t.Helper()
	var r struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Exception *struct {
			Text      string `json:"text"`
			Exception struct {
				Description string `json:"description"`
			} `json:"exception"`
		} `json:"exceptionDetails"`
	}
	p.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &r)
	if e := r.Exception; e != nil {
		p.t.Fatalf("%s: %s %s", expression, e.Text, e.Exception.Description)
	}
	if v != nil {
		if err := json.Unmarshal(r.Result.Value, v); err != nil {
			p.t.Fatalf("%s: %s: %v", expression, r.Result.Value, err)
		}
	}
}

// Wait waits until an expression is true. It looks at each frame that the page draws.
func (p *Page) Wait(expression string) {
	p.t.Helper()
	var ok bool
	p.Eval(fmt.Sprintf(`new Promise(done => {
		const end = performance.now() + %d;
		const look = () => { let is = false; try { is = Boolean(%s); } catch (e) {} if (is || performance.now() > end) done(is); else setTimeout(look, 10); };
		look();
	})`, (patience/2).Milliseconds(), expression), &ok)
	if !ok {
		p.t.Fatalf("never true: %s", expression)
	}
}

// Text is all text that the page shows.
func (p *Page) Text() string {
	p.t.Helper()
	var s string
	p.Eval("document.body.innerText", &s)
	return s
}

// Press sends a key to what has the focus: "p", "ArrowLeft", "Enter".
func (p *Page) Press(key string) {
	p.t.Helper()
	for _, kind := range []string{"keyDown", "keyUp"} {
		params := map[string]any{"type": kind, "key": key}
		if len(key) == 1 && kind == "keyDown" {
			params["text"] = key
		}
		p.call("Input.dispatchKeyEvent", params, nil)
	}
}

// Mouse does "mouseMoved", "mousePressed" or "mouseReleased" at a part of the first
// element that a selector finds, from 0 to 1 in both directions.
func (p *Page) Mouse(kind, selector string, x, y float64) {
	p.t.Helper()
	at := p.Box(selector)
	params := map[string]any{"type": kind, "x": at.X + x*at.W, "y": at.Y + y*at.H, "button": "none"}
	if kind != "mouseMoved" {
		params["button"], params["clickCount"] = "left", 1
	}
	if kind == "mousePressed" {
		params["buttons"] = 1
	}
	p.call("Input.dispatchMouseEvent", params, nil)
}

// A Box is where an element lies in the window, in pixels.
type Box struct{ X, Y, W, H float64 }

// Box brings an element to the middle of the window, and says where it lies then.
func (p *Page) Box(selector string) (at Box) {
	p.t.Helper()
	p.Eval(fmt.Sprintf(`(() => {
		const e = document.querySelector(%q);
		e.scrollIntoView({block: "center"});
		const r = e.getBoundingClientRect();
		return {X: r.x, Y: r.y, W: r.width, H: r.height};
	})()`, selector), &at)
	return at
}

// Screenshot is the whole page as PNG.
func (p *Page) Screenshot() []byte {
	p.t.Helper()
	var r struct {
		Data string `json:"data"`
	}
	p.call("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true}, &r)
	data, err := base64.StdEncoding.DecodeString(r.Data)
	if err != nil {
		p.t.Fatal(err)
	}
	return data
}

// Troubles are exceptions and what was written to the console so far.
func (p *Page) Troubles() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.troubles...)
}

// Requests are the addresses asked for so far, without data and blob ones, which are
// within the page.
func (p *Page) Requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []string
	for _, r := range p.requests {
		if !strings.HasPrefix(r, "data:") && !strings.HasPrefix(r, "blob:") {
			list = append(list, r)
		}
	}
	return list
}
