package tool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/metacni/metacni/delegate/adopt"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/examples/multinet/publish"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/autoconf"
	"github.com/metacni/metacni/scratch"
)

func (i *installer) uninstallFlags() {
	i.flags.BoolVar(&i.binary, "binary", false, "also remove the program")
	i.text(&i.dir, "dir", "", "state `directory` of the plugin (default: that of the published network)")
	i.text(&i.name, "name", "", "`name` of the network (default: that of the published network)")
	i.flags.BoolVar(&i.detach, "detach", false, "detach all networks except the cluster network, and give that one back to the runtime")
	i.flags.BoolVar(&i.leave, "leave", false, "leave containers attached, for a later installation")
	i.flags.Func("cache-dir", "cache `directory` of the runtime's libcni; may be repeated (default "+multinet.DefaultCacheDir+")", func(dir string) error {
		i.cacheDirs = append(i.cacheDirs, dir)
		return nil
	})
	i.text(&i.node.MultusDir, "multus-dir", "", "state `directory` of Multus (cniDir), to give containers back to Multus")
}

// checkDirs fails unless the directories exist to which containers are given back: in a
// directory that nobody reads they would be forgotten. The usual ones may be missing.
func (i *installer) checkDirs() error {
	check := func(name, dir, usual string) error {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("--%s %s: not an absolute path", name, dir)
		}
		return existing(name, dir, usual)
	}
	for _, dir := range i.cacheDirs {
		if err := check("cache-dir", dir, multinet.DefaultCacheDir); err != nil {
			return err
		}
	}
	if i.node.MultusDir != "" {
		if err := check("multus-dir", i.node.MultusDir, multinet.DefaultMultusDir); err != nil {
			return err
		}
	}
	if i.detach {
		return existing("conf-dir", i.confDir, publish.ConfDir)
	}
	return nil
}

// uninstall removes the published network and, as the flags say, attachments and the
// program.
func (i *installer) uninstall(ctx context.Context) error {
	if err := plainName("type", i.typ); err != nil {
		return err
	}
	if i.detach && (i.leave || i.binDir == "") {
		return errors.New("--detach goes neither with --leave nor without plugins in --bin-dir")
	}
	if err := i.checkDirs(); err != nil {
		return err
	}
	m, err := publisher(i.confDir, i.output, i.typ)
	if err != nil {
		return err
	}
	m.OwnTypes = nil // do not remove networks of other types
	life, name, err := i.records(ctx, m)
	if err != nil {
		return err
	}
	attached, err := attachedTo(ctx, life, name)
	if !i.detach && !i.leave && (len(attached) > 0 || err != nil) {
		return errors.Join(err, fmt.Errorf(`%s: nothing has been changed; use --detach to detach all networks except the cluster network, or --leave to leave them attached`, count(attached)))
	}
	if i.detach {
		if err := i.unpublished(name, len(attached) > 0); err != nil {
			return fmt.Errorf("nothing has been changed: %w", err)
		}
	}
	if err := publish.Uninstall(m); err != nil {
		return err
	}
	for _, ext := range []string{".conf", ".conflist"} {
		if _, err := os.Lstat(m.Output + ext); err == nil {
			i.say("%q is not of type %q and stays", m.Output+ext, i.typ)
		}
	}
	if i.detach {
		if err := i.release(ctx, life, name); err != nil {
			return err
		}
	}
	if !i.binary || i.binDir == "" {
		return nil
	}
	return publish.RemoveProgram(filepath.Join(i.binDir, i.typ))
}

// records returns the Manager of the records, and the name of the network that has them.
// It fails if --name or --dir differs from the published network and containers would be
// forgotten.
func (i *installer) records(ctx context.Context, m *autoconf.Manager) (*lifecycle.Manager, string, error) {
	name, dir := ours(m)
	if _, ok := publish.Published(m); ok {
		if i.name != "" && i.name != name {
			return nil, "", fmt.Errorf("the published network has the name %q: leave out --name %s", name, i.name)
		}
		if kept, _ := attachedTo(ctx, &lifecycle.Manager{Dir: dir}, name); i.dir != "" && len(kept) > 0 && !sameFile(dir, i.dir) {
			return nil, "", fmt.Errorf("the published network has its records in %s: leave out --dir %s", dir, i.dir)
		}
	}
	return i.process.NewManager(cmp.Or(i.dir, dir), i.typ, []string{i.binDir}), cmp.Or(i.name, name), nil
}

