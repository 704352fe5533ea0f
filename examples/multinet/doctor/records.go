package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/metacni/metacni/delegate/adopt"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/thick/wire"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/examples/multinet/publish"
	"github.com/metacni/metacni/scratch"
)

// inTime is how long an ADD or a DEL may run, and how far a record may be of the future.
const inTime = 5 * time.Minute

// A judged record, and what is known of its container.
type judged struct {
	lifecycle.AddRecord

	life lifecycle.Judgement
}

// lookAtRecords looks for damaged records, and for those of containers that are dead.
func (n *Node) lookAtRecords(ctx context.Context) {
	forget := "; if that never succeeds, clean up, then " + n.tool("forget CONTAINER")
	sweep := "run " + n.tool("gc --bin-dir "+n.BinDir) + ", which says why if it cannot remove them"
	if n.Daemon {
		sweep = "see the log of multinetd, which tries each minute to remove them"
	}
	var damaged, dead, leftover, future []string
	var all []lifecycle.AddRecord
	n.recorded = make(map[string]bool)
	life := &lifecycle.Manager{Dir: n.StateDir, Root: string(n.root)}
	for r, err := range life.Records(ctx) {
		switch {
		case r.Key == scratch.Key{}:
			n.fail(n.StateDir, err)
			n.recorded = nil
			return
		case err != nil:
			damaged = append(damaged, r.Key.ContainerID)
		case r.Refused: // it has no attachment
			continue
		default:
			all = append(all, r)
		}
		n.recorded[r.Key.ContainerID+"/"+r.Key.IfName] = true
		n.recorded[r.Key.ContainerID] = true
	}
	for i, j := range life.Judge(all) {
		r := all[i]
		n.judged = append(n.judged, judged{r, j})
		switch id, age := r.Key.ContainerID, time.Since(r.Updated); {
		case age < -inTime:
			future = append(future, id)
		case r.State == scratch.Leftover || len(r.Leftovers) > 0:
			leftover = append(leftover, id)
		case j.Life == lifecycle.Dead || r.Unfinished() && age > inTime:
			dead = append(dead, id)
		}
	}
	n.list(n.StateDir, damaged, "records that cannot be read", "see "+n.tool("damaged")+"; clean up, then "+n.tool("forget CONTAINER"))
	n.list(n.StateDir, dead, "records of containers that are dead, or half attached", sweep+forget)
	n.list(n.StateDir, leftover, "records with something left of an ADD that failed", sweep+forget)
	n.list(n.StateDir, future, "records of the future: the clock has been set back", "set the clock; until then a GC keeps them")
}

