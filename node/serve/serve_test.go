package serve

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpumem/internal/test/browser"
	"gpumem/node/internal/history"
	"gpumem/node/machine"
)

// some is a look at things of which text must not be taken for markup.
func some() *State {
	return &State{
		Time: time.Unix(1e9, 0), Title: "here", Driver: &machine.Driver{Up: true},
		Devices: []shownDevice{{
			Device: "cuda:0", Name: `NVIDIA "H200"`, UUID: "GPU-1", Total: 100 << 30, Used: 40 << 30, Free: 60 << 30, Told: true, Leased: 50 << 30,
			Programs: []shownProgram{
				{PID: 7, User: "ann", Name: "python", Command: "python <b>train</b>.py", Used: 30 << 30, Told: true, Lease: 50 << 30},
				{PID: 7, User: "ann", Name: "python", Used: 1 << 30, Told: true},
				{PID: 8, Name: "back\\slash\nline", Used: 5, Told: true, Marks: []string{"parent gone"}},
			},
			Waiting: []shownWaiting{{PID: 9, Command: "python", Wants: 1 << 30}},
		}, {Device: "sim:8GiB", Simulated: true, Total: 8 << 30, Programs: []shownProgram{}, Waiting: []shownWaiting{}}},
	}
}

func looking(s *State, err error) Look {
	return func(context.Context) (*State, error) { return s, err }
}

