package kubetest

import (
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// A Fault describes requests and how they fail. Several ways can be combined: Delay and
// Status make a late error. The zero Fault changes nothing.
//
// Faults meet requests when these arrive. An open watch is a request that has been
// answered: only Silent, and BlackHole for everything, affect it. Use
// [Server.CutWatches] to make clients start their watches again.
type Fault struct {
	Verb     string // as in Request; empty: all
	Resource string // as in Request, such as pods or pods/status; empty: all

	// Times is the number of requests that fail; 0: all until the fault is healed. It
	// does not apply to Silent and NoSendInitialEvents.
	Times int

	// Delay is how long the server waits before it does anything else.
	Delay time.Duration

	// BlackHole holds requests until the fault is healed. Without Verb, Resource and Times it is for
	// everything: the server accepts connections and neither reads nor writes, on new
	// and on existing connections.
	BlackHole bool

	// Cut closes the connection without an answer. See Stop for a server that refuses
	// connections.
	Cut bool

	// Status is an HTTP status such as 401, 403, 429 or 500. The answer is a Status
	// object with the reason that belongs to it.
	Status int

	// RetryAfter is sent with Status, rounded down to seconds.
	RetryAfter time.Duration

	// Body is answered instead of an object, as application/json, with Status or 200:
	// for answers that are not those of an API server.
	Body string

	// Silent watches are open, and the server sends neither events nor bookmarks. It
	// sends them when the fault is healed.
	Silent bool

	// NoSendInitialEvents answers 422 to watches with sendInitialEvents, as servers
	// do whose feature gate WatchList is off.
	NoSendInitialEvents bool
}

func (f Fault) matches(r Request) bool { return r.matches(f.Verb, f.Resource) }

// total reports whether the fault concerns connections, not requests.
func (f Fault) total() bool {
	return f.BlackHole && f.Verb == "" && f.Resource == "" && f.Times == 0
}

// answers reports whether the fault concerns the answers to requests.
func (f Fault) answers() bool {
	return !f.total() && (f.Delay > 0 || f.BlackHole || f.Cut || f.Status != 0 || f.Body != "")
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
	s.watches = slices.DeleteFunc(s.watches, func(w *watcher) bool {
		if !(Fault{Resource: resource}).matches(w.request) {
			return false
		}
		close(w.cut)
		return true
	})
	s.change()
}

// Watches returns the number of open watches of the resource, of every resource if it is
// empty.
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

// Compact makes all resource versions that clients know too old to start a watch: they
// are answered 410. Open watches continue.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.forgotten = s.version
}

// fails lets the request meet its faults, and reports whether one has answered it.
func (h handler) fails(w http.ResponseWriter, q *http.Request, r Request) bool {
	for _, f := range h.s.take(r) {
		healed := false
		if f.Delay > 0 {
			t := time.NewTimer(f.Delay)
			healed = h.wait(q, t.C, f.healed)
			t.Stop()
		}
		if f.BlackHole {
			healed = h.wait(q, nil, f.healed)
		}
		switch {
		case healed:
		case f.Cut:
			panic(http.ErrAbortHandler)
		case f.Body != "":
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(max(f.Status, http.StatusOK))
			_, _ = w.Write([]byte(f.Body))
			return true
		case f.Status != 0:
			err := apierrors.NewGenericServerResponse(f.Status, r.Verb, h.group(r), r.Name, "a fault of the test",
				int(f.RetryAfter/time.Second), true)
			if f.RetryAfter > 0 {
				w.Header().Set("Retry-After", strconv.Itoa(int(f.RetryAfter/time.Second)))
			}
			fail(w, err)
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

// wait waits for c or healed, and reports whether it was healed. It ends the request if
// its client leaves or the server stops.
func (h handler) wait(q *http.Request, c <-chan time.Time, healed <-chan struct{}) bool {
	select {
	case <-c:
		return false
	case <-healed:
		return true
	case <-q.Context().Done():
		panic(http.ErrAbortHandler)
	case <-h.down:
		panic(http.ErrAbortHandler)
	}
}

// broken reports whether the request meets a fault of that kind.
func (s *Server) broken(r Request, kind func(Fault) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.brokenLocked(r, kind)
}

func (s *Server) brokenLocked(r Request, kind func(Fault) bool) bool {
	return slices.ContainsFunc(s.faults, func(f *fault) bool { return kind(f.Fault) && f.matches(r) })
}