// sameFile reports whether two paths are of one file.
func sameFile(a, b string) bool {
	x, err := os.Stat(a)
	y, err2 := os.Stat(b)
	return err == nil && err2 == nil && os.SameFile(x, y)
}

// unpublished fails if the network name would stay published, because of a wrong or
// forgotten flag: the plugin would go on to receive the DELs of containers that it has
// given back. If there are such containers, the directory must have a network for them.
func (i *installer) unpublished(name string, attached bool) error {
	found := false
	for f, err := range netconf.Files(os.DirFS(i.confDir), nil) {
		if f.Name == "" {
			break // it cannot be listed
		}
		found = true
		ext := filepath.Ext(f.Name)
		atOutput := f.Name == i.output+ext && ext != ".json"
		runs := func(types ...string) bool {
			return slices.ContainsFunc(f.Network.Plugins(), func(p netconf.Plugin) bool { return slices.Contains(types, p.Type()) })
		}
		switch path := filepath.Join(i.confDir, f.Name); {
		case err != nil || atOutput && runs(i.typ):
		case atOutput:
			return fmt.Errorf("%s is not of type %q and would stay: --type must be the type in it, %q", path, i.typ, f.Network.Plugins()[0].Type())
		case f.Network.Name() == name && runs("multinet", "multinet-shim", i.typ):
			return fmt.Errorf("%s publishes the network %q and would stay: --output must be its name, and --type the type in it, %q", path, name, f.Network.Plugins()[0].Type())
		}
	}
	if attached && !found {
		return fmt.Errorf("there is no network in %s: --conf-dir must be the runtime's directory", i.confDir)
	}
	return nil
}

// release gives each container of the network name back to the runtime, also those
// that are added meanwhile. It may be repeated.
func (i *installer) release(ctx context.Context, life *lifecycle.Manager, name string) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	dirs := i.cacheDirs
	if dirs == nil {
		dirs = []string{multinet.DefaultCacheDir}
	}
	keep := adopt.GiveBack(dirs...)
	if i.node.MultusDir != "" {
		keep = adopt.GiveBackToMultus(i.node.MultusDir, dirs...)
	}
	tried := make(map[scratch.Key]bool)
	var left []lifecycle.Record
	var errs []error
	attached, err := attachedTo(ctx, life, name)
	for len(attached) > 0 {
		for _, r := range attached {
			tried[r.Key] = true
			if err := life.Release(ctx, r.Key, keep); err != nil {
				left, errs = append(left, r), append(errs, err)
			}
		}
		attached, err = attachedTo(ctx, life, name)
		attached = slices.DeleteFunc(attached, func(r lifecycle.Record) bool { return tried[r.Key] })
	}
	i.say("%d attachments were given back to the runtime, or removed", len(tried)-len(left))
	if err = errors.Join(append(errs, err)...); err != nil {
		err = fmt.Errorf("%w\n%s: run uninstall again with --dir %s --name %s", err, count(left), life.Dir, name)
	}
	return err
}

// attachedTo returns the records of the network name, and the errors of records that
// cannot be read.
func attachedTo(ctx context.Context, life *lifecycle.Manager, name string) ([]lifecycle.Record, error) {
	var all []lifecycle.Record
	var errs []error
	for r, err := range life.Records(ctx) {
		errs = append(errs, err)
		if err == nil && r.Key.Network == name {
			all = append(all, r)
		}
	}
	return all, errors.Join(errs...)
}

// count says how many containers of rs are attached, and of how many that are gone
// something is left.
func count(rs []lifecycle.Record) string {
	there, left := make(map[string]bool), make(map[string]bool)
	for _, r := range rs {
		if gone(r) {
			left[r.Key.ContainerID] = true
		} else {
			there[r.Key.ContainerID] = true
		}
	}
	var parts []string
	switch n := len(there); {
	case n == 1:
		parts = append(parts, "1 container is still attached")
	case n > 1 || len(left) == 0:
		parts = append(parts, fmt.Sprintf("%d containers are still attached", n))
	}
	switch n := len(left); {
	case n == 1:
		parts = append(parts, "1 container is gone but not completely detached (see multinet gc)")
	case n > 1:
		parts = append(parts, fmt.Sprintf("%d containers are gone but not completely detached (see multinet gc)", n))
	}
	return strings.Join(parts, ", ")
}

// gone reports whether the container of r is gone, or its DEL could not remove all of it.
func gone(r lifecycle.Record) bool {
	ended := !r.State.Attached() && r.State != scratch.Planned
	r.State = scratch.Added // of which only a container that is gone makes a stale record
	return ended || r.Stale()
}