// ask is a request of this machine, unless it is told otherwise.
func ask(h http.Handler, method, target string, change func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, nil)
	r.Host, r.RemoteAddr = "127.0.0.1:8787", "127.0.0.1:50000"
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestWhoMayLook(t *testing.T) {
	open, closed := Handler(looking(some(), nil), Options{}), Handler(looking(some(), nil), Options{Token: "a b;c"})
	for _, tt := range []struct {
		name   string
		h      http.Handler
		method string
		target string
		change func(*http.Request)
		want   int
	}{
		{"the page", open, "GET", "/", nil, 200},
		{"its head", open, "HEAD", "/", nil, 200},
		{"nothing is changed", open, "POST", "/", nil, 405},
		{"nor deleted", open, "DELETE", "/state", nil, 405},
		{"no other page", open, "GET", "/secret", nil, 404},
		{"by name", open, "GET", "/state", func(r *http.Request) { r.Host = "LocalHost:1" }, 200},
		{"IPv6", open, "GET", "/state", func(r *http.Request) { r.Host, r.RemoteAddr = "[::1]:8787", "[::1]:5" }, 200},
		{"IPv4 in IPv6", open, "GET", "/state", func(r *http.Request) { r.RemoteAddr = "[::ffff:127.0.0.1]:5" }, 200},
		{"another machine", open, "GET", "/", func(r *http.Request) { r.RemoteAddr = "10.0.0.7:5" }, 403},
		{"another site's name for here", open, "GET", "/state", func(r *http.Request) { r.Host = "evil.example:8787" }, 403},
		{"by another address of this machine", open, "GET", "/state", func(r *http.Request) { r.Host = "10.0.0.7:8787" }, 403},
		{"through a proxy here: Forwarded", open, "GET", "/state", func(r *http.Request) { r.Header.Set("Forwarded", "for=10.0.0.7") }, 403},
		{"through a proxy here: X-Forwarded-For", open, "GET", "/metrics", func(r *http.Request) { r.Header.Set("X-Forwarded-For", "10.0.0.7") }, 403},
		{"through a proxy here: X-Forwarded-Host", open, "GET", "/", func(r *http.Request) { r.Header.Set("X-Forwarded-Host", "gpu.example") }, 403},
		{"through a proxy here: X-Real-IP", open, "GET", "/events", func(r *http.Request) { r.Header.Set("X-Real-IP", "10.0.0.7") }, 403},
		{"through a proxy here: Via", open, "GET", "/state", func(r *http.Request) { r.Header.Set("Via", "1.1 proxy") }, 403},
		{"through a proxy here: X-Client-IP", open, "GET", "/state", func(r *http.Request) { r.Header.Set("X-Client-IP", "10.0.0.7") }, 403},
		{"through a proxy here: CF-Connecting-IP", open, "GET", "/state", func(r *http.Request) { r.Header.Set("CF-Connecting-IP", "10.0.0.7") }, 403},
		{"through a proxy here: True-Client-IP", open, "GET", "/state", func(r *http.Request) { r.Header.Set("True-Client-IP", "10.0.0.7") }, 403},
		{"through a proxy here: X-Original-Forwarded-For", open, "GET", "/state", func(r *http.Request) { r.Header.Set("X-Original-Forwarded-For", "10.0.0.7") }, 403},
		{"through a proxy, with the token", closed, "GET", "/?token=a+b%3Bc", func(r *http.Request) { r.Header.Set("X-Forwarded-For", "10.0.0.7") }, 200},
		{"no address", open, "GET", "/", func(r *http.Request) { r.RemoteAddr = "@" }, 403},
		{"no token", closed, "GET", "/", nil, 401},
		{"a wrong one", closed, "GET", "/?token=no", nil, 401},
		{"a wrong cookie", closed, "GET", "/", func(r *http.Request) { r.AddCookie(&http.Cookie{Name: cookie, Value: "no"}) }, 401},
		{"the token, from elsewhere", closed, "GET", "/?token=a+b%3Bc", func(r *http.Request) { r.RemoteAddr, r.Host = "10.0.0.7:5", "gpu.example" }, 200},
		{"as a bearer", closed, "GET", "/metrics", func(r *http.Request) { r.Header.Set("Authorization", "Bearer a b;c") }, 200},
		{"a part of it", closed, "GET", "/metrics", func(r *http.Request) { r.Header.Set("Authorization", "Bearer a b") }, 401},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := ask(tt.h, tt.method, tt.target, tt.change)
			if w.Code != tt.want {
				t.Errorf("%d %s, want %d", w.Code, w.Body, tt.want)
			}
			if w.Code == 403 && !strings.HasPrefix(w.Body.String(), "gpumem: without a token") {
				t.Errorf("it says %q", w.Body)
			}
		})
	}
	// The cookie that comes with the page lets in.
	w := ask(closed, "GET", "/?token=a+b%3Bc", nil)
	got := w.Result().Cookies()
	if len(got) != 1 || !got[0].HttpOnly || got[0].SameSite != http.SameSiteStrictMode || strings.Contains(got[0].Value, "a b") {
		t.Fatalf("cookies %v", got)
	}
	if w := ask(closed, "GET", "/state", func(r *http.Request) { r.AddCookie(got[0]) }); w.Code != 200 {
		t.Errorf("with the cookie %d", w.Code)
	}
}

