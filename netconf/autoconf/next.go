package autoconf

import (
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

// A memory is kept from one look to the next.
type memory struct {
	once      bool   // this is the only look
	ready     bool   // the readiness file has been seen
	file      string // of the primary network
	network   netconf.Network
	want      document  // the last that could be made
	published document  // the one that was written
	goneSince time.Time // when the primary network's file was missed first
	undoneAt  time.Time // when it was first seen that others changed the file
	restoring pause
	failing   pause
	failure   error // of the last attempt to publish
	written   int
	restored  int
}

// A pause is one that becomes longer each time.
type pause struct {
	n     int
	since time.Time
}

// until returns when the pause is over.
func (p pause) until() time.Time {
	if p.n == 0 {
		return time.Time{}
	}
	return p.since.Add(min(firstPause<<min(p.n-1, 10), longPause))
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

// after asks for another look when t comes.
func (s *step) after(t, now time.Time) {
	if d := max(t.Sub(now), 1); s.wait == 0 || d < s.wait {
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
	candidate := f.found.primary
	has := candidate.Name != ""
	if has && m.file == "" && !m.once {
		if bad := p.earlier(f); bad != nil {
			if m.goneSince.IsZero() {
				m.goneSince = now
			}
			if over := m.goneSince.Add(p.grace); now.Before(over) {
				s.report(because{errBadPrimary, bad})
				s.after(over, now)
				return
			}
		}
	}
	if !has || m.file != "" && candidate.Name > m.file {
		// The one we had is no longer what it was.
		for _, skipped := range f.found.skipped {
			if skipped.name == m.file && !errors.Is(skipped.err, errRefused) {
				s.report(because{errBadPrimary, skipped.err})
				m.goneSince = time.Time{}
				return
			}
		}
		if m.goneSince.IsZero() {
			m.goneSince = now
		}
		over := m.goneSince.Add(p.grace)
		wait := now.Before(over)
		switch {
		case has && candidate.Network.Equal(m.network): // its file was renamed
		case wait:
			if has {
				s.report(fail("read", m.file, errGone))
			} else {
				s.report(ErrNoPrimary)
			}
			s.after(over, now)
			return
		case !has:
			s.report(ErrNoPrimary)
			return
		}
	}
	m.goneSince = time.Time{}
	if f.docErr != nil {
		s.report(f.docErr)
		return
	}
	m.file, m.network, m.want = candidate.Name, candidate.Network, f.doc
}

// earlier returns why a file in front of the candidate is broken, if it may have
// the network for which an earlier manager published the file on disk.
func (p policy) earlier(f facts) error {
	if right := f.docErr == nil && f.disk.holds(f.doc, p.mode); right || !f.disk.ours(p.own) {
		return nil
	}
	for _, skipped := range f.found.skipped {
		if !errors.Is(skipped.err, errRefused) {
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
	stale := f.disk.stale(p.own)
	if f.disk.holds(m.want, p.mode) {
		m.published, m.undoneAt = m.want, time.Time{}
		if stale {
			p.try(m, s, now)
		}
		return
	}
	if !m.published.isZero() && !f.disk.holds(m.published, p.mode) {
		if m.undoneAt.IsZero() {
			m.undoneAt = now
			if now.Sub(m.restoring.since) >= longPause {
				m.restoring = pause{}
			}
		}
		if over := m.restoring.until(); now.Before(over) {
			s.report(errUndone)
			s.after(over, now)
			return
		}
		s.restores = true
	}
	p.try(m, s, now)
}

// try has the file published, unless that has failed a short while ago.
func (p policy) try(m *memory, s *step, now time.Time) {
	if over := m.failing.until(); now.Before(over) {
		s.report(m.failure)
		s.after(over, now)
		return
	}
	s.publish = true
}

// did notes how s came out.
func (p policy) did(m *memory, s *step, err error, now time.Time) {
	if !s.publish {
		return
	}
	if err != nil {
		m.failing = pause{n: m.failing.n + 1, since: now}
		m.failure = err
		s.report(err)
		s.after(m.failing.until(), now)
		return
	}
	m.failing, m.failure = pause{}, nil
	m.published, m.undoneAt = m.want, time.Time{}
	m.written++
	if s.restores {
		m.restoring = pause{n: m.restoring.n + 1, since: now}
		m.restored++
	}
}
