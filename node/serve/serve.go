// Package serve shows GPU memory live over HTTP: a page that follows each change, the
// same as JSON, and metrics for Prometheus. It serves a machine, see [Machine] and
// gpumem serve, or a program that uses package gpumem:
//
//	http.Handle("/memory/", http.StripPrefix("/memory", serve.Handler(serve.Pools(pool), serve.Options{})))
//
// # What is served
//
//	/         the page; it loads nothing from elsewhere
//	/state    one [State] as JSON
//	/events   a State each Options.Every, as server-sent events, with what is new of the
//	          last 600 looks
//	/metrics  text for Prometheus, see metrics.go
//
// All requests are GET and HEAD, and change nothing. Without a token a request is
// answered only if it comes from this machine and names it by a loopback address or as
// localhost. So a page of another site whose name resolves to this machine is refused,
// and so is a request that a proxy has forwarded with a header that says so (Forwarded,
// X-Forwarded-*, X-Real-IP, Via and others). Other proxies cannot be told from programs of this
// machine: behind a proxy a token is needed.
//
// All clients share the snapshots: the source is read at most once for each
// Options.Every, and not at all without clients. So the history that a page draws is that
// of all clients, also of those before it.
//
// [Profile] serves one pool to go tool pprof.
package serve

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"gpumem/node/internal/history"
	"gpumem/node/internal/view"
	"gpumem/node/machine"
)

// State is a snapshot of devices, pools and programs. Sizes are in bytes.
type State struct {
	Time    time.Time       `json:"time"`
	Title   string          `json:"title"`            // such as the name of the host or the program
	Driver  *machine.Driver `json:"driver,omitempty"` // nil if unknown or not needed
	Devices []shownDevice   `json:"devices,omitempty"`
	Pools   []shownPool     `json:"pools,omitempty"`
	Notes   []string        `json:"notes,omitempty"` // readings that failed, with the reason

	snapshot *machine.Snapshot // that it was made from, nil if none
}

// shownDevice is a GPU and the programs that use it.
type shownDevice struct {
	Device    string         `json:"device"` // as --device takes it
	Name      string         `json:"name"`
	UUID      string         `json:"uuid,omitempty"`
	Simulated bool           `json:"simulated"`
	Total     uint64         `json:"total_bytes"`
	Used      uint64         `json:"used_bytes"`
	Free      uint64         `json:"free_bytes"`
	Told      bool           `json:"told"` // Used and Free are known
	Leased    uint64         `json:"leased_bytes"`
	Programs  []shownProgram `json:"programs"`
	Waiting   []shownWaiting `json:"waiting"` // for a lease, the next first
	// What follows is filled by the handler.
	Parts    []shownPart          `json:"parts"`             // of a bar; see [view.Shares]
	Orders   map[history.By][]int `json:"orders"`            // indexes of Programs
	Remarks  []string             `json:"remarks,omitempty"` // sentences for people
	Unlisted string               `json:"unlisted"`          // the name in the history of what no program holds
}

// shownPart is a piece of a device's memory.
type shownPart struct {
	Kind    view.PartKind `json:"kind"`
	Program int           `json:"program"` // its index in Programs; -1 if none
	Lease   int           `json:"lease"`   // its number, the same for all parts of a lease; 0 if none
	Bytes   uint64        `json:"bytes"`
}