func TestState(t *testing.T) {
	w := ask(Handler(looking(some(), nil), Options{}), "GET", "/state", nil)
	var got State
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || len(got.Devices) != 2 || got.Devices[0].Programs[0].Command != "python <b>train</b>.py" {
		t.Errorf("%v, %s", err, w.Body)
	}
	for _, path := range []string{"/state", "/metrics"} {
		if w := ask(Handler(looking(nil, errors.New("the driver is gone")), Options{}), "GET", path, nil); w.Code != 503 || !strings.Contains(w.Body.String(), "gpumem: the driver is gone") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

func TestMetrics(t *testing.T) {
	w := ask(Handler(looking(some(), nil), Options{}), "GET", "/metrics", nil)
	want, err := os.ReadFile("testdata/metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	if got := w.Body.String(); got != string(want) {
		t.Errorf("got\n%s\nwant testdata/metrics.txt", got)
	}
	if got := w.Header().Get("Content-Type"); got != "text/plain; version=0.0.4; charset=utf-8" {
		t.Errorf("type %s", got)
	}
}

// event reads the next of a stream.
func event(t *testing.T, r *bufio.Reader) (name, data string) {
	t.Helper()
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		switch line = strings.TrimSuffix(line, "\n"); {
		case line == "":
			return name, data
		case strings.HasPrefix(line, "event: "):
			name = line[7:]
		case strings.HasPrefix(line, "data: "):
			data = line[6:]
		default:
			t.Fatalf("line %q", line)
		}
	}
}

// TestEvents: all who watch share the looks, and a look that fails ends nothing.
func TestEvents(t *testing.T) {
	var n atomic.Int64
	s := httptest.NewServer(Handler(func(context.Context) (*State, error) {
		if n.Add(1) == 2 {
			return nil, errors.New("gone\nfor a moment")
		}
		return some(), nil
	}, Options{Every: time.Millisecond})) // taken as the least there is
	defer s.Close()
	watch := func() (*bufio.Reader, io.Closer) {
		res, err := http.Get(s.URL + "/events")
		if err != nil {
			t.Fatal(err)
		}
		if got := res.Header.Get("Content-Type"); got != "text/event-stream" {
			t.Fatalf("type %s", got)
		}
		return bufio.NewReader(res.Body), res.Body
	}
	first, c := watch()
	last := ""
	for k, want := range []string{"state", "trouble", "state"} {
		name, data := event(t, first)
		for k > 0 && name == last { // a look may be sent again
			name, data = event(t, first)
		}
		last = name
		if name != want || !json.Valid([]byte(data)) {
			t.Errorf("event %d: %s %s, want %s", k, name, data, want)
		}
		if want == "trouble" && data != `"gone\nfor a moment"` {
			t.Errorf("it says %s", data)
		}
	}
	second, d := watch()
	before := n.Load()
	const rounds = 5
	for range rounds {
		event(t, first)
		event(t, second)
	}
	if looks := n.Load() - before; looks > 2*rounds {
		t.Errorf("%d looks for two who watch %d times", looks, rounds)
	}
	c.Close()
	d.Close()
}

// TestFull: who comes when there is no room is told so, and there is room again.
func TestFull(t *testing.T) {
	s := newServer(looking(some(), nil), Options{})
	gone, end := context.WithCancel(context.Background())
	end() // so that a stream that is let in ends
	watch := func() int {
		return ask(s.handler(), "GET", "/events", func(r *http.Request) { *r = *r.WithContext(gone) }).Code
	}
	for range mostStreams {
		s.streams <- struct{}{}
	}
	if got := watch(); got != 503 {
		t.Errorf("with %d that watch: %d", mostStreams, got)
	}
	<-s.streams
	for range 3 {
		if got := watch(); got != 200 {
			t.Errorf("with one less: %d", got)
		}
	}
}

// TestPage: the page in a real browser draws what it is given, as text, and changes only
// what has changed.
func TestPage(t *testing.T) {
	var looks atomic.Int64
	s := httptest.NewServer(Handler(func(context.Context) (*State, error) {
		state := some()
		n := looks.Add(1)
		state.Time = state.Time.Add(time.Duration(n) * time.Second)
		state.Devices[0].Programs[1].Used += uint64(n) << 20 // it grows
		return state, nil
	}, Options{Every: leastEvery}))
	defer s.Close()
	// A client before the page: the page has the history of both.
	res, err := http.Get(s.URL + "/events")
	if err != nil {
		t.Fatal(err)
	}
	early := bufio.NewReader(res.Body)
	for range 31 {
		event(t, early)
	}
	res.Body.Close()
	p := browser.Open(t, 1000, 800, "light")
	defer p.Go("about:blank?") // the stream ends before the server
	p.Go(s.URL)
	p.Wait("document.body.dataset.looks > 1")
	text := p.Text()
	for _, want := range []string{"GPU memory: here", "live", "40 GiB of 100 GiB in use, 60 GiB free; leases set 50 GiB aside", "python <b>train</b>.py", "parent gone", "8 GiB; what is in use is unknown",
		"A python 30 GiB", "lease 50 GiB", "20 GiB left", "free, not leased 40 GiB", "+60 MiB", "process 9 has waited for 1 GiB for "} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q on the page", want)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
	// look waits for so many more looks of any client.
	look := func(n int) {
		p.Eval(fmt.Sprintf("new Promise(done => { let n = %d; const e = new EventSource('events'); e.addEventListener('state', () => { if (--n < 0) { e.close(); done(); } }); })", n), nil)
	}
	number := func(expression string) (n int) {
		p.Eval("Number("+expression+")", &n)
		return n
	}
	const drawn = "document.body.dataset.looks"

	// The nodes stay, and so do what is selected and has the focus.
	p.Eval("window.before = [...document.querySelectorAll('main *')].filter(n => !n.closest('.key')), document.querySelector('button.head').focus(), true", nil)
	at := number(drawn)
	p.Wait(fmt.Sprintf("%s > %d", drawn, at+3))
	if n := number("window.before.filter(n => !n.isConnected).length"); n > 0 {
		t.Errorf("%d nodes of %d were made anew", n, number("window.before.length"))
	}
	if n := number("document.activeElement.className === 'head'"); n != 1 {
		t.Error("the focus was lost")
	}

	// Sorted, filtered, paused.
	order := func() (list []string) {
		p.Eval("[...document.querySelectorAll('main section:first-child tbody .letter')].map(n => n.textContent)", &list)
		return list
	}
	if got := order(); !slices.Equal(got, []string{"A", "B", "C"}) {
		t.Errorf("by memory %q", got)
	}
	p.Eval("[...document.querySelectorAll('button.head')].find(b => b.textContent === 'grows/min').click()", nil)
	if got := order(); !slices.Equal(got, []string{"B", "A", "C"}) {
		t.Errorf("by growth %q", got)
	}
	p.Press("/")
	p.Eval("document.getElementById('filter').value = 'TRAIN', document.getElementById('filter').dispatchEvent(new Event('input'))", nil)
	if got := order(); !slices.Equal(got, []string{"A"}) || !strings.Contains(p.Text(), "The filter hides 2 programs.") {
		t.Errorf("filtered %q, %s", got, p.Text())
	}
	p.Press("Escape")
	if got := order(); len(got) != 3 {
		t.Errorf("without the filter %q", got)
	}
	p.Press("p")
	p.Wait(`document.getElementById("pause").getAttribute("aria-pressed") === "true"`)
	paused := number(drawn)
	look(2)
	if later := number(drawn); later != paused {
		t.Errorf("%d looks were drawn after the pause at %d", later, paused)
	}
	p.Press("p")
	p.Wait(fmt.Sprintf("%s > %d", drawn, paused+1))

	// On a phone nothing is wider than the screen.
	p.Size(390, 844, true)
	if n := number("document.documentElement.scrollWidth"); n > 390 {
		t.Errorf("%d pixels wide on a phone", n)
	}
	for _, trouble := range p.Troubles() {
		t.Error(trouble)
	}
	for _, r := range p.Requests() {
		if !strings.HasPrefix(r, s.URL) {
			t.Errorf("it asked for %s", r)
		}
	}
}

// TestPageOfPools: what a program's places allocated stays open when it grows.
func TestPageOfPools(t *testing.T) {
	var looks atomic.Int64
	s := httptest.NewServer(Handler(func(context.Context) (*State, error) {
		n := uint64(looks.Add(1))
		return &State{Time: time.Unix(int64(n), 0), Pools: []shownPool{{
			Name: "bfc_0", Policy: "bfc", Map: []int{100, 50}, MapBytes: 4 << 20,
			Live: []shownSite{{Stack: "main.keep\n\tkeep.go:7", Blocks: int(n), Bytes: n << 20}, {Stack: "main.step", Blocks: 1, Bytes: n % 2 << 30}}[:1+n%2],
		}}}, nil
	}, Options{Every: leastEvery}))
	defer s.Close()
	p := browser.Open(t, 1000, 800, "dark")
	defer p.Go("about:blank?")
	p.Go(s.URL)
	p.Wait("document.querySelector('details')")
	p.Eval("document.querySelector('details').open = true", nil)
	p.Wait("document.body.dataset.looks > 30 && document.body.innerText.includes('+60 MiB')") // enough to say what grows
	var open bool
	if p.Eval("document.querySelector('details').open", &open); !open {
		t.Error("what was open is closed")
	}
	for _, want := range []string{"Pool bfc_0", "keep.go:7", "+60 MiB", "main.step", "each part 2 MiB", "Policy bfc"} {
		if !strings.Contains(p.Text(), want) {
			t.Errorf("no %q on the page:\n%s", want, p.Text())
		}
	}
	for _, trouble := range p.Troubles() {
		t.Error(trouble)
	}
}

// TestEventsHaveTheHistory: a client that comes late has the past of those before it, and
// each event what is new since the one before.
func TestEventsHaveTheHistory(t *testing.T) {
	var looks atomic.Int64
	s := httptest.NewServer(Handler(func(context.Context) (*State, error) {
		state := some()
		state.Time = state.Time.Add(time.Duration(looks.Add(1)) * time.Second)
		return state, nil
	}, Options{Every: leastEvery}))
	t.Cleanup(s.Close)
	watch := func() *bufio.Reader {
		res, err := http.Get(s.URL + "/events")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { res.Body.Close() })
		return bufio.NewReader(res.Body)
	}
	type message struct {
		Devices []shownDevice
		History history.Columns
	}
	next := func(r *bufio.Reader) (m message) {
		name, data := event(t, r)
		if err := json.Unmarshal([]byte(data), &m); err != nil || name != "state" {
			t.Fatalf("%s: %v, %s", name, err, data)
		}
		return m
	}
	early := watch()
	var times []int64
	for range 5 {
		m := next(early)
		times = append(times, m.History.Times...)
		key := m.Devices[0].Programs[0].Key
		if list := m.History.Values[key]; len(list) != len(m.History.Times) || len(list) > 0 && *list[0] != 30<<30 {
			t.Errorf("%q: %d values at %d times", key, len(list), len(m.History.Times))
		}
	}
	late := next(watch()).History.Times
	if len(late) < len(times) || !slices.Equal(late[:len(times)], times) {
		t.Errorf("late %v, early %v", late, times)
	}
}