// lookAtShared says which networks others may have attachments to.
func (n *Node) lookAtShared(ctx context.Context) {
	conf, _ := n.plugin.MarshalJSON() // it has been read
	why := multinet.Sharing(ctx, n.root, conf, n.StateDir)
	names := []string{}
	if n.noCluster == nil {
		names = append(names, n.cluster.Network.Name())
	}
	for _, j := range n.judged {
		for _, a := range j.Attached {
			names = append(names, a.Network.Name())
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if text := why(name); text != "" {
			n.say(OK, n.StateDir, fmt.Sprintf("a GC does not tell the plugins of network %q which attachments are valid: %s", name, text), "")
		}
	}
}

// lookAtCache looks in the cache of the runtime's libcni for containers without a record. Nobody
// knows which of them live.
func (n *Node) lookAtCache() {
	dir := filepath.Join(n.CacheDir, "results")
	if n.recorded == nil {
		n.say(Unknown, dir, "not compared with the records, which cannot be read", "see there")
		return
	}
	others := adopt.Node{Root: string(n.root), Network: cmp.Or(n.ours.Name(), publish.Network), Primary: publish.Primaries(n.Publisher), CacheDir: n.root.OnNode(n.CacheDir)}
	if !n.ours.IsZero() {
		others.Primary = append(others.Primary, others.Network)
	}
	var damaged, ours, cluster []string
	for a, err := range others.Attachments() {
		switch id := a.Key.ContainerID; {
		case errors.Is(err, fs.ErrPermission):
			n.fail(dir, err)
		case err != nil:
			damaged = append(damaged, err.Error())
		case n.recorded[id+"/"+a.Key.IfName]:
		case a.Attached[0].Network.Name() == others.Network:
			ours = append(ours, id)
		case !n.ours.IsZero():
			cluster = append(cluster, id)
		}
	}
	n.list(dir, damaged, "entries that cannot be read", "delete the pods of these containers")
	n.list(dir, ours, "containers of multinet without a record", "delete these pods, if the runtime has them; what their plugins have made may stay")
	take := "run " + n.tool("adopt --conf-dir "+n.dir+" --cache-dir "+n.CacheDir)
	if n.Daemon {
		take = "see the log of multinetd, which tries each minute to take them over"
	}
	n.list(dir, cluster, "containers of the cluster network without a record", take)
}

// gone reports whether nothing is at a path of the node, for certain: its directory is there.
func (n *Node) gone(path string) bool {
	_, err := stat(n.RuntimeRoot, path)
	_, unseen := stat(n.RuntimeRoot, filepath.Dir(path))
	return path != "" && errors.Is(err, fs.ErrNotExist) && unseen == nil
}

// lookAtDaemon asks the daemon whether it is ready, and looks at its queue of DELs.
func (n *Node) lookAtDaemon() {
	const wait = 5 * time.Second
	socket := filepath.Join(n.SocketDir, multinet.SocketName)
	path, _ := n.root.Resolve(socket) // else there is no socket
	status, why, err := multinet.AskDaemon(path, wire.PathReady, wait)
	var info struct{ Version string }
	if err == nil {
		_, answer, _ := multinet.AskDaemon(path, "/info", wait)
		_ = json.Unmarshal(answer, &info) // of another program it has no version
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		n.fail(socket, err)
	case err != nil:
		n.say(Problem, socket, err.Error(), "start multinetd, or see its log")
	case info.Version == "":
		n.say(Problem, socket, "another program answers there, such as Multus", "stop it, or choose another socketDir")
	case status != 200:
		n.say(Problem, socket, fmt.Sprintf("not ready: %.400s", why), "see the log of multinetd")
	case info.Version != n.Version:
		n.say(Problem, socket, fmt.Sprintf("multinetd is of version %s, this program of %s", info.Version, n.Version), "install the same version of all")
	}
	if n.QueueDir == "" {
		return
	}
	damaged, _ := fs.Glob(n.root.Dir(n.root.OnNode(n.QueueDir)), "*.corrupt")
	n.list(n.QueueDir, damaged, "queued DELs that cannot be read", "see the log of multinetd, and remove them")
	if waiting, _ := fs.Glob(n.root.Dir(n.root.OnNode(n.QueueDir)), "*.json"); err != nil {
		n.list(n.QueueDir, waiting, "queued DELs", "start multinetd, which runs them")
	}
}

// lookAtVersion looks for the version that the go command has written into our program. Package
// debug/buildinfo would make the program larger by 8 %.
func (n *Node) lookAtVersion() {
	const largest = 64 << 20
	for _, dir := range append(n.pluginDirs, n.BinDir) {
		path := filepath.Join(dir, n.plugin.Type())
		info, err := stat(n.root, path)
		if err != nil || !info.Mode().IsRegular() || info.Size() > largest {
			continue // lookAtPlugins says so
		}
		program, _ := fs.ReadFile(n.root.Dir(dir), n.plugin.Type())
		version := regexp.MustCompile(`\nmod\t[a-z./-]+/metacni\S*\t(\S+)`).FindSubmatch(program)
		if version != nil && string(version[1]) != n.Version {
			n.say(Problem, path, fmt.Sprintf("is of version %s, this program of %s", version[1], n.Version), "install the same version of all")
		}
		return
	}
}
