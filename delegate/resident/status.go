package resident

import (
	"path/filepath"
	"time"
)

// A State is what a resident is in.
type State string

// The states of residents.
const (
	Joining State = "joining" // registered, but not told yet what is attached
	Ready   State = "ready"   // serves
	Gone    State = "gone"    // has been ready, and is not there
	Refused State = "refused" // may not register, or failed to
	Skipped State = "skipped" // a file of Dir that is not launched
)

// A Source is where a resident comes from.
type Source string

// The sources of residents.
const (
	External Source = "external" // it connected
	Launched Source = "launched" // from Dir
)

// A Status is what a host knows of one resident.
type Status struct {
	Info
	State  State
	Source Source
	Path   string    // of the executable in Dir
	UID    int       // of the process that connected, or -1
	PID    int       // of what was launched, or 0
	Since  time.Time // of the state, but for Joining and Ready, which share it
	Err    error     // why it is gone, refused or skipped
}

// which is how a status is told of in logs: it may have no name.
func (s Status) which() string {
	if s.Name != "" {
		return s.String()
	}
	return filepath.Base(s.Path)
}

func (e *entry) status() Status {
	s := Status{Info: e.Info, State: Joining, Source: e.source, Path: e.path, UID: e.uid, PID: e.pid, Since: e.since}
	if isClosed(e.ready) {
		s.State = Ready
	}
	return s
}