// Program holds memory of a device, or a lease on it.
type shownProgram struct {
	PID     int      `json:"pid,omitempty"`
	User    string   `json:"user,omitempty"`
	Name    string   `json:"name"`              // short
	Command string   `json:"command,omitempty"` // whole
	Used    uint64   `json:"used_bytes"`
	Told    bool     `json:"told"` // Used is known
	Lease   uint64   `json:"lease_bytes,omitempty"`
	Marks   []string `json:"marks,omitempty"` // such as "parent gone"
	// Pool is what its pool has, if the driver library serves its memory, and LeasePool
	// what those of all processes of its lease have; nil if it does not.
	Pool      *machine.PoolUse `json:"pool,omitempty"`
	LeasePool *machine.PoolUse `json:"lease_pool,omitempty"`
	lease     string           // for the metrics: its id, or the process that has it
	Turn      *machine.Turn    `json:"turn,omitempty"` // nil if it does not share the device by turns
	Started   *time.Time       `json:"started,omitempty"`
	// What follows is filled by the handler.
	Key    string          `json:"key"`    // the same as long as it runs: its name in the history
	Title  string          `json:"title"`  // a word: the script that Python runs, or the command's first
	Number int             `json:"number"` // the same as long as it runs, counted from 0, small
	Grows  *history.Growth `json:"grows,omitempty"`
}

// shownWaiting is a program that waits for a lease.
type shownWaiting struct {
	PID     int       `json:"pid,omitempty"`
	User    string    `json:"user,omitempty"`
	Command string    `json:"command"`
	Wants   uint64    `json:"wants_bytes"` // 0 is all that can be shared
	Since   time.Time `json:"since"`
}

// Look takes a snapshot.
type Look func(context.Context) (*State, error)

// Options configure a handler. The zero value serves this machine alone.
type Options struct {
	// Every is the time between two states of /events. 0 is a second, and less than
	// 100 milliseconds is taken as that.
	Every time.Duration
	// Token must be in every request, as "Authorization: Bearer TOKEN" or once as
	// "?token=TOKEN", which a browser then keeps as a cookie. Without one only requests
	// of this machine are answered. Behind a proxy it is needed.
	Token string
}

const (
	leastEvery = 100 * time.Millisecond
	// mostStreams limits the streams of events. Each holds a connection.
	mostStreams = 64
	cookie      = "gpumem_token"
)

// patience is the time that a client may take to read an event. Tests are less patient.
var patience = 10 * time.Second

// Handler serves the snapshots of look.
func Handler(look Look, o Options) http.Handler { return newServer(look, o).handler() }

func newServer(look Look, o Options) *server {
	if o.Every == 0 {
		o.Every = time.Second
	}
	o.Every = max(o.Every, leastEvery)
	return &server{o: o, looks: looks{look: look, age: o.Every / 2, turn: make(chan struct{}, 1), past: history.New(history.Keep)}, streams: make(chan struct{}, mostStreams)}
}

func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.page)
	mux.HandleFunc("GET /state", s.state)
	mux.HandleFunc("GET /events", s.events)
	mux.HandleFunc("GET /metrics", s.metrics)
	return s.guard(mux)
}

type server struct {
	o       Options
	looks   looks
	streams chan struct{}
}

