package shim

import (
	"context"
	"encoding/json"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate/thick/wire"
)

// maxTrace is the longest value of a trace that is also sent as a header: all
// of them fit into what the daemon reads of a header.
const maxTrace = 4 << 10

// environment is what the daemon gets to know of the shim's own: the variables
// of the runtime, those in a as it says, and the trace.
func (c *Client) environment(command string, a *skel.CmdArgs) map[string]string {
	env := map[string]string{}
	for _, kv := range c.Env {
		name, value, _ := strings.Cut(kv, "=")
		if _, twice := env[name]; twice {
			continue // the first counts, as for os.Getenv
		}
		if strings.HasPrefix(name, "CNI_") || slices.Contains(wire.TraceEnv[:], name) {
			env[name] = value
		}
	}
	// Multus's daemon wants the keys of a container's commands even without a
	// value, but takes a missing CNI_IFNAME for eth0.
	container := command == "ADD" || command == "CHECK" || command == "DEL"
	for _, v := range []struct {
		name, value string
		keep        bool
	}{
		{"CNI_COMMAND", command, true},
		{"CNI_CONTAINERID", a.ContainerID, container},
		{"CNI_NETNS", a.Netns, container},
		{"CNI_IFNAME", a.IfName, false},
		{"CNI_ARGS", a.Args, container},
		{"CNI_PATH", a.Path, false},
	} {
		delete(env, v.name)
		if v.value != "" || v.keep {
			env[v.name] = v.value
		}
	}
	if a.NetnsOverride != "" {
		env["CNI_NETNS_OVERRIDE"] = a.NetnsOverride
	}
	return env
}

// socket is where the daemon listens that a command is for.
func (c *Client) socket(path string, a *skel.CmdArgs) string {
	if c.Socket != "" {
		return c.Socket
	}
	var conf struct {
		Dir string `json:"daemonSocketDir"`
	}
	if path == wire.PathCNI { // any other configuration is no shim's
		_ = json.Unmarshal(a.StdinData, &conf) // the daemon says what is wrong with it
	}
	if conf.Dir == "" {
		conf.Dir = wire.DefaultDir
	}
	return filepath.Join(conf.Dir, wire.SocketName)
}

// message returns r as the HTTP/1.1 request that a connection carries. The
// version is 1.1 for the sake of the chunked responses it brings: they tell a
// response that was cut from one that ended.
func message(ctx context.Context, path string, r wire.Request) ([]byte, error) {
	b := []byte("POST " + path + " HTTP/1.1\r\nHost: dummy\r\nConnection: close\r\n")
	if path == wire.PathInfo {
		return append([]byte("GET"+strings.TrimPrefix(string(b), "POST")), "\r\n"...), nil
	}
	if deadline, ok := ctx.Deadline(); ok {
		r.DeadlineMs = max(time.Until(deadline).Milliseconds(), 1)
	}
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	if len(body) > wire.MaxBody {
		return nil, errTooLarge
	}
	for i, name := range wire.TraceEnv {
		if value := r.Env[name]; value != "" && len(value) <= maxTrace && printable(value) {
			b = append(b, wire.TraceHeaders[i]+": "+value+"\r\n"...)
		}
	}
	b = append(b, "Content-Type: application/json\r\nContent-Length: "...)
	b = strconv.AppendInt(b, int64(len(body)), 10)
	b = append(b, "\r\n\r\n"...)
	return append(b, body...), nil
}

// printable reports whether s may stand in a header as it is.
func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
