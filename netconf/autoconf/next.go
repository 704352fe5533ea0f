package autoconf

import (
	"cmp"
	"errors"
	"io/fs"
	"time"

	"github.com/metacni/metacni/netconf"
)

const (
	firstPause = time.Second // between the first two of a row of restorations
	longPause  = time.Minute // the longest pause, and the peace that ends a row
)

// A policy decides what a manager does. Its decisions are a function of what was
// seen before, what is seen now, and the time.
type policy struct {
	once  bool // there is one look, and nothing is waited for
	grace time.Duration
	name  string // of the published file, without extension
	mode  fs.FileMode
	own   own
}

// facts is what a look has found.
type facts struct {
	ready  bool
	found  found
	doc    document // of found.primary
	docErr error    // why there is none
	disk   disk
}

// A stage is what has become of the primary network's file.
type stage int

const (
	searching stage = iota // there was none yet
	following              // it has the network, or another file now has a better one
	broken                 // it is there and cannot be used: what was published stays
	torn                   // it may be one of those that cannot be used: an earlier manager has published
	gone                   // it was removed, or is refused now
)

// A memory is kept from one look to the next.
type memory struct {
	ready bool // the readiness file has been seen

	stage   stage
	since   time.Time // of the stage
	file    string    // of the primary network
	network netconf.Network
	want    document // the last that could be made

	published document  // the one that was written
	undoneAt  time.Time // when it was first seen that others changed the file
	tries     int       // to restore the file in a row, or to write it, that have failed
	tried     time.Time // the last of them
	failure   error     // of the last attempt to publish
	written   int
	restored  int
}

// again returns when to try again.
func (m memory) again() time.Time {
	if m.tries == 0 {
		return time.Time{}
	}
	return m.tried.Add(min(firstPause<<min(m.tries-1, 10), longPause))
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
func (s *step) report(errs ...error) {
	for _, err := range errs {
		if err != nil {
			s.degraded = append(s.degraded, err)
		}
	}
}

// after asks for another look when t comes, unless that is over.
func (s *step) after(t, now time.Time) {
	if d := t.Sub(now); d > 0 && (s.wait == 0 || d < s.wait) {
		s.wait = d
	}
}

// next decides. It changes neither was nor f.
func (p policy) next(was memory, f facts, now time.Time) (memory, step) {
	m, s := was, step{}
	switch {
	case f.ready:
		m.ready = true
	case m.ready:
		s.end = ErrReadinessLost
		s.report(ErrReadinessLost)
		return m, s
	default:
		s.report(ErrNotReady)
		return m, s
	}
	s.report(f.found.err)
	p.elect(&m, &s, f, now)
	p.keep(&m, &s, f, now)
	return m, s
}

// elect chooses the primary network, and so the wanted document.
func (p policy) elect(m *memory, s *step, f facts, now time.Time) {
	next, why := p.fate(*m, f)
	if next != m.stage {
		m.stage, m.since = next, now
	}
	over := m.since.Add(p.grace)
	has := f.found.primary.Name != ""
	if next != following && (!has || next == broken || now.Before(over)) {
		s.report(why)
		if next != broken {
			s.after(over, now)
		}
		return
	}
	m.stage = following
	if f.docErr != nil {
		s.report(f.docErr)
		return
	}
	m.file, m.network, m.want = f.found.primary.Name, f.found.primary.Network, f.doc
}

// fate says what has become of the primary network's file, and why that is wrong.
func (p policy) fate(m memory, f facts) (stage, error) {
	candidate := f.found.primary
	has := candidate.Name != ""
	switch {
	case m.file == "" && !has:
		return searching, ErrNoPrimary
	case m.file == "":
		if bad := f.found.broken(""); bad != nil && !p.once && !p.right(f) && f.disk.ours(p.own) {
			return torn, because{errBadPrimary, bad}
		}
		return following, nil
	case has && candidate.Name <= m.file:
		return following, nil
	}
	if bad := f.found.broken(m.file); bad != nil {
		return broken, because{errBadPrimary, bad}
	}
	switch {
	case !has:
		return gone, ErrNoPrimary
	case candidate.Network.Equal(m.network): // its file was renamed
		return following, nil
	}
	return gone, fail("read", m.file, errGone)
}

// right reports whether what was found is published.
func (p policy) right(f facts) bool { return f.docErr == nil && f.disk.holds(f.doc, p.mode) }

// broken returns why a file cannot be used, or the first such file if name is empty. A
// network that is refused is not broken.
func (f found) broken(name string) error {
	for _, skipped := range f.skipped {
		if (name == "" || skipped.name == name) && !errors.Is(skipped.err, errRefused) {
			return skipped.err
		}
	}
	return nil
}

// keep has the wanted document published unless it is on disk.
func (p policy) keep(m *memory, s *step, f facts, now time.Time) {
	if f.disk.err != nil {
		s.report(f.disk.err)
		if errors.Is(f.disk.err, errors.ErrUnsupported) {
			s.end = f.disk.err
		}
		return // writing would fail, too
	}
	if m.want.isZero() {
		return
	}
	if first := f.disk.before(p.name, p.own); first != "" {
		s.report(fail("publish", first, ErrShadowed))
	}
	switch {
	case f.disk.holds(m.want, p.mode):
		m.published, m.undoneAt = m.want, time.Time{}
		if !f.disk.stale(p.own) {
			return
		}
	case !m.published.isZero() && !f.disk.holds(m.published, p.mode):
		s.restores = true
		if m.undoneAt.IsZero() {
			m.undoneAt = now
			if now.Sub(m.tried) >= longPause {
				m.tries = 0
			}
		}
	}
	if over := m.again(); (s.restores || m.failure != nil) && now.Before(over) {
		s.report(cmp.Or(m.failure, errUndone))
		s.after(over, now)
		s.restores = false
		return
	}
	s.publish = true
}

// did notes how s came out.
func (p policy) did(m *memory, s *step, err error, now time.Time) {
	if !s.publish {
		return
	}
	m.failure = err
	if err == nil {
		m.published, m.undoneAt = m.want, time.Time{}
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