// TestMetricsOfPools: the figures of each process, and those of a lease once.
func TestMetricsOfPools(t *testing.T) {
	pool := &machine.PoolUse{Held: 30, InUse: 20, PeakHeld: 40, PeakInUse: 25, Charged: 3, Outside: 7, Refused: 2, DriverCalls: 9}
	l := &machine.Lease{Bytes: 100, Holder: 7, Programs: 2, Sum: &machine.PoolUse{Held: 60, Refused: 4}}
	s := stateOf("here", &machine.Snapshot{Devices: []machine.Device{{Spec: "cuda:0", Programs: []machine.Program{
		{PID: 7, Name: "python", Lease: l, Pool: pool}, {PID: 8, Name: "python", Lease: l, Pool: pool}, {PID: 9, Name: "other"}}}}})
	if p := s.Devices[0].Programs[0]; p.Pool != pool || p.LeasePool != l.Sum || !slices.Contains(p.Marks, "pool holds 30 B, 20 B in use, peak 25 B, 2 refused") {
		t.Errorf("%+v", p)
	}
	got := map[string]int{}
	for _, m := range metricsOf(s) {
		for _, x := range m.samples {
			got[fmt.Sprintf("%s%s %d", m.name, x.labels, x.value)]++
		}
	}
	for _, want := range []string{
		`gpumem_program_pool_held_bytes{device="cuda:0",simulated="false",pid="7",user="",name="python"} 30`,
		`gpumem_program_pool_held_bytes{device="cuda:0",simulated="false",pid="8",user="",name="python"} 30`,
		`gpumem_program_pool_in_use_bytes{device="cuda:0",simulated="false",pid="8",user="",name="python"} 20`,
		`gpumem_program_pool_held_peak_bytes{device="cuda:0",simulated="false",pid="8",user="",name="python"} 40`,
		`gpumem_program_pool_in_use_peak_bytes{device="cuda:0",simulated="false",pid="8",user="",name="python"} 25`,
		`gpumem_program_pool_charged_bytes{device="cuda:0",simulated="false",pid="8",user="",name="python"} 3`,
		`gpumem_program_pool_outside_bytes{device="cuda:0",simulated="false",pid="8",user="",name="python"} 7`,
		`gpumem_program_pool_refused_total{device="cuda:0",simulated="false",pid="8",user="",name="python"} 2`,
		`gpumem_program_pool_driver_calls_total{device="cuda:0",simulated="false",pid="8",user="",name="python"} 9`,
		`gpumem_lease_limit_bytes{device="cuda:0",simulated="false",lease="7"} 100`,
		`gpumem_lease_pool_held_bytes{device="cuda:0",simulated="false",lease="7"} 60`,
		`gpumem_lease_pool_refused_total{device="cuda:0",simulated="false",lease="7"} 4`,
	} {
		if got[want] != 1 {
			t.Errorf("%d times %s", got[want], want)
		}
	}
}

