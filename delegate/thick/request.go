package thick

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"

	"github.com/metacni/metacni/delegate/thick/wire"
)

// An order is a decoded and checked request for an operation.
type order struct {
	command  command
	more     bool      // for one more network of a running container
	replayed bool      // from the Queue
	recorded time.Time // of a replayed DEL: when its attachment was recorded; zero if unknown
	without  time.Time // of a replayed DEL: when there was no record of it; zero if unknown
	entry    string    // the name that a DEL of the attachment has in the Queue; empty if it cannot be queued
	network  string    // the name in the configuration
	args     skel.CmdArgs
	with     *wire.Attributes // never nil
	trace    []string
	timeout  time.Duration
}

// ofContainer reports whether o is an operation of one container.
func (o *order) ofContainer() bool { return o.command != cmdGC && o.command != cmdStatus }

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
	return decode(data)
}

func decode(data []byte) (*wire.Request, error) {
	var m wire.Request
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, coded(http.StatusBadRequest, types.ErrDecodingFailure, "the request cannot be decoded: %v", err)
	}
	return &m, nil
}

// order checks m, which was sent to path. Beside an error it returns what it could
// decode.
func (sv *service) order(path string, m *wire.Request, header http.Header) (*order, error) {
	o := &order{more: path == wire.PathAttach, with: m.Attributes}
	if o.with == nil {
		o.with = &wire.Attributes{}
	}
	var err error
	if o.command, err = commandOf(m.Env["CNI_COMMAND"]); err != nil {
		return o, err
	}
	o.timeout = sv.Timeouts.of(o.command)
	if ms := m.DeadlineMs; ms > 0 && ms < o.timeout.Milliseconds() {
		o.timeout = time.Duration(ms) * time.Millisecond
	}
	o.entry = sv.entry(o, m)
	o.trace = traceOf(m.Env, header)
	if err := o.environment(m.Env); err != nil {
		return o, err
	}
	return o, sv.configuration(o, m.Config)
}

func commandOf(name string) (command, error) {
	switch c := command(name); c {
	case cmdAdd, cmdCheck, cmdDel, cmdGC, cmdStatus:
		return c, nil
	case "":
		return "", coded(http.StatusBadRequest, types.ErrInvalidEnvironmentVariables, "missing CNI_COMMAND")
	}
	return "", coded(http.StatusBadRequest, types.ErrInvalidEnvironmentVariables, "unknown CNI_COMMAND %.40q", name)
}

// environment takes from env what package skel would, by the same rules. A shim
// has checked it already, but the daemon does not rely on that.
func (o *order) environment(env map[string]string) error {
	bad := func(format string, args ...any) error {
		return coded(http.StatusBadRequest, types.ErrInvalidEnvironmentVariables, string(o.command)+": "+format, args...)
	}
	for _, name := range []string{"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH", "CNI_NETNS_OVERRIDE"} {
		if strings.ContainsRune(env[name], 0) {
			return bad("%s has a zero byte", name)
		}
	}
	if o.ofContainer() {
		id, netns, ifName := env["CNI_CONTAINERID"], env["CNI_NETNS"], env["CNI_IFNAME"]
		if ifName == "" {
			ifName = "eth0"
		}
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
		if netns == "" && o.command != cmdDel {
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

// configuration checks the configuration conf and applies the Override.
func (sv *service) configuration(o *order, conf []byte) error {
	o.args.StdinData = conf
	bad := func(code uint, what string) error {
		return coded(http.StatusBadRequest, code, "%s: %s", o.command, what)
	}
	if !o.more && len(sv.override) > 0 {
		merged, err := sv.override.Apply(conf)
		if err != nil {
			return bad(types.ErrDecodingFailure, "the configuration is not a JSON object")
		}
		o.args.StdinData = merged
	}
	if len(conf) == 0 {
		return nil
	}
	var named *struct {
		Name string `json:"name"`
	}
	// Not returned, because it quotes the configuration.
	err := json.Unmarshal(o.args.StdinData, &named)
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
	o.network = named.Name
	return nil
}
