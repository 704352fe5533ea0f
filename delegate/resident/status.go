package resident

import "time"

// A State is the state of a resident.
type State string

// The states of residents.
const (
	Joining State = "joining" // registered, but not told what is attached yet
	Ready   State = "ready"   // serves calls
	Gone    State = "gone"    // was ready and is not connected
	Refused State = "refused" // may not register, or failed to
	Skipped State = "skipped" // a file in Dir that is not launched
)

// A Source says how a resident came to be.
type Source string

// The sources of residents.
const (
	External Source = "external" // connected to Listener
	Launched Source = "launched" // from Dir
)

// A Status describes a resident.
type Status struct {
	Info
	State  State
	Source Source
	Path   string    // of the executable in Dir
	UID    int       // of an external resident's process; otherwise -1
	PID    int       // of a launched process; otherwise 0
	Since  time.Time // of the state; Ready keeps the time of Joining
	Err    error     // why it is gone, refused or skipped
}

// as returns s in another state from now on.
func (s Status) as(state State, err error) Status {
	s.State, s.Since, s.Err = state, time.Now(), err
	return s
}
