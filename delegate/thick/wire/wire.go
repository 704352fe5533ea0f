// Package wire holds the messages that a thick plugin's two ends exchange: the
// shim that the runtime runs, and the daemon behind its unix socket. They are
// those of Multus, so that old ends and new ones mix; what is added to them is
// optional, and an end ignores what it does not know.
//
// The shim posts a [Request] to [PathCNI] or [PathAttach]. A successful ADD
// is answered with a [Response], other commands with nothing, and what fails
// with an HTTP status other than 200 and the specification's error object.
package wire

import "encoding/json"

// Where a daemon listens unless it is told otherwise, and what it serves.
const (
	DefaultDir = "/run/multus"
	SocketName = "multus.sock"

	PathCNI    = "/cni"      // POST: a command of the runtime
	PathAttach = "/delegate" // POST: a command for one more network of a container; GET: what it has
	PathHealth = "/healthz"  // whether the daemon runs
	PathReady  = "/readyz"   // whether it takes an ADD
	PathInfo   = "/info"     // GET: an [Info]
)

// Version is that of the messages here, which a [Request] carries, and
// VersionHeader the header of every response that says the daemon's. Both ends
// work with any other version: a message only ever gains optional fields.
const (
	Version       = 1
	VersionHeader = "CNI-Daemon-API"
)

// MaxBody is the most a message may have, in bytes, in either direction.
const MaxBody = 4 << 20

// TraceHeaders are the HTTP headers that carry the trace of a request, and
// TraceEnv the variables of the environment that plugins get it in, in the same
// order.
//
//nolint:gochecknoglobals // never written
var (
	TraceHeaders = [...]string{"Traceparent", "Tracestate", "Baggage"}
	TraceEnv     = [...]string{"TRACEPARENT", "TRACESTATE", "BAGGAGE"}
)

// A Request is one command.
type Request struct {
	// Env holds the CNI_ variables of the runtime, and the trace's. Shims of
	// Multus send all of their environment.
	Env map[string]string `json:"env,omitempty"`

	// Config is what the runtime wrote to the shim's stdin.
	Config []byte `json:"config,omitempty"`

	// Attributes is what a command for [PathAttach] asks of the interface;
	// nil asks nothing.
	Attributes *Attributes `json:"interfaceAttributes,omitempty"`

	// APIVersion is the [Version] of the shim; 0 is one that knows of none.
	APIVersion int `json:"apiVersion,omitempty"`

	// DeadlineMs is how long the shim waits for the response, in
	// milliseconds; 0 does not say.
	DeadlineMs int64 `json:"deadlineMs,omitempty"`
}

// Attributes is what is asked of an interface that is plugged in.
type Attributes struct {
	IPs     []string                   `json:"ips,omitempty"`
	MAC     string                     `json:"mac,omitempty"`
	CNIArgs map[string]json.RawMessage `json:"cni-args"`
}

// A Response answers a successful ADD. The result is of the newest version
// that the daemon knows; the shim converts it.
type Response struct {
	Result json.RawMessage
}

// An Info says what a daemon can do.
type Info struct {
	API         []int    `json:"api"`         // versions of the messages
	CNIVersions []string `json:"cniVersions"` // versions of the specification
	Features    []string `json:"features"`    // "delegate", "queue", ...
	Version     string   `json:"version"`     // of the daemon, for people
}
