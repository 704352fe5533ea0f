package main

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"

	"github.com/metacni/metacni/delegate/adopt"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/examples/multinet/publish"
)

// adopter returns what takes over the attachments of the primary network. The
// directories of the runtime and of Multus are the node's.
func (d *daemon) adopter(ctx context.Context) *publish.Adopter {
	p := d.conf.publish
	return &publish.Adopter{
		Publisher: d.manager,
		Life:      &lifecycle.Manager{Dir: d.publishedStateDir(), Root: d.conf.ChrootDir},
		Node: adopt.Node{
			Root:      d.conf.ChrootDir,
			CacheDir:  d.conf.root().OnNode(cmp.Or(p.CacheDir, adopt.DefaultCacheDir)),
			MultusDir: d.conf.root().OnNode(cmp.Or(p.MultusDir, adopt.DefaultMultusDir)),
		},
		Tell: func(o adopt.Outcome) { logAdopted(ctx, d.log, o) },
	}
}

// publishedStateDir returns the directory with the records of requests that have
// the published configuration.
func (d *daemon) publishedStateDir() string {
	if dir, err := multinet.StateDir(d.conf.root(), d.publishedConf()); err == nil {
		return dir
	}
	return d.stateDir
}

// publishedConf returns the configuration of such requests, with the override of
// the file.
func (d *daemon) publishedConf() []byte {
	conf := make(map[string]json.RawMessage)
	data, _ := json.Marshal(d.manager.Template) // raw values that were decoded
	for _, keys := range [][]byte{data, d.conf.override} {
		_ = json.Unmarshal(keys, &conf) // made by this program, or nil
	}
	data, _ = json.Marshal(conf)
	return data
}

// logAdopted logs whether an attachment made by others was taken over.
func logAdopted(ctx context.Context, log *slog.Logger, o adopt.Outcome) {
	if o.Verdict == adopt.Skipped {
		log.LogAttrs(ctx, slog.LevelWarn, "attachment not taken over", slog.Any("error", o.Err))
		return
	}
	var networks []string
	for _, a := range o.Adoption.Attached {
		networks = append(networks, a.Network.Name())
	}
	k := o.Adoption.Key
	log.LogAttrs(ctx, slog.LevelInfo, "attachment taken over", slog.String("container", k.ContainerID), slog.String("network", k.Network),
		slog.String("ifname", k.IfName), slog.Any("networks", networks), slog.Bool("gone", o.Adoption.Gone))
}
