package main

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/thick/shim"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
)

// config has the shim's keys of the configuration. The daemon reads the others.
type config struct {
	DaemonSocketDir string `json:"daemonSocketDir"`
	DelQueueDir     string `json:"delQueueDir"`

	// DelQueueWait is how long a DEL waits for the daemon before it is queued,
	// such as "500ms". Empty means the default of package shim.
	DelQueueWait string `json:"delQueueWait"`

	// QueuePolicy says what to do with a DEL while there is no daemon. Without it the
	// shim executes the DEL from the records of the daemon, and leaves to the next
	// daemon what it cannot do. "queue" leaves all of it to the next daemon, "exec"
	// nothing. "fail" fails, so that the runtime tries again. DelPolicy is another
	// name of the key.
	QueuePolicy string `json:"queuePolicy"`
	DelPolicy   string `json:"delPolicy"`
}

func multinetShim() plugin.Plugin {
	execute := func(ctx context.Context, c *plugin.Call) error {
		client, err := client(c)
		if err != nil {
			return err
		}
		return client.Execute(ctx, string(c.Command), c.CmdArgs())
	}
	return plugin.Plugin{About: "CNI meta-plugin multinet-shim", Add: execute, Check: execute, Del: execute, GC: execute, Status: execute}
}

// client returns the Client for the configuration of c.
func client(c *plugin.Call) (*shim.Client, error) {
	conf, err := plugin.Config[config](c)
	// Without these a DEL would reach another daemon, or wait for one that never reads it.
	invalid := errors.Join(c.Value("daemonSocketDir", &conf.DaemonSocketDir), c.Value("delQueueDir", &conf.DelQueueDir))
	if err := cmp.Or(err, invalid); err != nil {
		return nil, err
	}
	dir := cmp.Or(conf.DaemonSocketDir, multinet.DefaultSocketDir)
	if !filepath.IsAbs(dir) {
		return nil, c.Invalid("daemonSocketDir", errors.New("not an absolute path"))
	}
	client := &shim.Client{Socket: filepath.Join(dir, multinet.SocketName), Env: c.System.Env, Stdout: c.System.Stdout}
	if conf.DelPolicy != "" && conf.QueuePolicy != "" && conf.DelPolicy != conf.QueuePolicy {
		return nil, c.Invalid("delPolicy", errors.New("another name of the key queuePolicy, with another value"))
	}
	away := daemonless{multinet.New(multinet.Cluster{}), c.System}
	switch policy := cmp.Or(conf.QueuePolicy, conf.DelPolicy); policy {
	case "", "queue":
		client.Recorded = away.recorded
		if policy == "" {
			client.Away = away.del
		}
		if conf.DelQueueWait != "" {
			wait, err := time.ParseDuration(conf.DelQueueWait)
			if err != nil || wait < 0 {
				return nil, c.Invalid("delQueueWait", errors.New("not a duration such as \"2s\""))
			}
			client.QueueWait = cmp.Or(wait, -1) // 0 means the default
		}
		if client.Queue, err = plugin.CheckStateDir(cmp.Or(conf.DelQueueDir, multinet.DefaultQueueDir)); err != nil {
			return nil, c.Invalid("delQueueDir", err)
		}
	case "exec":
		client.Away = func(ctx context.Context, args *skel.CmdArgs) (bool, error) {
			return true, away.Do(ctx, c.System, delegate.CommandDel, *args)
		}
	case "fail":
	default:
		return nil, c.Invalid("queuePolicy", errors.New(`want "queue", "exec" or "fail"`))
	}
	return client, nil
}
