// Package wire defines the messages between the two ends of a thick plugin: the
// shim that the runtime executes, and the daemon behind its unix socket. They are
// the messages of Multus, so that shims and daemons of both projects work
// together. Additions are optional, and both ends ignore what they do not know.
//
// The shim posts a [Request] to [PathCNI] or [PathAttach]. The answer to a
// successful ADD is a [Response]; to other commands it is empty. A failure is
// answered with an HTTP status other than 200 and the error object of the
// specification.
package wire

import (
	"encoding/json"
	"time"
)

// The paths that a daemon serves.
const (
	PathCNI    = "/cni"      // POST: a command of the runtime
	PathAttach = "/delegate" // POST: a command for one more network of a running container; GET: the list of attachments
	PathHealth = "/healthz"  // whether the daemon runs
	PathReady  = "/readyz"   // whether it would serve an ADD
)

// Version is the version of these messages, which each [Request] carries.
// VersionHeader is the header with the version of the daemon in each response.
// Both ends work with any other version, because later versions only add optional
// fields.
const (
	Version       = 1
	VersionHeader = "CNI-Daemon-API"
)

// MaxBody is the size limit of a message in either direction, in bytes.
const MaxBody = 4 << 20

// TraceEnv are the environment variables in which plugins get the trace of a request.
// A request has them in its Env, or as HTTP headers with the same names.
//
//nolint:gochecknoglobals // never written
var TraceEnv = [...]string{"TRACEPARENT", "TRACESTATE", "BAGGAGE"}

// A Request is one command.
type Request struct {
	// Env has the CNI_ variables of the runtime and the variables of the trace.
	// Shims of Multus send all of their environment.
	Env map[string]string `json:"env,omitempty"`

	// Config is what the runtime wrote to the shim's stdin.
	Config []byte `json:"config,omitempty"`

	// Attributes says what a command for [PathAttach] asks of the interface, if
	// not nil.
	Attributes *Attributes `json:"interfaceAttributes,omitempty"`

	// APIVersion is the [Version] of the shim, or 0 if the shim has none.
	APIVersion int `json:"apiVersion,omitempty"`

	// DeadlineMs is how long the shim waits for the response, in milliseconds,
	// or 0 if unknown.
	DeadlineMs int64 `json:"deadlineMs,omitempty"`

	// Recorded is when the attachment was recorded, as the record of package
	// lifecycle says, or zero if unknown. A DEL that has been queued removes no
	// attachment that was recorded at another time.
	Recorded time.Time `json:"recorded,omitzero"`

	// Unrecorded is when the shim found no record of the attachment, or zero. A DEL
	// that has been queued removes no attachment that was recorded later.
	Unrecorded time.Time `json:"unrecorded,omitzero"`
}

// Step returns the name of the step in Config, or "" if the request is none of a step. A
// program that has the record of an attachment sends it, and holds the lock of the container:
// see the type Step of package delegate/plugin.
func (r Request) Step() string {
	var conf struct {
		Step string `json:"step"`
	}
	_ = json.Unmarshal(r.Config, &conf) // of another type it is another key
	return conf.Step
}

// Attributes says what is asked of the interface of one more network.
type Attributes struct {
	IPs                []string                   `json:"ips,omitempty"`
	MAC                string                     `json:"mac,omitempty"`
	CNIArgs            map[string]json.RawMessage `json:"cni-args"`
	IPAMClaimReference string                     `json:"ipam-claim-reference,omitempty"`
}

// A Response is the answer to a successful ADD. The result is in the newest version
// that the daemon knows; the shim converts it.
type Response struct {
	Result json.RawMessage

	// CNIVersion is the version in which the plugin has printed the result, if the configuration has
	// none: then the shim prints it in that version. Multus's daemon does not send it.
	CNIVersion string `json:"cniVersion,omitempty"`
}
