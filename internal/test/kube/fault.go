package kubetest

import (
	"cmp"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// A Fault describes requests and how they fail. Several ways can be combined: Delay and
// Status make a late error. The zero Fault changes nothing.
//
// Faults meet requests when these arrive. An open watch is a request that has been answered:
// only BlackHole affects it. Use [Server.CutWatches] to make clients start their watches again.
type Fault struct {
	Verb     string // as in Request; empty: all
	Resource string // as in Request, such as pods or pods/status; empty: all

	// Times is the number of requests that fail; 0: all until the fault is healed. It
	// does not apply to NoSendInitialEvents.
	Times int

	// Delay is how long the server waits before it does anything else.
	Delay time.Duration

	// BlackHole holds requests until the fault is healed. Until then, open watches get neither
	// events nor bookmarks.
	BlackHole bool

	// Cut closes the connection without an answer. See Stop for a server that refuses
	// connections.
	Cut bool

	// Status is an HTTP status such as 401, 403, 429 or 500.
	Status int

	// RetryAfter is sent with Status, rounded down to seconds.
	RetryAfter time.Duration

	// Body is answered as application/json, with Status or 200: for answers that are not
	// those of an API server. Empty means a few words.
	Body string

	// NoSendInitialEvents answers 422 to watches with sendInitialEvents, as servers
	// do whose feature gate WatchList is off.
	NoSendInitialEvents bool
}

func (f Fault) matches(r Request) bool { return r.matches(f.Verb, f.Resource) }

// answers reports whether the fault concerns the answers to requests.
func (f Fault) answers() bool {
	return f.Delay > 0 || f.BlackHole || f.Cut || f.Status != 0 || f.Body != ""
}

// A fault is a Fault at work.
type fault struct {
	Fault
	left   int           // requests that are still to fail, if Times is not 0
	healed chan struct{} // closed by heal
}

// Break makes requests fail from now on, until heal is called: then the server also
// serves the requests that the fault has delayed or held. Calling heal again does
// nothing. A request meets all faults that match it in the order of the calls, up to the
// first with Cut, Status or Body.
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

// CutWatches breaks off the open watches of the resource, of every resource if it is empty.
func (s *Server) CutWatches(resource string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches = slices.DeleteFunc(s.watches, func(w *watcher) bool { return w.matches("", resource) })
	s.change()
}

// Watches returns the number of open watches.
func (s *Server) Watches() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.watches)
}

// Compact makes all resource versions that clients know too old to start a watch: they
// are answered 410. Open watches continue.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.forgotten = s.version
}

// fails lets the request meet its faults, and reports whether one has answered it.
func (s *Server) fails(w http.ResponseWriter, c call) bool {
	for _, f := range s.take(c.Request) {
		late := make(<-chan time.Time) // never, in a black hole
		if !f.BlackHole {
			late = time.After(f.Delay)
		}
		if f.BlackHole || f.Delay > 0 {
			select {
			case <-late:
			case <-f.healed:
				continue
			case <-c.http.Context().Done(): // the client has left, or the server stops
				panic(http.ErrAbortHandler)
			}
		}
		switch {
		case f.Cut:
			panic(http.ErrAbortHandler)
		case f.Status != 0 || f.Body != "":
			if f.RetryAfter > 0 {
				w.Header().Set("Retry-After", strconv.Itoa(int(f.RetryAfter/time.Second)))
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(cmp.Or(f.Status, http.StatusOK))
			_, _ = io.WriteString(w, cmp.Or(f.Body, "a fault of the test"))
			return true
		}
	}
	return false
}

// take returns the faults that the request meets, and removes those whose Times are over.
func (s *Server) take(r Request) []fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	var met []fault
	last := false
	s.faults = slices.DeleteFunc(s.faults, func(f *fault) bool {
		if last || !f.answers() || !f.matches(r) {
			return false
		}
		met = append(met, *f)
		last = f.Cut || f.Status != 0 || f.Body != ""
		f.left--
		return f.left == 0
	})
	return met
}

// broken reports whether the request meets a fault of that kind. Called with mu held.
func (s *Server) broken(r Request, kind func(Fault) bool) bool {
	return slices.ContainsFunc(s.faults, func(f *fault) bool { return kind(f.Fault) && f.matches(r) })
}
