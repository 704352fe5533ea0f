package thick

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/thick/internal/override"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/terse"
	"github.com/metacni/metacni/netconf"
)

// An operation is a request for one, of a client or of the Queue, decoded and checked.
type operation struct {
	Event // Path, Network, UID, Replayed, Start, Queued and Timing; observe sets the others

	command  delegate.Command
	recorded time.Time // of a replayed DEL: when its attachment was recorded; zero if unknown
	without  time.Time // of a replayed DEL: when there was no record of it; zero if unknown
	entry    string    // the name that a DEL of the attachment has in a queue; empty if it cannot be queued
	patience int64     // of the client, in milliseconds; 0 or less if unknown
	args     skel.CmdArgs
	with     *wire.Attributes // never nil
	step     bool             // of a program that holds the lock of the container
	trace    []string

	// answer sends the answer to the client, or drops it if there is none. A success is
	// sent while the operation still has the turn of its container, because an ADD is
	// undone if its result does not arrive.
	answer   func(reply) error
	answered bool

	gone    func() bool // whether the client has gone
	cancel  context.CancelCauseFunc
	process plugin.System
	plugin  *plugin.Plugin // nil until the operation runs
}

// more reports whether o is about one more network of a running container.
func (o *operation) more() bool { return o.Path == wire.PathAttach }

// ofContainer reports whether o is an operation of one container.
func (o *operation) ofContainer() bool {
	return o.command != delegate.CommandGC && o.command != delegate.CommandStatus
}

// event returns o for [delegate.Stages].
func (o *operation) event() delegate.Event {
	return delegate.Event{Command: o.command, Network: o.Network, ContainerID: o.args.ContainerID, IfName: o.args.IfName}
}

// String returns the operation for messages, such as "ADD c1 eth0" or "STATUS".
func (o *operation) String() string {
	if o.ofContainer() {
		return fmt.Sprintf("%s %s %s", o.command, terse.ID(o.args.ContainerID), o.args.IfName)
	}
	return string(o.command)
}

// supersedes reports whether o cancels the earlier operation of its container.
//
//   - A DEL of the container cancels everything except DELs of the runtime. It
//     cancels DELs of the queue, which can be done later.
//   - A DEL of one more network cancels what attaches or checks the same
//     interface.
//   - A DEL of the queue cancels nothing: it is older than what is there.
func (o *operation) supersedes(earlier *operation) bool {
	switch {
	case o.command != delegate.CommandDel || o.Replayed:
		return false
	case o.more():
		return earlier.more() && earlier.command != delegate.CommandDel && earlier.args.IfName == o.args.IfName
	}
	return earlier.command != delegate.CommandDel || earlier.Replayed
}

// read reads the message of r.
func read(w http.ResponseWriter, r *http.Request) (*wire.Request, error) {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, wire.MaxBody))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return nil, coded(http.StatusRequestEntityTooLarge, types.ErrDecodingFailure, "the request has more than %d bytes", wire.MaxBody)
	}
	if err != nil {
		return nil, coded(http.StatusBadRequest, types.ErrDecodingFailure, "the request is incomplete: %v", err)
	}
	m, err := netconf.Decode[wire.Request](data)
	if err != nil {
		return nil, coded(http.StatusBadRequest, types.ErrDecodingFailure, "the request: %v", err)
	}
	return &m, nil
}

// environment takes from env what package skel would, by the same rules. A shim
// has checked it already, but the daemon does not rely on that.
func (o *operation) environment(env map[string]string) error {
	bad := func(format string, args ...any) error {
		return coded(http.StatusBadRequest, types.ErrInvalidEnvironmentVariables, string(o.command)+": "+format, args...)
	}
	for _, name := range []string{"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH", "CNI_NETNS_OVERRIDE"} {
		if strings.ContainsRune(env[name], 0) {
			return bad("%s has a zero byte", name)
		}
	}
	if o.ofContainer() {
		id, netns, ifName := env["CNI_CONTAINERID"], env["CNI_NETNS"], cmp.Or(env["CNI_IFNAME"], "eth0")
		if id == "" {
			return bad("missing CNI_CONTAINERID")
		}
		if e := utils.ValidateContainerID(id); e != nil {
			return bad("%s: %.80q", e.Msg, id)
		}
		o.args.ContainerID = id
		if e := utils.ValidateInterfaceName(ifName); e != nil {
			return bad("%s: %.40q", e.Msg, ifName)
		}
		o.args.IfName = ifName
		if netns == "" && o.command != delegate.CommandDel {
			return bad("missing CNI_NETNS")
		}
		o.args.Netns = netns
		o.args.NetnsOverride = env["CNI_NETNS_OVERRIDE"]
	}
	for part := range strings.SplitSeq(env["CNI_ARGS"], ";") {
		if part != "" && !strings.Contains(part, "=") {
			return bad("invalid CNI_ARG %.80q", part)
		}
	}
	o.args.Args = env["CNI_ARGS"]
	o.args.Path = env["CNI_PATH"]
	return nil
}

// configuration takes the configuration conf with the keys of over in place of its own.
// Errors do not quote it.
func (o *operation) configuration(conf []byte, over override.Override) (err error) {
	bad := func(code uint, what string) error {
		return coded(http.StatusBadRequest, code, "%s: %s", o.command, what)
	}
	if len(over) > 0 {
		if conf, err = over.Apply(conf); err != nil {
			return bad(types.ErrDecodingFailure, "the configuration is not a JSON object as plugins read it: "+err.Error())
		}
	}
	o.args.StdinData = conf
	if len(conf) == 0 {
		return nil
	}
	var named *struct {
		Name string `json:"name"`
	}
	err = json.Unmarshal(conf, &named)
	if named == nil || bytes.TrimLeft(conf, " \t\r\n")[0] != '{' {
		return bad(types.ErrDecodingFailure, "the configuration is not a JSON object")
	}
	if err != nil {
		return bad(types.ErrInvalidNetworkConfig, "the configuration's name is not a string")
	}
	if named.Name != "" {
		if e := utils.ValidateNetworkName(named.Name); e != nil {
			return bad(e.Code, "the configuration's name has invalid characters")
		}
	}
	o.Network = named.Name
	return nil
}

// maxTrace is the size limit of each part of a trace: that of Baggage.
const maxTrace = 8192

// traceOf returns the trace of a request, as "key=value". Headers take precedence over
// variables. It leaves out what an environment cannot hold.
func traceOf(env map[string]string, header http.Header) []string {
	var t []string
	for _, name := range wire.TraceEnv {
		value := cmp.Or(header.Get(name), env[name])
		if value != "" && len(value) <= maxTrace && !strings.ContainsRune(value, 0) {
			t = append(t, name+"="+value)
		}
	}
	return t
}
