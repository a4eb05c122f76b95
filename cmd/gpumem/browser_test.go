package main

// A browser for tests: Chromium or Chrome without a window, spoken to in the
// DevTools protocol over two pipes, JSON messages that end with a zero byte
// (--remote-debugging-pipe). Tests are skipped where none is installed.

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// browserTime is how long a test may take with its browser.
const browserTime = 4 * time.Minute

// A browser shows one page.
type browser struct {
	t       *testing.T
	ctx     context.Context
	to      *os.File
	in      chan message // closed when the browser is gone
	id      int
	session string
	// What happened on the page.
	requests, errors []string
}

type message struct {
	ID        int             `json:"id,omitempty"`
	Method    string          `json:"method,omitempty"`
	Params    json.RawMessage `json:"params,omitempty"`
	SessionID string          `json:"sessionId,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// openBrowser starts one, or skips the test.
func openBrowser(t *testing.T) *browser {
	t.Helper()
	program := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if at, err := exec.LookPath(name); err == nil {
			program = at
			break
		}
	}
	if program == "" {
		t.Skip("no chromium and no google-chrome in PATH: the page is not tried in a browser")
	}
	ctx, cancel := context.WithTimeout(t.Context(), browserTime)
	theirIn, ourOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ourIn, theirOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	// Not t.TempDir: what cannot be removed fails no test.
	profile, err := os.MkdirTemp("", "gpumem-browser-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(profile) })
	cmd := exec.CommandContext(ctx, program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe",
		"--user-data-dir="+profile, "about:blank")
	// All processes of the browser have this pipe, so Wait waits for all.
	cmd.Stderr, cmd.WaitDelay = io.Discard, 10*time.Second
	cmd.ExtraFiles = []*os.File{theirIn, theirOut}
	if err := cmd.Start(); err != nil {
		t.Skipf("%s does not start: %v", program, err)
	}
	theirIn.Close()
	theirOut.Close()
	b := &browser{t: t, ctx: ctx, to: ourOut, in: make(chan message, 100)}
	go func() {
		defer close(b.in)
		r := bufio.NewReader(ourIn)
		for {
			line, err := r.ReadBytes(0)
			if err != nil {
				return
			}
			var m message
			if json.Unmarshal(bytes.TrimSuffix(line, []byte{0}), &m) == nil {
				b.in <- m
			}
		}
	}()
	t.Cleanup(func() {
		b.session = ""
		b.send("Browser.close", nil)
		for range b.in { // to the end
		}
		_ = cmd.Wait()
		cancel()
		ourOut.Close()
		ourIn.Close()
	})
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var session struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session)
	b.session = session.SessionID
	for _, domain := range []string{"Page", "Runtime", "Network", "Log"} {
		b.call(domain+".enable", nil, nil)
	}
	return b
}

// on makes a subtest the one that fails.
func (b *browser) on(t *testing.T) {
	whole := b.t
	b.t = t
	t.Cleanup(func() { b.t = whole })
}

func (b *browser) send(method string, params any) int {
	b.id++
	p, err := json.Marshal(params)
	if err == nil {
		var all []byte
		all, err = json.Marshal(message{ID: b.id, Method: method, Params: p, SessionID: b.session})
		if err == nil {
			_, err = b.to.Write(append(all, 0))
		}
	}
	if err != nil {
		b.t.Errorf("%s: %v", method, err)
	}
	return b.id
}

// next is the next message; what it tells of the page is kept.
func (b *browser) next() message {
	b.t.Helper()
	select {
	case m, ok := <-b.in:
		if !ok {
			b.t.Fatal("the browser is gone")
		}
		switch m.Method {
		case "Network.requestWillBeSent":
			var p struct{ Request struct{ URL string } }
			_ = json.Unmarshal(m.Params, &p)
			b.requests = append(b.requests, p.Request.URL)
		case "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded":
			b.errors = append(b.errors, m.Method+" "+string(m.Params))
		}
		return m
	case <-b.ctx.Done():
		b.t.Fatal("the browser does not answer")
	}
	return message{}
}

// call sends a command and waits for its answer.
func (b *browser) call(method string, params, result any) {
	b.t.Helper()
	if params == nil {
		params = map[string]any{}
	}
	id := b.send(method, params)
	for {
		m := b.next()
		if m.ID != id {
			continue
		}
		if m.Error != nil {
			b.t.Fatalf("%s: %s", method, m.Error.Message)
		}
		if result != nil {
			if err := json.Unmarshal(m.Result, result); err != nil {
				b.t.Fatalf("%s: %v", method, err)
			}
		}
		return
	}
}

// size is the window's.
func (b *browser) size(width, height int) {
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 640}, nil)
}

// open opens a file with a fragment, and waits until it is there.
func (b *browser) open(path, fragment string) {
	b.t.Helper()
	// From an empty page, for another fragment alone would not open it anew.
	for _, url := range []string{"about:blank", "file://" + path + "#" + fragment} {
		b.requests, b.errors = nil, nil
		b.send("Page.navigate", map[string]any{"url": url})
		for b.next().Method != "Page.loadEventFired" {
		}
	}
}

// frame waits until what was done is drawn.
func (b *browser) frame() {
	b.t.Helper()
	b.eval("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(1))))", nil)
}

// eval is the value of an expression on the page.
func (b *browser) eval(expression string, value any) {
	b.t.Helper()
	var r struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &r)
	if r.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, r.ExceptionDetails)
	}
	if value != nil {
		if err := json.Unmarshal(r.Result.Value, value); err != nil {
			b.t.Fatalf("%s: %v: %s", expression, err, r.Result.Value)
		}
	}
}

// state is what the page tells of itself.
func (b *browser) state() map[string]string {
	b.t.Helper()
	var s map[string]string
	b.eval("({...document.getElementById('page').dataset})", &s)
	return s
}

// key presses a key.
func (b *browser) key(key string) {
	b.t.Helper()
	b.call("Input.dispatchKeyEvent", map[string]any{"type": "keyDown", "key": key}, nil)
	b.call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key}, nil)
	b.frame()
}

// mouse does something at a part of an element, from 0 to 1 in both directions.
func (b *browser) mouse(kind, css string, x, y float64) {
	b.t.Helper()
	var box struct{ X, Y, W, H float64 }
	b.eval(fmt.Sprintf("(() => { const e = document.querySelector(%q); e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect(); return {X: r.x, Y: r.y, W: r.width, H: r.height} })()", css), &box)
	button, buttons := "none", 0
	if kind != "mouseMoved" {
		button = "left"
	}
	if kind == "mousePressed" {
		buttons = 1
	}
	b.call("Input.dispatchMouseEvent", map[string]any{"type": kind, "x": box.X + x*box.W, "y": box.Y + y*box.H, "button": button, "buttons": buttons, "clickCount": 1}, nil)
	b.frame()
}

// picture is the page as it looks, as far as the window shows it.
func (b *browser) picture() image.Image {
	b.t.Helper()
	var r struct{ Data string }
	b.call("Page.captureScreenshot", map[string]any{"format": "png"}, &r)
	data, err := base64.StdEncoding.DecodeString(r.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	// For whoever wants to see it: the environment names a folder.
	if dir := os.Getenv("GPUMEM_TEST_PICTURES"); dir != "" {
		name := strings.NewReplacer("/", "_", " ", "_").Replace(b.t.Name())
		if err := os.WriteFile(filepath.Join(dir, name+".png"), data, 0o666); err != nil {
			b.t.Error(err)
		}
	}
	img, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		b.t.Fatal(err)
	}
	return img
}
