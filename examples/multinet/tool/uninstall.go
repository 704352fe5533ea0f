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
	"syscall"

	"github.com/metacni/metacni/delegate/adopt"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/multinet/publish"
	"github.com/metacni/metacni/scratch"
)

func (i *installer) uninstallFlags() {
	i.flags.BoolVar(&i.binary, "binary", false, "also remove the program")
	i.text(&i.dir, "dir", "", "state `directory` of the plugin (default: that of the published network)")
	i.text(&i.name, "name", "", "`name` of the network (default: that of the published network)")
	i.flags.BoolVar(&i.detach, "detach", false, "detach all networks except the cluster network, and give that one back to the runtime")
	i.flags.BoolVar(&i.leave, "leave", false, "leave containers attached, for a later installation")
	i.flags.Func("cache-dir", "cache `directory` of the runtime's libcni; may be repeated (default "+adopt.DefaultCacheDir+")", func(dir string) error {
		if !filepath.IsAbs(dir) {
			return errors.New("not an absolute path")
		}
		i.cacheDirs = append(i.cacheDirs, dir)
		return nil
	})
	i.text(&i.node.MultusDir, "multus-dir", "", "state `directory` of Multus (cniDir), to give containers back to Multus")
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
	m, err := publisher(i.confDir, i.output, i.typ)
	if err != nil {
		return err
	}
	m.OwnTypes = nil // do not remove networks of other types
	name, dir := ours(m)
	life := i.process.NewManager(cmp.Or(i.dir, dir), i.typ, []string{i.binDir})
	attached, err := attachedTo(ctx, life, cmp.Or(i.name, name))
	if !i.detach && !i.leave && (len(attached) > 0 || err != nil) {
		return errors.Join(err, fmt.Errorf(`%s still attached, nothing has been changed: use --detach to detach all networks except the cluster network, or --leave to leave them attached`, count(attached)))
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
		if err := i.release(ctx, life, cmp.Or(i.name, name)); err != nil {
			return err
		}
	}
	if !i.binary || i.binDir == "" {
		return nil
	}
	return publish.RemoveProgram(filepath.Join(i.binDir, i.typ))
}

// release gives each container of the network name back to the runtime, also those
// that are added meanwhile. It may be repeated.
func (i *installer) release(ctx context.Context, life *lifecycle.Manager, name string) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	dirs := i.cacheDirs
	if dirs == nil {
		dirs = []string{adopt.DefaultCacheDir}
	}
	keep := adopt.GiveBack(dirs...)
	if i.node.MultusDir != "" {
		toRuntime, toMultus := keep, adopt.GiveBackToMultus(i.node.MultusDir)
		keep = func(ctx context.Context, r lifecycle.Record) error {
			return errors.Join(toRuntime(ctx, r), toMultus(ctx, r))
		}
	}
	tried := make(map[scratch.Key]bool)
	var left []scratch.Key
	var errs []error
	attached, err := attachedTo(ctx, life, name)
	for len(attached) > 0 {
		for _, k := range attached {
			tried[k] = true
			if err := life.Release(ctx, k, keep); err != nil {
				left, errs = append(left, k), append(errs, err)
			}
		}
		attached, err = attachedTo(ctx, life, name)
		attached = slices.DeleteFunc(attached, func(k scratch.Key) bool { return tried[k] })
	}
	i.say("%d attachments were given back to the runtime, or removed", len(tried)-len(left))
	if err = errors.Join(append(errs, err)...); err != nil {
		err = fmt.Errorf("%w\n%s still attached: run uninstall again with --dir %s --name %s", err, count(left), life.Dir, name)
	}
	return err
}

// attachedTo returns the keys of the records of the network name, and the errors of
// records that cannot be read.
func attachedTo(ctx context.Context, life *lifecycle.Manager, name string) ([]scratch.Key, error) {
	var keys []scratch.Key
	var errs []error
	for r, err := range life.Records(ctx) {
		switch {
		case err != nil:
			errs = append(errs, err)
		case r.Key.Network == name:
			keys = append(keys, r.Key)
		}
	}
	return keys, errors.Join(errs...)
}

// count returns how many containers are in keys, as the beginning of a sentence.
func count(keys []scratch.Key) string {
	ids := make([]string, len(keys))
	for i, k := range keys {
		ids[i] = k.ContainerID
	}
	slices.Sort(ids)
	if ids = slices.Compact(ids); len(ids) == 1 {
		return "1 container is"
	}
	return fmt.Sprintf("%d containers are", len(ids))
}