// guard refuses requests without permission.
func (s *server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Referrer-Policy", "no-referrer")
		w.Header().Set("Cache-Control", "no-store")
		given := r.URL.Query().Get("token")
		bearer, isBearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		kept, err := r.Cookie(cookie)
		switch {
		case s.o.Token == "":
			if why := local(r); why != "" {
				http.Error(w, why, http.StatusForbidden)
				return
			}
		case same(given, s.o.Token):
			http.SetCookie(w, &http.Cookie{Name: cookie, Value: cookieValue(given), HttpOnly: true, SameSite: http.SameSiteStrictMode})
		case isBearer && same(bearer, s.o.Token):
		case err == nil && same(kept.Value, cookieValue(s.o.Token)):
		default:
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "gpumem: a token is needed: open the address that gpumem serve printed, or send it as Authorization: Bearer", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// cookieValue returns the token as a cookie, which cannot hold every character.
func cookieValue(token string) string {
	sum := sha256.Sum256([]byte("gpumem serve " + token))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// same compares in constant time.
func same(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// proxyHeaders are what proxies say of the client: RFC 7239 and 9110, nginx, Apache
// (mod_remoteip), Cloudflare, Akamai, Fastly, Google Cloud, Envoy, ingress-nginx. X-Forwarded-*
// comes on top.
var proxyHeaders = []string{
	"Forwarded", "Via", "X-Real-Ip", "X-Client-Ip", "Client-Ip", "Cf-Connecting-Ip", "Cf-Ray", "True-Client-Ip", "Fastly-Client-Ip",
	"X-Cluster-Client-Ip", "X-Original-Forwarded-For", "X-Original-Host", "X-Envoy-External-Address", "X-Proxyuser-Ip",
}

// passedOn reports whether a request has the header of a proxy. A proxy on this machine
// has this machine's address, which says nothing about the client.
func passedOn(h http.Header) bool {
	for name := range h {
		if strings.HasPrefix(name, "X-Forwarded-") || slices.Contains(proxyHeaders, name) {
			return true
		}
	}
	return false
}

// local returns the reason why a request is not from this machine to this machine, empty
// if it is.
func local(r *http.Request) string {
	if from, err := netip.ParseAddrPort(r.RemoteAddr); err != nil || !from.Addr().Unmap().IsLoopback() {
		return "gpumem: without a token only this machine is answered; start gpumem serve with --token"
	}
	if passedOn(r.Header) {
		return "gpumem: without a token no proxy is answered; start gpumem serve with --token"
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if at, err := netip.ParseAddr(host); (err != nil || !at.Unmap().IsLoopback()) && !strings.EqualFold(host, "localhost") {
		return "gpumem: without a token this is localhost only, and the request is for another name"
	}
	return ""
}

func (s *server) state(w http.ResponseWriter, r *http.Request) {
	state, _, err := s.looks.now(r.Context(), nil)
	if err != nil {
		http.Error(w, "gpumem: "+err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(state) // the client may be gone
}

// events sends snapshots until the client closes or the server ends.
func (s *server) events(w http.ResponseWriter, r *http.Request) {
	select {
	case s.streams <- struct{}{}:
		defer func() { <-s.streams }()
	default:
		http.Error(w, "gpumem: too many clients; try again later", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // proxies such as nginx keep nothing back
	out := http.NewResponseController(w)
	tick := time.NewTicker(s.o.Every)
	defer tick.Stop()
	var next int // look that the client does not have
	for {
		event, data := "state", []byte(nil)
		state, past, err := s.looks.now(r.Context(), &next)
		if err == nil {
			data, err = json.Marshal(struct {
				*State
				History *history.Columns `json:"history"`
			}{state, past})
		}
		if r.Context().Err() != nil {
			return
		}
		if err != nil {
			event = "trouble"
			data, _ = json.Marshal(err.Error())
		}
		// Not every kind of connection has deadlines.
		if err := out.SetWriteDeadline(time.Now().Add(patience)); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return
		}
		if _, err := w.Write([]byte("event: " + event + "\ndata: " + string(data) + "\n\n")); err != nil {
			return
		}
		if out.Flush() != nil {
			return
		}
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		}
	}
}

// looks shares snapshots among all clients.
type looks struct {
	look Look
	age  time.Duration // of a snapshot that may be sent again

	turn  chan struct{} // holds one during a look; guards what follows
	at    time.Time     // of the last snapshot
	state *State        // not changed any more
	err   error
	past  *history.History
}

// now returns a snapshot. A request that comes during a look waits for it. If next is not
// nil it returns the looks from that number on, too, and sets next to the one after them.
func (l *looks) now(ctx context.Context, next *int) (*State, *history.Columns, error) {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	if l.at.IsZero() || time.Since(l.at) > l.age {
		state, err := l.look(ctx)
		if ctx.Err() != nil { // the client is gone: others look again
			return nil, nil, ctx.Err()
		}
		if err == nil {
			follow(l.past, state)
		}
		l.state, l.err, l.at = state, err, time.Now()
	}
	var past *history.Columns
	if next != nil && l.err == nil {
		past = l.past.Since(*next)
		*next = l.past.Looks()
	}
	return l.state, past, l.err
}
