package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/metacni/metacni/delegate/adopt"
	"github.com/metacni/metacni/delegate/lifecycle"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/examples/multinet/publish"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/autoconf"
)

// checkPublishing refuses what cannot be published, and sets defaults.
func (c *config) checkPublishing() error {
	p := &c.publish
	switch p.File {
	case "":
		c.ignore(p.keys())
		*p = publishing{request: c.multinet(), stateDir: c.stateDir}
		return nil
	case "auto":
	default:
		return fmt.Errorf(`multusConfigFile %q: want "auto", or no such key`, p.File)
	}
	p.From, p.Output = cmp.Or(p.From, p.Dir), cmp.Or(p.Output, publish.Output)
	if !publish.PlainName(p.Output) {
		return fmt.Errorf("output %q is not the name of a file", p.Output)
	}
	network, _ := netconf.Decode[map[string]json.RawMessage](p.Network) // makeTemplate reports errors
	for _, key := range append(slices.Sorted(maps.Keys(c.override)), slices.Sorted(maps.Keys(network))...) {
		if strings.EqualFold(key, "delegates") || strings.EqualFold(key, "clusterNetwork") {
			return fmt.Errorf("%s cannot be set with multusConfigFile, which makes the first network in %s the cluster network: remove %[1]s, and set multusMasterCNI to the name of another file there to choose it", key, c.root().OnNode(p.From))
		}
	}
	if err := c.makeTemplate(); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	return nil
}

// makeTemplate makes the plugin to publish. It refuses a plugin whose requests
// would all fail, and one whose shims would use another socket or queue than the daemon.
func (c *config) makeTemplate() error {
	p := &c.publish
	edits := []netconf.Edit{
		netconf.Forbid("type"),
		netconf.Set("type", shimType),
		netconf.Default("name", cmp.Or(p.Name, publish.Network)),
	}
	if p.Capabilities != nil {
		edits = append(edits, netconf.Default("capabilities", p.Capabilities))
	}
	edits = append(edits, publish.Annotations(), publish.RuntimeConfDir(c.root().OnNode(p.Dir)))
	if p.CacheDir != "" {
		edits = append(edits, netconf.Default("cniCacheDir", c.root().OnNode(p.CacheDir)))
	}
	edits = append(edits, c.follows("daemonSocketDir", "socketDir", c.SocketDir, multinet.DefaultSocketDir))
	if c.QueueDir == "" {
		edits = append(edits, withoutQueue)
	} else {
		edits = append(edits, c.follows("delQueueDir", "queueDir", c.QueueDir, multinet.DefaultQueueDir))
	}
	template, err := netconf.ParsePlugin([]byte(cmp.Or(string(p.Network), "{}")))
	if err == nil {
		p.template, err = template.Edit(edits...)
	}
	if err != nil {
		return err
	}
	request, err := p.template.Edit(c.replace)
	if err != nil {
		return err
	}
	var keys struct {
		Name        string `json:"name"`
		QueuePolicy string `json:"queuePolicy"`
		DelPolicy   string `json:"delPolicy"`
	}
	if err := request.Decode(&keys); err != nil {
		return err
	}
	if c.QueueDir == "" && (keys.QueuePolicy == "queue" || keys.DelPolicy == "queue") {
		return errors.New("queuePolicy is \"queue\", but the queueDir of the daemon is empty")
	}
	p.network = keys.Name
	p.request, _ = json.Marshal(request) // raw values that have been read
	p.stateDir, err = multinet.StateDir(c.root(), p.request)
	return err
}

// follows is a [netconf.Edit] that gives a key of the shim the directory dir, the value of the
// daemon's own key, unless it is the default. It fails if the user has set another directory.
func (c *config) follows(key, own, dir, byDefault string) netconf.Edit {
	return func(keys map[string]json.RawMessage) error {
		value := c.root().OnNode(dir)
		if text, ok := keys[key]; ok {
			var given string
			err := json.Unmarshal(text, &given)
			if err == nil { // links of the node count, as for the daemon's own key
				given, err = c.root().Resolve(filepath.Clean(given))
			}
			if err != nil || given != dir {
				return fmt.Errorf("%s is %s, but the %s of the daemon is %q", key, text, own, value)
			}
		} else if value != byDefault {
			keys[key], _ = json.Marshal(value) // a string
		}
		return nil
	}
}

// withoutQueue is a [netconf.Edit] for shims of a daemon without a queue: unless the user
// says otherwise, their DELs fail while the daemon is away.
func withoutQueue(keys map[string]json.RawMessage) error {
	if keys["queuePolicy"] == nil && keys["delPolicy"] == nil {
		keys["queuePolicy"] = json.RawMessage(`"fail"`)
	}
	return nil
}

// settled is how long after it is ready the daemon gives back the memory of its start: the
// definitions have been read by then.
const settled = 10 * time.Second

// manager returns the publisher of the network, or nil if none is published.
func (c *config) manager() *autoconf.Manager {
	if c.publish.File == "" {
		return nil
	}
	onNode := c.root().OnNode
	m := publish.Manager(onNode(c.publish.From), filepath.Join(onNode(c.publish.Dir), c.publish.Output), c.publish.template)
	m.Root, m.Primary, m.Ready = c.ChrootDir, c.publish.Primary, onNode(c.publish.Ready)
	return m
}

// adopter returns an Adopter. It takes over containers that the runtime or Multus
// has attached to the primary network, whose records are in the root of the node.
func (d *service) adopter(ctx context.Context) *publish.Adopter {
	p := d.conf.publish
	return &publish.Adopter{
		Publisher: d.manager,
		Life:      &lifecycle.Manager{Dir: p.stateDir, Root: d.conf.ChrootDir},
		Node: adopt.Node{
			Root:      d.conf.ChrootDir,
			CacheDir:  d.conf.root().OnNode(cmp.Or(p.CacheDir, multinet.DefaultCacheDir)),
			MultusDir: d.conf.root().OnNode(cmp.Or(p.MultusDir, multinet.DefaultMultusDir)),
		},
		Tell: func(o publish.Outcome) { o.Log(ctx, d.log) },
	}
}

// announce publishes the network once ADDs can be served, and notifies the service manager that
// the daemon is ready, or why the network is not published. Then it keeps the network in step with
// the primary network, and takes over containers. It returns when ctx ends, or when the network
// cannot be published. The published file stays: without it pods would silently get other networks.
func (d *service) announce(ctx context.Context, notify func(state string)) error {
	if !d.waitReady(ctx, notify) {
		return nil
	}
	ready := sync.OnceFunc(func() {
		d.log.LogAttrs(ctx, slog.LevelInfo, "ready")
		d.cluster.Ready()
		notify("READY=1")
		notify("STATUS=ready")
		time.AfterFunc(settled, debug.FreeOSMemory)
	})
	if d.manager == nil {
		ready()
		<-ctx.Done()
		return nil
	}
	return d.adopter(ctx).Follow(ctx, func(s autoconf.State) {
		publish.LogState(ctx, d.log, s)
		if s.Degraded != nil {
			notify("STATUS=" + s.Degraded.Error())
		}
		if s.Published != "" {
			ready()
		}
	})
}
