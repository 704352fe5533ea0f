package kubetest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// matcher returns a function that reports whether the request asks for an object.
func matcher(c call) func(*object) bool {
	selector := c.http.URL.Query().Get("fieldSelector")
	return func(o *object) bool {
		if c.Namespace != "" && c.Namespace != o.meta.Namespace {
			return false
		}
		for term := range strings.SplitSeq(selector, ",") {
			field, value, _ := strings.Cut(term, "=")
			if term != "" && o.field(field) != strings.TrimPrefix(value, "=") {
				return false
			}
		}
		return true
	}
}

// An event is what a watch sends.
type event struct {
	Type   string `json:"type"`
	Object any    `json:"object"`
}

// event returns the event for watches of the matching objects of the kind, if there is one.
func (c change) event(k kind, match func(*object) bool) (event, bool) {
	was, is := c.old != nil && match(c.old), c.new != nil && match(c.new)
	switch {
	case c.resource != k.resource:
	case was && is:
		return event{"MODIFIED", c.new}, true
	case is:
		return event{"ADDED", c.new}, true
	case was: // the old object with the version of the change
		return event{"DELETED", c.old.with(func(m *metadata) { m.ResourceVersion = fmt.Sprint(c.version) })}, true
	}
	return event{}, false
}

// A watcher is a watch that is open.
type watcher struct {
	call

	match func(*object) bool
	first []event // the initial events, until they are sent
	next  int     // index of the first change in the history that was not sent
	after int64   // changes up to this version are not sent
	out   http.ResponseWriter
}

// watch serves a watch until it ends, or says why it does not begin.
func (s *Server) watch(out http.ResponseWriter, c call) *failure {
	query := c.http.URL.Query()
	initial := query.Get("sendInitialEvents") != ""
	match := matcher(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	if initial && s.broken(c.Request, func(f Fault) bool { return f.NoSendInitialEvents }) {
		return invalid("sendInitialEvents", "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled")
	}
	w := &watcher{call: c, match: match, next: len(s.history), out: out}
	version, _ := strconv.ParseInt(query.Get("resourceVersion"), 10, 64) // 0 if there is none
	switch {
	case initial:
		for _, o := range s.list(c.kind.resource, match) {
			w.first = append(w.first, event{"ADDED", o})
		}
		w.first = append(w.first, event{"BOOKMARK", newObject(c.kind.name, c.kind.group, metadata{
			ResourceVersion: fmt.Sprint(s.version), Annotations: map[string]string{"k8s.io/initial-events-end": "true"},
		})})
	case version < s.forgotten:
		w.send(event{"ERROR", c.failed(failf(http.StatusGone, "too old resource version: %d (%d)", version, s.forgotten))})
		return nil
	default:
		w.after = version
		if i := slices.IndexFunc(s.history, func(c change) bool { return c.version > version }); i >= 0 {
			w.next = i
		}
	}
	s.watches = append(s.watches, w)
	s.change()
	for s.step(w) {
	}
	s.watches = slices.DeleteFunc(s.watches, func(o *watcher) bool { return o == w })
	s.change()
	return nil
}

// step sends what the watch has not sent, unless it is silent, and waits for a change. It reports
// whether the watch goes on. Called with mu held, which it gives up meanwhile.
func (s *Server) step(w *watcher) bool {
	if !slices.Contains(s.watches, w) {
		panic(http.ErrAbortHandler) // cut
	}
	var events []event
	if !s.broken(w.Request, func(f Fault) bool { return f.BlackHole }) {
		events, w.first = w.first, nil
		for ; w.next < len(s.history); w.next++ {
			if e, ok := s.history[w.next].event(w.kind, w.match); ok && s.history[w.next].version > w.after {
				events = append(events, e)
			}
		}
	}
	changed := s.changed
	s.mu.Unlock()
	defer s.mu.Lock()
	if !w.send(events...) {
		return false
	}
	select {
	case <-changed:
		return true
	case <-w.http.Context().Done(): // the client has left, or the server stops
		return false
	}
}

// send sends events, and reports whether it could.
func (w *watcher) send(events ...event) bool {
	w.out.Header().Set("Content-Type", "application/json")
	lines := json.NewEncoder(w.out)
	for _, e := range events {
		if lines.Encode(e) != nil {
			return false
		}
	}
	return http.NewResponseController(w.out).Flush() == nil
}
