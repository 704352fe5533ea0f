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

// adopter takes over what is attached to the network that the daemon publishes
// its own in front of. Others keep their records where the node has them.
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

// publishedStateDir is where the records are of requests that come with the
// published configuration.
func (d *daemon) publishedStateDir() string {
	if dir, err := multinet.StateDir(d.conf.root(), d.publishedConf()); err == nil {
		return dir
	}
	return d.stateDir
}

// publishedConf is the configuration that such requests have here: the file's word is
// the last.
func (d *daemon) publishedConf() []byte {
	conf := make(map[string]json.RawMessage)
	data, _ := json.Marshal(d.manager.Template) // raw values that have been read
	for _, keys := range [][]byte{data, d.conf.override} {
		_ = json.Unmarshal(keys, &conf) // made by this program, or nil
	}
	data, _ = json.Marshal(conf)
	return data
}

// logAdopted writes what has become of an attachment that others had made.
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
