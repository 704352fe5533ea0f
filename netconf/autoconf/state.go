package autoconf

import (
	"errors"
	"fmt"
	"slices"
)

// A State is what a [Manager] has found and done.
type State struct {
	// Primary is the name of the primary network's file, and Network the name
	// of the published network. Both are empty while the Manager has published
	// nothing.
	Primary, Network string

	// Published is the path of the published file, in Root. It is empty while
	// the Manager has published nothing, and while the file on disk is not what
	// the Manager has published.
	Published string

	// Skipped has an error for each file that cannot be used, of those in
	// front of the primary network's file, or of all if there is no primary
	// network.
	Skipped []error

	// Degraded is what is wrong, nil if nothing is; see the errors of this
	// package. Where the file that was published before can stay, it does.
	Degraded error

	// Written counts how often the file was written, and Restored how often
	// because others had changed or removed it.
	Written, Restored int
}

// State returns the last state. It is the zero State before the first look.
func (m *Manager) State() State {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.state
	s.Skipped = slices.Clone(s.Skipped)
	return s
}

// setState stores s, and reports it if it is new.
func (m *Manager) setState(s State) {
	m.mu.Lock()
	same := fmt.Sprintf("%q", m.state) == fmt.Sprintf("%q", s)
	m.state = s
	m.mu.Unlock()
	if !same && m.Observer != nil {
		m.Observer(m.State())
	}
}

// tell stores what a look and the step after it gave.
func (m *Manager) tell(mem memory, f facts, s step, out output) {
	state := State{Written: mem.written, Restored: mem.restored}
	for _, skipped := range f.found.skipped {
		state.Skipped = append(state.Skipped, skipped.err)
	}
	if !mem.published.isZero() && mem.undoneAt.IsZero() && f.disk.err == nil {
		state.Primary, state.Network = mem.published.primary, mem.published.network
		state.Published = out.file(extension)
	}
	if len(s.degraded) > 0 {
		state.Degraded = fail("follow", m.Dir, errors.Join(s.degraded...))
	}
	m.setState(state)
}
