package kubetest

import (
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A Fault is how the server fails. The first two fields say for which requests, the
// others how; several of these can be set. The zero Fault does nothing to any request.
//
// A watch that is open is one request, long answered: of the faults only BlackHole
// without scope and Silent concern it. [Server.CutWatches] makes clients begin watches
// again, and these meet the fault.
type Fault struct {
	Verb     string // as in Request; empty: all
	Resource string // as in Request; empty: all

	// Times is how many requests fail before the fault is over; 0: until it is healed.
	Times int

	// Delay passes before the request is looked at.
	Delay time.Duration

	// BlackHole holds the request until the fault is healed; then it is served, if
	// the client still waits. Without Verb, Resource and Times nothing at all comes from
	// the server, on connections new and old: it accepts them, and that is all.
	BlackHole bool

	// Cut ends the connection without an answer. For a server that refuses
	// connections, see Stop.
	Cut bool

	// Status is answered instead, such as 401, 403, 429 or 500, with a Status object
	// as the real server sends it.
	Status int

	// RetryAfter is sent with Status, in whole seconds.
	RetryAfter time.Duration

	// Body is answered instead, as application/json, with code Status or else 200:
	// for answers that are not those of an API server.
	Body string

	// Silent watches are open, but nothing comes: no event, no bookmark. What was
	// missed comes when the fault is healed.
	Silent bool

	// NoSendInitialEvents refuses watches with sendInitialEvents, as servers do that
	// have the feature WatchList turned off.
	NoSendInitialEvents bool
}

func (f Fault) matches(r Request) bool { return r.matches(f.Verb, f.Resource) }

// total reports whether the fault is that of the network: nothing comes.
func (f Fault) total() bool {
	return f.BlackHole && f.Verb == "" && f.Resource == "" && f.Times == 0
}

// A fault is a Fault at work.
type fault struct {
	Fault
	left   int           // requests until it is over; 0: no limit
	healed chan struct{} // closed when it is removed
}

// Break makes requests fail from now on. Faults add up, in the order in which they
// came: a delay and a status make a late status. heal ends this one; to call it again
// does nothing.
func (s *Server) Break(f Fault) (heal func()) {
	b := &fault{f, f.Times, make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, b)
	s.change()
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.faults = slices.DeleteFunc(s.faults, func(o *fault) bool { return o == b })
		close(b.healed)
		s.change()
	})
}

// CutWatches cuts the connections of the watches of the resource that are open, of all
// if it is empty, and returns how many there were.
func (s *Server) CutWatches(resource string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	s.watches = slices.DeleteFunc(s.watches, func(w *watcher) bool {
		if !(Fault{Resource: resource}).matches(w.request) {
			return false
		}
		n++
		close(w.cut)
		return true
	})
	s.change()
	return n
}

// Watches returns how many watches of the resource are open, of all if it is empty.
func (s *Server) Watches(resource string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, w := range s.watches {
		if (Fault{Resource: resource}).matches(w.request) {
			n++
		}
	}
	return n
}

// Bookmark sends a bookmark to every watch that takes bookmarks. The server sends none
// by itself, but those that end initial events and those before a watch's time is up.
func (s *Server) Bookmark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history = append(s.history, change{version: s.version})
	s.change()
}

// Compact forgets the history: a watch that begins at a version older than the last is
// answered 410 from now on. Watches that are open go on.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++ // so that the last version somebody has seen is an old one
	s.forgotten = s.version
}

// fails does to the request what the faults say, and reports whether it is done with.
func (h handler) fails(w http.ResponseWriter, q *http.Request, r Request) bool {
	for _, f := range h.s.take(r) {
		if f.Delay > 0 {
			t := time.NewTimer(f.Delay)
			h.wait(q, t.C, f.healed)
			t.Stop()
		}
		if f.BlackHole {
			h.wait(q, nil, f.healed)
		}
		switch {
		case f.Cut:
			panic(http.ErrAbortHandler)
		case f.Body != "":
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(max(f.Status, http.StatusOK))
			_, _ = w.Write([]byte(f.Body))
			return true
		case f.Status != 0:
			err := apierrors.NewGenericServerResponse(f.Status, r.Verb, h.group(r), r.Name, "kubetest: as the test wants it",
				int(f.RetryAfter/time.Second), true)
			if f.Status == http.StatusGone {
				err.ErrStatus.Reason = metav1.StatusReasonExpired
			}
			if f.RetryAfter > 0 {
				w.Header().Set("Retry-After", strconv.Itoa(int(f.RetryAfter/time.Second)))
			}
			fail(w, err)
			return true
		}
	}
	return false
}

// take returns the faults that the request meets, and counts it for those with a limit.
func (s *Server) take(r Request) []fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	var met []fault
	s.faults = slices.DeleteFunc(s.faults, func(f *fault) bool {
		if f.total() || !f.matches(r) {
			return false
		}
		met = append(met, *f)
		f.left--
		return f.left == 0
	})
	return met
}

// wait returns when one of the channels does, and ends the request if its client has
// gone or the server stops.
func (h handler) wait(q *http.Request, c <-chan time.Time, healed <-chan struct{}) {
	select {
	case <-c:
	case <-healed:
	case <-q.Context().Done():
		panic(http.ErrAbortHandler)
	case <-h.down:
		panic(http.ErrAbortHandler)
	}
}

// broken reports whether a fault of that kind is at work for the request.
func (s *Server) broken(r Request, kind func(Fault) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.brokenLocked(r, kind)
}

func (s *Server) brokenLocked(r Request, kind func(Fault) bool) bool {
	return slices.ContainsFunc(s.faults, func(f *fault) bool { return kind(f.Fault) && f.matches(r) })
}

// A listener's connections carry nothing while the server is a black hole.
type listener struct {
	net.Listener
	s    *Server
	down chan struct{}
}

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, l: l, closed: make(chan struct{})}, nil
}

type conn struct {
	net.Conn
	l      listener
	once   sync.Once
	closed chan struct{}
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.hold()
	return n, err
}

func (c *conn) Write(p []byte) (int, error) {
	c.hold()
	return c.Conn.Write(p)
}

func (c *conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// hold returns when the server is no black hole, or when the connection is at its end.
func (c *conn) hold() {
	for {
		healed := c.l.s.blackHole()
		if healed == nil {
			return
		}
		select {
		case <-healed:
		case <-c.closed:
			return
		case <-c.l.down:
			return
		}
	}
}

// blackHole returns what is closed when the black hole is healed, nil if there is none.
func (s *Server) blackHole() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.faults {
		if f.total() {
			return f.healed
		}
	}
	return nil
}
