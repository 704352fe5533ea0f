package shim

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate/thick/wire"
)

// ofContainer reports whether command is one of a single container.
func ofContainer(command string) bool {
	return command == "ADD" || command == "CHECK" || command == "DEL"
}

// environment returns the variables that are sent to the daemon: those of the
// runtime, with the values of a, and the trace.
func (c *Client) environment(command string, a *skel.CmdArgs) map[string]string {
	env := map[string]string{}
	for _, kv := range c.Env {
		name, value, _ := strings.Cut(kv, "=")
		if _, twice := env[name]; twice {
			continue // the first counts, as in os.Getenv
		}
		if strings.HasPrefix(name, "CNI_") || slices.Contains(wire.TraceEnv[:], name) {
			env[name] = value
		}
	}
	// The daemon of Multus needs these keys even without a value, but takes a
	// missing CNI_IFNAME for eth0.
	container := ofContainer(command)
	set := func(name, value string, keep bool) {
		delete(env, name)
		if value != "" || keep {
			env[name] = value
		}
	}
	set("CNI_COMMAND", command, true)
	set("CNI_CONTAINERID", a.ContainerID, container)
	set("CNI_NETNS", a.Netns, container)
	set("CNI_IFNAME", a.IfName, false)
	set("CNI_ARGS", a.Args, container)
	set("CNI_PATH", a.Path, false)
	if a.NetnsOverride != "" {
		env["CNI_NETNS_OVERRIDE"] = a.NetnsOverride
	}
	return env
}

// socket returns the path of the daemon's socket for a command, or "" if nothing says it.
func (c *Client) socket(path string, a *skel.CmdArgs) string {
	if c.Socket != "" {
		return c.Socket
	}
	var conf struct {
		Dir string `json:"daemonSocketDir"`
	}
	if path == wire.PathCNI { // otherwise the configuration is not the shim's
		_ = json.Unmarshal(a.StdinData, &conf) // the daemon reports what is wrong with it
	}
	if conf.Dir == "" {
		return ""
	}
	return filepath.Join(conf.Dir, wire.SocketName)
}

// message returns r as an HTTP/1.0 request. The response then comes without chunks, and its
// body ends with its length or with the connection.
func message(ctx context.Context, path string, r wire.Request) ([]byte, error) {
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
	b := fmt.Appendf(nil, "POST %s HTTP/1.0\r\nHost: dummy\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", path, len(body))
	return append(b, body...), nil
}
