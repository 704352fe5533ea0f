package autoconf

import (
	"cmp"
	"time"

	"github.com/metacni/metacni/netconf"
)

const (
	firstPause = time.Second // between the first two of a row of restorations
	longPause  = time.Minute // the longest pause, and the peace that ends a row
)

// facts is what a look has found.
type facts struct {
	ready  bool
	found  found
	doc    document // of found.primary
	docErr error    // why there is none
	disk   disk
	fixed  bool // no other file can be that of the primary network
}

// A machine decides what a manager does. Its decisions are a function of what was
// seen before, what is seen now, and the time.
type machine struct {
	grace time.Duration

	ready bool // the readiness file has been seen

	// The election of the primary network. The file of one that an earlier manager has chosen may have
	// no name.
	primary netconf.File
	want    document  // the last that could be made
	since   time.Time // when grace began, after which another network takes its place; zero if it has not

	// The published file.
	published document  // the one that was written
	undone    bool      // others have changed the file
	tries     int       // to restore the file in a row, or to write it, that have failed
	tried     time.Time // the last of them
	failure   error     // of the last attempt to publish
	written   int
	restored  int
}

// A step is what a manager does after a look.
type step struct {
	publish  bool
	restores bool          // what others have undone
	wait     time.Duration // look again after that long; 0: when something happens
	degraded []error       // what is wrong
	end      error         // Run fails with this
}

// report notes what is wrong.
func (s *step) report(err error) {
	if err != nil {
		s.degraded = append(s.degraded, err)
	}
}

// after asks for another look when t comes, unless that is over.
func (s *step) after(t, now time.Time) {
	if d := t.Sub(now); d > 0 && (s.wait == 0 || d < s.wait) {
		s.wait = d
	}
}

// next decides.
func (m *machine) next(f facts, now time.Time) (s step) {
	switch {
	case f.ready:
		m.ready = true
	case m.ready:
		s.end = ErrReadinessLost
		s.report(s.end)
		return s
	default:
		s.report(ErrNotReady)
		return s
	}
	s.report(f.found.err)
	m.inherit(f.disk)
	m.elect(&s, f, now)
	m.keep(&s, f, now)
	return s
}

// inherit takes over what an earlier manager has published: it is the last known good.
func (m *machine) inherit(k disk) {
	if !m.want.isZero() || !k.ours {
		return
	}
	if n, primary, ok := parseDocument(k.content); ok {
		m.primary, m.want = primary, document{data: k.content, network: n.Name(), primary: primary.Name}
	}
}

// elect chooses the primary network, and so the wanted document.
func (m *machine) elect(s *step, f facts, now time.Time) {
	ends, why := m.holds(f)
	switch {
	case !ends:
		m.since = time.Time{}
	case m.since.IsZero():
		m.since = now
	}
	over := m.since.Add(m.grace)
	if why != nil && (!ends || f.found.primary.Name == "" || now.Before(over)) {
		s.report(why)
		if ends {
			s.after(over, now)
		}
		return
	}
	m.since = time.Time{}
	if f.docErr != nil {
		s.report(f.docErr)
		return
	}
	m.primary, m.want = f.found.primary, f.doc
}

// holds fails if what was chosen before stays: the error says why. It reports whether that
// ends after grace. Without an error the network that was found is taken at once.
func (m *machine) holds(f facts) (ends bool, why error) {
	chosen, name := m.primary.Name, f.found.primary.Name
	bad := f.found.broken(chosen)
	if bad != nil {
		bad = because{errBadPrimary, bad}
	}
	switch {
	case f.fixed && name != "":
		return false, nil // no other may be chosen
	case chosen == "" && !m.primary.Network.IsZero() && name == "":
		return true, ErrNoPrimary
	case chosen == "" && !m.primary.Network.IsZero():
		if f.found.primary.Network.Name() == m.primary.Network.Name() {
			return false, nil // the same network, which may have changed meanwhile
		}
		return true, cmp.Or(bad, errGone)
	case chosen == "" && name == "":
		return false, ErrNoPrimary
	case chosen == "" && f.disk.ours && !f.disk.holds(f.doc):
		return bad != nil, bad // an earlier manager may have published the bad one
	case chosen == "" || name != "" && name <= chosen:
		return false, nil // the same file, or a better one
	case bad != nil:
		return false, bad
	case name == "":
		return true, ErrNoPrimary
	case f.found.primary.Network.Equal(m.primary.Network):
		return false, nil // its file was renamed
	}
	return true, fail("read", chosen, errGone)
}

// keep has the wanted document published unless it is on disk.
func (m *machine) keep(s *step, f facts, now time.Time) {
	if f.disk.err != nil {
		s.report(f.disk.err)
		return // writing would fail, too
	}
	if m.want.isZero() {
		return
	}
	if f.disk.first != "" {
		s.report(fail("publish", f.disk.first, errShadowed))
	}
	if f.disk.holds(m.want) {
		m.published, m.undone = m.want, false
		return
	}
	if s.restores = !m.published.isZero() && !f.disk.holds(m.published); s.restores && !m.undone {
		m.undone = true
		if now.Sub(m.tried) >= longPause {
			m.tries = 0
		}
	}
	if over := m.again(); (s.restores || m.failure != nil) && now.Before(over) {
		s.report(cmp.Or(m.failure, errUndone))
		s.after(over, now)
		return
	}
	s.publish = true
}

// again returns when to try again.
func (m *machine) again() time.Time {
	if m.tries == 0 {
		return time.Time{}
	}
	return m.tried.Add(min(firstPause<<min(m.tries-1, 10), longPause))
}

// did notes how publishing came out.
func (m *machine) did(s *step, err error, now time.Time) {
	m.failure = err
	if err == nil {
		m.published, m.undone = m.want, false
		m.written++
	}
	if err == nil && !s.restores {
		m.tries = 0
		return
	}
	m.tries, m.tried = m.tries+1, now
	if err != nil {
		s.report(err)
		s.after(m.again(), now)
		return
	}
	m.restored++
}
