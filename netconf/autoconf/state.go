package autoconf

import (
	"fmt"
	"slices"
)

// A State is what a [Manager] knows.
type State struct {
	// Primary is the name of the file the published configuration was made
	// for, and Network the name of the network published. They are empty while
	// the Manager has published nothing.
	Primary, Network string

	// Published is the path of the file that is on disk by the Manager's
	// doing, and as it has to be, or empty.
	Published string

	// Skipped are the files in front of the primary network's, or all if there
	// is none, that cannot be used, and why. The others are not looked at.
	Skipped []Skipped

	// Degraded is what is not as it should be, nil if all is well; see the
	// errors of this package. Where the file published before could stay, it
	// did.
	Degraded error

	// Written counts how often the file was published, and Restored how often
	// of these because others had changed or removed it.
	Written, Restored int
}

// State returns what the Manager has found and done last. It is the zero State
// before it has looked.
func (m *Manager) State() State {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.state
	s.Skipped = slices.Clone(s.Skipped)
	return s
}

// Changed returns a channel that is closed when [Manager.State] is no longer
// what it is now. To miss nothing, call Changed before State:
//
//	for {
//		changed := m.Changed()
//		use(m.State())
//		<-changed
//	}
func (m *Manager) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.changed == nil {
		m.changed = make(chan struct{})
	}
	return m.changed
}

// setState stores s, and wakes up those who wait for it to change.
func (m *Manager) setState(s State) {
	m.mu.Lock()
	defer m.mu.Unlock()
	same := fmt.Sprintf("%q", m.state) == fmt.Sprintf("%q", s)
	m.state = s
	if !same && m.changed != nil {
		close(m.changed)
		m.changed = nil
	}
}

// tell stores what a look and the step after it gave.
func (m *Manager) tell(mem memory, f facts, s step, out output) {
	state := State{Skipped: f.found.skipped, Written: mem.written, Restored: mem.restored}
	if !mem.published.isZero() && mem.undoneAt.IsZero() && f.disk.err == nil {
		state.Primary, state.Network = mem.published.primary, mem.published.network
		state.Published = out.file(mem.published.ext)
	}
	switch len(s.degraded) {
	case 0:
	case 1:
		state.Degraded = asError("follow", m.Dir, s.degraded[0])
	default:
		state.Degraded = join("follow", m.Dir, s.degraded...)
	}
	m.setState(state)
}