// TestMetricsOfTurns: where the memory of programs that share a device by turns is; of others nothing is said.
func TestMetricsOfTurns(t *testing.T) {
	away := &machine.Turn{State: "away", OnHost: 40, Swaps: 3, Paused: true}
	waits := &machine.Turn{State: "waiting", OnHost: 20, Wants: 50, Swaps: 1, Place: new(0)}
	waited := &machine.Turn{State: "waiting", Paused: true}
	toPause := &machine.Turn{State: "in", Paused: true}
	s := stateOf("here", &machine.Snapshot{Devices: []machine.Device{
		{Spec: "cuda:0", Programs: []machine.Program{
			{PID: 7, Name: "python", Turn: away}, {PID: 8, Name: "python", Turn: waits}, {Name: "x", Turn: away}, {Name: "x", Turn: waits}, {PID: 9, Name: "other"},
			{PID: 10, Name: "waited", Turn: waited}, {PID: 11, Name: "to pause", Turn: toPause}, {PID: 12, Name: "away", Turn: &machine.Turn{State: "away"}}}},
		{Spec: "cuda:1", Programs: []machine.Program{{PID: 9, Name: "other"}}},
	}})
	programs := s.Devices[0].Programs
	if p := programs[0]; p.Turn != away || !slices.Equal(p.Marks, []string{"turn: paused, 40 B on the host"}) {
		t.Errorf("%+v", p)
	}
	if p := programs[4]; p.Turn != nil || p.Marks != nil {
		t.Errorf("%+v", p)
	}
	got := map[string]int{}
	for _, m := range metricsOf(s) {
		for _, x := range m.samples {
			if strings.Contains(m.name, "turn") || strings.Contains(m.name, "host") || strings.Contains(m.name, "swap") {
				got[fmt.Sprintf("%s%s %d", m.name, x.labels, x.value)]++
			}
		}
	}
	want := map[string]int{}
	for state, n := range map[string]int{"in": 1, "leaving": 0, "away": 1, "paused": 3, "waiting": 2, "returning": 0, "unknown": 0} {
		want[fmt.Sprintf(`gpumem_device_turns{device="cuda:0",simulated="false",state="%s"} %d`, state, n)] = 1
	}
	for _, p := range []struct {
		labels               string
		onHost, wants, swaps int
	}{
		{`pid="7",user="",name="python"`, 40, 0, 3},
		{`pid="8",user="",name="python"`, 20, 50, 1},
		{`pid="0",user="",name="x"`, 60, 50, 4},
		{`pid="10",user="",name="waited"`, 0, 0, 0},
		{`pid="11",user="",name="to pause"`, 0, 0, 0},
		{`pid="12",user="",name="away"`, 0, 0, 0},
	} {
		labels := `{device="cuda:0",simulated="false",` + p.labels + `}`
		want[fmt.Sprint("gpumem_program_on_host_bytes", labels, " ", p.onHost)] = 1
		want[fmt.Sprint("gpumem_program_turn_wants_bytes", labels, " ", p.wants)] = 1
		want[fmt.Sprint("gpumem_program_swaps_total", labels, " ", p.swaps)] = 1
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
